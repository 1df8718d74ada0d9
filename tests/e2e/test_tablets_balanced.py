"""A server is added to a running cluster of tablets: members and leaders even out, and no acknowledged row is lost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from regions import messages as ms
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.e2e.test_tablet_intents import SLOW_S, intents, run, voters, written
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

#: Nine tablets with three members each, on four servers and then on five.
SPLITS = list("bdfhjlnp")


def held(cluster: Cluster) -> Counter[str]:
    return Counter(uuid for region in cluster.regions() for uuid in voters(region))


def is_even(counts: Counter[str]) -> bool:
    return len(counts) == 5 and max(counts.values()) - min(counts.values()) <= 1


def test_a_server_that_was_added_gets_its_share_by_itself(tmp_path: Path) -> None:
    """RT-14. `rk balance run --dry-run` shows what a round would do; the balancer does it, and is quiet afterwards."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "c", masters=1, servers=5, options=["--balance-period-s", "1"]) as cluster,
    ):
        late = cluster.servers[4]
        cluster.withdraw(late)
        active = cluster.wait_active()
        cluster.wait_servers(4)
        cluster.ask(active, ms.Balance(switch=False), ms.BalanceReport)
        cluster.ask(active, ms.CreateTable("orders", SPLITS, replication=3, wait_ms=60_000), ms.Tables)
        with written(cluster) as writing:
            late.start()
            cluster.wait_servers(5)
            uuid = cluster.uuid_of(late)
            planned = json.loads(run(cluster, "balance", "run", "--dry-run", "--json").stdout)
            assert {move["destination"] for move in planned["moves"]} == {uuid}
            assert intents(cluster) == []
            shown = run(cluster, "balance", "run", "--dry-run").stdout
            assert "would make" in shown
            assert "leaders of tablets:" in shown
            assert uuid not in held(cluster)

            run(cluster, "balance", "on")
            eventually(lambda: is_even(held(cluster)) and not intents(cluster), SLOW_S, "five members each, or six")
            writing.grows()

            def leaders_are_even() -> bool:
                found = cluster.ask(active, ms.ListTablets(), ms.TabletList).tablets
                counts = Counter(dict.fromkeys(held(cluster), 0))
                counts.update(one.server for each in found for one in each.members if one.number == each.leader)
                return max(counts.values()) - min(counts.values()) <= 1

            eventually(leaders_are_even, SLOW_S, "one leader each, or two")
        again = json.loads(run(cluster, "balance", "run", "--json").stdout)
        assert (again["moves"], again["handovers"]) == ([], [])
        assert "each server leads 1 to 2" in run(cluster, "status").stdout
        assert "leaders: " in run(cluster, "tablet", "list").stdout
