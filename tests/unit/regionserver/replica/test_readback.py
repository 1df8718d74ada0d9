"""The outcome of a step, decided from a read of its znode."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from regions.records.model import RegionRecord, RegionState, ReplicaLocation, TransitionRecord
from regions.transitions.states import Cause
from regionserver.replica.readback import Readback, resolve
from tests.unit.regionserver.replica.support import ME, OTHER, offline


@pytest.mark.parametrize(
    ("cause", "found", "verdict"),
    [
        (Cause.OPEN_ORDER, None, Readback.LOST),
        (Cause.OPEN_ORDER, offline(), Readback.AGAIN),
        (Cause.OPEN_ORDER, offline(OTHER), Readback.LOST),
        (Cause.OPEN_ORDER, replace(offline(), state=RegionState.OPENING), Readback.TAKEN),
        (Cause.OPEN_ORDER, replace(offline(OTHER), state=RegionState.OPENING), Readback.LOST),
        (Cause.PROGRESS, replace(offline(), state=RegionState.OPENING), Readback.TAKEN),
        (Cause.PROGRESS, offline(), Readback.LOST),
        (Cause.OPEN_DONE, None, Readback.LOST),
        (Cause.OPEN_DONE, offline(), Readback.LOST),
        (Cause.OPEN_DONE, replace(offline(), state=RegionState.OPENING), Readback.AGAIN),
        (Cause.OPEN_DONE, replace(offline(), state=RegionState.OPENED), Readback.TAKEN),
        (Cause.CLOSE_ORDER, None, Readback.AGAIN),
        (Cause.CLOSE_ORDER, offline(), Readback.LOST),
        (Cause.CLOSE_ORDER, TransitionRecord("r1", "t", 0, RegionState.CLOSING, ME), Readback.TAKEN),
        (Cause.CLOSE_ORDER, TransitionRecord("r1", "t", 0, RegionState.CLOSING, OTHER), Readback.LOST),
        (Cause.CLOSE_DONE, TransitionRecord("r1", "t", 0, RegionState.CLOSING, ME), Readback.AGAIN),
        (Cause.CLOSE_DONE, TransitionRecord("r1", "t", 0, RegionState.CLOSED, ME), Readback.TAKEN),
        (Cause.CLOSE_DONE, None, Readback.LOST),
    ],
)
def test_a_step_is_resolved_by_its_znode(cause: Cause, found: TransitionRecord | None, verdict: Readback) -> None:
    """The content of the znode decides whether the step was taken."""
    assert resolve(cause, ME, found, same_version=True) is verdict


def test_an_offline_at_another_version_belongs_to_another_order() -> None:
    """A later order for this server comes separately, with its own version."""
    assert resolve(Cause.OPEN_ORDER, ME, offline(), same_version=False) is Readback.LOST


def test_a_location_of_an_earlier_open_does_not_prove_opened() -> None:
    """Only the exact location that was to be written proves that OPENED was written."""
    old, new = ReplicaLocation(0, "me", 7, 1), ReplicaLocation(0, "me", 7, 2)
    region = RegionRecord("t", "r1", replicas=(old,))
    for location, verdict in ((old, Readback.TAKEN), (new, Readback.LOST)):
        found = resolve(Cause.OPEN_DONE, ME, None, same_version=True, region=region, location=location)
        assert found is verdict
