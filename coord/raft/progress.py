"""Flow control between a Raft leader and one peer.

The leader keeps one Progress per peer and sends appends according to its state:

    PROBE       one append, then nothing until the peer replies to that append or to a heartbeat
    REPLICATE   pipelined appends, limited by a window of unacknowledged appends and bytes
    SNAPSHOT    nothing, until the shell reports the end of the transfer or the peer's log reaches this log

Transitions ("-": the state stays):

    event                            in PROBE         in REPLICATE      in SNAPSHOT
    append acknowledged              REPLICATE (1)    -                 REPLICATE (2)
    append rejected                  PROBE, lower     PROBE (3)         -
    heartbeat shows a shorter log    -                PROBE             -
    link broken                      -                PROBE             PROBE
    peer replies from a new memory   PROBE            PROBE             PROBE
    needed entries are compacted     SNAPSHOT (4)     SNAPSHOT (4)      -
    transfer ended                   -                -                 PROBE

    (1) unless the reply is late: below the match index
    (2) once the peer has all entries that this log has compacted
    (3) unless the rejection is late: at or below the match index
    (4) PROBE, while the log does not continue the snapshot (`RaftLog.reaches_snapshot`)

Source: etcd-io/raft tracker/progress.go; Dissertation §10.2.1 for pipelining.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from coord.raft.membership import FIRST_MEMORY

PROBE: Final = 0
REPLICATE: Final = 1
SNAPSHOT: Final = 2


class Progress:
    """The leader's state of one peer. Lives as long as one leadership, so it has no state of an older term.

    Invariant: match < next. Entries in flight lie between them; only in REPLICATE is anything in flight.
    """

    def __init__(self, peer: int, next_index: int, now: int) -> None:
        assert next_index > 0, next_index
        self.peer: int = peer
        #: The memory in the peer's replies (`membership`), -1 before its first reply.
        self.memory: int = -1
        #: False while the peer is a voter and replies from another memory than that voter's. Its acknowledgments and
        #: votes do not count then. Set by `Leadership` when the memory or the configuration changes.
        self.counts: bool = True
        #: True if the peer is a build without memories.
        self.is_old: bool = False
        #: Highest index that the peer has acknowledged, so it is durable there. Moves with each acknowledgment; falls
        #: to 0 only when the peer's disk has lost acknowledged entries.
        self.match: int = 0
        #: First index of the next append. In REPLICATE it moves when an append is sent, before the acknowledgment; in
        #: PROBE each rejection lowers it.
        self.next: int = next_index
        self.state: int = PROBE
        #: In PROBE: an append has no reply yet. The next reply of any kind, also to a heartbeat, allows another append.
        self.waiting: bool = False
        #: End of the peer's log as last reported: by an acknowledgment, or by the reply to the newest heartbeat. Below
        #: `match` only if the peer has lost entries.
        self.reported: int = 0
        #: Tick of the last message from the peer; the leader's quorum check uses it.
        self.last_received: int = now
        #: Highest commit index sent to the peer. Moves with each message that carries one; never decreases.
        self.commit_sent: int = 0
        #: Newest round of read confirmation in the peer's replies. Never decreases while the memory is the same.
        self.read_round: int = 0
        #: In SNAPSHOT: the index of the snapshot in transfer, else 0.
        self.snapshot_index: int = 0
        #: In REPLICATE: send an empty append although there is nothing new. Its reply shows whether an append was lost.
        self.wants_empty_append: bool = False
        #: Tick at which the window last moved: by a first append, an acknowledgment, or an empty append.
        self.moved: int = now
        # In flight: last index and bytes of each append, oldest first.
        self._ends: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._bytes: int = 0

    # --- identity

    def answers_from(self, memory: int, last: int) -> bool:
        """Record the memory in a reply, 0 from an old build. Return True if it has changed.

        The state of an earlier memory does not apply to this one. The leader probes for the peer's position again, from
        `last`, the end of its own log.
        """
        self.is_old = memory == 0
        memory = memory or FIRST_MEMORY
        if memory == self.memory:
            return False
        if self.memory >= 0:
            self.match = 0
            self.reported = 0
            self.read_round = 0
            self.become_probe(last + 1)
        self.memory = memory
        return True

    # --- transitions

    def become_probe(self, next_index: int) -> None:
        """Find the position at which the logs match, one append at a time. The first append ends before
        `next_index`."""
        self.state = PROBE
        self.next = max(next_index, self.match + 1)
        self.waiting = False
        self.snapshot_index = 0
        self._clear_window()

    def become_replicate(self) -> None:
        """Pipeline appends from `match` on: the logs match up to there."""
        assert self.state != REPLICATE, f"{self.peer} is replicating already"
        self.state = REPLICATE
        self.next = self.match + 1
        self.waiting = False
        self.snapshot_index = 0
        self._clear_window()

    def become_snapshot(self, index: int) -> None:
        """Send nothing until the peer has installed the snapshot at `index`: the entries that the peer needs are
        compacted."""
        assert self.state != SNAPSHOT, f"{self.peer} is receiving the snapshot at {self.snapshot_index}"
        assert index > self.match, f"snapshot at {index} for {self.peer}, which holds {self.match}"
        self.state = SNAPSHOT
        self.snapshot_index = index
        self.waiting = False
        self._clear_window()

    # --- events

    def acknowledged(self, index: int, log_offset: int, now: int) -> bool:
        """Handle an acknowledgment of everything up to `index`. Return True if `match` has moved."""
        advanced = index > self.match
        if advanced:
            self.match = index
            self.reported = max(self.reported, index)
            self.moved = now
            # In SNAPSHOT too: late acknowledgments of earlier appends may arrive during the transfer.
            self.next = max(self.next, index + 1)
        if self.state == REPLICATE:
            self._release(index)
        elif index >= self.match and (self.state == PROBE or self.match >= log_offset):
            # An acknowledgment below match is late and says nothing about the present probe.
            self.become_replicate()
        return advanced

    def rejected(self, prev_index: int, match_hint: int) -> bool:
        """Handle a rejection: the peer has no matching entry at `prev_index`. The logs may match at `match_hint`.

        Return False for a late rejection, which says nothing about the peer's present state.
        """
        if self.state == REPLICATE:
            if prev_index <= self.match:
                return False
            self.become_probe(self.match + 1)
            return True
        if self.state == SNAPSHOT or prev_index != self.next - 1:
            return False
        if prev_index <= self.match:
            if self.reported >= self.match:
                return False
            # The peer has lost acknowledged entries (a wiped disk). With the old match index it would be probed there
            # forever.
            self.match = 0
        self.become_probe(min(prev_index, match_hint + 1))
        return True

    def sent(self, last_index: int, size: int, now: int) -> None:
        """Record an append in REPLICATE that ends at `last_index` and has `size` bytes of entries."""
        assert self.state == REPLICATE, f"appends to {self.peer} are pipelined in state {self.state}"
        assert last_index >= self.next, f"an append to {self.peer} ends at {last_index}, before {self.next}"
        self.next = last_index + 1
        if not self._ends:
            self.moved = now
        self._ends.append(last_index)
        self._sizes.append(size)
        self._bytes += size

    def heartbeat_answered(self, peer_last: int, now: int, patience_ticks: int) -> bool:
        """Handle a reply to a heartbeat from a peer whose log ends at `peer_last`. Return True if a message should be
        sent now."""
        if self.state == PROBE:
            self.waiting = False
            return True
        if self.state != REPLICATE:
            return False
        if peer_last < self.match:
            self.become_probe(self.match + 1)
            return True
        if self.next > self.match + 1 and now - self.moved >= patience_ticks:
            # The acknowledgment may be late because the peer's disk is slow. An empty append costs little and shows
            # whether it is lost.
            self.wants_empty_append = True
            self.moved = now
        return self.wants_empty_append

    # --- the window

    def has_room(self, max_appends: int, max_bytes: int) -> bool:
        """Return True if another append may be sent in REPLICATE."""
        return len(self._ends) < max_appends and self._bytes < max_bytes

    def in_flight(self) -> int:
        """Return the number of unacknowledged appends."""
        return len(self._ends)

    def _release(self, index: int) -> None:
        ends = self._ends
        while ends and ends[0] <= index:
            ends.popleft()
            self._bytes -= self._sizes.popleft()

    def _clear_window(self) -> None:
        self._ends.clear()
        self._sizes.clear()
        self._bytes = 0
        self.wants_empty_append = False

    def validate(self, last: int) -> None:
        """Raise AssertionError if an invariant does not hold for a log that ends at `last`. For tests."""
        peer = self.peer
        assert self.state in (PROBE, REPLICATE, SNAPSHOT), f"{peer} is in the unknown state {self.state}"
        assert self.match < self.next, f"next of {peer} is {self.next}, its match index is {self.match}"
        assert self.match <= last, f"the match index of {peer} is {self.match}, the leader's log ends at {last}"
        assert self.next <= last + 1, f"next of {peer} is {self.next}, the leader's log ends at {last}"
        assert not self.waiting or self.state == PROBE, f"{peer} waits for a probe's answer in state {self.state}"
        assert (self.snapshot_index > 0) == (self.state == SNAPSHOT), (
            f"the snapshot at {self.snapshot_index} is in transfer to {peer} in state {self.state}"
        )
        if self.state != REPLICATE:
            assert not self._ends, f"{len(self._ends)} appends to {peer} are in flight in state {self.state}"
            assert not self.wants_empty_append, f"{peer} is to get an empty append in state {self.state}"
        assert len(self._sizes) == len(self._ends), f"{peer} has {len(self._ends)} appends, {len(self._sizes)} sizes"
        assert self._bytes == sum(self._sizes), f"{self._bytes} bytes to {peer} in flight, not {sum(self._sizes)}"
        end = self.match
        for each in self._ends:
            assert end < each < self.next, f"an append to {peer} up to {each} is in flight, after {end}"
            end = each
