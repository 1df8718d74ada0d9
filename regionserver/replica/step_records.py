"""The steps of a transition that a server writes. Pure.

Every record keeps the times of its steps in `took`, so the history is complete even if no master saw a step.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from regions.messages import CloseOrder, OpenOrder
from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions import states, trail
from regions.transitions.states import Actor, Cause
from regionserver.replica.effects import WriteStep
from regionserver.replica.local_replica import LocalReplica

#: Steps that do not write the region's record, and fail if the record has changed.
_PINNED: Final = (Cause.OPEN_ORDER, Cause.PROGRESS, Cause.CLOSE_ORDER)


def claim(order: OpenOrder, me: Incarnation, epoch: int, now_ms: int) -> TransitionRecord:
    """Return OPENING for an order that names this server."""
    assert order.transition.state is RegionState.OFFLINE, f"{order.transition.key} is {order.transition.state}"
    assert order.transition.destination == me, f"{order.transition.key} goes to {order.transition.destination}"
    return replace(
        order.transition,
        state=RegionState.OPENING,
        destination=me,
        epoch=epoch,
        since_ms=now_ms,
        deadline_ms=now_ms + order.open_timeout_ms,
        took=(now_ms,),
    )


def progress(replica: LocalReplica, now_ms: int) -> TransitionRecord:
    """Return OPENING with a later deadline."""
    record = _taken(replica, RegionState.OPENING)
    deadline_ms = now_ms + replica.open_timeout_ms
    return replace(record, deadline_ms=deadline_ms, took=trail.add(record.took, now_ms))


def opened(replica: LocalReplica, now_ms: int) -> TransitionRecord:
    """Return OPENED."""
    record = _taken(replica, RegionState.OPENING)
    return replace(
        record,
        state=RegionState.OPENED,
        since_ms=now_ms,
        deadline_ms=0,
        token=replica.opened_token,
        took=trail.add(record.took, now_ms),
    )


def closing(order: CloseOrder, me: Incarnation, epoch: int, damage: str, now_ms: int) -> TransitionRecord:
    """Return CLOSING for an order to close."""
    return TransitionRecord(
        region_id=order.region_id,
        table_id=order.table_id,
        replica=order.replica,
        state=RegionState.CLOSING,
        source=me,
        destination=order.destination,
        intent=order.intent,
        epoch=epoch,
        plan_id=order.plan_id,
        attempt=order.attempt,
        reason=order.reason,
        since_ms=now_ms,
        deadline_ms=now_ms + order.close_timeout_ms,
        took=(now_ms,),
        damage=damage,
        origin=order.origin,
    )


def closed(replica: LocalReplica, now_ms: int) -> TransitionRecord:
    """Return CLOSED."""
    record = _taken(replica, RegionState.CLOSING)
    return replace(
        record,
        state=RegionState.CLOSED,
        since_ms=now_ms,
        deadline_ms=0,
        took=trail.add(record.took, now_ms),
        damage=replica.damage,
    )


def again(step: WriteStep, found: TransitionRecord | None) -> TransitionRecord:
    """Return the record for a repetition of `step`, whose znode contains `found`.

    An earlier step may be in the store although its reply was lost, so the znode's times are kept. The znode's origin
    is kept, too: the order may be older than the transition, which may have been deleted and created again for other
    work.
    """
    if step.before is None or found is None:
        return step.record
    origin = found.origin or step.record.origin
    return replace(step.record, took=trail.add(found.took, step.record.took[-1]), origin=origin)


def write_step(
    replica: LocalReplica, number: int, cause: Cause, before: RegionState | None, record: TransitionRecord
) -> WriteStep:
    """Return the compare-and-set that changes `replica` from `before` to `record`.

    Raises:
        InvalidTransition: the table of transitions has no such step of a server.
    """
    assert (record.region_id, record.replica) == replica.key, f"{replica} writes a step of {record.key}"
    assert record.took, f"the step of {replica} has no time"
    if not states.is_legal(Actor.SERVER, before, record.state, cause):
        raise states.IllegalStep(Actor.SERVER, before, record.state, cause, record.key)
    step = WriteStep(replica.key, number, cause, before, record, replica.version)
    if cause in (Cause.OPEN_ORDER, Cause.CLOSE_ORDER):
        step.epoch = replica.epoch
    if cause in _PINNED:
        step.region_version = replica.region_version
    if cause is Cause.OPEN_DONE:
        assert replica.location is not None, f"{replica} is announced without a location"
        step.region = replica.region.with_location(replica.location)
        step.region_version = replica.region_version
    return step


def _taken(replica: LocalReplica, state: RegionState) -> TransitionRecord:
    """Return the transition as last committed, which must be in `state`."""
    record = replica.record
    assert record is not None, f"{replica} is {replica.phase} without a transition"
    assert record.state is state, f"{replica} is {replica.phase}, but its transition is {record.state}, not {state}"
    return record
