"""Masters and region servers as processes: tables of tablets are created, kept and deleted while processes are
killed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regions.cluster.limits import AssignerConfig
from regions.records.model import PlanState, RegionRecord, TableIntent, TableState, TabletState
from regionserver.client import Change, connect
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.e2e.test_masters_elections import all_heard_since, change_leader
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

TABLETS = 12
SPLITS = [f"k{number:04d}" for number in range(1, TABLETS)]
#: The rows of a deleted table are removed at once.
PURGE_S = "1"
#: Time limit of one step on a busy machine.
SLOW_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters and three servers that take tablets."""
    options = ["--purge-after", PURGE_S]
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", options=options) as running,
    ):
        running.wait_active()
        running.wait_servers(3)
        yield running


def create(cluster: Cluster, name: str = "orders", splits: list[str] | None = None, *, wait: bool = True) -> None:
    """Create a table of tablets with three replicas."""
    request = ms.CreateTable(name, SPLITS if splits is None else splits, replication=3, wait_ms=60_000 if wait else 0)
    cluster.ask_active(request, ms.Tables)


def tablets(cluster: Cluster) -> dict[str, RegionRecord]:
    """Return the records of all tablets in the store."""
    return {one.region_id: one for one in cluster.regions() if one.is_tablet}


def wait_running(cluster: Cluster, count: int) -> dict[str, RegionRecord]:
    """Wait until that many tablets are RUNNING, each with a leader, and no member is in transition."""

    def are_running() -> dict[str, RegionRecord]:
        found = {key: one for key, one in tablets(cluster).items() if one.state is not TabletState.REPLACED}
        states = {one.state for one in found.values()}
        assert (len(found), states, cluster.transitions()) == (count, {TabletState.RUNNING}, [])
        assert all(one.leader for one in found.values())
        return found

    return eventually(are_running, SLOW_S, f"{count} tablets RUNNING")


def table(cluster: Cluster, name: str = "orders") -> ms.TableSummary:
    """Return a table with its counts, as the active master reports it."""
    listed = cluster.ask_active(ms.ListTables(), ms.Tables).tables
    return next(one for one in listed if one.table.name == name)


def superblocks(cluster: Cluster) -> list[str]:
    """Return the tablets that exist on the servers' disks."""
    return sorted(path.name for path in cluster.folder.glob("server*/tablet-meta/*"))


def check_no_alarm(cluster: Cluster) -> None:
    """Check that no auditor of any master has raised an alarm."""
    assert cluster.zk.get_children(cluster.layout.alarms) == []


def test_a_table_is_created_and_survives_servers(cluster: Cluster) -> None:
    """DD-01, DD-05: RUNNING when leaders have reported. The death and return of a server write only leaders' names."""
    create(cluster)
    made = wait_running(cluster, TABLETS)
    assert all(len(one.members) == 3 for one in made.values())
    counts = table(cluster)
    assert (counts.regions, counts.running, counts.replicas) == (TABLETS, TABLETS, 3 * TABLETS)
    assert len(superblocks(cluster)) == 3 * TABLETS
    cluster.servers[0].kill()
    cluster.wait_servers(2)
    eventually(lambda: table(cluster).open == 2 * TABLETS, SLOW_S, "two replicas of each take part")
    cluster.servers[0].start()
    eventually(lambda: table(cluster).open == 3 * TABLETS, SLOW_S, "all replicas take part")
    again = wait_running(cluster, TABLETS)
    assert {key: one.members for key, one in again.items()} == {key: one.members for key, one in made.items()}
    check_no_alarm(cluster)


def test_the_active_master_is_killed_while_a_table_is_made(cluster: Cluster) -> None:
    """The standby continues the creation; each member is made once."""
    create(cluster, splits=[f"k{number:04d}" for number in range(1, 120)], wait=False)
    active = cluster.wait_active()
    active.kill()
    wait_running(cluster, 120)
    active.start()
    assert len(superblocks(cluster)) == 360
    check_no_alarm(cluster)


def test_the_members_of_a_large_table_come_from_a_bulk_plan(cluster: Cluster) -> None:
    """By the built-in planner, in the background: evenly over the servers, and no tablet twice on one of them."""
    regions = AssignerConfig().tablets_bulk_min // 3
    create(cluster, splits=[f"k{number:04d}" for number in range(1, regions)])
    made = wait_running(cluster, regions)
    members = Counter(one.uuid for tablet in made.values() for one in tablet.members)
    assert list(members.values()) == [regions] * 3

    def is_done() -> ms.PlanProgress:
        plan = cluster.ask_active(ms.GetMasterStatus(), ms.MasterStatus).plan
        assert plan is not None
        assert (plan.state, plan.assigned) == (PlanState.DONE, 3 * regions)
        return plan

    plan = eventually(is_done, SLOW_S, "the plan is done")
    assert (plan.regions, plan.engine, plan.note) == (3 * regions, "greedy", "")
    check_no_alarm(cluster)


