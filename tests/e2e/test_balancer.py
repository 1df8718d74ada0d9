"""The balancer in real masters: a new server gets its share, and the switch survives a failover."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from regions import messages as ms
from regions.records.partitioning import RegionSpec
from tests.e2e.masters import any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

SPLITS = [f"k{number:04d}" for number in range(1, 60)]


@pytest.mark.parametrize("store", ["zookeeper", "one"])
def test_a_new_server_gets_its_share_and_the_switch_survives_a_failover(store: str, tmp_path: Path) -> None:
    """RT-14, RT-15: rounds continue until each server has a third; after it is switched off, nothing moves under the
    next master."""
    options = ["--balance-period-s", "0.5"]
    with any_store(store, tmp_path / "store") as hosts, cluster_on(hosts, tmp_path / "c", options=options) as cluster:
        late = cluster.servers[2]
        cluster.withdraw(late)
        active = cluster.wait_active()
        cluster.wait_servers(2)
        cluster.ask(active, ms.CreateTable("orders", SPLITS, wait_ms=60_000), ms.Tables)
        late.start()
        counts = eventually(lambda: _even(cluster.owners()), what="twenty regions each")
        assert counts == [20, 20, 20]
        report = cluster.ask(active, ms.Balance(), ms.BalanceReport)
        assert report.enabled
        assert report.last is not None
        assert report.last.moves > 0

        assert not cluster.ask(active, ms.Balance(switch=False), ms.BalanceReport).enabled
        active.kill()
        standby = next(one for one in cluster.masters if one is not active)
        eventually(lambda: cluster.active() is standby, what="the standby is active")
        cluster.wait_settled()
        gone = cluster.uuid_of(late)
        for region, uuid in sorted(cluster.owners().items()):
            if uuid == gone:
                cluster.ask(standby, ms.MoveRegion(region, wait_ms=60_000), ms.Accepted)
                break
        cluster.wait_settled()
        report = cluster.ask(standby, ms.Balance(run=True, dry_run=True), ms.BalanceReport)
        assert not report.enabled
        assert report.last is None
        moved = cluster.ask(standby, ms.Balance(run=True), ms.BalanceReport)
        assert moved.moves == report.moves
        eventually(lambda: _even(cluster.owners()), what="twenty regions each again")
        cluster.wait_settled()
        cluster.check_owners()


def test_a_fresh_cluster_has_nothing_to_move(tmp_path: Path) -> None:
    """A few regions have all bytes of the file that the table was made from. By the measured sizes they are empty."""
    names = ["", *(f"k{number:04d}" for number in range(1, 400)), ""]
    specs = [
        RegionSpec(start, end, 10**9 if number % 17 == 0 else 10**3)
        for number, (start, end) in enumerate(itertools.pairwise(names))
    ]
    options = ["--balance-period-s", "0", "--plan-engine", "flow"]
    with any_store("one", tmp_path / "store") as hosts, cluster_on(hosts, tmp_path / "c", options=options) as cluster:
        active = cluster.wait_active()
        cluster.wait_servers(3)
        cluster.ask(active, ms.CreateTable("orders", regions=specs, wait_ms=60_000), ms.Tables)

        def measured() -> ms.Servers | None:
            found = cluster.ask(active, ms.ListServers(), ms.Servers)
            return found if all(one.measured and one.bytes == 0 for one in found.servers) else None

        eventually(measured, what="every server has reported the sizes of its regions")
        assert cluster.ask(active, ms.Balance(run=True, dry_run=True), ms.BalanceReport).moves == []


def _even(owners: dict[str, str]) -> list[int] | None:
    counts = sorted(list(owners.values()).count(uuid) for uuid in set(owners.values()))
    return counts if counts == [20, 20, 20] else None
