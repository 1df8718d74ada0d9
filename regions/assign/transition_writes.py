"""Builds the two writes of a master below `/unassigned` from the state of a replica. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from regions.cluster import effects as fx
from regions.cluster.entities import Replica
from regions.records.model import (
    Incarnation,
    Intent,
    RegionState,
    TableState,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_DO_NOT_REOPEN: Final = Cause.DO_NOT_REOPEN
_OPEN: Final = Intent.OPEN
_OFFLINE: Final = RegionState.OFFLINE
_REMOVED: Final = TableState.REMOVED
_DELETED: Final = TabletState.DELETED
#: Values of causes. A dict lookup is faster than the `value` property.
_REASONS: Final = {one: one.value for one in Cause}


def offline(
    replica: Replica,
    destination: Incarnation | None,
    cause: Cause,
    *,
    origin: WorkOrigin,
    epoch: int,
    now_ms: int,
    start_timeout_ms: int,
    attempt: int | None = None,
    error: str | None = None,
    parked: bool = False,
    intent: Intent = _OPEN,
    deaths: int = 0,
) -> fx.WriteOffline:
    """Return the write that creates the transition in OFFLINE, or forces it there.

    Source, plan and attempts are kept unless given. A write with a destination has the intent to open the region, and
    checks the table's record. A write without a destination keeps the former intent, unless `intent` is given.
    """
    assert destination is None or intent is _OPEN, f"{replica.key} has a destination and is not to be opened"
    former = replica.transition
    region = replica.region.record
    if former is None:
        source, plan_id, attempts, last_error = replica.home, replica.plan_id, 0, ""
    else:
        source, plan_id = former.source, former.plan_id
        if destination is None and intent is _OPEN:
            intent = former.intent
        attempts, last_error = former.attempt, former.last_error
    record = TransitionRecord(
        region.region_id,
        region.table_id,
        replica.number,
        _OFFLINE,
        source,
        destination,
        intent,
        epoch,
        plan_id,
        attempts if attempt is None else attempt,
        _REASONS[cause],
        now_ms,
        now_ms + start_timeout_ms,
        last_error if error is None else error,
        parked,
        base=0 if former is None else replica.version + 1,
        deaths=deaths,
        damage=former.damage if former is not None and parked else "",
        origin=WorkOrigin(origin.cause_id),
    )
    before = None if former is None else former.state
    table_check = None
    if before is None or destination is not None:
        table_check = (region.table_id, replica.region.table.version)
    return fx.WriteOffline(replica.key, record, before, replica.version, cause, table_check, former, origin=origin)


def delete(replica: Replica, transition: TransitionRecord, cause: Cause, origin: WorkOrigin) -> fx.DeleteTransition:
    """Return the write that deletes the transition.

    For a region that stays closed, the same multi also clears the location in the region's record, and checks the
    records whose intents make the deletion legal (X3).
    """
    named = (transition.region_id, transition.replica)
    assert named == (replica.region.record.region_id, replica.number), f"{named} would be deleted for {replica.key}"
    effect = fx.DeleteTransition(
        replica.key,
        transition.region_id,
        transition.replica,
        transition.state,
        replica.version,
        cause,
        former=transition,
        origin=origin,
    )
    if cause is not _DO_NOT_REOPEN:
        return effect
    region = replica.region
    effect.table_check = (region.table.record.table_id, region.table.version)
    location = region.record.location(replica.number)
    # Written even if nothing changes: the znode of the region's next transition has the same versions as this one, and
    # a step that a server still has in flight must not match it. The step also checks the region record's version.
    effect.region = region.record
    if location.start_code is not None:
        effect.region = region.record.with_location(msgspec.structs.replace(location, start_code=None))
    if region.table.record.state is _REMOVED:
        effect.region = msgspec.structs.replace(effect.region, state=_DELETED)
    effect.region_version = region.version
    return effect
