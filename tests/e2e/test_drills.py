"""Each drill once, on one cluster of `rk up`: it measures, the invariants hold, the victim comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk

pytestmark = pytest.mark.e2e

SHAPE = ("--store-nodes", "3", "--masters", "2", "--servers", "3", "--regions", "40", "--plan-engine", "greedy")
DRILL_DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """A cluster that all drills of this module share: each must leave it whole."""
    data_dir = tmp_path_factory.mktemp("drills") / "rk-data"
    with local_up(data_dir, "--base-port", str(free_base_port()), *SHAPE) as found:
        found.event("up")
        yield found


def drill(up: LocalUp, name: str, *options: str) -> dict[str, Any]:
    """Run a drill; returns its report after checking that all of it held."""
    done = run_rk("drill", name, "--json", "--data-dir", str(up.data_dir), *options, timeout_s=DRILL_DEADLINE_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["held"]
    assert all(check["held"] for check in report["checks"])
    assert "only legal transitions" in {check["name"] for check in report["checks"]}
    assert "killed" in done.stderr
    return report


def figures(report: dict[str, Any]) -> dict[str, float]:
    """Its figures by name."""
    return {one["name"]: one["value"] for one in report["figures"]}


def test_master_failover_while_regions_move(up: LocalUp) -> None:
    """A new epoch, and every region OPENED again."""
    report = drill(up, "master-failover")
    found = figures(report)
    assert report["victim"].startswith("master-")
    assert found["no active master"] > 0
    assert found["all regions OPENED"] >= found["no active master"]
    assert report["transitions"] > 40


def test_server_crash_reopens_its_regions_elsewhere(up: LocalUp) -> None:
    """Every region of the victim, and how long each was not open."""
    report = drill(up, "server-crash")
    found = figures(report)
    assert report["victim"].startswith("server-")
    assert found["until noticed"] < found["all its regions OPENED"]
    assert found["region not open, longest"] > 0


def test_store_leader_loses_no_acknowledged_write(up: LocalUp) -> None:
    """On any of the three nodes, the restarted one included."""
    report = drill(up, "store-leader")
    assert report["victim"].startswith("store-")
    assert figures(report)["acknowledged writes"] >= 400
    assert report["checks"][0]["name"] == "no acknowledged write lost"


def test_drill_without_a_local_cluster_says_what_it_needs(tmp_path: Path) -> None:
    """Exit status 3: there is no `rk up` to bring victims back."""
    done = run_rk("drill", "server-crash", "--data-dir", str(tmp_path))
    assert done.returncode == 3
    assert "no `rk up` runs" in done.stderr
