"""Standbys whose sessions end one after the other: their answers are as old as they claim (FW-01)."""

from __future__ import annotations

import pytest

from simulation.run import Options, run
from tests.sim.cluster.planted import sessions_end


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_standby_answers_from_a_session_that_has_ended(seed: int) -> None:
    """Between the end of a session and the next watcher, a standby has no proof."""
    verdict = run(Options(seed, masters=3), script=sessions_end)
    assert verdict.ok, f"seed {seed}: {verdict.violation}"
    assert verdict.counts["answers of standbys"] > 0
