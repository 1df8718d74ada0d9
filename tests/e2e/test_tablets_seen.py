"""The operators' view of tablets while servers of real processes die and come back."""

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

TABLETS = 4
SPLITS = ["g", "n", "t"]
#: Time limit of a step on a busy machine.
SLOW_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return one master, three servers and a table of four tablets with three replicas each."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", masters=1) as running,
    ):
        running.wait_active()
        running.wait_servers(3)
        running.ask_active(ms.CreateTable("orders", SPLITS, replication=3, wait_ms=60_000), ms.Tables)
        yield running


def run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command. Check that it prints no traceback."""
    command = rk(*words, "--store", cluster.hosts)
    done = finished(command, SLOW_S)
    assert "Traceback" not in done.stderr
    return done


def counts(cluster: Cluster) -> dict[str, int]:
    """Return the number of tablets by health, from `rk tablet list`."""
    found: dict[str, int] = json.loads(run(cluster, "tablet", "list", "--json").stdout)["counts"]
    return found


def wait_for(cluster: Cluster, health: str) -> None:
    """Wait until all tablets have that health."""

    def are_so() -> bool:
        found = counts(cluster)
        assert found == {health: TABLETS}
        return True

    eventually(are_so, SLOW_S, f"all {health}")


def fsck(cluster: Cluster) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the report."""
    done = run(cluster, "fsck", "--json")
    return done.returncode, json.loads(done.stdout)


def test_dead_servers_are_told_truly(cluster: Cluster) -> None:
    """One of three servers dead: UNDER_REPLICATED. Two: UNAVAILABLE, with and without a master. Back: HEALTHY."""
    wait_for(cluster, "HEALTHY")
    status, report = fsck(cluster)
    assert (status, report["findings"]) == (0, [])
    assert report["tablets"] == {"counts": {"orders": {"HEALTHY": TABLETS}}, "unhealthy": []}
    first, second, third = cluster.servers
    names = {server: cluster.uuid_of(server) for server in cluster.servers}

    first.kill()
    cluster.wait_servers(2)
    wait_for(cluster, "UNDER_REPLICATED")
    status, report = fsck(cluster)
    problems = {one["problem"] for one in report["findings"]}
    assert (status, problems) == (1, {"tablet with too few healthy replicas"})
    listed = json.loads(run(cluster, "tablet", "list", "--json").stdout)["tablets"]
    assert all(f"on {names[first]} is " in one["reason"] for one in listed)
    assert all("its server is not registered" in one["reason"] for one in listed)
    dead = [member for one in listed for member in one["members"] if member["server"] == names[first]]
    assert [(one["is_registered"], one["state"], one["term"]) for one in dead] == [(False, None, None)] * TABLETS
    found = json.loads(run(cluster, "status", "--json").stdout)
    assert found["tablets"] == {"UNDER_REPLICATED": TABLETS}
    assert [(one["open"], one["tablets_open"]) for one in found["servers"]] == [(TABLETS, TABLETS)] * 2
    assert sum(one["leaders"] for one in found["servers"]) == TABLETS
    assert [(one["replicas"], one["open"], one["running"]) for one in found["tables"]] == [(12, 8, TABLETS)]
    status_of_master = cluster.ask_active(ms.GetMasterStatus(), ms.MasterStatus)
    assert (status_of_master.replicas, status_of_master.open, status_of_master.unusable) == (12, 8, 0)
    for server in (second, third):
        open_list = cluster.ask(server, ms.ListOpen(), ms.OpenList)
        assert [one.state for one in open_list.tablets] == ["RUNNING"] * TABLETS
        assert cluster.ask(server, ms.GetServerStatus(), ms.ServerStatus).open == TABLETS
    screen = run(cluster, "tablet", "list").stdout
    assert names[first][:8] not in screen, "the history has the dead server's address"

    second.kill()
    cluster.wait_servers(1)
    wait_for(cluster, "UNAVAILABLE")
    status, report = fsck(cluster)
    assert status == 1
    assert {one["problem"] for one in report["findings"]} == {"tablet without a leader"}
    rows = report["tablets"]["unhealthy"][0]["rows"]
    assert sorted(one["state"] for one in rows[1:]) == ["RUNNING", "no answer", "no answer"]
    tablet = listed[0]["region_id"]
    answer = json.loads(run(cluster, "why", tablet, "--json").stdout)
    assert (answer["from_master"], answer["tablet"]["health"]) == (True, "UNAVAILABLE")
    assert "2 of 3 voters are on servers that are not registered" in answer["tablet"]["reason"]

    cluster.masters[0].kill()
    answer = json.loads(run(cluster, "why", tablet, "--json").stdout)
    assert (answer["from_master"], answer["tablet"]["health"]) == (False, "UNAVAILABLE")
    cluster.masters[0].start()
    first.start()
    second.start()
    cluster.wait_servers(3)
    wait_for(cluster, "HEALTHY")
    assert fsck(cluster)[0] == 0


def test_words_for_newcomers(cluster: Cluster) -> None:
    """Each screen prints, names the leader, and explains an invalid name."""
    wait_for(cluster, "HEALTHY")
    tablet = json.loads(run(cluster, "tablet", "list", "--json").stdout)["tablets"][0]["region_id"]
    for words in (["tablet", "show", tablet], ["tablet", "show", "orders:h"], ["why", tablet], ["why", "orders"]):
        done = run(cluster, *words)
        assert done.returncode == 0, done.stderr
        assert "HEALTHY" in done.stdout
    assert "LEADER" in run(cluster, "tablet", "show", tablet).stdout
    done = run(cluster, "tablet", "show", "nobody")
    assert (done.returncode, done.stderr.splitlines()[0]) == (4, "rk: no tablet 'nobody'")
    cluster.ask_active(ms.CreateTable("counters", wait_ms=30_000), ms.Tables)
    done = run(cluster, "tablet", "list", "--table", "counters")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "rk: table counters has no tablets: its rows lie in the shared directory",
    )
    assert "4 HEALTHY" in run(cluster, "status").stdout
    assert run(cluster, "server", "list").returncode == 0
    assert "tablet" in run(cluster, "table", "list").stdout
