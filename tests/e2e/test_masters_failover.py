"""Masters and region servers as processes, on Apache ZooKeeper and on our own store: failures and their results."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import Incarnation, RegionState, TableIntent, TransitionRecord
from regions.records.znodes import encode
from regions.transitions.states import Cause
from tests.e2e.masters import Cluster, Process, any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

REGIONS = 60
SPLITS = [f"k{number:04d}" for number in range(1, REGIONS)]


@pytest.fixture(params=["zookeeper", "three"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters and three servers with one table of 60 regions, all open."""
    with any_store(request.param, tmp_path / "store") as hosts, cluster_on(hosts, tmp_path / "cluster") as running:
        active = running.wait_active()
        running.wait_servers(3)
        running.ask(active, ms.CreateTable("orders", SPLITS, wait_ms=60_000), ms.Tables)
        yield running


def _other(cluster: Cluster, master: Process) -> Process:
    return next(one for one in cluster.masters if one is not master)


def test_regions_are_spread_and_owned_once(cluster: Cluster) -> None:
    """RT-08 to RT-10: each server has a third, and the servers agree with the store."""
    owners = cluster.check_owners()
    counts = sorted(list(owners.values()).count(uuid) for uuid in set(owners.values()))
    assert counts == [20, 20, 20]
    status = cluster.status()
    assert (status.regions, status.open, status.rit, status.path) == (REGIONS, REGIONS, 0, "startup")
    assert {phase.name for phase in status.phases} >= {"election", "load", "plan", "OFFLINE", "open"}


def test_a_killed_masters_moves_are_completed_by_its_standby(cluster: Cluster) -> None:
    """MF-01 to MF-08, RT-13: the standby finishes every move; no row is lost, no region is open twice."""
    active = cluster.wait_active()
    for region in sorted(cluster.owners())[:30]:
        cluster.ask(active, ms.MoveRegion(region), ms.Accepted)
    active.kill()
    standby = _other(cluster, active)
    eventually(lambda: cluster.active() is standby, what="the standby is active")
    status = cluster.wait_settled()
    assert (status.path, status.epoch, status.open) == ("failover", 2, REGIONS)
    cluster.check_owners()


def test_a_killed_master_is_replaced_before_its_session_ends(tmp_path: Path) -> None:
    """The standby notices the closed port; the epoch rejects late writes of the dead master."""
    with any_store("one", tmp_path / "store") as hosts:
        options = ["--session-timeout-ms", "10000"]
        with cluster_on(hosts, tmp_path / "cluster", servers=1, options=options) as cluster:
            active = cluster.wait_active()
            standby = _other(cluster, active)
            cluster.wait_masters(2)
            dead = cluster.ask(active, ms.GetMasterStatus(), ms.MasterStatus).uuid
            active.kill()
            eventually(lambda: cluster.active() is standby, what="the standby is active")
            assert dead in cluster.zk.get_children(cluster.layout.masters)


def test_the_regions_of_a_dead_server_open_elsewhere(cluster: Cluster) -> None:
    """RF-01 to RF-03: its regions open on the other two, the other regions stay."""
    before = cluster.check_owners()
    victim = cluster.servers[0]
    uuid = cluster.uuid_of(victim)
    victim.kill()
    cluster.wait_servers(2)
    cluster.wait_settled()
    after = cluster.check_owners()
    assert uuid not in after.values()
    assert {region: owner for region, owner in before.items() if owner != uuid}.items() <= after.items()


def test_a_new_master_finds_a_server_that_died_with_the_former_one(cluster: Cluster) -> None:
    """X1, X5, MF-01: the new master learns of the dead server from the store alone."""
    active = cluster.wait_active()
    for region in sorted(cluster.owners())[:20]:
        cluster.ask(active, ms.MoveRegion(region), ms.Accepted)
    uuid = cluster.uuid_of(cluster.servers[1])
    cluster.servers[1].kill()
    active.kill()
    cluster.wait_active()
    cluster.wait_servers(2)
    cluster.wait_settled()
    assert uuid not in cluster.check_owners().values()


def test_a_restarted_cluster_returns_regions_to_their_servers(cluster: Cluster) -> None:
    """X7, RT-02 to RT-04: after all processes have died, the start is a startup; every region returns to its former
    server."""
    before = cluster.check_owners()
    for process in [*cluster.masters, *cluster.servers]:
        process.kill()
    registered = cluster.layout.servers
    eventually(lambda: not cluster.zk.get_children(registered), what="the store has noticed")
    # An unfinished step of the dead: a close that no process will finish.
    region = sorted(before)[0]
    owner = Incarnation(before[region], 1)
    left = TransitionRecord(region, region.rpartition(".")[0], 0, RegionState.CLOSING, owner, epoch=1)
    cluster.zk.create(cluster.layout.transition(region, 0), encode(left))
    for server in cluster.servers:
        server.start()
    # A master that starts a cluster waits for servers, but not for long.
    eventually(lambda: len(cluster.zk.get_children(registered)) == 3, what="three registrations")
    for master in cluster.masters:
        master.start()
    cluster.wait_servers(3)
    status = cluster.wait_settled()
    assert status.path == "startup"
    assert "wipe" in {phase.name for phase in status.phases}
    steps = [step for step in cluster.history() if step.cause == Cause.STARTUP_WIPE.value]
    assert [(step.region_id, step.before, step.after) for step in steps] == [(region, "CLOSING", "")]
    after = cluster.check_owners()
    kept = sum(after[region] == owner for region, owner in before.items())
    assert kept >= REGIONS * 9 // 10


