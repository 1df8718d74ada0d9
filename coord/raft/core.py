"""The consensus core: skeleton of the public interface, bodies follow."""

from __future__ import annotations

from coord.env import Rng
from coord.raft.membership import Configuration
from coord.raft.messages import NORMAL, Entry, HardState, Message, Ready, SnapshotMeta


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
        #: A follower stands for election after election_ticks .. 2*election_ticks-1 ticks of silence; a leader that
        #: has not heard from a majority for election_ticks steps down.
        self.election_ticks: int = election_ticks
        self.heartbeat_ticks: int = heartbeat_ticks
        #: Appends, and bytes in them, on their way to one peer without an answer.
        self.max_inflight: int = max_inflight
        self.max_inflight_bytes: int = max_inflight_bytes
        #: Bytes of entries in one append; a single larger entry travels alone.
        self.max_append_bytes: int = max_append_bytes
        #: Committed entries in one Ready.
        self.max_apply_entries: int = max_apply_entries


class RaftCore:
    """One member of one Raft group. See the package docstring for how to drive it."""

    def __init__(
        self,
        node_id: int,
        config: RaftConfig,
        rng: Rng,
        snapshot: SnapshotMeta,
        hard_state: HardState | None = None,
        entries: list[Entry] | None = None,
    ) -> None:
        """Start from what the disk holds.

        `snapshot`: the newest durable one, or `bootstrap(voters, learners)` for a new node; the state machine is at
        `snapshot.index`. `entries`: the durable log, contiguous; it may begin before `snapshot.index` (kept for slow
        peers) and is dropped where the snapshot contradicts it. The first committed entry handed out is
        `snapshot.index + 1`.
        """
        raise NotImplementedError

    # --- input

    def step(self, m: Message) -> None:
        """Take a message from a peer (src is authenticated by the shell). Stale and repeated ones are harmless."""
        raise NotImplementedError

    def tick(self) -> None:
        """One tick has passed."""
        raise NotImplementedError

    def propose(self, data: bytes, kind: int = NORMAL) -> int:
        """Append `data` and return its index; it commits if this term's leadership lasts.

        Raises: NotLeader(hint); ProposalDropped while leadership is being handed over. Nothing was appended then.
        """
        raise NotImplementedError

    def propose_config(self, config: Configuration) -> int:
        """Append a new configuration, in force at once, and return its index. Dissertation §4.1.

        Raises: NotLeader; ProposalDropped when `config` is no single step, another change is not committed yet, or no
        entry of this term is.
        """
        raise NotImplementedError

    def transfer_leadership(self, to: int) -> None:
        """Bring `to` up to date and let it stand for election at once; given up after an election timeout.
        Dissertation §3.10.

        Proposals are refused meanwhile. Raises: NotLeader; ProposalDropped when `to` is no other voter.
        """
        raise NotImplementedError

    def read_index(self, context: int) -> None:
        """Ask for the index a linearizable read must wait for; comes back as `ReadState(context, index)`.
        Dissertation §6.4.

        On a follower the leader is asked; that message may be lost, so ask again after a while and whenever
        `Ready.changed`. `context` must not be reused over restarts of the node. Raises: NotLeader(0) when no leader
        is known.
        """
        raise NotImplementedError

    def peer_down(self, peer: int) -> None:
        """The shell saw the connection to `peer` break. If it is the leader, this node stands for election within
        1..4 ticks (pre-vote protects a leader that lives); if this node leads, whatever was on its way to `peer`
        counts as lost."""
        raise NotImplementedError

    # --- disk

    def persisted(self, number: int) -> None:
        """Everything of Ready `number` and of all before it is durable."""
        raise NotImplementedError

    def snapshot_meta(self, index: int) -> SnapshotMeta:
        """Term and configuration at `index` (applied, not compacted): what a snapshot taken there must carry."""
        raise NotImplementedError

    def snapshot_saved(self, meta: SnapshotMeta) -> None:
        """A snapshot is durable and may be offered to peers that are behind the log."""
        raise NotImplementedError

    def compacted(self, index: int) -> None:
        """Forget entries up to `index` (at or below the newest saved snapshot); keep some behind it for slow peers."""
        raise NotImplementedError

    def snapshot_status(self, peer: int, ok: bool) -> None:
        """How the transfer to `peer` that a SNAPSHOT message began has ended. Must be called for each one."""
        raise NotImplementedError

    # --- output

    def has_ready(self) -> bool:
        """Whether `ready` would hand out anything."""
        raise NotImplementedError

    def ready(self) -> Ready:
        """Hand out everything there is to do; each thing once."""
        raise NotImplementedError
