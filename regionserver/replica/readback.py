"""Was our step taken? The answer from what the store holds now: pure tables, one per step.

A step can fail in two ways: the store refused it, or the connection broke and nobody knows. Both are settled in the
same manner: read the znode and compare. Our own incarnation is in every record we write, so a record of ours is
recognised whoever asks.
"""

from __future__ import annotations

import enum

from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TabletState, TransitionRecord
from regions.transitions.states import Cause


class Readback(enum.Enum):
    """What a read-back says about a step."""

    TAKEN = "taken"  #: it is in the store
    AGAIN = "again"  #: it is not, and may still be taken at the version read
    LOST = "lost"  #: somebody else has moved the transition: it is not ours any more


def judge(
    cause: Cause,
    me: Incarnation,
    found: TransitionRecord | None,
    *,
    same_version: bool,
    region: RegionRecord | None = None,
    location: ReplicaLocation | None = None,
) -> Readback:
    """Compare what the step for `cause` wanted with `found`.

    `same_version`: `found` is still at the version that the step named. `region` is the region's record as read,
    `location` what OPEN_DONE wanted to write into it, or has written.
    """
    state = None if found is None else found.state
    to_me = found is not None and found.destination == me
    from_me = found is not None and found.source == me
    if cause is Cause.OPEN_ORDER:
        if state is RegionState.OPENING and to_me:
            return Readback.TAKEN
        # At another version it is another order, even if it is for us again: that order will come, or has come.
        return Readback.AGAIN if state is RegionState.OFFLINE and to_me and same_version else Readback.LOST
    if cause is Cause.PROGRESS:
        return Readback.TAKEN if state is RegionState.OPENING and to_me else Readback.LOST
    if cause is Cause.OPEN_DONE:
        if state is RegionState.OPENED and to_me:
            return Readback.TAKEN
        if found is None and region is not None and location is not None and location in region.replicas:
            # The master has seen OPENED, deleted it, and only our answer was lost. The location carries the time of
            # this very open, so one of an earlier open does not deceive us.
            return Readback.TAKEN
        return Readback.AGAIN if state is RegionState.OPENING and to_me else Readback.LOST
    if cause is Cause.CLOSE_ORDER:
        if state is RegionState.CLOSING and from_me:
            return Readback.TAKEN
        # Only what the store, too, says is open here may be closed: a region that went elsewhere is not ours to mark.
        is_here = region is None or location is None or region.location(location.replica).incarnation == me
        return Readback.AGAIN if found is None and is_here else Readback.LOST
    assert cause is Cause.CLOSE_DONE, f"a region server takes no step for {cause}"
    if state is RegionState.CLOSED and from_me:
        return Readback.TAKEN
    return Readback.AGAIN if state is RegionState.CLOSING and from_me else Readback.LOST


def is_disowned(me: Incarnation, replica: int, found: TransitionRecord | None, region: RegionRecord | None) -> bool:
    """Whether the store says that an open replica is not this server's, and names somebody or nobody instead.

    `found`: its transition. A region of which the store knows nothing at all is not disowned: an orphan is never taken
    away, as it may be another cluster's (FN-04). Nor is one whose transition names us: that will be settled by it.
    """
    if region is None or (found is not None and me in (found.source, found.destination)):
        return False
    if region.state in (TabletState.REPLACED, TabletState.DELETED):
        return True
    return region.location(replica).incarnation != me
