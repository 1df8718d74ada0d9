"""How often the page's work is done: by its share of the master's CPU, within the least and the most pause."""

from __future__ import annotations

import pytest

from regions.page.pace import DEBT_MAX_S, IDLE_PART, SAVED_MAX_S, WorkPace

STEP_S = 0.05


def _play(pace: WorkPace, seconds: float, busy: float, took_s: float) -> tuple[float, int]:
    """Let time pass on a process that otherwise uses `busy` of a core. Return its share, and how often it was done."""
    wall_s, other_s, spent_s, times = 0.0, 0.0, 0.0, 0
    while wall_s < seconds:
        if pace.is_due(wall_s, other_s + spent_s):
            spent_s, times = spent_s + took_s, times + 1
            pace.spend(took_s, wall_s)
        wall_s, other_s = wall_s + STEP_S, other_s + busy * STEP_S
    return spent_s / (other_s + spent_s), times


@pytest.mark.parametrize("busy", [0.2, 0.33, 1.0])
@pytest.mark.parametrize("took_s", [0.004, 0.03])
def test_the_work_takes_its_share_of_the_process(busy: float, took_s: float) -> None:
    """However much the process waits. Fails if `is_due` earns from the time that passes alone."""
    share = 0.02
    found, _ = _play(WorkPace(share, STEP_S, 1e9), 300, busy, took_s)
    most = share * (1 + IDLE_PART / busy)
    assert share * 0.9 < found < most + (SAVED_MAX_S + took_s) / (300 * busy) + 1e-6


def test_cheap_work_is_done_at_the_shortest_pause() -> None:
    """A small cluster gets ten deltas a second, at rest too."""
    _, times = _play(WorkPace(0.02, 0.1, 3), 60, 0.0, 0.00005)
    assert 400 < times <= 601


def test_dear_work_is_done_at_the_longest_pause_at_least() -> None:
    """On a process that uses no CPU for anything else. Fails if `most_s` is ignored."""
    _, times = _play(WorkPace(0.001, 0.1, 3), 60, 0.0, 1.0)
    assert 19 <= times <= 21


def test_what_was_begun_goes_on_without_a_pause_while_it_may_spend() -> None:
    """Fails if `goes_on` is ignored, or if it goes on in debt."""
    pace = WorkPace(0.02, 0.1, 3)
    assert pace.is_due(0, 0)
    pace.spend(0.001, 0)
    assert not pace.is_due(0.01, 0)
    assert pace.is_due(0.01, 0, goes_on=True)
    pace.spend(SAVED_MAX_S, 0.01)
    assert not pace.is_due(0.02, 0, goes_on=True)
    assert pace.is_due(3.1, 0, goes_on=True)


def test_debt_is_forgiven_beyond_a_bound() -> None:
    """One piece of work of ten seconds costs no more pause than one of DEBT_MAX_S."""
    pace = WorkPace(0.02, 0.1, 1e9)
    assert pace.is_due(0, 0)
    pace.spend(10, 0)
    assert pace.left_s == -DEBT_MAX_S
    assert not pace.is_due(1, DEBT_MAX_S / 0.02 - 1)
    assert pace.is_due(2, DEBT_MAX_S / 0.02 + 1)
