"""What a Spark worker runs for one shard: from grouped input rows to candidates, and which of them are taken.

Arrow tables in and out, numpy between, no pandas: a worker then starts faster. The choice itself is `greedy.take_best`
on the shard's part of the room, exactly as the engine `sharded` does it in one process.

    in   region_id, table_id, grp, size, replicas,
         host [text], bytes [long], block_rows [long], held_replica [long], held_server [text]
    out  region_id, table, want, size, strange, gone, server [long], local [long], held [long], taken [bool]

`strange` counts block rows on hosts without a live server, `gone` former places on servers that take no regions.
Lists are per region; candidates ascend by server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .greedy import take_best
from .model import Ints, Params
from .problem import Candidates, Fleet, Tables, on_servers
from .shards import Shards

#: The output's columns as Spark spells them.
OUTPUT: Final = (
    "region_id string, table long, want long, size long, strange long, gone long, "
    "server array<long>, local array<long>, held array<long>, taken array<boolean>"
)


def shard_solver(params: Params, fleet: Fleet, tables: Tables, cut: Shards) -> Callable[[Any, Any], Any]:
    """The function for `applyInArrow`, carrying what every shard needs to know."""

    def solve(key: tuple[Any, ...], rows: Any) -> Any:
        return solve_shard(int(key[0].as_py()), rows, params, fleet, tables, cut)

    return solve


def solve_shard(shard: int, rows: Any, params: Params, fleet: Fleet, tables: Tables, cut: Shards) -> Any:
    """Candidates of the shard's regions, and which become replicas; one output row per region."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("region_id", "ascending")])).combine_chunks()
    number = {pair: i for i, pair in enumerate(tables.pairs)}
    pairs = zip(rows.column("grp").to_pylist(), rows.column("table_id").to_pylist(), strict=True)
    table = np.array([number[pair] for pair in pairs], dtype=np.int64)
    size = _ints(rows.column("size"))
    limit = np.append(fleet.group_servers, 0)[tables.group]
    want = np.minimum(_ints(rows.column("replicas")), limit[table])
    region, amount = _flat(rows.column("bytes"))
    hosts = pa.array(sorted(fleet.live_hosts), pa.string())
    host = pc.fill_null(pc.index_in(_values(rows.column("host")), value_set=hosts), -1).to_numpy().astype(np.int64)
    live = host >= 0
    local = on_servers(fleet, region[live], host[live], amount[live])
    unknown = np.bincount(region, weights=np.where(live, 0, _flat(rows.column("block_rows"))[1]), minlength=len(size))
    held_region, held_server, held_replica = _held(rows, fleet)
    alive = held_server >= 0
    gone = np.bincount(held_region[~alive], minlength=len(size))
    found = Candidates(params, size, *local, held_region[alive], held_server[alive], held_replica[alive], len(fleet))
    racks = np.append(fleet.group_racks, 1)[tables.group][table]
    taken = take_best(
        np.searchsorted(cut.tables_of(shard), table),
        want,
        found.region,
        found.server,
        found.benefit,
        fleet.rack,
        fleet.group,
        cut.room(shard),
        per_rack=np.maximum(want // np.maximum(racks, 1), 1),
    )
    starts = pa.array(found.start, type=pa.int32())
    return pa.table(
        {
            "region_id": rows.column("region_id"),
            "table": table,
            "want": want,
            "size": size,
            "strange": unknown.astype(np.int64),
            "gone": gone,
            "server": pa.ListArray.from_arrays(starts, pa.array(found.server)),
            "local": pa.ListArray.from_arrays(starts, pa.array(found.local)),
            "held": pa.ListArray.from_arrays(starts, pa.array(found.held)),
            "taken": pa.ListArray.from_arrays(starts, pa.array(taken)),
        }
    )


def _held(rows: Any, fleet: Fleet) -> tuple[Ints, Ints, Ints]:
    """(region, server, replica) of each former place, the least server id per replica; server -1 when it takes none."""
    region, replica = _flat(rows.column("held_replica"))
    names = _values(rows.column("held_server")).to_pylist()
    place: dict[tuple[int, int], str] = {}
    for r, n, sid in zip(region.tolist(), replica.tolist(), names, strict=True):
        if n >= 0:
            place[r, n] = min(place.get((r, n), sid), sid)
    held = [(r, fleet.number.get(sid, -1), n) for (r, n), sid in place.items()]
    columns = np.array(held, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _ints(column: Any) -> Ints:
    """A column without nulls as numbers."""
    values: Ints = column.to_numpy().astype(np.int64)
    return values


def _values(column: Any) -> Any:
    """All list elements of a column, one after the other."""
    return pc.list_flatten(column)


def _flat(column: Any) -> tuple[Ints, Ints]:
    """Row number and value of every list element."""
    values = _values(column)
    return pc.list_parent_indices(column).to_numpy().astype(np.int64), values.to_numpy().astype(np.int64)
