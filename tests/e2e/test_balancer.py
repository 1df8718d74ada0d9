"""The balancer in real masters: a new server gets its share, and the switch survives a failover."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regions import messages as ms
from regions.plan.spark.target import DEFAULT, missing, parse_target
from tests.e2e.clusters import free_base_port, local_up, run_rk
from tests.e2e.masters import any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

LACK = missing(parse_target(DEFAULT))
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


#: Regions of the table that `rk up` creates, and the regions with nearly all bytes of its input.
REGIONS, LARGE = 120, 17


@pytest.mark.parametrize(
    "engine",
    [
        "greedy",
        "flow",
        "default",
        pytest.param("spark", marks=pytest.mark.skipif(bool(LACK), reason=LACK or "is here")),
    ],
)
def test_a_fresh_cluster_has_nothing_to_move(engine: str, tmp_path: Path) -> None:
    """B4: a few regions have nearly all bytes of the file that the table was made from. By the measured sizes they are
    empty.

    Fails if the balancer goes by the sizes of the file, or if an engine gives a server more regions than its share.
    """
    source = tmp_path / "skewed.csv"
    rows = (f"k{number:05d},{10**9 if number % LARGE == 0 else 10**3}" for number in range(REGIONS * 10))
    source.write_text("key,size_bytes\n" + "".join(f"{row}\n" for row in rows), encoding="ascii")
    shape = ("--store-nodes", "1", "--masters", "1", "--servers", "3", "--replicas", "1", "--regions", str(REGIONS))
    plan = (
        "--plan-deadline-s",
        "300",
        "--input",
        str(source),
        *(() if engine == "default" else ("--plan-engine", engine)),
    )
    data_dir = tmp_path / "data"
    here = ("--json", "--data-dir", str(data_dir))
    with local_up(data_dir, "--base-port", str(free_base_port()), *shape, *plan) as up:
        made = up.event("up", 400)["plan"]["engine"]
        assert made == ("sharded" if engine == "default" else engine), "without the option a small plan needs no JVM"

        def measured() -> bool:
            servers = json.loads(run_rk("server", "list", *here).stdout)
            return all(one["measured"] and one["bytes"] == 0 for one in servers)

        eventually(measured, what="every server has reported the sizes of its regions")
        done = run_rk("balance", "run", "--dry-run", *here)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["moves"] == []


def _even(owners: dict[str, str]) -> list[int] | None:
    counts = sorted(list(owners.values()).count(uuid) for uuid in set(owners.values()))
    return counts if counts == [20, 20, 20] else None
