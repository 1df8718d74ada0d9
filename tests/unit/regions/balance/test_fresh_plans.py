"""A bulk plan and the balancer agree: a cluster that a plan has filled has nothing to move."""

from __future__ import annotations

import pytest

from regions.balance.balancer import propose
from regions.balance.sizes import RegionSizes
from regions.cluster.state import ClusterState
from regions.messages.heartbeat import Measure
from regions.plan import RegionRow, ServerRow, Snapshot, plan
from regions.records.model import ServerRecord
from tests.unit.regions.balance.test_balancer import WIDE, carry_out, cluster, put, server

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


def planned(regions: int, tables: int, servers: list[ServerRecord]) -> ClusterState:
    """Return a cluster whose regions are where a plan has put them."""
    rows = [RegionRow(f"t{n % tables}-{n:06}", f"t{n % tables}") for n in range(regions)]
    made = plan(Snapshot.of(rows, [ServerRow(one.uuid, one.host, one.rack) for one in servers]))
    world = cluster(*servers)
    for region_id, _, server_id in made.rows:
        put(world, region_id.partition("-")[0], region_id, server_id)
    return world


@pytest.mark.parametrize("gone", [1, 30])
def test_a_server_that_comes_back_empty_gets_its_share_and_nothing_else_moves(gone: int) -> None:
    """RT-15: 10,000 regions of ten tables on 1,000 servers. Each of the lost regions is moved once, and none again.

    Fails with more moves if the balancer also moves regions between servers that have their shares.
    """
    servers = [server(f"s{n:04}", rack=f"r{n % 10}") for n in range(1_000)]
    world = planned(10_000, 10, servers)
    for n in range(gone):
        lost = world.servers[f"s{n:04}"]
        for replica in list(lost.open.values()):
            target = min(servers[gone:], key=lambda one: (world.servers[one.uuid].load, one.uuid))
            world.set_home(replica, target.incarnation)
    moves = rounds = 0
    while (proposal := propose(world)).moves:
        moves, rounds = moves + len(proposal.moves), rounds + 1
        carry_out(world, proposal)
    assert (moves, rounds) == (10 * gone, -(-10 * gone // 200))
    assert proposal.after[0].skew == 0
