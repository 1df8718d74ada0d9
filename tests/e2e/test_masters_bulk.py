"""Many regions at once: a master dies while it creates or assigns them, and clean shutdowns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import PlanState
from regions.records.znodes import decode_cluster, decode_plan
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

REGIONS = 1500
SPLITS = [f"k{number:06d}" for number in range(1, REGIONS)]
OPTIONS = ["--min-servers", "3", "--plan-engine", "greedy"]


@pytest.fixture(params=["zookeeper", "three"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters and three servers without a table."""
    with (
        any_store(request.param, tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", options=OPTIONS) as running,
    ):
        running.wait_active()
        yield running


def test_a_startup_waits_for_min_servers(tmp_path: Path) -> None:
    """RT-03: with `--min-servers 3`, the master waits for the third server before it gives regions to the first two."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", options=OPTIONS) as cluster,
    ):
        cluster.wait_active()
        cluster.wait_servers(3)
        cluster.ask_active(ms.CreateTable("big", SPLITS[:29], wait_ms=60_000), ms.Tables)
        before = cluster.check_owners()
        for process in [*cluster.masters, *cluster.servers]:
            process.kill()
        registered, active = cluster.layout.servers, cluster.layout.active
        eventually(lambda: not cluster.zk.get_children(registered), what="the store has noticed")
        eventually(lambda: not cluster.zk.exists(active), what="no master is active")
        for process in [*cluster.masters, *cluster.servers[:2]]:
            process.start()
        eventually(lambda: len(cluster.zk.get_children(registered)) == 2, what="two servers")
        eventually(lambda: cluster.zk.exists(active), what="an active master")
        assert cluster.transitions() == []
        cluster.servers[2].start()
        cluster.wait_settled()
        assert cluster.check_owners() == before, "nothing was given to the two that came first"


def test_the_next_master_assigns_a_new_table_after_a_crash(cluster: Cluster) -> None:
    """X8, RT-13: the table exists once the request is answered; the next master assigns the regions that are left."""
    active = cluster.wait_active()
    cluster.ask(active, ms.CreateTable("big", SPLITS), ms.Tables)
    active.kill()
    status = cluster.wait_settled()
    # If no OFFLINE znode existed yet, no region was open or about to be opened: then the takeover is correctly a
    # startup.
    assert (status.regions, status.epoch) == (REGIONS, 2)
    cluster.check_owners()
    plans = [
        decode_plan(cluster.zk.get(cluster.layout.plan(name))[0])
        for name in cluster.zk.get_children(cluster.layout.plans)
    ]
    eventually(
        lambda: all(
            decode_plan(cluster.zk.get(cluster.layout.plan(plan.plan_id))[0]).state == PlanState.DONE for plan in plans
        ),
        what="no plan is left unfinished",
    )


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 0.15])
def test_a_table_is_created_whole_or_not_at_all_when_the_master_dies(cluster: Cluster, pause_s: float) -> None:
    """OC-01, OC-05: the table exists with all its regions or not at all, and its name is free in the second case."""
    active = cluster.wait_active()
    killing = threading.Timer(pause_s, active.kill)
    killing.start()
    with contextlib.suppress(RpcError):  # The machine's speed decides whether the request is done before the kill.
        cluster.ask(active, ms.CreateTable("big", SPLITS), ms.Tables)
    killing.join()
    cluster.wait_active()
    tables = cluster.ask_active(ms.ListTables(), ms.Tables).tables
    if not tables:

        def gone() -> bool:
            layout = cluster.layout
            return not cluster.zk.get_children(layout.names) and not cluster.zk.get_children(layout.regions)

        eventually(gone, what="no remains")
        cluster.ask_active(ms.CreateTable("big", SPLITS, wait_ms=60_000), ms.Tables)
    status = cluster.wait_settled()
    assert status.regions == REGIONS
    cluster.check_owners()


def test_a_clean_shutdown_is_recorded_until_the_next_start(cluster: Cluster) -> None:
    """X7: the mark is written, dead servers are not replaced any more, and the next start removes the mark."""
    cluster.ask_active(ms.CreateTable("small", SPLITS[:29], wait_ms=60_000), ms.Tables)
    before = cluster.check_owners()
    cluster.wait_masters(2)
    cluster.ask_active(ms.ShutdownCluster(), ms.Accepted)
    assert decode_cluster(cluster.zk.get(cluster.layout.cluster)[0]).clean_shutdown
    for process in [*cluster.masters, *cluster.servers]:
        assert process.terminate() == 0, process.log.read_text()[-2000:]
    assert cluster.transitions() == []
    # A close that the store did not answer in time leaves its session to expire, and a server whose session lives
    # makes the next start a failover.
    layout = cluster.layout
    eventually(
        lambda: not cluster.zk.get_children(layout.servers) and not cluster.zk.get_children(layout.masters),
        what="all sessions are over",
    )
    assert decode_cluster(cluster.zk.get(cluster.layout.cluster)[0]).clean_shutdown, "whoever took over kept the mark"
    for process in [*cluster.masters, *cluster.servers]:
        process.start()
    cluster.wait_active()
    status = cluster.wait_settled()
    assert status.path == "startup"
    assert status.plan is not None
    assert status.plan.regions == len(before)
    assert not decode_cluster(cluster.zk.get(cluster.layout.cluster)[0]).clean_shutdown
    assert cluster.check_owners() == before
