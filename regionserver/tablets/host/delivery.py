"""The table of the messages that reach a replica, and of the replies to all other messages.

The rows are checked in order and the first matching row decides. All checks come before any change, so a rejected
message changes nothing. Without a superblock there is no replica, and no message creates one, because a
voter must not start without its former votes (docs/tablets.md).

A tombstone that still has its term and vote may vote (FW-06), by a table of its own. The tombstone may be a voter of a
configuration that its server does not know. Without its vote the group might have no majority.

INVALID_TERM is the reply of a replica that does not run. A running replica replies to an older term with Raft's own
messages, because some of them need another reply (a rejected pre-vote, for example).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from coord.raft.membership import FIRST_MEMORY
from coord.raft.messages import (
    APPEND,
    COMMIT,
    HEARTBEAT,
    PRE_VOTE,
    PRE_VOTE_RESP,
    SNAPSHOT,
    VOTE,
    VOTE_RESP,
    Message,
)
from regionserver.tablets.host.envelope import Refusal, Word


class State(enum.Enum):
    """State of a tablet on this server, as far as messages are concerned."""

    ABSENT = enum.auto()
    READY = enum.auto()
    DELETED = enum.auto()
    COPYING = enum.auto()
    FAILED = enum.auto()
    RESTING = enum.auto()


#: States in which a replica does not run, and the refusal for each.
_NOT_RUNNING: Final = {
    State.DELETED: Word.DELETED,
    State.COPYING: Word.COPYING,
    State.FAILED: Word.FAILED,
    State.RESTING: Word.RESTING,
}


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """A tablet on this server: the replica's state, its number, its term and the end of its log."""

    state: State
    number: int = 0
    term: int = 0
    last_index: int = 0
    last_term: int = 0
    progress: int = 0
    #: Whether this is a tombstone with its memory, which may vote; and its vote in `term`, 0 for none.
    may_vote: bool = False
    vote: int = 0
    #: A tombstone whose leader has sent a message within an election timeout.
    is_led: bool = False


ABSENT: Final = ReplicaStanding(State.ABSENT)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received Raft message before delivery."""

    #: True if the frame names this cluster and this server, and its sender is the member's server in the configuration.
    is_named_right: bool
    #: Member number of the recipient, and term, as the message has them.
    number: int
    term: int


@dataclass(frozen=True, slots=True)
class DeliveryRule:
    """A row of the table. If `word` is None, the message goes to Raft."""

    name: str
    holds: Callable[[Delivery, ReplicaStanding], bool]
    word: Word | None
    #: If False, the message is dropped without a reply.
    is_answered: bool = True


RULES: Final = (
    DeliveryRule("wrong name", lambda a, _: not a.is_named_right, Word.INVALID_NAME),
    DeliveryRule("no superblock", lambda _, s: s.state is State.ABSENT, Word.DOES_NOT_EXIST),
    # The sender addresses a former replica. The configuration informs the sender; no reply is needed.
    DeliveryRule("number below mine", lambda a, s: a.number < s.number, Word.OLD_NUMBER, is_answered=False),
    DeliveryRule("number above mine", lambda a, s: a.number > s.number, Word.OLDER),
    DeliveryRule("term below mine", lambda a, s: s.state in _NOT_RUNNING and a.term < s.term, Word.INVALID_TERM),
    *(
        DeliveryRule(word.name.lower(), lambda _, s, state=state: s.state is state, word)  # type: ignore[misc]
        for state, word in _NOT_RUNNING.items()
    ),
    DeliveryRule("ready", lambda _, s: s.state is State.READY, None),
)


def decide(arrival: Delivery, standing: ReplicaStanding) -> DeliveryRule:
    """Return the row that applies to a message."""
    return next(rule for rule in RULES if rule.holds(arrival, standing))


def has_lost_memory(refusal: Refusal, acknowledged: int) -> bool:
    """Return True if the refusal shows that a voter has lost entries up to `index` that it had acknowledged.

    A server without files of the tablet may still be about to make its first replica. A tombstone without a log is the
    rest of a number whose files were damaged.
    """
    if refusal.word is Word.DOES_NOT_EXIST:
        return acknowledged > 0
    return refusal.word is Word.DELETED and not refusal.last_index


#: The same rejection is sent to the same replica at most once per this many ticks: 1 s. A leader sends up to ten
#: heartbeats a second, and does not need as many replies.
REFUSAL_TICKS: Final = 20
#: Number of refusals remembered for that limit. Beyond it all are forgotten, and are sent again.
REFUSALS_MAX: Final = 10_000


class RefusalLimit:
    """Limit of how often a refusal is sent to the same server again."""

    def __init__(self) -> None:
        #: (tablet, server, word, number) -> tick.
        self._sent: dict[tuple[str, str, Word, int], int] = {}

    def is_due(self, refusal: tuple[str, str, Word, int], now: int) -> bool:
        """Return True if a refusal may be sent now, and note it."""
        last = self._sent.get(refusal)
        if last is not None and now - last < REFUSAL_TICKS:
            return False
        if len(self._sent) >= REFUSALS_MAX:
            self._sent.clear()
        self._sent[refusal] = now
        return True


# --- votes of tombstones ----------------------------------------------------------------------------------------------


class Ballot(enum.Enum):
    """A tombstone's answer to a vote request."""

    SILENT = "refused in the word of the replica's state"
    REJECT = "rejected; nothing is promised"
    GRANT = "granted without a promise: a pre-vote"
    PROMISE = "granted when term and vote are durable"


