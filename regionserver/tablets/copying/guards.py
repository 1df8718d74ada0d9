"""A server's checks of a StartTabletCopy in their order, and its answers. Pure.

All checks come before any change (X13): in S2 the former replica is removed first and the term is checked afterwards,
so a deposed leader could destroy a good replica. Here such a request changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regionserver.tablets.copying.messages import CopyOutcome, StartTabletCopy


class ReplicaHere(NamedTuple):
    """A tablet on this server: its superblock, and the promises of its number."""

    number: int
    highest_number: int
    state: ReplicaState
    term: int
    last_term: int
    last_index: int
    #: False if this server cannot prove the promises of the number: the number was never a member, or its memory is
    #: lost.
    has_memory: bool


class CopyFacts(NamedTuple):
    """A StartTabletCopy, and the replica that its server has."""

    order: StartTabletCopy
    #: Uuid of this server.
    server: str
    #: None without a superblock.
    local: ReplicaHere | None
    #: A copy of the tablet runs, or a step on its files.
    is_copied: bool
    is_busy: bool
    has_room: bool
    has_space: bool


class CopyCheck(NamedTuple):
    """One row of the checks. The first row that applies decides."""

    when: str
    applies: Callable[[CopyFacts], bool]
    outcome: CopyOutcome


#: States of a replica that a copy may replace.
REPLACEABLE: Final = (
    ReplicaState.RUNNING,
    ReplicaState.FAILED,
    ReplicaState.TOMBSTONE,
    ReplicaState.LOST,
    ReplicaState.COPYING,
)


def _is_for_another(facts: CopyFacts) -> bool:
    order = facts.order
    return order.recipient != facts.server or order.source.uuid == facts.server or order.source.number == order.number


def _had_later_number(facts: CopyFacts) -> bool:
    return facts.local is not None and facts.order.number < facts.local.highest_number


def _is_copied(facts: CopyFacts) -> bool:
    return facts.is_copied or (facts.local is not None and facts.local.state is ReplicaState.COPYING)


def _knows_later_term(facts: CopyFacts) -> bool:
    return facts.local is not None and facts.order.term < facts.local.term


def _is_not_as_seen(facts: CopyFacts) -> bool:
    local = facts.local
    if local is None:
        return facts.order.seen is not None
    seen = facts.order.seen
    if seen is None or (seen.number, seen.last_term, seen.last_index) != (
        local.number,
        local.last_term,
        local.last_index,
    ):
        return True
    # A server answers messages to a removed replica alike, whether or not its memory is lost.
    return seen.state is not None and _as_seen(seen.state) is not _as_seen(local.state)


def _as_seen(state: ReplicaState) -> ReplicaState:
    return ReplicaState.TOMBSTONE if state is ReplicaState.LOST else state


def _cannot_be_replaced(facts: CopyFacts) -> bool:
    return facts.is_busy or (facts.local is not None and facts.local.state not in REPLACEABLE)


def _remembers_nothing(facts: CopyFacts) -> bool:
    """A voter's number never starts without its promises. A number that was lost here is burned in every role."""
    local, order = facts.local, facts.order
    if local is not None and local.state is ReplicaState.LOST and order.number == local.highest_number:
        return True
    if order.role is not MemberRole.VOTER:
        return False
    return local is None or local.number != order.number or not local.has_memory


_O: Final = CopyOutcome

# fmt: off
CHECKS: Final[tuple[CopyCheck, ...]] = (
    CopyCheck("it is for another server, or names this one as the source", _is_for_another, _O.INVALID_NAME),
    CopyCheck("the number is below the highest that was ever here", _had_later_number, _O.ILLEGAL_STATE),
    CopyCheck("a copy of the tablet runs",                _is_copied,                  _O.ALREADY_INPROGRESS),
    CopyCheck("the sender's term is below the replica's", _knows_later_term,           _O.BAD_TERM),
    CopyCheck("number, state or last entry are not as the sender saw them", _is_not_as_seen, _O.ILLEGAL_STATE),
    CopyCheck("it rests, or is being made, opened or closed", _cannot_be_replaced,     _O.ILLEGAL_STATE),
    CopyCheck("a voter, or a lost number, without memory", _remembers_nothing,         _O.AMNESIA),
    CopyCheck("as many copies run and are queued as may", lambda f: not f.has_room,    _O.THROTTLED),
    CopyCheck("the disk has no room",                     lambda f: not f.has_space,   _O.NO_SPACE),
    CopyCheck("it is as it should be",                    lambda _: True,              _O.STARTED),
)
# fmt: on


def check_copy(facts: CopyFacts) -> CopyCheck:
    """Return the row that applies to a request."""
    return next(row for row in CHECKS if row.applies(facts))
