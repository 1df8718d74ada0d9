"""What Spark's Python workers run: input rows of a bucket to candidates, and a shard's candidates to choices.

Arrow tables in and out, numpy between, no pandas: a worker then starts faster. Rows find their region by a 64-bit hash
of its id (`rkey`), which is all that block rows and former places carry of it; ids travel once, with the region row.

**gather** sees all rows of a bucket of regions, as columns

    kind     0 a region row, 1 a block row (or several, summed), 2 a former place
    rkey     hash of the region id
    name     0: the region id, 1: the host, 2: the server id
    table_id, grp, facts    of a region row; `facts` is a hash of everything that it says
    amount   0: size in bytes, 1: bytes, 2: number of the replica; may be null
    copies   0: replicas wanted, 1: how many usable block rows the row stands for; may be null
    bad      1: block rows without usable bytes

and gives one row per region (`GATHERED`), and one with `tally` instead: what was set aside, in the order of `TALLY`.

**choose** sees all regions of a shard, solves it exactly as the engine `sharded` does, and gives them back with
`taken`, with the shard that they are in next round, and in a row of its own (`cell`, `held`) how many replicas each of
those shards begins with. Nothing here depends on the order in which rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .flow import solve_exact
from .model import MISSING, Bools, Ints, Params
from .problem import REASONS, Candidates, Fleet, Tables, clean_replicas, clean_sizes, count, on_servers
from .shards import Shards

REGION: Final = 0
BLOCK: Final = 1
PLACE: Final = 2

#: Numbers of a `tally`: the reasons of `problem.REASONS`, then block rows, and region ids that share a hash.
TALLY: Final = (*REASONS, "block_rows", "clashes")

#: Output columns as Spark spells them.
GATHERED: Final = (
    "region_id string, table_id string, grp string, size long, replicas long, differs boolean, "
    "server array<int>, local array<long>, held array<int>, tally array<long>"
)
CHOSEN: Final = (
    "region_id string, table_id string, grp string, size long, replicas long, next int, "
    "server array<int>, local array<long>, held array<int>, taken array<boolean>, cell array<long>, own array<long>"
)


def gatherer(params: Params, fleet: Fleet) -> Callable[[Any], Any]:
    """The function for `applyInArrow` over buckets."""

    def run(rows: Any) -> Any:
        return gather(rows, params, fleet)

    return run


def chooser(params: Params, fleet: Fleet, tables: Tables, cut: Shards, after: Shards | None, held: Any) -> Any:
    """The function for `applyInArrow` over shards; `after` is the next round's cut, `held` as of `Shards.room`."""

    def run(key: tuple[Any, ...], rows: Any) -> Any:
        return choose(int(key[0].as_py()), rows, params, fleet, tables, cut, after, held)

    return run


# --- gather ---------------------------------------------------------------------------------------------------------


def gather(rows: Any, params: Params, fleet: Fleet) -> Any:
    """Candidates of a bucket's regions, one output row per region and the tally."""
    rows = rows.combine_chunks()
    kind, rkey = _numbers(rows, "kind"), _numbers(rows, "rkey")
    tally: dict[str, int] = {}
    blocks = np.flatnonzero(kind == BLOCK)
    bad_blocks = int(_numbers(rows, "bad")[blocks].sum())
    good_blocks = int(_numbers(rows, "copies")[blocks].sum())
    count(tally, "block_bytes", bad_blocks)
    regions = _Regions(rows, np.flatnonzero(kind == REGION), rkey, tally)
    local = _local(rows, blocks, regions, rkey, fleet, tally)
    held = _held(rows, np.flatnonzero(kind == PLACE), regions, rkey, fleet, tally)
    found = Candidates(params, regions.size, *local, *held, len(fleet))
    starts = pa.array(found.start, type=pa.int32())
    numbers = [tally.get(reason, 0) for reason in REASONS]
    made = pa.table(
        {
            "region_id": regions.ids,
            "table_id": regions.table_id,
            "grp": regions.grp,
            "size": regions.size,
            "replicas": regions.replicas,
            "differs": regions.differs,
            "server": _lists(starts, found.server, pa.int32()),
            "local": _lists(starts, found.local, pa.int64()),
            "held": _lists(starts, found.held, pa.int32()),
            "tally": pa.nulls(len(regions.size), pa.list_(pa.int64())),
        }
    )
    return pa.concat_tables([made, _only(made, tally=[*numbers, good_blocks + bad_blocks, regions.clashes])])


