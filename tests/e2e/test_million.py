"""The benchmark of a million regions, with sixty regions on six servers: all of its phases work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.assign.million.phases import million

pytestmark = pytest.mark.e2e

REGIONS = 60


def test_all_phases_of_a_small_cluster(tmp_path: Path) -> None:
    found = million(tmp_path / "million", REGIONS, rest_s=0.1)
    assert [one.name for one in found.phases] == [
        *("load", "mirror", "register", "plan", "assign", "rest", "death"),
        *("balance", "disable", "enable", "warm", "cold"),
    ]
    assert (found.regions, found.servers, found.engine) == (REGIONS, 6, "flow")
    assert found.moves > 0
    # One region in transition at each death of a master, found by the successor.
    assert (found.warm.found, found.cold.found) == (1, 1)
    assert found.cold.regions == REGIONS + 2
