"""The steps of servers that a transition's znode keeps."""

from __future__ import annotations

from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions.states import Cause
from regions.transitions.trail import TOOK_MAX, add, unrecorded_steps

S1 = Incarnation("s1", 1)


def record(state: RegionState, took: tuple[int, ...], base: int = 0) -> TransitionRecord:
    return TransitionRecord("t.1", "t", 0, state, S1, S1, since_ms=99, base=base, took=took)


def test_an_open_and_a_close() -> None:
    """RT-27 to RT-29: their number shows which steps they were."""
    opened = unrecorded_steps(record(RegionState.OPENED, (1, 2, 3), base=4), 7)
    assert opened == [
        (RegionState.OFFLINE, RegionState.OPENING, Cause.OPEN_ORDER, 1, 0),
        (RegionState.OPENING, RegionState.OPENING, Cause.PROGRESS, 2, 0),
        (RegionState.OPENING, RegionState.OPENED, Cause.OPEN_DONE, 3, 0),
    ]
    assert unrecorded_steps(record(RegionState.CLOSED, (1, 2)), 1) == [
        (None, RegionState.CLOSING, Cause.CLOSE_ORDER, 1, 0),
        (RegionState.CLOSING, RegionState.CLOSED, Cause.CLOSE_DONE, 2, 0),
    ]
    assert unrecorded_steps(record(RegionState.OFFLINE, ()), 5) == []


def test_a_znode_does_not_grow_with_the_progress_of_an_open() -> None:
    """At the limit every time is kept; beyond it, steps without times are counted."""
    took: tuple[int, ...] = ()
    for at_ms in range(TOOK_MAX):
        took = add(took, at_ms)
    assert len(took) == TOOK_MAX
    assert [missed for *_, missed in unrecorded_steps(record(RegionState.OPENED, took), TOOK_MAX)] == [0] * TOOK_MAX
    for at_ms in range(TOOK_MAX, TOOK_MAX + 3):
        took = add(took, at_ms)
    found = unrecorded_steps(record(RegionState.OPENED, took), TOOK_MAX + 3)
    assert [missed for *_, missed in found] == [0, 3] + [0] * (TOOK_MAX - 2)
    assert [found[at][3] for at in (0, 1, -1)] == [0, 4, TOOK_MAX + 2]
    assert sum(1 + missed for *_, missed in found) == TOOK_MAX + 3


def test_a_server_of_an_older_build_leaves_no_times() -> None:
    """The version gives the number of steps; unknown ones are not described."""
    assert unrecorded_steps(record(RegionState.OPENED, ()), 2) == [
        (RegionState.OFFLINE, RegionState.OPENED, Cause.OPEN_DONE, 99, 1)
    ]
    assert unrecorded_steps(record(RegionState.CLOSED, ()), 1) == [(None, RegionState.CLOSED, Cause.CLOSE_DONE, 99, 1)]
