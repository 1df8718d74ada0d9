"""The outcome of a step, by a table, from the store's present content.

A step fails in two ways: the store rejects it, or the connection breaks and the reply is lost. In both cases the server
reads the znode and compares. Every record that a server writes names its incarnation, so the server recognizes its own
record even in a later session.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TabletState, TransitionRecord
from regions.transitions.states import Cause


class Readback(enum.Enum):
    """Outcome of a step according to the read-back."""

    TAKEN = "taken"  #: the step is in the store
    AGAIN = "again"  #: the step is not in the store, and can still be written at the version read
    LOST = "lost"  #: the transition belongs to another server or order


class Read(NamedTuple):
    """The content read, and the goal of the step."""

    me: Incarnation
    found: TransitionRecord | None
    is_same_version: bool
    region: RegionRecord | None
    location: ReplicaLocation | None


def _to_me(read: Read) -> bool:
    return read.found is not None and read.found.destination == read.me


def _from_me(read: Read) -> bool:
    return read.found is not None and read.found.source == read.me


def _is_this_order(read: Read) -> bool:
    """Return True if the znode still belongs to this order.

    A znode at another version belongs to another order, even if it names this server again; that order arrives by
    itself.
    """
    return _to_me(read) and read.is_same_version


def _is_announced(read: Read) -> bool:
    """Return True if the region's record has the location of this open: OPENED was written and its reply was lost.

    A master may have deleted the transition since. The location contains the time of this open, so the location of an
    earlier open does not match.
    """
    return read.region is not None and read.location is not None and read.location in read.region.replicas


def _is_here(read: Read) -> bool:
    """Return True unless the store places the replica on another server: a region that has moved must not be closed."""
    if read.region is None or read.location is None:
        return True
    return read.region.location(read.location.replica).incarnation == read.me


class ReadbackRule(NamedTuple):
    """One row: a step, the state in which its znode was found (None: no znode), a condition, and the outcome."""

    cause: Cause
    found: RegionState | None
    when: Callable[[Read], bool]
    result: Readback


# fmt: off
RULES: Final[tuple[ReadbackRule, ...]] = (
    ReadbackRule(Cause.OPEN_ORDER,  RegionState.OPENING, _to_me,         Readback.TAKEN),
    ReadbackRule(Cause.OPEN_ORDER,  RegionState.OFFLINE, _is_this_order, Readback.AGAIN),
    ReadbackRule(Cause.PROGRESS,    RegionState.OPENING, _to_me,         Readback.TAKEN),
    ReadbackRule(Cause.OPEN_DONE,   RegionState.OPENED,  _to_me,         Readback.TAKEN),
    ReadbackRule(Cause.OPEN_DONE,   None,                _is_announced,  Readback.TAKEN),
    ReadbackRule(Cause.OPEN_DONE,   RegionState.OPENING, _to_me,         Readback.AGAIN),
    ReadbackRule(Cause.CLOSE_ORDER, RegionState.CLOSING, _from_me,       Readback.TAKEN),
    ReadbackRule(Cause.CLOSE_ORDER, None,                _is_here,       Readback.AGAIN),
    ReadbackRule(Cause.CLOSE_DONE,  RegionState.CLOSED,  _from_me,       Readback.TAKEN),
    ReadbackRule(Cause.CLOSE_DONE,  RegionState.CLOSING, _from_me,       Readback.AGAIN),
)
# fmt: on

_BY_STEP: Final = {(rule.cause, rule.found): rule for rule in RULES}
assert len(_BY_STEP) == len(RULES), "one rule for each step and state"
_STEPS: Final = frozenset(rule.cause for rule in RULES)


def resolve(
    cause: Cause,
    me: Incarnation,
    found: TransitionRecord | None,
    *,
    same_version: bool,
    region: RegionRecord | None = None,
    location: ReplicaLocation | None = None,
) -> Readback:
    """Return the outcome of the step for `cause`; LOST if no rule matches.

    `same_version`: `found` has the version that the step expected. `region` is the region's record as read, `location`
    the location that OPEN_DONE writes into it.
    """
    assert cause in _STEPS, f"a region server writes no step for {cause}"
    rule = _BY_STEP.get((cause, None if found is None else found.state))
    if rule is None or not rule.when(Read(me, found, same_version, region, location)):
        return Readback.LOST
    return rule.result


def is_disowned(me: Incarnation, replica: int, found: TransitionRecord | None, region: RegionRecord | None) -> bool:
    """Return True if the store places an open replica on another server or on none.

    `found` is its transition. Return False for a region that the store does not contain: an orphan is never closed,
    because it may belong to another cluster (FN-04). Return False also if the transition names this server, because the
    end of the transition decides.
    """
    if region is None or (found is not None and me in (found.source, found.destination)):
        return False
    if region.state in (TabletState.REPLACED, TabletState.DELETED):
        return True
    return region.location(replica).incarnation != me
