"""A bulk plan and the balancer agree: a cluster that a plan has filled has nothing to move."""

from __future__ import annotations

import pytest

from regions.balance.balancer import propose
from regions.balance.sizes import RegionSizes
from regions.messages.heartbeat import Measure
from regions.plan import RegionRow, ServerRow, Snapshot, plan
from tests.unit.regions.balance.test_balancer import WIDE, cluster, put, server

#: Regions by table, racks of the servers, and the weight of the last server.
INPUTS = {
    "one table": ({"t": 200}, "aaaa", 1.0),
    "as many as servers": ({"t": 4}, "abcd", 1.0),
    "fewer than servers": ({"t": 3}, "aabbc", 1.0),
    "several tables": ({"t": 40, "u": 80, "v": 120}, "aabb", 1.0),
    "tables that do not divide": ({"t": 41, "u": 7, "v": 3}, "aaa", 1.0),
    "a server of double weight": ({"t": 100}, "aaab", 2.0),
}


@pytest.mark.parametrize("engine", ["greedy", "flow", "sharded"])
@pytest.mark.parametrize("name", INPUTS)
def test_a_fresh_plan_leaves_the_balancer_nothing_to_do(name: str, engine: str) -> None:
    """A few regions have nearly all bytes of the files that the tables were made from; the new regions are empty."""
    tables, racks, weight = INPUTS[name]
    weights = [1.0] * (len(racks) - 1) + [weight]
    servers = [ServerRow(f"s{n}", f"h{n}", rack, weights[n]) for n, rack in enumerate(racks)]
    rows = [
        RegionRow(f"{table}-{n:03}", table, size_bytes=10**9 if n % 17 == 0 else 10**3)
        for table, count in tables.items()
        for n in range(count)
    ]
    made = plan(Snapshot.of(rows, servers), engine=engine)
    world = cluster(*(server(one.server_id, rack=one.rack, weight=one.weight or 0.0) for one in servers))
    sizes = {one.region_id: one.size_bytes for one in rows}
    for region_id, _, server_id in made.rows:
        put(world, region_id.partition("-")[0], region_id, server_id, size=sizes[region_id])
    measured = RegionSizes({key: Measure(0, 0) for key in world.replicas})
    assert propose(world, WIDE, sizes=measured).moves == []
