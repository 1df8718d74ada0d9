"""The leader's view of one peer, and the three ways to feed it.

    state \\ event   ack moves match   ack at match     refusal            link lost, nudge refused   log too short
    transfer ended PROBE           REPLICATE         REPLICATE        PROBE (lower)      PROBE
    SNAPSHOT        - REPLICATE       REPLICATE         REPLICATE        PROBE at match+1   PROBE at match+1
    SNAPSHOT        - SNAPSHOT        REPLICATE if the log reaches that far                 -
    -               PROBE

PROBE sends one append and waits for its answer or the next heartbeat's; REPLICATE streams, bounded by a window of
appends in flight; SNAPSHOT sends nothing until the shell reports how the transfer ended, or the peer acknowledges its
index.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from coord.raft.membership import FIRST_MEMORY

PROBE: Final = 0
REPLICATE: Final = 1
SNAPSHOT: Final = 2


class Progress:
    """What the leader knows about one peer. Lives as long as one leadership, so nothing of an older term can linger.

    Invariant: match < next.
    """

    def __init__(self, peer: int, next_index: int, now: int) -> None:
        self.peer: int = peer
        #: The memory from which it answers (`membership`); -1: it has not answered.
        self.memory: int = -1
        #: False while it is a voter and answers from another memory than that voter's: it counts for nothing.
        self.counts: bool = True
        #: It is of a build that knows of no memories.
        self.is_old: bool = False
        #: Highest index known to be durable there.
        self.match: int = 0
        #: First index of the next append.
        self.next: int = next_index
        self.state: int = PROBE
        #: PROBE: an append is unanswered.
        self.waiting: bool = False
        #: Tick of the last message from there; the quorum check reads it.
        self.last_heard: int = now
        #: Highest commit index that was sent there.
        self.commit_sent: int = 0
        #: Newest round of read confirmation that was answered.
        self.read_round: int = 0
        #: SNAPSHOT: the index of the snapshot on its way.
        self.snapshot_index: int = 0
        #: REPLICATE: send an empty append although nothing is new, since something may have been lost.
        self.nudge: bool = False
        #: Tick at which the window last moved: a first append, an ack, a nudge.
        self.moved: int = now
        # In flight: last index and bytes of each append, oldest first.
        self._ends: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._bytes: int = 0

    # --- who it is

    def answers_from(self, memory: int, last: int) -> bool:
        """Note the memory that an answer carries; True if it is another one than before.

        What an earlier memory held says nothing about this one: the peer's position is found out anew, from `last`, the
        end of the leader's log.
        """
        self.is_old = memory == 0
        memory = memory or FIRST_MEMORY
        if memory == self.memory:
            return False
        if self.memory >= 0:
            self.match = 0
            self.read_round = 0
            self.become_probe(last + 1)
        self.memory = memory
        return True

    # --- transitions

    def become_probe(self, next_index: int) -> None:
        """Find out where the logs agree, one append at a time, beginning with one that ends before `next_index`."""
        self.state = PROBE
        self.next = max(next_index, self.match + 1)
        self.waiting = False
        self.snapshot_index = 0
        self._clear_window()

    def become_replicate(self) -> None:
        """The logs agree up to `match`: stream from there."""
        self.state = REPLICATE
        self.next = self.match + 1
        self.waiting = False
        self.snapshot_index = 0
        self._clear_window()

    def become_snapshot(self, index: int) -> None:
        """The log does not reach back far enough; a snapshot at `index` is offered."""
        self.state = SNAPSHOT
        self.snapshot_index = index
        self._clear_window()

    # --- events

    def acked(self, index: int, log_offset: int, now: int) -> bool:
        """The peer holds everything up to `index`; True if that is news."""
        advanced = index > self.match
        if advanced:
            self.match = index
            self.moved = now
        if self.state == REPLICATE:
            self._release(index)
            if self.next <= self.match:
                self.next = self.match + 1
        elif index >= self.match and (self.state == PROBE or self.match >= log_offset):
            # An ack below match is a late one and says nothing about the probe under way.
            self.become_replicate()
        return advanced

    def refused(self, prev_index: int, agreement: int) -> bool:
        """The peer has no entry that matches ours at `prev_index`; the logs may agree at `agreement`.

        False if that is old news.
        """
        if self.state == REPLICATE:
            if prev_index <= self.match:
                return False
            self.become_probe(self.match + 1)
            return True
        if self.state == SNAPSHOT or prev_index != self.next - 1:
            return False
        if prev_index <= self.match:
            # It has lost what it acknowledged (a wiped disk). Trusting the old answer would probe at match for ever.
            self.match = 0
        self.become_probe(min(prev_index, agreement + 1))
        return True

    def sent(self, last_index: int, size: int, now: int) -> None:
        """An append that ends at `last_index` with `size` bytes of entries was sent in REPLICATE."""
        self.next = last_index + 1
        if not self._ends:
            self.moved = now
        self._ends.append(last_index)
        self._sizes.append(size)
        self._bytes += size

    def heartbeat_answered(self, peer_last: int, now: int, patience_ticks: int) -> bool:
        """The peer answered a heartbeat, its log ending at `peer_last`; True if something should be sent because of
        it."""
        if self.state == PROBE:
            self.waiting = False
            return True
        if self.state != REPLICATE:
            return False
        if peer_last < self.match:
            self.become_probe(self.match + 1)
            return True
        if self.next > self.match + 1 and now - self.moved >= patience_ticks:
            # The ack may be late because the peer's disk is; an empty append costs little and finds out.
            self.nudge = True
            self.moved = now
        return self.nudge

    # --- the window

    def has_room(self, max_appends: int, max_bytes: int) -> bool:
        """Whether another append may be sent in REPLICATE."""
        return len(self._ends) < max_appends and self._bytes < max_bytes

    def in_flight(self) -> int:
        """Appends sent and not acknowledged."""
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
        self.nudge = False
