"""Measured sizes on a server: which of them are reported, and how often."""

from __future__ import annotations

import pytest

from regions.messages.heartbeat import OPEN, Measure, ReplicaReport, ReplicaState
from regions.messages.server import TabletFigures
from regionserver.figures import figures, with_figures
from regionserver.replica.states import Phase
from regionserver.request_gate import SIZE_CHANGE_BYTES, SIZES_EVERY_S, Sizes, differs

R = ("r", 0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, Measure(0, 0), True),
        (Measure(0, 0), Measure(1, 4096), True),
        (Measure(1, 4096), Measure(0, 0), True),
        (Measure(1000, 100_000), Measure(1000, 100_000), False),
        (Measure(1000, 100_000), Measure(1000, 104_999), False),
        (Measure(1000, 100_000), Measure(1000, 105_000), True),
        (Measure(1000, 100_000), Measure(1000, 95_000), True),
        (Measure(1000, 100_000), Measure(1049, 100_000), False),
        (Measure(1000, 100_000), Measure(1050, 100_000), True),
        (Measure(1000, 10**9), Measure(1000, 10**9 + SIZE_CHANGE_BYTES - 1), False),
        (Measure(1000, 10**9), Measure(1000, 10**9 + SIZE_CHANGE_BYTES), True),
    ],
)
def test_only_noticeable_changes_are_reported(before: Measure | None, now: Measure, expected: bool) -> None:
    """At each limit, and beside it."""
    assert differs(before, now) is expected


def test_sizes_are_compared_with_the_reported_ones_and_not_too_often() -> None:
    """Small changes add up; between two comparisons nothing is reported; at rest nothing is compared."""
    sizes = Sizes()
    sizes.measured(R, Measure(100, 100_000))
    assert sizes.take_changed(0) == [R]
    sizes.measured(R, Measure(200, 200_000))
    assert sizes.take_changed(SIZES_EVERY_S / 2) == []
    assert sizes.take_changed(SIZES_EVERY_S) == [R]
    for step in range(1, 4):
        sizes.measured(R, Measure(200, 200_000 + 3_000 * step))
        assert sizes.take_changed(SIZES_EVERY_S * (2 + step)) == []
    sizes.measured(R, Measure(200, 212_000))
    assert sizes.take_changed(SIZES_EVERY_S * 9) == [R]
    assert sizes.take_changed(SIZES_EVERY_S * 99) == []
    assert sizes.of(R) == Measure(200, 212_000)


def test_a_replica_that_comes_back_is_reported_again() -> None:
    """Another server may have reported the replica meanwhile."""
    sizes = Sizes()
    sizes.measured(R, Measure(1, 4096))
    assert sizes.take_changed(0) == [R]
    sizes.forget(R)
    assert sizes.of(R) is None
    sizes.measured(("s", 0), Measure(1, 4096))
    assert sizes.take_changed(SIZES_EVERY_S) == [("s", 0)]
    sizes.measured(R, Measure(1, 4096))
    assert sizes.take_changed(2 * SIZES_EVERY_S) == [R]


def test_a_report_has_the_measured_size() -> None:
    """A service that measures nothing reports nothing: not zero."""
    bare = ReplicaReport("r", "t", 0, OPEN)
    assert with_figures(bare, None, None).measure is None
    found = with_figures(bare, 2.5, Measure(7, 4096))
    assert (found.measure, found.load) == (Measure(7, 4096), 2.5)


def test_figures_count_shared_regions_apart() -> None:
    """N5: a standby compares this number with its mirror, which has no members of tablets."""
    phases = {**dict.fromkeys(Phase, 0), Phase.OPEN: 3}
    found = figures(phases, {}, TabletFigures({ReplicaState.RUNNING.value: 5}))
    assert (found.open, found.shared) == (8, 3)
