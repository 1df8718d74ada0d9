"""The best possible places, chosen by an exact minimum-cost flow.

    source -> table -> region (wanted) -> [region, rack] (1) -> [table, server] (limit) -> server -> sink (floor)
              table -> [table, server]: replicas without a good place                      server -> group -> sink
    source -> sink, at the highest cost: replicas without any place                                   (budget)

A node that cannot limit the flow is left out: [region, rack] with one candidate, and [table, server] with room for all
of its candidates. With thousands of small tables nearly all [table, server] nodes are left out.

Every bound of `greedy` is a capacity here, so over a whole problem the value of this flow is also an upper bound for
any plan (J*). Among choices of equal value the flow takes one that leaves room for the replicas without a good place,
so that few of them need chains of moves. A region of one replica needs no nodes for racks, and alike regions share one
node (`alike`). The same function solves the whole problem and one shard of it. OR-tools is required; it is imported
only here, and only for an exact plan.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from regions.plan.engines.alike import Alike
from regions.plan.problem.model import BadInput, Bools, Ints
from regions.plan.problem.numbered import NumberedProblem
from regions.plan.problem.room import Room

#: Costs are scaled to this, so that the solver's own scaling by the number of nodes stays within 64 bits.
COST_MAX: Final = 2**31
#: Largest number of arcs from tables to cells; a network with more candidates than this may have one per candidate.
DIRECT_MAX: Final = 200_000


def solver() -> Any:
    """Return OR-tools' minimum-cost flow solver. Raise BadInput if OR-tools is not installed."""
    try:
        from ortools.graph.python import min_cost_flow  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise BadInput(
            "exact plans need ortools, which is not installed: install RegionKeeper with its extra 'plan', "
            "or choose the engine greedy"
        ) from error
    return min_cost_flow


def solve_exact(
    table: Ints,
    want: Ints,
    region: Ints,
    server: Ints,
    benefit: Ints,
    rack: Ints,
    group: Ints,
    room: Room,
    *,
    per_rack: Ints,
) -> Bools:
    """Return which candidates become replicas, for the greatest benefit within `room`; arguments as in `take_best`.

    `room` is not changed. Candidates ascend by (region, server). Raise BadInput if OR-tools is not installed.
    """
    module = solver()
    taken = np.zeros(len(region), dtype=np.bool_)
    servers = len(rack)
    fits = np.flatnonzero((room.cell[table[region] * servers + server] > 0) & (want[region] > 0))
    if not len(fits):
        return taken
    alike = Alike(table, want, region[fits], server[fits], benefit[fits])
    few = fits[alike.first]
    network = module.SimpleMinCostFlow()
    chosen = _build(
        network, table, want, region[few], server[few], benefit[few], alike.members, rack, group, room, per_rack
    )
    status = network.solve()
    assert status == network.OPTIMAL, status
    taken[fits] = alike.deal(network.flows(chosen))
    return taken


def _build(
    network: Any,
    table: Ints,
    want: Ints,
    region: Ints,
    server: Ints,
    benefit: Ints,
    members: Ints,
    rack: Ints,
    group: Ints,
    room: Room,
    per_rack: Ints,
) -> Any:
    """Add all arcs. Return the candidates' arcs, in order. `members[i]` counts the regions alike to candidate i's."""
    servers, racks = len(rack), int(rack.max()) + 1
    regions, first = np.unique(region, return_index=True)
    times = members[first]
    several = np.flatnonzero(want[region] > 1)
    on_rack = region[several] * racks + rack[server[several]]
    spots, sharing = np.unique(on_rack, return_counts=True)
    spots = spots[sharing > 1]
    crowded = np.isin(on_rack, spots)
    tables, demand, direct = _direct(table, want, group, room, len(region))
    first_region = 2 + len(tables)
    first_spot = first_region + len(regions)
    tail = first_region + np.searchsorted(regions, region)
    tail[several[crowded]] = first_spot + np.searchsorted(spots, on_rack[crowded])
    place = table[region] * servers + server
    cells = _narrow(place, members, room) if not len(direct) else np.unique(np.concatenate((place, direct)))
    first_cell = first_spot + len(spots)
    first_server = first_cell + len(cells)
    first_group = first_server + servers

    def add(tails: Any, heads: Any, capacity: Any, cost: Any = 0) -> Any:
        arcs = np.broadcast_arrays(tails, heads, capacity, cost)
        return network.add_arcs_with_capacity_and_unit_cost(*arcs)

    add(np.zeros(len(tables), dtype=np.int64), 2 + np.arange(len(tables)), demand)
    of_table = 2 + np.searchsorted(tables, table[regions])
    add(of_table, first_region + np.arange(len(regions)), want[regions] * times)
    of_spot = spots // racks
    add(first_region + np.searchsorted(regions, of_spot), first_spot + np.arange(len(spots)), per_rack[of_spot])
    scale = max(1.0, float(benefit.max()) / COST_MAX)
    to_cell = first_cell + np.searchsorted(cells, place)
    head = np.where(np.isin(place, cells), to_cell, first_server + server)
    chosen = add(tail, head, members, -(benefit / scale).astype(np.int64))
    add(2 + np.searchsorted(tables, direct // servers), first_cell + np.searchsorted(cells, direct), room.cell[direct])
    add(first_cell + np.arange(len(cells)), first_server + cells % servers, room.cell[cells])
    add(first_server + np.arange(servers), 1, np.maximum(room.below, 0))
    add(first_server + np.arange(servers), first_group + group, np.maximum(room.above, 0))
    add(first_group + np.arange(len(room.budget)), 1, np.maximum(room.budget, 0))
    total = int(demand.sum())
    add(0, 1, total, 1 if len(direct) else 0)
    network.set_node_supply(0, total)
    network.set_node_supply(1, -total)
    return chosen


def _narrow(place: Ints, members: Ints, room: Room) -> Ints:
    """Return the cells (ascending) that all their candidates together would overfill; `place` is each one's cell."""
    cells, at = np.unique(place, return_inverse=True)
    return cells[np.bincount(at, weights=members, minlength=len(cells)) > room.cell[cells]]


def _direct(table: Ints, want: Ints, group: Ints, room: Room, arcs: int) -> tuple[Ints, Ints, Ints]:
    """Return tables, their replicas to place, and the cells open to replicas without a good place.

    Return no cells if they would far outnumber the `arcs` of candidates; `leftover` then places these replicas
    afterwards.
    """
    tables, at = np.unique(table[want > 0], return_inverse=True)
    demand = np.bincount(at, weights=want[want > 0], minlength=len(tables)).astype(np.int64)
    servers = len(group)
    if len(tables) * servers > max(DIRECT_MAX, arcs):
        return tables, demand, np.zeros(0, dtype=np.int64)
    cells = (tables[:, None] * servers + np.arange(servers)[None, :]).reshape(-1)
    return tables, demand, cells[room.cell[cells] > 0]


def flow_value(problem: NumberedProblem, taken: Ints) -> float:
    """Return the benefit of the taken candidates in bytes. For an exact flow over the whole problem this is J*."""
    return float(problem.cand_benefit[taken].astype(np.float64).sum()) / 1000
