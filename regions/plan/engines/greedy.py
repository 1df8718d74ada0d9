"""Places by benefit: pairs (region, server) in falling order of benefit, as long as every bound holds.

Each pair is considered once, in the order (benefit falling, region, server). The pair is taken if the region still
needs a replica and has none on that rack, the table's cell has room, and the server has room. A server has room up to
its floor; beyond the floor only while the group's budget lasts (`quota.Quotas`). Replicas that stay unplaced have no
good place left and go to `leftover`.

The same function solves the whole problem and one shard of it.
"""

from __future__ import annotations

import numpy as np

from regions.plan.problem.model import Bools, Ints
from regions.plan.problem.room import Room


def take_best(
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
    """Return which candidates become replicas, and take them out of `room`.

    `table` and `want` per region; `region`, `server`, `benefit` per candidate, regions numbered in the order of their
    ids; `rack` and `group` per server; `per_rack[r]` is how many replicas of a region a rack may hold.
    """
    servers = len(rack)
    order = np.lexsort((server, region, -benefit))
    taken = np.zeros(len(order), dtype=np.bool_)
    need = want.tolist()
    single = (want <= 1).tolist()
    allowance = per_rack.tolist()
    # Visit only cells that have a candidate: with thousands of tables on a thousand servers, one cell in twenty has
    # one.
    cells, at_cell = np.unique(table[region] * servers + server, return_inverse=True)
    rack_of = rack.tolist()
    group_of = group.tolist()
    below, above = room.below.tolist(), room.above.tolist()
    budget, cell = room.budget.tolist(), room.cell[cells].tolist()
    on_rack: dict[tuple[int, int], int] = {}
    chosen: list[int] = []
    columns = (order, region[order], server[order], at_cell[order])
    for place, r, s, at in zip(*(column.tolist() for column in columns), strict=True):
        if not need[r] or cell[at] <= 0:
            continue
        g = group_of[s]
        if below[s] <= 0 and (above[s] <= 0 or budget[g] <= 0):
            continue
        if not single[r]:
            key = (r, rack_of[s])
            used = on_rack.get(key, 0)
            if used >= allowance[r]:
                continue
            on_rack[key] = used + 1
        if below[s] > 0:
            below[s] -= 1
        else:
            above[s] -= 1
            budget[g] -= 1
        cell[at] -= 1
        need[r] -= 1
        chosen.append(place)
    taken[chosen] = True
    room.below = np.array(below, dtype=np.int64)
    room.above = np.array(above, dtype=np.int64)
    room.budget = np.array(budget, dtype=np.int64)
    room.cell[cells] = cell
    return taken