def test_a_full_restart_places_shared_regions_and_keeps_tablets(cluster: Cluster) -> None:
    """The startup places the shared regions. Tablets stay where they were; they are neither deleted nor planned."""
    create(cluster)
    cluster.ask_active(ms.CreateTable("shared", ["g", "p"], wait_ms=60_000), ms.Tables)
    made = wait_running(cluster, TABLETS)
    for process in [*cluster.masters, *cluster.servers]:
        process.kill()
    for process in [*cluster.servers, *cluster.masters]:
        process.start()
    cluster.wait_servers(3)
    cluster.wait_settled()
    again = wait_running(cluster, TABLETS)
    assert {key: one.members for key, one in again.items()} == {key: one.members for key, one in made.items()}
    eventually(lambda: table(cluster).open == 3 * TABLETS, SLOW_S, "all replicas take part")
    assert table(cluster, "shared").open == 3
    check_no_alarm(cluster)


def test_a_server_is_killed_while_a_table_is_made(cluster: Cluster) -> None:
    """The members on that server wait for it; a majority serves meanwhile."""
    create(cluster, wait=False)
    cluster.servers[1].signal(signal.SIGKILL)
    eventually(lambda: table(cluster).running == TABLETS, SLOW_S, "all tablets run")
    cluster.servers[1].kill()
    cluster.servers[1].start()
    cluster.wait_servers(3)
    eventually(lambda: table(cluster).open == 3 * TABLETS, SLOW_S, "all replicas take part")
    check_no_alarm(cluster)


def test_replicas_rest_wake_and_are_deleted_with_their_table(cluster: Cluster) -> None:
    """Replicas rest with their files and run again. The files of a deleted table are removed on every server, on one of
    them late."""
    create(cluster)
    cluster.ask_active(ms.SetTableIntent("orders", TableIntent.DISABLED, wait_ms=60_000), ms.Tables)
    assert (table(cluster).open, len(superblocks(cluster))) == (0, 3 * TABLETS)
    cluster.ask_active(ms.SetTableIntent("orders", TableIntent.ENABLED, wait_ms=60_000), ms.Tables)
    wait_running(cluster, TABLETS)
    cluster.servers[2].kill()
    cluster.wait_servers(2)
    cluster.ask_active(ms.DeleteTable("orders", wait_ms=60_000), ms.Tables)
    eventually(lambda: len(superblocks(cluster)) == TABLETS, SLOW_S, "the replicas of two servers are deleted")
    cluster.servers[2].start()
    eventually(lambda: superblocks(cluster) == [], SLOW_S, "the third one deletes its own")
    check_no_alarm(cluster)


@pytest.mark.parametrize("waits", [True, False], ids=["open", "just made"])
@pytest.mark.parametrize("way", ["killed", "deposed"])
def test_tablets_are_scanned_right_after_the_leader_has_changed(cluster: Cluster, way: str, waits: bool) -> None:
    """TS-01: create a table, change the active master, scan at once; also a table whose tablets have no leaders yet."""
    create(cluster, wait=waits)
    rows = {f"k{number:04d}x": b"%d" % number for number in range(TABLETS)} if waits else {}
    with connect(cluster.hosts, connect_timeout_s=SLOW_S, timeout_s=SLOW_S) as client:
        if waits:
            client.write("orders", [Change(key, value) for key, value in rows.items()])
        leader = change_leader(cluster, way)
        assert dict(client.scan("orders")) == rows
        client.put("orders", "k0000y", b"later")
        assert client.get("orders", "k0000y") == b"later"
    wait_running(cluster, TABLETS)
    described = cluster.ask(leader, ms.DescribeTable("orders"), ms.Regions).regions
    assert [len(one.replicas) for one in described] == [3] * TABLETS
    eventually(lambda: table(cluster).open == 3 * TABLETS, SLOW_S, "the new leader knows every replica")
    check_no_alarm(cluster)


@pytest.mark.parametrize("waits", [True, False], ids=["TS-02", "TS-03"])
@pytest.mark.parametrize("way", ["killed", "deposed"])
def test_tablets_are_deleted_and_others_made_after_the_leader_has_changed(
    cluster: Cluster, way: str, waits: bool
) -> None:
    """TS-02: create A, change the leader, wait for a heartbeat of each server, delete A, create B; TS-03: without the
    wait. No replica of A takes part any more, and every server has its replicas of B."""
    create(cluster, "a")
    former = set(wait_running(cluster, TABLETS))
    leader = change_leader(cluster, way)
    if waits:
        eventually(all_heard_since(cluster, leader), SLOW_S, "a heartbeat of each server")
    deleted = cluster.ask(leader, ms.DeleteTable("a", wait_ms=60_000), ms.Tables).tables[0]
    assert (deleted.table.state, deleted.open) == (TableState.REMOVED, 0)
    made = cluster.ask(leader, ms.CreateTable("b", SPLITS, replication=3, wait_ms=60_000), ms.Tables).tables[0]
    assert (made.running, made.replicas) == (TABLETS, 3 * TABLETS)

    def only_the_second() -> bool:
        for server in cluster.servers:
            there = cluster.ask(server, ms.ListOpen(), ms.OpenList).tablets
            part = {one.region_id for one in there if one.state == "RUNNING"}
            assert not part & former
            assert len(part) == TABLETS
        return True

    eventually(only_the_second, SLOW_S, "every server has its replicas of B, and none of A")
    check_no_alarm(cluster)
