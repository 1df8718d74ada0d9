"""Operators change members of tablets on real processes: leadership moves, members leave."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regions import messages as ms
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import eventually, finished, rk

pytestmark = pytest.mark.e2e

#: Time limit of a step on a busy machine.
SLOW_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return one master, three servers and a table of one tablet with three replicas."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", masters=1) as running,
    ):
        running.wait_active()
        running.wait_servers(3)
        running.ask_active(ms.CreateTable("orders", replication=3, wait_ms=60_000), ms.Tables)
        yield running


def run(cluster: Cluster, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run one command and check its exit status. It prints no traceback."""
    done = finished(rk("tablet", *words, "--store", cluster.hosts), SLOW_S)
    assert "Traceback" not in done.stderr
    assert done.returncode == status, done.stderr
    return done


def shown(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(cluster, "show", "orders:k", "--json").stdout)
    return found


def has_voters(cluster: Cluster, count: int) -> bool:
    """Check that the master knows so many voters, and a leader."""
    found = shown(cluster)
    assert found["leader"] is not None
    assert sum(one.get("role") == "VOTER" for one in found["members"]) == count
    return True


def test_leadership_moves_and_a_member_leaves(cluster: Cluster) -> None:
    """The leader is not removed before it has handed over; each refusal is one line and changes nothing. The master
    replaces the member that was removed."""
    eventually(lambda: has_voters(cluster, 3), SLOW_S, "three voters and a leader")
    before = shown(cluster)
    leader = next(one["server"] for one in before["members"] if one["number"] == before["leader"])
    other = next(one["server"] for one in before["members"] if one["server"] != leader)

    planned = json.loads(run(cluster, "leader-step-down", "orders:k", "--to", other, "--dry-run", "--json").stdout)
    assert (planned["from"], planned["dry_run"]) == (leader, True)
    refused = run(cluster, "change-config", "remove", "orders:k", leader, status=1)
    assert "LEADS" in refused.stderr
    assert "leader-step-down" in refused.stderr
    moved = json.loads(run(cluster, "leader-step-down", "orders:k", "--to", other, "--json").stdout)
    assert (moved["from"], moved["after"]) == (leader, other)

    refused = run(cluster, "change-config", "remove", "orders:k", leader, "--expect", "99.1", status=1)
    assert "STALE_CONFIG" in refused.stderr
    run(cluster, "change-config", "remove", "orders:k", leader, "--expect", "new", status=2)
    planned = json.loads(run(cluster, "change-config", "remove", "orders:k", leader, "--dry-run", "--json").stdout)
    assert planned["dry_run"]
    eventually(lambda: has_voters(cluster, 3), SLOW_S, "the new leader, as the master knows it, and nobody removed")
    done = json.loads(run(cluster, "change-config", "remove", "orders:k", leader, "--json").stdout)
    assert done["answer"] == "DONE"
    assert leader not in {one["uuid"] for one in done["members"]}
    run(cluster, "change-config", "remove", "orders:k", "9" * 32, status=4)

    def is_replaced() -> bool:
        numbers = {one["number"]: one["server"] for one in shown(cluster)["members"] if one.get("role")}
        assert (numbers.get(4), len(numbers)) == (leader, 3), numbers
        return has_voters(cluster, 3)

    eventually(is_replaced, SLOW_S, "the policy adds a member with a new number, on the only server without one")
