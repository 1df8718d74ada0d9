"""Steps of transitions as one master saw or made them, kept in memory for `rk history` and for tests."""

from __future__ import annotations

import msgspec

from regions.model import RegionState, TransitionRecord
from regions.states import Actor, Cause
from regions.world import Replica


class SeenStep(msgspec.Struct, gc=False):
    """A step for the history kept in memory."""

    at_ms: int
    key: str
    actor: Actor
    before: RegionState | None
    after: RegionState | None
    cause: Cause | None
    server: str
    epoch: int
    plan_id: str
    attempt: int
    error: str


def step_of(
    replica: Replica, record: TransitionRecord, actor: Actor, cause: Cause | None, now_ms: int, *, deleted: bool = False
) -> SeenStep:
    """The step from the replica's known transition to `record`, or to none if `deleted`."""
    former = replica.transition
    closing = record.state in (RegionState.CLOSING, RegionState.CLOSED)
    server = record.source if closing else record.destination
    return SeenStep(
        now_ms,
        replica.key,
        actor,
        None if former is None else former.state,
        None if deleted else record.state,
        cause,
        "" if server is None else server.uuid,
        record.epoch,
        record.plan_id,
        record.attempt,
        record.last_error,
    )
