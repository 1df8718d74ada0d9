"""Output of the core: the output that waits for the next Ready, the state as of the last Ready, pending disk
writes."""

from __future__ import annotations

from collections import deque

from coord.raft.membership import Configuration
from coord.raft.messages import (
    APPEND_RESP,
    FOLLOWER,
    VOTE,
    VOTE_RESP,
    HardState,
    Message,
    RaftEvent,
    ReadState,
    Ready,
)


class Output:
    """Output for the next Ready. Core, Leadership and FollowerRole append to the same lists."""

    def __init__(self) -> None:
        #: Messages without promises: they may leave before any write.
        self.messages: list[Message] = []
        #: Votes and acknowledgments: they leave when their Ready and all earlier ones are durable.
        self.after_persist: list[Message] = []
        self.read_states: list[ReadState] = []
        self.events: list[RaftEvent] = []

    def is_empty(self) -> bool:
        """Return True if there is no output."""
        return not (self.messages or self.after_persist or self.read_states or self.events)

    def move_to(self, r: Ready) -> None:
        """Move all output into `r`, whose lists are empty."""
        assert not r.messages, f"Ready {r.number} has output already"
        if self.messages:
            r.messages, self.messages = self.messages, []
        if self.after_persist:
            r.messages_after_persist, self.after_persist = self.after_persist, []
        if self.read_states:
            r.read_states, self.read_states = self.read_states, []
        if self.events:
            r.events, self.events = self.events, []

    def validate(self) -> None:
        """Raise AssertionError if a promise is about to leave before it is durable. For tests."""
        for m in self.messages:
            assert m.kind != VOTE and not (m.granted and m.kind in (VOTE_RESP, APPEND_RESP)), (  # noqa: PT018
                f"a message of kind {m.kind} to {m.dst} would leave before the disk has what it promises"
            )
        for m in self.after_persist:
            assert m.kind in (VOTE, VOTE_RESP, APPEND_RESP), f"a message of kind {m.kind} to {m.dst} waits for the disk"


class LastReady:
    """State reported by the last Ready, so that the next one reports changes."""

    def __init__(self, term: int, vote: int, config: Configuration) -> None:
        #: Number of the last Ready. Rises by one with each Ready; the argument of `RaftCore.persisted`.
        self.number: int = 0
        self.term: int = term
        self.vote: int = vote
        self.role: int = FOLLOWER
        self.leader: int = 0
        self.config: Configuration = config

    def differs(self, term: int, vote: int, role: int, leader: int) -> bool:
        """Return True if one of these has changed since the last Ready."""
        return term != self.term or vote != self.vote or role != self.role or leader != self.leader

    def next(self, term: int, vote: int, role: int, leader: int, commit: int, config: Configuration) -> Ready:
        """Return the next Ready. It reports changes of these values; its lists are empty."""
        assert term >= self.term, f"the term decreases from {self.term} to {term}"
        self.number += 1
        r = Ready(self.number, role, term, leader, commit)
        r.changed = term != self.term or role != self.role or leader != self.leader
        if term != self.term or vote != self.vote:
            r.hard_state = HardState(term, vote)
        r.config_changed = config is not self.config
        self.term = term
        self.vote = vote
        self.role = role
        self.leader = leader
        self.config = config
        return r

    def validate(self, term: int, vote: int) -> None:
        """Raise AssertionError if the core, in `term` with `vote`, contradicts an earlier report. For tests."""
        assert term >= self.term, f"the term is {term}, the last Ready was in term {self.term}"
        if term == self.term:
            assert self.vote in (0, vote), f"the vote in term {term} has changed from {self.vote} to {vote}"


class Write:
    """The writes of one Ready that the disk has not confirmed yet."""

    def __init__(self, number: int, last: int, term: int, vote: int) -> None:
        self.number: int = number
        #: Last index of the log after this write. Lowered when a later Ready replaces entries at or below it.
        self.last: int = last
        self.term: int = term
        self.vote: int = vote


class PersistQueue:
    """Durable term and vote, and the pending writes, oldest first.

    Invariant: the numbers of the writes ascend, their terms never decrease, the first is at or above the durable term.
    """

    def __init__(self, term: int, vote: int) -> None:
        #: Durable term and vote. They move when a write with newer ones is confirmed.
        self.term: int = term
        self.vote: int = vote
        self.writes: deque[Write] = deque()

    def add(self, number: int, last: int, term: int, vote: int) -> None:
        """Add the write of Ready `number`, after which the log ends at `last`."""
        assert not self.writes or number > self.writes[-1].number, f"Ready {number} is written twice"
        self.writes.append(Write(number, last, term, vote))

    def confirm(self, number: int) -> int:
        """Record that everything up to Ready `number` is durable. Return the index up to which the log on disk equals
        the log of this core, or -1 if no write was pending."""
        writes = self.writes
        last = -1
        while writes and writes[0].number <= number:
            write = writes.popleft()
            last = write.last
            self.term = write.term
            self.vote = write.vote
        return last

    def lower(self, last: int) -> None:
        """Limit the pending writes to `last`: the log was truncated after it, and later entries no longer count."""
        for write in self.writes:
            write.last = min(write.last, last)

    def validate(self, last_ready: LastReady) -> None:
        """Raise AssertionError if the queue contradicts itself or the last Ready. For tests."""
        number = 0
        term = self.term
        for write in self.writes:
            assert write.number > number, f"the write of Ready {write.number} waits behind that of Ready {number}"
            assert write.term >= term, f"the write of Ready {write.number} takes the term from {term} to {write.term}"
            number = write.number
            term = write.term
        assert number <= last_ready.number, f"a write of Ready {number} waits, the last Ready is {last_ready.number}"
        assert term <= last_ready.term, f"term {term} is written, the last Ready was in term {last_ready.term}"
