"""Which messages reach a replica, and the replies to all others: a table.

The rows are checked in order and the first matching row decides. All checks come before any change, so a rejected
message changes nothing. Without a superblock there is no replica, and no message creates one: a voter's number never
starts without its former votes (docs/tablets.md).

INVALID_TERM is the reply of a replica that does not run. A running replica replies to an older term with Raft's own
messages, because some of them need another reply (a rejected pre-vote, for example).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from regionserver.tablets.host.words import Word


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
