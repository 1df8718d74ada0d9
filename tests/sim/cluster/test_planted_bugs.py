"""Each planted bug must be found within its number of seeds: a simulation that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from tests.sim.cluster.planted import BUGS, Bug
from tests.sim.cluster.planted_resharding import RESHARDING_BUGS
from tests.support.interpreted import is_interpreted

pytestmark = pytest.mark.skipif(not is_interpreted(), reason="bugs are planted by patches; compiled code takes none")


@pytest.mark.parametrize("bug", [*BUGS, *RESHARDING_BUGS], ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[Bug]) -> None:
    """Every bug of the list is found by the simulation."""
    assert bug().hunt() is not None, f"{bug.__doc__} not caught by {bug.seeds} seeds"
