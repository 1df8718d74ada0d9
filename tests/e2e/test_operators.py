"""Operators' commands on a running cluster: why, history, fsck, audit; with each role dead in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regions import messages as ms
from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.records.znodes import encode
from tests.e2e.clusters import run_rk
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters and three servers with one table of six regions, all open."""
    with any_store("one", tmp_path / "store") as hosts, cluster_on(hosts, tmp_path / "cluster") as running:
        active = running.wait_active()
        running.wait_servers(3)
        running.wait_masters(2)
        running.ask(active, ms.CreateTable("orders", list("bcdef"), wait_ms=60_000), ms.Tables)
        yield running


def ask(cluster: Cluster, *words: str, status: int = 0) -> Any:
    """Return the JSON of a command, which must end with `status`."""
    done = run_rk(*words, "--json", "--store", cluster.hosts)
    assert done.returncode == status, f"{words}: {done.returncode} {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return json.loads(done.stdout)


def plant(cluster: Cluster, region_id: str, state: str) -> None:
    """Write an illegal transition."""
    server = cluster.ask_active(ms.ListServers(), ms.Servers).servers[0].server
    epoch = cluster.zk.get(cluster.layout.epoch)[1].version
    at = Incarnation(server.uuid, server.start_code)
    record = TransitionRecord(region_id, region_id.rpartition(".")[0], 0, RegionState(state), at, at, epoch=epoch)
    cluster.zk.create(cluster.layout.transition(region_id, 0), encode(record))


def steps_of(cluster: Cluster, region: str) -> list[str]:
    """Return the states of a region in its history; "" at the end of a transition."""
    return [one["after"] for one in ask(cluster, "history", region)["steps"]]


def kinds_of_runs(cluster: Cluster) -> list[str]:
    """Return the kinds of the recorded events, the newest first."""
    return [run["kind"] for run in ask(cluster, "runs")]


