"""Which messages reach a replica, and what the others are answered: a table.

The rows are checked in order and the first that holds decides. All checks come before any change, so a message that is
refused changes nothing. Without a superblock there is no replica, and no message makes one: a voter's number never
starts from nothing (docs/tablets.md).

INVALID_TERM is the answer of a replica that does not run. A replica that runs tells a sender of an older term its own
term in Raft's words, for some of those messages need another answer (a rejected pre-vote, for example).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from regionserver.tablets.host.words import Word


class State(enum.Enum):
    """What a server holds of a tablet, as far as messages are concerned."""

    ABSENT = enum.auto()
    READY = enum.auto()
    DELETED = enum.auto()
    COPYING = enum.auto()
    FAILED = enum.auto()
    RESTING = enum.auto()


#: States in which a replica does not run, and the word for each.
_NOT_RUNNING: Final = {
    State.DELETED: Word.DELETED,
    State.COPYING: Word.COPYING,
    State.FAILED: Word.FAILED,
    State.RESTING: Word.RESTING,
}


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """What a server holds of a tablet: the replica's state, its number, its term and the end of its log."""

    state: State
    number: int = 0
    term: int = 0
    last_index: int = 0
    last_term: int = 0
    progress: int = 0


ABSENT: Final = ReplicaStanding(State.ABSENT)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A Raft message at the door of a replica."""

    #: The frame names this cluster and this server, and its sender is not another server than the configuration's.
    is_named_right: bool
    #: Member number of the recipient, and term, as the message has them.
    number: int
    term: int


@dataclass(frozen=True, slots=True)
class DeliveryRule:
    """A row of the table. `word` None: the message goes to Raft."""

    name: str
    holds: Callable[[Delivery, ReplicaStanding], bool]
    word: Word | None
    #: False: the message is dropped without an answer.
    is_answered: bool = True


RULES: Final = (
    DeliveryRule("wrong name", lambda a, _: not a.is_named_right, Word.INVALID_NAME),
    DeliveryRule("no superblock", lambda _, s: s.state is State.ABSENT, Word.DOES_NOT_EXIST),
    # The sender speaks to a former life. An answer would teach it nothing that the configuration does not.
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
    """Return the row that decides about a message."""
    return next(rule for rule in RULES if rule.holds(arrival, standing))
