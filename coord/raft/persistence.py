"""What the core has told its shell and asked of the disk: each thing is said once, and counts when it is durable."""

from __future__ import annotations

from collections import deque

from coord.raft.membership import Configuration
from coord.raft.messages import FOLLOWER, HardState, Ready


class Said:
    """What the last Ready said, to see what the next one must say."""

    def __init__(self, term: int, vote: int, config: Configuration) -> None:
        #: Of the last Ready.
        self.number: int = 0
        self._term: int = term
        self._vote: int = vote
        self._role: int = FOLLOWER
        self._leader: int = 0
        self._config: Configuration = config

    def differs(self, term: int, vote: int, role: int, leader: int) -> bool:
        """Whether there is anything new of this."""
        return term != self._term or vote != self._vote or role != self._role or leader != self._leader

    def next(self, term: int, vote: int, role: int, leader: int, commit: int, config: Configuration) -> Ready:
        """The next Ready, with what is new of these; the rest of it is empty."""
        self.number += 1
        r = Ready(self.number, role, term, leader, commit)
        r.changed = term != self._term or role != self._role or leader != self._leader
        if term != self._term or vote != self._vote:
            r.hard_state = HardState(term, vote)
        r.config_changed = config is not self._config
        self._term = term
        self._vote = vote
        self._role = role
        self._leader = leader
        self._config = config
        return r


class Write:
    """A Ready whose writes the disk has not confirmed: how far they reach."""

    def __init__(self, number: int, last: int, term: int, vote: int) -> None:
        self.number: int = number
        #: Last index of the log once it is written; lowered when a later Ready replaces entries below it.
        self.last: int = last
        self.term: int = term
        self.vote: int = vote


class Durable:
    """Term and vote that the disk has confirmed, and what it has been asked for since, oldest first."""

    def __init__(self, term: int, vote: int) -> None:
        self.term: int = term
        self.vote: int = vote
        self._writes: deque[Write] = deque()

    def asked(self, number: int, last: int, term: int, vote: int) -> None:
        """Ready `number` is to be written: then the log ends at `last`."""
        self._writes.append(Write(number, last, term, vote))

    def confirmed(self, number: int) -> int:
        """Everything up to Ready `number` is durable; the index at which the log ends then, -1 if that is no news."""
        writes = self._writes
        last = -1
        while writes and writes[0].number <= number:
            write = writes.popleft()
            last = write.last
            self.term = write.term
            self.vote = write.vote
        return last

    def lower(self, last: int) -> None:
        """Whatever is being written, of the log nothing behind `last` counts any more."""
        for write in self._writes:
            write.last = min(write.last, last)