class _Regions:
    """A bucket's distinct regions in the order of their hashes."""

    def __init__(self, rows: Any, where: Ints, rkey: Ints, tally: dict[str, int]) -> None:
        named = pc.not_equal(rows.column("name").take(pa.array(where)), "").to_numpy(zero_copy_only=False)
        count(tally, "region_without_id", int((~named).sum()))
        where = where[named]
        facts = _numbers(rows, "facts")[where]
        order = np.lexsort((facts, rkey[where]))
        where, facts = where[order], facts[order]
        self.keys, first, copies = np.unique(rkey[where], return_index=True, return_counts=True)
        taken = pa.array(where[first])
        self.ids = rows.column("name").take(taken)
        self.differs: Bools = np.zeros(len(first), dtype=np.bool_)
        self.clashes = 0
        again = np.flatnonzero(copies > 1)
        if len(again):
            self.differs[again] = facts[first[again]] != facts[first[again] + copies[again] - 1]
            names = rows.column("name").take(pa.array(where)).to_pylist()
            spans = zip(first[again].tolist(), copies[again].tolist(), strict=True)
            self.clashes = sum(1 for start, length in spans if len(set(names[start : start + length])) > 1)
        count(tally, "region_duplicate", int(copies.sum()) - len(first))
        self.table_id = rows.column("table_id").take(taken)
        self.grp = rows.column("grp").take(taken)
        self.size = clean_sizes(_numbers(rows, "amount", MISSING)[where[first]], tally)
        self.replicas = clean_replicas(_numbers(rows, "copies", MISSING)[where[first]], tally)

    def find(self, rkey: Ints) -> Ints:
        """Number of the region with each hash; -1 for none."""
        if not len(self.keys):
            return np.full(len(rkey), -1)
        at = np.minimum(np.searchsorted(self.keys, rkey), len(self.keys) - 1)
        return np.where(self.keys[at] == rkey, at, -1)


