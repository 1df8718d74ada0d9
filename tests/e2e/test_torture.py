"""A short round of `tests.torture`: real nodes killed, stopped, frozen and restarted in quick succession under load."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.torture.plan import make_plan
from tests.torture.rounds import Round

pytestmark = pytest.mark.e2e

#: Three nodes, a snapshot every 30 entries: two restarted again and again, the leader killed, one stopped.
SEED = 645
FAULTS = ("kill", "kill-leader", "stop", "storm", "freeze", "transfer", "flood")


def test_a_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No acknowledged write is lost or done twice, and the directories are sound."""
    caplog.set_level(logging.CRITICAL, "kazoo")
    said: list[str] = []
    plan = make_plan(SEED, length_s=4, only=FAULTS, can_fill=False)
    assert len(plan.faults) > 2, plan
    found = Round(plan, tmp_path / "round", said.append)
    found.run()
    assert not found.violations, "\n".join([str(plan), *said, *found.violations])
    assert found.done > 100
    # On a slow machine, faults whose time has passed are skipped.
    assert sum(found.counts.values()) >= 1