def test_history_and_why_survive_a_kill_and_alarms_are_raised(cluster: Cluster) -> None:
    """N5, N6 in one cluster, because each start of one takes seconds."""
    region = sorted(cluster.owners())[0]
    opening = ["OFFLINE", "OPENING", "OPENED", ""]
    eventually(lambda: steps_of(cluster, region) == opening, what="the history of its opening")
    assert ask(cluster, "audit") == {"alarms": [], "auditors": 2}
    assert ask(cluster, "fsck")["findings"] == []

    [well] = ask(cluster, "why", "orders:a")
    assert (well["explanation"]["region_id"], well["explanation"]["standing"]) == (region, "OPEN")
    assert (well["from_master"], well["server_answers"]) == (True, True)

    plant(cluster, region, "OPENED")
    [alarm] = eventually(lambda: ask(cluster, "audit", status=1)["alarms"], what="the alarm of an illegal write")
    assert alarm["rule"] == "illegal step"
    assert [one["after"] for one in alarm["steps"]][-1] == "OPENED"
    assert ask(cluster, "audit", "--ack", "all") == {"acknowledged": [alarm["alarm_id"]]}

    # A move through a failover: the history is complete, and no legal step raises an alarm.
    active = cluster.wait_active()
    moved = sorted(cluster.owners())[3]
    cluster.ask(active, ms.MoveRegion(moved), ms.Accepted)
    active.kill()
    cluster.wait_settled()

    eventually(lambda: steps_of(cluster, moved)[-1] == "", what="the end of the move in the history")
    steps = steps_of(cluster, moved)
    assert steps[:4] == opening
    # The move may have been lost with the master before it began, and the balancer may repeat it.
    move = ["CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENED", ""]
    assert steps[4:] == move * ((len(steps) - 4) // len(move))
    eventually(lambda: kinds_of_runs(cluster)[:1] == ["failover"], what="the record of the new tenure's beginning")
    assert kinds_of_runs(cluster) == ["failover", "startup"]
    assert ask(cluster, "audit")["alarms"] == []

    # No master is active: the store alone answers, and a legal step ends an orphan.
    for master in cluster.masters:
        master.kill()
    eventually(lambda: not cluster.zk.exists(cluster.layout.active), what="no master is active")
    [alone] = ask(cluster, "why", moved)
    assert (alone["from_master"], alone["explanation"]["standing"]) == (False, "OPEN")
    orphan = TransitionRecord("dead.0001", "dead", 0, RegionState.OFFLINE)
    cluster.zk.create(cluster.layout.transition("dead.0001", 0), encode(orphan))
    found = {one["problem"] for one in ask(cluster, "fsck", status=1)["findings"]}
    assert found == {"transition without a region", "no active master"}
    fixed = ask(cluster, "fsck", "--fix", "--yes", status=1)["fixes"]
    assert [(one["subject"], one["done"]) for one in fixed] == [("dead.0001-0", True)]
    assert not cluster.zk.exists(cluster.layout.transition("dead.0001", 0))


def test_errors_are_sentences(cluster: Cluster) -> None:
    """Unknown and ambiguous regions, a store that does not exist."""
    table = sorted(cluster.owners())[0].rpartition(".")[0]
    for words, status, text in (
        (("why", "nothing"), 4, "no region and no table 'nothing'"),
        (("why", table[:-1]), 1, "matches 6 regions"),
        (("why", "nosuch:key"), 4, "no table 'nosuch'"),
        (("history", "nothing"), 4, "no region, table or server 'nothing'"),
        (("history", "--since", "soon"), 2, "is neither a duration nor a point in time"),
        (("audit", "--ack", "zz"), 4, "no alarm 'zz'"),
        (("fsck", "--yes"), 2, "--yes without --fix"),
    ):
        done = run_rk(*words, "--store", cluster.hosts)
        assert (done.returncode, text in done.stderr) == (status, True), f"{words}: {done.returncode} {done.stderr}"
    said = ask(cluster, "why", "orders")
    assert (said["explanation"]["standing"], said["from_master"]) == ("RUNNING", True)
    # A znode is overwritten with invalid data: commands continue, and name the znode.
    rubbish = [cluster.layout.server("rubbish"), cluster.layout.table("rubbish")]
    for path in rubbish:
        cluster.zk.create(path, b"{")
    problems = ask(cluster, "status")["problems"]
    assert [one for one in problems if one.startswith(f"{rubbish[0]} cannot be decoded")], problems
    assert ask(cluster, "why", "orders:a")[0]["explanation"]["standing"] == "OPEN"
    assert [one["problem"] for one in ask(cluster, "fsck", status=1)["findings"]] == ["unreadable znode"] * 2
    for path in rubbish:
        cluster.zk.delete(path)
    nobody = run_rk("why", "x", "--store", "127.0.0.1:1")
    assert (nobody.returncode, "no store answers" in nobody.stderr) == (3, True), nobody.stderr


def test_a_corrupt_znode_of_each_kind_is_reported_and_skipped(cluster: Cluster) -> None:
    """Invalid data is written over one znode of every kind that is not compared, and the active master dies. Its
    successor becomes active, every command shows the rest, and `rk fsck` names each znode.
    `tests/unit/master/test_corrupt_records.py` has all cases."""
    layout, zk = cluster.layout, cluster.zk
    spare = {
        layout.fence_mark("x"),
        layout.move_batch("x"),
        layout.tablet_intents("x"),
        layout.plan("x"),
        layout.request("x"),
        layout.alarm("x"),
        layout.run(0, 0),
        layout.balancer,
    }
    for path in spare:
        zk.create(path, b"{")
    lasting = {f"{layout.history}/{sorted(zk.get_children(layout.history))[0]}"}
    owned = {*map(layout.master, zk.get_children(layout.masters)), *map(layout.server, zk.get_children(layout.servers))}
    for path in lasting | owned | {layout.active, layout.cluster}:
        zk.set(path, b"\xff\x00rubbish")
    eventually(lambda: all(zk.get(path)[0].startswith(b"{") for path in owned), 20, "their owners put them right")
    status = ask(cluster, "status")
    assert [one for one in status["problems"] if one.startswith(f"{layout.cluster} cannot be decoded")]
    assert status["note"] == ""  # the active master is found although `/active` cannot be decoded
    before = cluster.status().epoch
    cluster.wait_active().kill()
    eventually(lambda: cluster.active() is not None, 40, "a successor")
    assert cluster.status().epoch == before + 1

    problems = ask(cluster, "status")["problems"]
    assert [one for one in problems if layout.balancer in one and "the balancer is off" in one], problems
    findings = [one for one in ask(cluster, "fsck", status=1)["findings"] if one["problem"] == "unreadable znode"]
    assert {one["subject"] for one in findings} == spare | lasting  # `/cluster` was repaired, too
    assert [one["rule"] for one in ask(cluster, "audit", status=1)["alarms"]] == ["unreadable"]
    assert ask(cluster, "history")["unreadable"]
    taken = [(one["kind"], one["epoch"]) for one in ask(cluster, "runs") if one["kind"] != "assignment"]
    assert taken == [("failover", before + 1), ("startup", before)]
    assert ask(cluster, "plan", "show", "--cluster") == []
    assert ask(cluster, "why", "orders:a")[0]["explanation"]["standing"] == "OPEN"
    assert ask(cluster, "balance", "on")["enabled"]
    for process in [*cluster.masters, *cluster.servers]:
        assert "Traceback" not in process.log.read_text()


def test_an_assignment_by_unstick_is_undone_from_its_record(cluster: Cluster) -> None:
    """N11: on real processes, also by the next master; a second undo, and one after another step, are refused."""
    region = cluster.ask_active(ms.DescribeTable("orders"), ms.Regions).regions[0].region.region_id
    ask(cluster, "region", "unassign", region)
    eventually(lambda: cluster.zk.exists(cluster.layout.transition(region, 0)) is None, 30, "the region closed")
    shown = ask(cluster, "unstick", region, "--dry-run")
    assert (shown["plan"]["action"], shown["done"]) == ("assign", False)
    done = ask(cluster, "unstick", region, "--yes")
    assert done["done"]
    eventually(lambda: ask(cluster, "why", region)[0]["explanation"]["standing"] == "OPEN", 30, "the region opened")
    cluster.wait_active().kill()
    cluster.wait_active()
    undone = ask(cluster, "unstick", region, "--undo", "--yes")
    assert undone["done"]
    eventually(lambda: ask(cluster, "why", region)[0]["explanation"]["standing"] == "CLOSED", 30, "the region closed")
    again = ask(cluster, "unstick", region, "--undo", "--yes", status=1)
    assert again["plan"]["refusal"] == "it has been undone already"
    ask(cluster, "unstick", region, "--yes")
    ask(cluster, "region", "unassign", region)
    moved_on = ask(cluster, "unstick", region, "--undo", "--yes", status=1)
    assert "has been unassigned since" in moved_on["plan"]["refusal"]
