"""Linearizable reads by read index: Dissertation §6.4, without a lease.

A leader may be deposed without noticing. So the leader records the commit index when a read arrives, and then waits
until a majority has replied to a heartbeat that was sent later. At that moment no other node led, so no newer entry had
been committed. All reads of one turn share one round of heartbeats. Regular heartbeats carry the newest round too,
so a lost heartbeat needs no repetition of its own.
"""

from __future__ import annotations

from collections import deque


class PendingRead:
    """A read, with the id of its node: a follower, or the leader itself."""

    def __init__(self, asker: int, context: int) -> None:
        self.asker: int = asker
        self.context: int = context


class ReadRound:
    """Reads that arrived before the heartbeats of round `number` were sent. `index` was the commit index then."""

    def __init__(self, number: int, index: int, reads: list[PendingRead]) -> None:
        self.number: int = number
        self.index: int = index
        self.reads: list[PendingRead] = reads


class ReadRounds:
    """The reads of one leadership.

    Invariant: the numbers in `open` ascend by one and end at `newest`; their indexes never decrease.
    """

    def __init__(self) -> None:
        #: Number of the last round that began, 0 before the first. Each heartbeat carries it.
        self.newest: int = 0
        #: Reads that wait for a round. `begin` empties this list.
        self.arrived: list[PendingRead] = []
        #: Rounds that no majority has confirmed yet, oldest first.
        self.open: deque[ReadRound] = deque()
        #: Node -> its newest read that can wait for the next regular heartbeats. A newer read replaces an older one.
        self.patient: dict[int, PendingRead] = {}

    def begin(self, commit: int) -> int:
        """Begin a round for the reads that have arrived, and return its number.

        `commit` must be the present commit index, and an entry of the leader's own term must be committed: before that
        a leader does not know the commit index (Raft §8).
        """
        assert not self.open or commit >= self.open[-1].index, f"commit {commit} before {self.open[-1].index}"
        self.newest += 1
        self.open.append(ReadRound(self.newest, commit, [*self.arrived, *self.patient.values()]))
        self.arrived = []
        self.patient.clear()
        return self.newest

    def confirmed(self, number: int) -> list[ReadRound]:
        """Remove and return the rounds up to `number`, which a majority has confirmed."""
        assert number <= self.newest, f"round {number} is confirmed, the newest is {self.newest}"
        done: list[ReadRound] = []
        while self.open and self.open[0].number <= number:
            done.append(self.open.popleft())
        return done

    def validate(self, commit: int) -> None:
        """Raise AssertionError if the invariant does not hold for the commit index `commit`. For tests."""
        number = self.newest - len(self.open)
        index = 0
        for each in self.open:
            number += 1
            assert each.number == number, f"read round {each.number} is open in the place of {number}"
            assert index <= each.index <= commit, f"read round {number} at {each.index}, commit is {commit}"
            index = each.index
