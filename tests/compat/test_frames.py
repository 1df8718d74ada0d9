"""Raw requests, proper and odd ones, are answered by our store as by Apache ZooKeeper 3.9.5.

RK_SEED is the first seed (1), RK_SEEDS the number of seeds (20), RK_REQUESTS the requests of each (300).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compat import jvm
from tests.compat.frames import REQUESTS, both, differing

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(jvm.missing()), reason=jvm.missing())]

FIRST = int(os.environ.get("RK_SEED", "1"))
SEEDS = int(os.environ.get("RK_SEEDS", "20"))
COUNT = int(os.environ.get("RK_REQUESTS", str(REQUESTS)))


def test_random_runs_are_answered_alike(tmp_path: Path) -> None:
    """Every received frame is the same, except for intended differences."""
    with both(tmp_path) as players:
        found = [differing(players, seed, COUNT) for seed in range(FIRST, FIRST + SEEDS)]
    stories = [story for story in found if story]
    assert not stories, "\n\n".join(stories)