def _local(
    rows: Any, where: Ints, regions: _Regions, rkey: Ints, fleet: Fleet, tally: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """(region, server, bytes) of the usable block rows."""
    good = _numbers(rows, "copies")
    where = where[good[where] > 0]
    region = regions.find(rkey[where])
    host = _index(rows.column("name").take(pa.array(where)), sorted(fleet.live_hosts))
    known = region >= 0
    count(tally, "block_region", int(good[where[~known]].sum()))
    count(tally, "block_host", int(good[where[known & (host < 0)]].sum()))
    usable = known & (host >= 0)
    return on_servers(fleet, region[usable], host[usable], _numbers(rows, "amount")[where[usable]])


def _held(
    rows: Any, where: Ints, regions: _Regions, rkey: Ints, fleet: Fleet, tally: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """(region, server, replica) of former places that still may take regions."""
    region = regions.find(rkey[where])
    count(tally, "last_region", int((region < 0).sum()))
    replica = _numbers(rows, "amount", MISSING)[where]
    count(tally, "last_replica", int(((region >= 0) & (replica < 0)).sum()))
    fit = (region >= 0) & (replica >= 0)
    where, region, replica = where[fit], region[fit], replica[fit]
    names = rows.column("name").take(pa.array(where))
    # The least server id of each replica counts, also one that is gone.
    order = np.lexsort((pc.rank(names, sort_keys="ascending", tiebreaker="dense").to_numpy(), replica, region))
    region, replica, names = region[order], replica[order], names.take(pa.array(order))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (region[1:] != region[:-1]) | (replica[1:] != replica[:-1])
    count(tally, "last_duplicate", int((~first).sum()))
    server = _index(names, fleet.ids)
    count(tally, "last_server", int((first & (server < 0)).sum()))
    kept = first & (server >= 0)
    return region[kept], server[kept], replica[kept]


# --- choose ---------------------------------------------------------------------------------------------------------


def choose(
    shard: int, rows: Any, params: Params, fleet: Fleet, tables: Tables, cut: Shards, after: Shards | None, held: Any
) -> Any:
    """The shard's regions with what they take; see the module."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("region_id", "ascending")])).combine_chunks()
    table = table_numbers(rows, tables)
    want = np.minimum(_numbers(rows, "replicas"), np.append(fleet.group_servers, 0)[tables.group][table])
    found = candidates_of(rows, params, _numbers(rows, "size"), len(fleet))
    racks = np.append(fleet.group_racks, 1)[tables.group][table]
    taken = solve_exact(
        np.searchsorted(cut.tables_of(shard), table),
        want,
        found.region,
        found.server,
        found.benefit,
        fleet.rack,
        fleet.group,
        cut.room(shard, held),
        per_rack=np.maximum(want // np.maximum(racks, 1), 1),
    )
    nexts: Ints = np.zeros(len(table), dtype=np.int64)
    if after is not None:
        nexts = after.of_regions(rows.column("region_id").to_pylist(), table)
    made = pa.table(
        {
            **{name: rows.column(name) for name in ("region_id", "table_id", "grp", "size", "replicas")},
            "next": pa.array(nexts, pa.int32()),
            **{name: rows.column(name) for name in ("server", "local", "held")},
            "taken": _lists(pa.array(found.start, type=pa.int32()), taken, pa.bool_()),
            "cell": pa.nulls(len(table), pa.list_(pa.int64())),
            "own": pa.nulls(len(table), pa.list_(pa.int64())),
        }
    )
    if after is None:
        return made
    region = found.region[taken]
    servers, cells = len(fleet), len(tables) * len(fleet)
    cell, own = np.unique(nexts[region] * cells + table[region] * servers + found.server[taken], return_counts=True)
    return pa.concat_tables([made, _only(made, cell=cell.tolist(), own=own.tolist())])


def table_numbers(rows: Any, tables: Tables) -> Ints:
    """The number of each row's (group, table)."""
    names = pa.array([f"{grp}\0{table}" for grp, table in tables.pairs], pa.string())
    joined = pc.binary_join_element_wise(rows.column("grp"), rows.column("table_id"), "\0")
    return _index(joined, names)


def candidates_of(rows: Any, params: Params, size: Ints, servers: int) -> Candidates:
    """The candidates of gathered rows, regions numbered as the rows are."""
    region = pc.list_parent_indices(rows.column("server")).to_numpy().astype(np.int64)
    server, local, held = (_flat(rows.column(name)) for name in ("server", "local", "held"))
    stays = held >= 0
    return Candidates(params, size, region, server, local, region[stays], server[stays], held[stays], servers)


# --- columns --------------------------------------------------------------------------------------------------------


def _numbers(rows: Any, name: str, null: int = 0) -> Ints:
    """A column of whole numbers."""
    values: Ints = pc.fill_null(rows.column(name), null).to_numpy().astype(np.int64)
    return values


def _flat(column: Any) -> Ints:
    """All list elements of a column, one after the other."""
    values: Ints = pc.list_flatten(column).to_numpy().astype(np.int64)
    return values


def _index(column: Any, names: Any) -> Ints:
    """Place of each text in `names`; -1 when absent."""
    found = pc.index_in(column, value_set=pa.array(names, pa.string()))
    places: Ints = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return places


def _lists(starts: Any, values: Any, kind: Any) -> Any:
    """A column of lists."""
    return pa.ListArray.from_arrays(starts, pa.array(values, type=kind))


def _only(like: Any, **lists: list[int]) -> Any:
    """One row of `like`'s columns with nothing but these lists."""
    return pa.table(
        {
            field.name: pa.array([lists[field.name]] if field.name in lists else [None], field.type)
            for field in like.schema
        }
    )
