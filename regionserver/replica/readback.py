"""Was the step taken? The answer from what the store holds now, by a table.

A step fails in two ways: the store refused it, or the connection broke and its answer is lost. Both are settled in the
same manner: read the znode and compare. Every record that a server writes names its incarnation, so a record of ours is
recognized even if another session reads it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TabletState, TransitionRecord
from regions.transitions.states import Cause


class Readback(enum.Enum):
    """What a read-back says about a step."""

    TAKEN = "taken"  #: it is in the store
    AGAIN = "again"  #: it is not in the store, and may still be taken at the version read
    LOST = "lost"  #: the transition has moved on: it is not this server's any more


class Read(NamedTuple):
    """What was read, and what the step wanted."""

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
    """At another version the znode is another order, even if it names us again: that order comes by itself."""
    return _to_me(read) and read.is_same_version


def _is_announced(read: Read) -> bool:
    """The master has seen OPENED and deleted it, and our answer was lost.

    The location carries the time of this very open, so the location of an earlier open is not mistaken for it.
    """
    return read.region is not None and read.location is not None and read.location in read.region.replicas


def _is_here(read: Read) -> bool:
    """The store, too, says that the replica is open on this server: no region that went elsewhere may be closed."""
    if read.region is None or read.location is None:
        return True
    return read.region.location(read.location.replica).incarnation == read.me


class ReadbackRule(NamedTuple):
    """One row: a step, the state in which its znode was found (None: no znode), a condition, and what follows."""

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
    """Return what became of the step for `cause`; LOST for everything that no rule names.

    `same_version`: `found` is still at the version that the step named. `region` is the region's record as read,
    `location` the one that OPEN_DONE was to write into it, or has written.
    """
    assert cause in _STEPS, f"a region server takes no step for {cause}"
    rule = _BY_STEP.get((cause, None if found is None else found.state))
    if rule is None or not rule.when(Read(me, found, same_version, region, location)):
        return Readback.LOST
    return rule.result


def is_disowned(me: Incarnation, replica: int, found: TransitionRecord | None, region: RegionRecord | None) -> bool:
    """Return True if the store says that an open replica is not on this server, and names another server or none.

    `found` is its transition. False for a region that the store does not know at all: an orphan is never taken away,
    because it may be another cluster's (FN-04). False also if the transition names this server: the transition will
    settle the matter.
    """
    if region is None or (found is not None and me in (found.source, found.destination)):
        return False
    if region.state in (TabletState.REPLACED, TabletState.DELETED):
        return True
    return region.location(replica).incarnation != me
