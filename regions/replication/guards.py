"""In which order a server checks an OPEN and a CLOSE of a tablet's replica, and what it answers. Pure.

All checks come first, changes after them (X13). The envelope (epoch, recipient, start code, cluster) has been checked
before, as for every order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from regions.messages.heartbeat import TAKES_PART, ReplicaState
from regions.messages.server import ClosePurpose, TabletClosing, TabletOpening
from regions.records.members import NO_CONFIG, ConfigId


class ReplicaOnDisk(NamedTuple):
    """A server's replica of the tablet: the content of its superblock and its log."""

    number: int
    state: ReplicaState
    #: The latest configuration that it knows to be committed, and whether that has its number.
    config_id: ConfigId = NO_CONFIG
    is_member: bool = True


class OrderAnswer(enum.Enum):
    """What a server does about an order."""

    MAKE = "make the replica: OPENING, consensus metadata, superblock, OPENED"
    WAKE = "OPENING, OPENED: the replica is there"
    FAILED = "FAILED: the replica cannot run"
    AMNESIA = "refused: this server has no memory of a number that it has had"
    OLD_NUMBER = "refused: this server has a later number"
    ILLEGAL_STATE = "refused: the replica is in another state than the order assumes"
    IN_PROGRESS = "the same order is being carried out"
    CLOSE = "CLOSING, then the files as the purpose says, CLOSED"
    DONE = "done already"
    STALE_CONFIG = "refused: this server knows a later configuration, which has the number"


class OpenFacts(NamedTuple):
    """An OPEN of one number, and the replica that the server has; None without a superblock."""

    number: int
    opening: TabletOpening
    local: ReplicaOnDisk | None


class CloseFacts(NamedTuple):
    """A CLOSE of one number, and the replica that the server has; None without a superblock."""

    number: int
    closing: TabletClosing
    local: ReplicaOnDisk | None


class OpenCheck(NamedTuple):
    """One row of the checks of an OPEN."""

    when: str
    applies: Callable[[OpenFacts], bool]
    answer: OrderAnswer


class CloseCheck(NamedTuple):
    """One row of the checks of a CLOSE."""

    when: str
    applies: Callable[[CloseFacts], bool]
    answer: OrderAnswer


_Facts = OpenFacts | CloseFacts


def _is_nowhere(facts: _Facts) -> bool:
    return facts.local is None


def _was_forgotten(facts: OpenFacts) -> bool:
    return facts.local is None and facts.opening.must_exist


def _is_not_named(facts: OpenFacts) -> bool:
    return facts.local is None and all(one.number != facts.number for one in facts.opening.initial)


def _has_later_number(facts: _Facts) -> bool:
    return facts.local is not None and facts.local.number > facts.number


def _has_earlier_number(facts: _Facts) -> bool:
    return facts.local is not None and facts.local.number < facts.number


def _is_in(*states: ReplicaState) -> Callable[[_Facts], bool]:
    return lambda facts: facts.local is not None and facts.local.state in states


def _is_known_member(facts: CloseFacts) -> bool:
    closing, local = facts.closing, facts.local
    if closing.purpose is not ClosePurpose.TOMBSTONE or local is None:
        return False
    return local.is_member and local.config_id > closing.config_id


def _rests_already(facts: CloseFacts) -> bool:
    return facts.closing.purpose is ClosePurpose.REST and _is_in(_S.RESTING)(facts)


def _is_removed_already(facts: CloseFacts) -> bool:
    """A deletion takes away the tombstone as well, so for that purpose a tombstone is not the end."""
    return facts.closing.purpose is not ClosePurpose.DELETE and _is_in(_S.TOMBSTONE, _S.LOST)(facts)


def _always(_: CloseFacts) -> bool:
    return True


_S: Final = ReplicaState
_N: Final = OrderAnswer

# fmt: off
OPEN_CHECKS: Final[tuple[OpenCheck, ...]] = (
    OpenCheck("no superblock, and the replica was begun",  _was_forgotten,                  _N.AMNESIA),
    OpenCheck("no superblock, and the number is not named", _is_not_named,                  _N.ILLEGAL_STATE),
    OpenCheck("no superblock",                             _is_nowhere,                     _N.MAKE),
    OpenCheck("a later number is here",                    _has_later_number,               _N.OLD_NUMBER),
    OpenCheck("an earlier number is here",                 _has_earlier_number,             _N.ILLEGAL_STATE),
    OpenCheck("its memory is lost, or it was removed",     _is_in(_S.LOST, _S.TOMBSTONE),   _N.AMNESIA),
    OpenCheck("it is being copied, or stops",              _is_in(_S.COPYING, _S.STOPPING), _N.ILLEGAL_STATE),
    OpenCheck("it cannot run",                             _is_in(_S.FAILED),               _N.FAILED),
    OpenCheck("it is there",                               _is_in(*TAKES_PART, _S.RESTING), _N.WAKE),
)
CLOSE_CHECKS: Final[tuple[CloseCheck, ...]] = (
    CloseCheck("nothing is here",                             _is_nowhere,          _N.DONE),
    CloseCheck("a later number is here",                      _has_later_number,    _N.OLD_NUMBER),
    CloseCheck("an earlier number is here",                   _has_earlier_number,  _N.ILLEGAL_STATE),
    CloseCheck("a later configuration has the number",        _is_known_member,     _N.STALE_CONFIG),
    CloseCheck("it stops already",                            _is_in(_S.STOPPING),  _N.IN_PROGRESS),
    CloseCheck("it is to rest, and rests",                    _rests_already,       _N.DONE),
    CloseCheck("its files are gone, and the tombstone stays", _is_removed_already,  _N.DONE),
    CloseCheck("it is there",                                 _always,              _N.CLOSE),
)
# fmt: on


def answer_to_open(facts: OpenFacts) -> OrderAnswer:
    """Return what a server does about an OPEN."""
    return next(check.answer for check in OPEN_CHECKS if check.applies(facts))


def answer_to_close(facts: CloseFacts) -> OrderAnswer:
    """Return what a server does about a CLOSE."""
    return next(check.answer for check in CLOSE_CHECKS if check.applies(facts))
