"""Linearizable reads by read index: Dissertation §6.4, without a lease.

A leader may be deposed and not know it. So a read first notes the commit index, then waits until a majority has
answered a heartbeat that was sent after the read arrived: at that moment nobody else led, so nothing newer had been
committed. All reads of one turn share one round of heartbeats; regular heartbeats carry the newest round too, so a
lost one is repeated for free.
"""

from __future__ import annotations

from collections import deque


class PendingRead:
    """A read and who asked: a follower's id, or the leader's own."""

    def __init__(self, asker: int, context: int) -> None:
        self.asker: int = asker
        self.context: int = context


class ReadRound:
    """Reads that arrived before the heartbeats of round `number` were sent, when `index` was committed."""

    def __init__(self, number: int, index: int, reads: list[PendingRead]) -> None:
        self.number: int = number
        self.index: int = index
        self.reads: list[PendingRead] = reads


class ReadRounds:
    """The reads of one leadership.

    Invariant: `open` ascends by number; every round number is at most `newest`.
    """

    def __init__(self) -> None:
        self.newest: int = 0
        #: Reads that no round covers yet.
        self.arrived: list[PendingRead] = []
        self.open: deque[ReadRound] = deque()
        #: Asker -> its newest read that can wait for the next regular heartbeats; a newer one replaces an older one.
        self.patient: dict[int, PendingRead] = {}

    def begin(self, commit: int) -> int:
        """Cover the arrived reads by a new round and return its number.

        `commit` must be the commit index now, and an entry of the leader's own term must be committed: before that a
        leader does not know what is committed (Raft §8).
        """
        self.newest += 1
        self.open.append(ReadRound(self.newest, commit, [*self.arrived, *self.patient.values()]))
        self.arrived = []
        self.patient.clear()
        return self.newest

    def confirmed(self, number: int) -> list[ReadRound]:
        """A majority has answered round `number`: the rounds that may be served by that."""
        done: list[ReadRound] = []
        while self.open and self.open[0].number <= number:
            done.append(self.open.popleft())
        return done
