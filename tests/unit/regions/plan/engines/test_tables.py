"""Thousands of small tables: the size of the networks grows with the regions, not with tables x servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regions.plan import Params, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.engines import flow, leftover
from regions.plan.engines.maxflow import FlowNet
from regions.plan.problem.model import Ints
from regions.plan.problem.numbered import encode
from regions.plan.problem.scenarios import scenario, shuffled

PARAMS = Params()


@pytest.mark.parametrize("engine", ["greedy", "flow", "sharded"])
@pytest.mark.parametrize("name", ["replicas", "mixed"])
def test_many_tables_break_no_rule_and_ignore_row_order(name: str, engine: str) -> None:
    """Five regions per table, with leftovers."""
    snapshot = scenario(name, regions=2000, servers=60, seed=11, tables=400)
    shards = 3 if engine == "sharded" else None
    made = plan(snapshot, PARAMS, engine=engine, shards=shards)
    assert verify(snapshot, PARAMS, made.rows).ok
    assert plan(shuffled(snapshot, 5), PARAMS, engine=engine, shards=shards).digest == made.digest


def test_leftovers_of_many_tables_need_few_arcs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two regions without a good place in each of 600 tables on 200 servers: fewer arcs than tables times servers."""
    nets: list[FlowNet] = []

    class Noted(FlowNet):
        def __init__(self, nodes: int) -> None:
            super().__init__(nodes)
            nets.append(self)

    monkeypatch.setattr(leftover, "FlowNet", Noted)
    snapshot = Snapshot.of(
        [RegionRow(f"r{n:04d}", f"t{n % 600:03d}") for n in range(1200)],
        [ServerRow(f"s{n:03d}", f"h{n}", f"k{n % 20:02d}") for n in range(200)],
    )
    made = plan(snapshot, PARAMS)
    assert (made.stats.placed_by_class, made.stats.placed_by_chain) == (1200, 0)
    assert verify(snapshot, PARAMS, made.rows).ok
    assert len(nets[0].head) // 2 < 30_000  # of 120,000 places for tables


def test_a_table_with_many_leftovers_sees_as_many_racks_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that does not fit into a few racks gets arcs to more racks at the start, and no chains are needed."""
    monkeypatch.setattr(leftover, "ARCS_AT_ONCE", 0)
    snapshot = Snapshot.of(
        [RegionRow(f"r{n:04d}", "t") for n in range(400)],
        [ServerRow(f"s{n:03d}", f"h{n}", f"k{n % 50:02d}") for n in range(100)],
    )
    made = plan(snapshot, PARAMS)
    assert (made.stats.placed_by_class, made.stats.placed_by_chain) == (400, 0)
    assert verify(snapshot, PARAMS, made.rows).ok


def _solved(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> tuple[float, int]:
    """Return the value of the exact choice, and the nodes of its network."""
    nodes: list[int] = []
    build = flow._build

    def noted(network: Any, *rest: Any) -> Any:
        chosen = build(network, *rest)
        nodes.append(network.num_nodes())
        return chosen

    with monkeypatch.context() as patch:
        patch.setattr(flow, "_build", noted)
        made = plan(snapshot, PARAMS, engine="flow")
    return made.stats.value_max, nodes[0]


@pytest.mark.parametrize("name", ["uniform", "hot_rack", "replicas", "mixed"])
@pytest.mark.parametrize("tables", [120, 300])
def test_nodes_that_cannot_bind_make_no_difference(name: str, tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow has the same value as with a node for each (table, server)."""
    monkeypatch.setattr(flow, "DIRECT_MAX", 0)
    snapshot = scenario(name, regions=1500, servers=60, seed=7, tables=tables)
    value, nodes = _solved(snapshot, monkeypatch)

    def every_cell(place: Ints, members: Ints, room: object) -> Ints:
        return np.unique(place)

    monkeypatch.setattr(flow, "_narrow", every_cell)
    all_value, all_nodes = _solved(snapshot, monkeypatch)
    assert value == pytest.approx(all_value, rel=1e-9)
    assert nodes < all_nodes


def test_small_tables_have_no_nodes_for_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is room for all candidates, the flow has only tables, regions, servers and groups."""
    monkeypatch.setattr(flow, "DIRECT_MAX", 0)
    snapshot = scenario("uniform", regions=1500, servers=60, seed=7, tables=700)
    problem = encode(snapshot, PARAMS, {})
    _, nodes = _solved(snapshot, monkeypatch)
    assert nodes <= 2 + len(problem.tables) + len(problem) + len(problem.fleet) + 1 + 20
