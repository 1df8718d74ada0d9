"""The best possible places: candidates chosen by an exact minimum-cost flow.

    source -> region (wanted) -> [region, rack] (1) -> [table, server] (limit) -> server -> sink (floor)
                                                                                  server -> group -> sink (budget)
    source -> sink: replicas left without a good place

Every bound of `greedy` is a capacity here, so the value of this flow is also the most that any plan can reach (J*).
OR-tools is needed, and imported only when this engine is asked for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .model import BadInput, Ints
from .problem import Problem
from .room import Room

#: Costs are scaled to this, so that the solver's own scaling by the number of nodes stays within 64 bits.
COST_MAX: Final = 2**31


def solve_flow(problem: Problem, allowance: Ints) -> Ints:
    """Candidates (their numbers, ascending) of the flow with the greatest benefit.

    `allowance[r]` is how many replicas of a region a rack may hold. Raises: BadInput without OR-tools.
    """
    try:
        from ortools.graph.python import min_cost_flow  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise BadInput("the engine flow needs ortools, which is not installed") from error
    if not len(problem.cand_region):
        return np.zeros(0, dtype=np.int64)
    network = min_cost_flow.SimpleMinCostFlow()
    chosen = _build(network, problem, allowance)
    status = network.solve()
    assert status == network.OPTIMAL, status
    taken: Ints = np.flatnonzero(network.flows(chosen) > 0)
    return taken


def _build(network: Any, problem: Problem, allowance: Ints) -> Any:
    """Add all arcs; returns the arcs of the candidates, in their order."""
    fleet, servers = problem.fleet, len(problem.fleet)
    room = Room.whole(problem.quotas, problem.tables.group, fleet.group)
    region, server = problem.cand_region, problem.cand_server
    regions = np.unique(region)
    racks = int(fleet.rack.max()) + 1
    spots, spot = np.unique(region * racks + fleet.rack[server], return_inverse=True)
    spot_node = 2 + len(regions) + spot
    cells, cell = np.unique(problem.table[region] * servers + server, return_inverse=True)
    first_cell = 2 + len(regions) + len(spots)
    first_server = first_cell + len(cells)
    first_group = first_server + servers
    want = problem.want[regions]
    total = int(want.sum())

    def add(tail: Any, head: Any, capacity: Any, cost: Any = 0) -> Any:
        tails, heads, capacities, costs = np.broadcast_arrays(tail, head, capacity, cost)
        return network.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, costs)

    add(np.zeros(len(regions), dtype=np.int64), 2 + np.arange(len(regions)), want)
    spot_region = spots // racks
    add(2 + np.searchsorted(regions, spot_region), 2 + len(regions) + np.arange(len(spots)), allowance[spot_region])
    scale = max(1.0, float(problem.cand_benefit.max()) / COST_MAX)
    chosen = add(spot_node, first_cell + cell, 1, -(problem.cand_benefit / scale).astype(np.int64))
    add(first_cell + np.arange(len(cells)), first_server + cells % servers, room.cell[cells])
    add(first_server + np.arange(servers), 1, room.below)
    add(first_server + np.arange(servers), first_group + fleet.group, room.above)
    add(first_group + np.arange(len(fleet.groups)), 1, room.budget[: len(fleet.groups)])
    add(0, 1, total)
    network.set_node_supply(0, total)
    network.set_node_supply(1, -total)
    return chosen


def flow_value(problem: Problem, taken: Ints) -> float:
    """The benefit of candidates, in bytes: J* for those of `solve_flow`."""
    return float(problem.cand_benefit[taken].astype(np.float64).sum()) / 1000