@dataclass(frozen=True, slots=True)
class VoteRule:
    """A row of the table of a tombstone's votes."""

    name: str
    holds: Callable[[Message, ReplicaStanding], bool]
    ballot: Ballot


def _is_shorter(m: Message, s: ReplicaStanding) -> bool:
    """Raft §5.4.1. The end of the log is that of the entries appended, not committed (KUDU-1796)."""
    return (m.prev_term, m.prev_index) < (s.last_term, s.last_index)


VOTE_RULES: Final = (
    VoteRule("no vote request", lambda m, _: m.kind not in (PRE_VOTE, VOTE), Ballot.SILENT),
    VoteRule("no memory", lambda _, s: s.state is not State.DELETED or not s.may_vote, Ballot.SILENT),
    VoteRule("term below mine", lambda m, s: m.term < s.term, Ballot.REJECT),
    VoteRule("has voted for another", lambda m, s: m.term == s.term and s.vote not in (0, m.src), Ballot.REJECT),
    # `granted` marks an election that the leader has requested.
    VoteRule("a leader lives", lambda m, s: s.is_led and not m.granted, Ballot.REJECT),
    VoteRule("log shorter than mine", _is_shorter, Ballot.REJECT),
    VoteRule("pre-vote", lambda m, _: m.kind == PRE_VOTE, Ballot.GRANT),
    VoteRule("vote", lambda _m, _s: True, Ballot.PROMISE),
)


def ballot_of(m: Message, standing: ReplicaStanding) -> Ballot:
    """Return the answer to the vote request `m`, which is addressed to a replica that does not run."""
    return next(rule.ballot for rule in VOTE_RULES if rule.holds(m, standing))


def vote_answer(m: Message, ballot: Ballot, standing: ReplicaStanding) -> Message:
    """Return the message that answers the vote request `m`."""
    granted = ballot in (Ballot.GRANT, Ballot.PROMISE)
    is_pre_vote = m.kind == PRE_VOTE
    # A rejection of a pre-vote carries the tombstone's own term, as a running replica's does.
    term = max(m.term, standing.term) if granted or not is_pre_vote else standing.term
    answer = Message(PRE_VOTE_RESP if is_pre_vote else VOTE_RESP, m.dst, m.src, term, granted=granted)
    answer.memory = FIRST_MEMORY
    return answer


#: Messages that only a leader sends.
_OF_LEADERS: Final = frozenset((APPEND, HEARTBEAT, COMMIT, SNAPSHOT))


class TombstoneVote:
    """A vote of a removed replica. `answer` leaves when term and vote are durable in the consensus metadata."""

    def __init__(self, tablet: str, server: str, answer: Message) -> None:
        self.tablet: str = tablet
        self.server: str = server
        self.term: int = answer.term
        self.vote: int = answer.dst
        self.answer: Message = answer


class LeadersHeard:
    """The leaders of tablets whose replica here is a tombstone: server, and tick of the latest message.

    A leader continues to send messages to a voter that its server has removed. As long as they arrive, the tombstone,
    like a running follower, does not help another candidate to replace the leader (Dissertation §4.2.3).
    """

    def __init__(self, election_ticks: int) -> None:
        self._election_ticks = election_ticks
        self._heard: dict[str, tuple[str, int]] = {}

    def note(self, tablet: str, server: str, m: Message, standing: ReplicaStanding, now: int) -> None:
        """Note a message to a tombstone, if a leader has sent it in the tombstone's term or a later one."""
        if m.kind in _OF_LEADERS and m.term >= standing.term:
            self._heard[tablet] = (server, now)

    def gone(self, server: str) -> None:
        """Forget the leaders on a server that is gone."""
        self._heard = {tablet: heard for tablet, heard in self._heard.items() if heard[0] != server}

    def forget(self, tablet: str) -> None:
        """Forget the leader of a tablet that has no tombstone here any more."""
        self._heard.pop(tablet, None)

    def answer(self, tablet: str, m: Message, standing: ReplicaStanding, now: int) -> tuple[Ballot, Message | None]:
        """Return the kind of the tombstone's answer to a message, and the answer itself to a vote request; None for
        other messages."""
        heard = self._heard.get(tablet)
        is_led = heard is not None and now - heard[1] < self._election_ticks
        ballot = ballot_of(m, replace(standing, is_led=is_led))
        return ballot, None if ballot is Ballot.SILENT else vote_answer(m, ballot, standing)
