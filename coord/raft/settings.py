"""Timing and bounds of a Raft core."""

from __future__ import annotations


class RaftConfig:
    """Bounds and timing of one core. Ticks are the shell's (50 ms in the store)."""

    def __init__(
        self,
        election_ticks: int = 12,
        heartbeat_ticks: int = 1,
        max_inflight: int = 64,
        max_inflight_bytes: int = 8 << 20,
        max_append_bytes: int = 1 << 20,
        max_apply_entries: int = 256,
    ) -> None:
        assert heartbeat_ticks >= 1, heartbeat_ticks
        assert election_ticks > 2 * heartbeat_ticks, "one lost heartbeat must not start an election"
        assert max_inflight >= 1, max_inflight
        assert max_inflight_bytes >= 1, max_inflight_bytes
        assert max_append_bytes >= 1, max_append_bytes
        assert max_apply_entries >= 1, max_apply_entries
        #: A follower stands for election after election_ticks .. 2*election_ticks-1 ticks of silence; a leader that has
        #: not heard from a majority for election_ticks steps down.
        self.election_ticks: int = election_ticks
        self.heartbeat_ticks: int = heartbeat_ticks
        #: Appends, and bytes in them, on their way to one peer without an answer.
        self.max_inflight: int = max_inflight
        self.max_inflight_bytes: int = max_inflight_bytes
        #: Bytes of entries in one append; a single larger entry travels alone.
        self.max_append_bytes: int = max_append_bytes
        #: Committed entries in one Ready.
        self.max_apply_entries: int = max_apply_entries