def test_a_thawed_master_is_deposed_and_writes_nothing(cluster: Cluster) -> None:
    """FN-01, MF-14: a master that was frozen beyond its session writes nothing and becomes a standby."""
    active = cluster.wait_active()
    active.signal(signal.SIGSTOP)
    standby = _other(cluster, active)
    eventually(lambda: _role(cluster, standby) == "active", what="the standby is active")
    active.signal(signal.SIGCONT)
    eventually(lambda: _role(cluster, active) == "standby", what="the sleeper stands by")

    def hint() -> str:
        with pytest.raises(RpcError) as caught:
            cluster.ask(active, ms.ListTables(), ms.Tables)
        assert caught.value.code == ms.NOT_LEADER
        return caught.value.hint

    eventually(lambda: hint() == f"127.0.0.1:{standby.address[1]}", what="it knows who is active")
    cluster.wait_settled()
    cluster.check_owners()


def _role(cluster: Cluster, master: Process) -> str:
    try:
        return cluster.ask(master, ms.GetMasterStatus(), ms.MasterStatus, 2.0).role
    except RpcError:
        return ""


def test_a_stopping_master_hands_over_at_once(cluster: Cluster) -> None:
    """SIGTERM releases `/active` before the session ends."""
    active = cluster.wait_active()
    assert active.terminate() == 0
    status = cluster.status()
    assert status.epoch == 2
    cluster.wait_settled()


def test_a_raised_epoch_deposes_the_master_and_the_next_tenure_continues(cluster: Cluster) -> None:
    """FW-11: the next fenced write of a master with an old epoch is rejected; the master is elected again and
    continues."""
    region = min(cluster.owners())
    cluster.zk.set(cluster.layout.epoch, cluster.zk.get(cluster.layout.epoch)[0])
    cluster.ask_active(ms.MoveRegion(region), ms.Accepted)
    eventually(lambda: cluster.status().epoch == 3, what="a tenure under a later epoch")
    cluster.wait_settled()
    cluster.check_owners()


def test_a_disabled_table_stays_closed_over_a_failover(cluster: Cluster) -> None:
    """ED-01, ED-02, X3, X6."""
    active = cluster.wait_active()
    before = cluster.check_owners()
    cluster.ask(active, ms.SetTableIntent("orders", TableIntent.DISABLED), ms.Tables)
    active.kill()
    cluster.wait_active()
    eventually(lambda: cluster.owners() == {} and cluster.transitions() == [], what="everything is closed")
    assert all(region.location(0).incarnation is None for region in cluster.regions())
    request = ms.SetTableIntent("orders", TableIntent.ENABLED, wait_ms=60_000)
    cluster.ask_active(request, ms.Tables)
    assert cluster.check_owners() == before


def test_history_has_only_legal_steps(cluster: Cluster) -> None:
    """RT-21: the steps that the master observed and took, for one region."""
    region = min(cluster.owners())
    cluster.ask_active(ms.MoveRegion(region, wait_ms=60_000), ms.Accepted)
    steps = cluster.ask_active(ms.RecentTransitions(region_id=region), ms.Transitions).transitions
    after = [step.after for step in steps if step.after != RegionState.OPENING]
    assert after[:3] == ["OFFLINE", "OPENED", ""]
    assert [one for one in after[3:] if one != "CLOSING"] == ["CLOSED", "OFFLINE", "OPENED", ""]


def test_rejections_of_operators_requests_have_codes(cluster: Cluster) -> None:
    """Rejections of operators' requests carry a code for programs."""
    active = cluster.wait_active()
    refused: list[tuple[str, ms.MasterRequest]] = [
        (ms.ALREADY_EXISTS, ms.CreateTable("orders")),
        (ms.BAD_REQUEST, ms.CreateTable("a/b")),
        (ms.BAD_REQUEST, ms.CreateTable("new", ["b", "a"])),
        (ms.NOT_FOUND, ms.DescribeTable("nothing")),
        (ms.NOT_FOUND, ms.MoveRegion("nothing")),
        (ms.NOT_FOUND, ms.MoveRegion(min(cluster.owners()), destination="nobody")),
        (ms.BAD_REQUEST, ms.RetryRegion(min(cluster.owners()))),
    ]
    for code, request in refused:
        with pytest.raises(RpcError) as caught:
            cluster.ask(active, request, ms.Accepted)
        assert caught.value.code == code, request
