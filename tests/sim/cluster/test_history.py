"""The recorded history equals the store's own log; each planted bug of the history is found by that comparison."""

from __future__ import annotations

import pytest

from tests.sim.cluster.planted import Bug
from tests.sim.cluster.planted_history import HISTORY_BUGS, Sound
from tests.support.interpreted import needs_interpreted


def test_the_history_is_the_log_over_lost_answers_and_merges() -> None:
    """`rk history`: each step once, in order, by its actor, however often the master loses its connection."""
    found = Sound().hunt()
    assert found is None, found


@needs_interpreted
@pytest.mark.parametrize("bug", HISTORY_BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_the_history_is_found(bug: type[Bug]) -> None:
    """Every bug of the list is found by the simulation."""
    found = bug().hunt()
    assert found is not None, f"{bug.__doc__} not found by {bug.seeds} seeds"
    assert "history: " in found.violation
