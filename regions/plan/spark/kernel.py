"""Functions for Spark's Python workers: input rows to candidates, and a shard's candidates to choices.

Arrow tables in and out, numpy between, no pandas: a worker then starts faster. Block rows and former places carry only
a 64-bit hash of the region's id (`rkey`), by which they find their region. Hosts and servers become numbers where they
are read. Ids travel only with the regions, in packed columns (`packed`) that Java never opens.

    pack_input   batches of one input table, as Spark read them    -> (bucket, kind, packed rows, bad block rows)
    gather       all packed rows of a bucket of regions            -> its regions with candidates, and counts (`BUCKET`)
    deal_out     buckets                                           -> (shard, packed regions), for the first round
    choose       all regions of a shard                            -> (next shard, packed regions), for the next round

`choose` solves its shard exactly as the engine `sharded` does; in the last round its regions come with `taken`.
Nothing here depends on the order in which rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from regions.plan.engines.flow import solve_exact
from regions.plan.engines.shards import Held, Shards
from regions.plan.problem.model import MISSING, Bools, Ints, Params
from regions.plan.problem.numbered import (
    REASONS,
    SIZE_MAX,
    Candidates,
    EligibleServers,
    TableGroups,
    clean_replicas,
    clean_sizes,
    count,
    on_servers,
)
from regions.plan.spark.packed import blobs_of, deal, flat, index, lists, numbers, pack, unpack

REGION: Final = 0
BLOCK: Final = 1
PLACE: Final = 2

#: Numbers of a `tally`: the reasons of `problem.REASONS`, then block rows, and region ids that share a hash.
TALLY: Final = (*REASONS, "block_rows", "clashes")
#: Contradictory regions that a bucket names.
DIFFERING_MAX: Final = 20

#: Output columns as Spark spells them.
PIECE: Final = "bucket int, kind int, data binary, bad long"
BUCKET: Final = (
    "data binary, grps array<string>, tables array<string>, "
    "code array<int>, replicas array<long>, regions array<long>, tally array<long>, differ array<string>, differs long"
)
SHARD: Final = "shard int, data binary, cell array<long>, own array<long>"

_REGION_ROWS: Final = pa.schema(
    [
        ("rkey", pa.int64()),
        ("name", pa.string()),
        ("table_id", pa.string()),
        ("grp", pa.string()),
        ("facts", pa.int64()),
        ("size", pa.int64()),
        ("replicas", pa.int64()),
    ]
)
_BLOCK_ROWS: Final = pa.schema(
    [("rkey", pa.int64()), ("host", pa.int32()), ("bytes", pa.int64()), ("rows", pa.int64())]
)
#: `gone`: the server's id where the fleet does not know it.
_PLACE_ROWS: Final = pa.schema(
    [("rkey", pa.int64()), ("server", pa.int32()), ("gone", pa.string()), ("replica", pa.int64())]
)
_ROWS: Final = {REGION: _REGION_ROWS, BLOCK: _BLOCK_ROWS, PLACE: _PLACE_ROWS}
#: A region with its candidates, parallel lists ascending by server; `table` is its bucket's code or the plan's number.
CARDS: Final = pa.schema(
    [
        ("region_id", pa.string()),
        ("table", pa.int32()),
        ("size", pa.int64()),
        ("replicas", pa.int64()),
        ("server", pa.list_(pa.int32())),
        ("local", pa.list_(pa.int64())),
        ("held", pa.list_(pa.int32())),
    ]
)

Batches = Iterable[Any]


def packer(kind: int, buckets: int, names: list[str]) -> Callable[[Batches], Iterator[Any]]:
    """Return the function for `mapInArrow` over an input table. `names` are hosts or servers by number."""

    def run(batches: Batches) -> Iterator[Any]:
        for batch in batches:
            yield pack_input(kind, buckets, names, batch)

    return run


def gatherer(params: Params, fleet: EligibleServers) -> Callable[[Any], Any]:
    """Return the function for `applyInArrow` over buckets."""

    def run(rows: Any) -> Any:
        return gather(rows, params, fleet)

    return run


def dealer(tables: TableGroups, cut: Shards) -> Callable[[Batches], Iterator[Any]]:
    """Return the function for `mapInArrow` over gathered buckets."""

    def run(batches: Batches) -> Iterator[Any]:
        for batch in batches:
            for bucket in batch.to_pylist():
                yield from deal_out(bucket, tables, cut)

    return run


def chooser(
    params: Params, fleet: EligibleServers, tables: TableGroups, cut: Shards, after: Shards | None, held: Held | None
) -> Any:
    """Return the function for `applyInArrow` over shards. `after` is the next round's cut."""

    def run(key: tuple[Any, ...], rows: Any) -> Any:
        return choose(int(key[0].as_py()), rows, params, fleet, tables, cut, after, held)

    return run


# --- input ----------------------------------------------------------------------------------------------------------


def pack_input(kind: int, buckets: int, names: list[str], batch: Any) -> Any:
    """Return one batch of an input table, packed by bucket."""
    rows, bad = pa.Table.from_batches([batch]), 0
    if kind == BLOCK:
        rows, bad = _sum_blocks(rows, names)
    elif kind == PLACE:
        rows = _number_servers(rows, names)
    dealt = deal(rows.select(_ROWS[kind].names).cast(_ROWS[kind]), numbers(rows, "rkey") % buckets)
    more = [None] if bad else []
    columns = {
        "bucket": pa.array([bucket for bucket, _ in dealt] + [0 for _ in more], pa.int32()),
        "kind": pa.array([kind] * (len(dealt) + len(more)), pa.int32()),
        "data": pa.array([data for _, data in dealt] + more, pa.binary()),
        "bad": pa.array([0 for _ in dealt] + [bad for _ in more], pa.int64()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _sum_blocks(rows: Any, hosts: list[str]) -> tuple[Any, int]:
    """Return bytes and row counts per region and host of the batch, and the number of rows without usable bytes."""
    size = np.minimum(numbers(rows, "bytes"), SIZE_MAX)
    good = size > 0
    rkey, host = numbers(rows, "rkey")[good], index(rows.column("host"), hosts)[good]
    order = np.lexsort((host, rkey))
    rkey, host, size = rkey[order], host[order], size[good][order]
    first = np.ones(len(rkey), dtype=np.bool_)
    first[1:] = (rkey[1:] != rkey[:-1]) | (host[1:] != host[:-1])
    starts = np.flatnonzero(first)
    total = np.add.reduceat(size, starts) if len(starts) else size
    times = np.diff(np.append(starts, len(rkey)))
    return pa.table({"rkey": rkey[first], "host": host[first], "bytes": total, "rows": times}), int((~good).sum())


def _number_servers(rows: Any, servers: list[str]) -> Any:
    """Return the former places, with numbers for servers that still take regions."""
    names = rows.column("server_id")
    number = index(names, servers)
    gone = pc.if_else(pa.array(number < 0), names, pa.scalar(None, pa.string()))
    return pa.table({"rkey": rows.column("rkey"), "server": number, "gone": gone, "replica": rows.column("replica")})


# --- gather ---------------------------------------------------------------------------------------------------------


def gather(pieces: Any, params: Params, fleet: EligibleServers) -> Any:
    """Return the regions of a bucket with their candidates and the bucket's counts, as one row of `BUCKET`."""
    kind = numbers(pieces, "kind")
    rows = {
        wanted: unpack(blobs_of(pieces.column("data").filter(pa.array(kind == wanted))), schema)
        for wanted, schema in _ROWS.items()
    }
    tally: dict[str, int] = {}
    bad_blocks = int(numbers(pieces, "bad").sum())
    count(tally, "block_bytes", bad_blocks)
    regions = _Regions(rows[REGION], tally)
    local = _local(rows[BLOCK], regions, fleet, tally)
    held = _held(rows[PLACE], regions, fleet, tally)
    found = Candidates.summed(params, regions.size, *local, *held, len(fleet))
    cards = {
        "region_id": regions.ids,
        "table": regions.code,
        "size": regions.size,
        "replicas": regions.replicas,
        **_candidate_lists(found),
    }
    most = int(regions.replicas.max(initial=0)) + 1
    kinds, counts = np.unique(regions.code * most + regions.replicas, return_counts=True)
    block_rows = int(numbers(rows[BLOCK], "rows").sum()) + bad_blocks
    return _bucket_row(
        data=pack(pa.table(cards).cast(CARDS)),
        grps=[grp for grp, _ in regions.pairs],
        tables=[table for _, table in regions.pairs],
        code=(kinds // most).tolist(),
        replicas=(kinds % most).tolist(),
        regions=counts.tolist(),
        tally=[*(tally.get(reason, 0) for reason in REASONS), block_rows, regions.clashes],
        differ=regions.differing[:DIFFERING_MAX],
        differs=len(regions.differing),
    )


def _bucket_row(**values: Any) -> Any:
    """Return one row with the types of `BUCKET`."""
    texts, longs = pa.list_(pa.string()), pa.list_(pa.int64())
    kinds = {
        "data": pa.binary(),
        "grps": texts,
        "tables": texts,
        "code": pa.list_(pa.int32()),
        "replicas": longs,
        "regions": longs,
        "tally": longs,
        "differ": texts,
        "differs": pa.int64(),
    }
    return pa.table({name: pa.array([values[name]], type=kind) for name, kind in kinds.items()})


class _Regions:
    """A bucket's distinct regions in the order of their hashes."""

    def __init__(self, rows: Any, tally: dict[str, int]) -> None:
        named = pc.not_equal(rows.column("name"), "")
        count(tally, "region_without_id", rows.num_rows - (pc.sum(named).as_py() or 0))
        rows = rows.filter(named)
        rkey, facts = numbers(rows, "rkey"), numbers(rows, "facts")
        order = np.lexsort((facts, rkey))
        rows = rows.take(pa.array(order)).combine_chunks()
        facts = facts[order]
        self.keys, first, copies = np.unique(rkey[order], return_index=True, return_counts=True)
        self.differing: list[str] = []
        self.clashes = 0
        for start, length in zip(first[copies > 1].tolist(), copies[copies > 1].tolist(), strict=True):
            names = set(rows.column("name").slice(start, length).to_pylist())
            self.clashes += len(names) > 1
            if facts[start] != facts[start + length - 1]:
                self.differing += names
        self.differing.sort()
        count(tally, "region_duplicate", len(rkey) - len(first))
        rows = rows.take(pa.array(first)).combine_chunks()
        self.ids = rows.column("name")
        self.size = clean_sizes(numbers(rows, "size", MISSING), tally)
        self.replicas = clean_replicas(numbers(rows, "replicas", MISSING), tally)
        grp, table = (rows.column(name).combine_chunks().dictionary_encode() for name in ("grp", "table_id"))
        grp_code, table_code = (column.indices.to_numpy().astype(np.int64) for column in (grp, table))
        both, code = np.unique(grp_code * max(len(table.dictionary), 1) + table_code, return_inverse=True)
        #: (group, table) by `code`.
        self.pairs = [
            (
                grp.dictionary[pair // len(table.dictionary)].as_py(),
                table.dictionary[pair % len(table.dictionary)].as_py(),
            )
            for pair in both.tolist()
        ]
        self.code: Ints = code.astype(np.int64)

    def find(self, rkey: Ints) -> Ints:
        """Return the number of the region with each hash, -1 for none."""
        if not len(self.keys):
            return np.full(len(rkey), -1)
        at = np.minimum(np.searchsorted(self.keys, rkey), len(self.keys) - 1)
        return np.where(self.keys[at] == rkey, at, -1)


def _local(rows: Any, regions: _Regions, fleet: EligibleServers, tally: dict[str, int]) -> tuple[Ints, Ints, Ints]:
    """Return (region, server, bytes) of the usable block rows."""
    region, host, times = regions.find(numbers(rows, "rkey")), numbers(rows, "host"), numbers(rows, "rows")
    known = region >= 0
    count(tally, "block_region", int(times[~known].sum()))
    count(tally, "block_host", int(times[known & (host < 0)].sum()))
    usable = known & (host >= 0)
    return on_servers(fleet, region[usable], host[usable], numbers(rows, "bytes")[usable])


def _held(rows: Any, regions: _Regions, fleet: EligibleServers, tally: dict[str, int]) -> tuple[Ints, Ints, Ints]:
    """Return (region, server, replica) of former places on servers that still take regions."""
    region, replica = regions.find(numbers(rows, "rkey")), numbers(rows, "replica", MISSING)
    server = numbers(rows, "server")
    count(tally, "last_region", int((region < 0).sum()))
    count(tally, "last_replica", int(((region >= 0) & (replica < 0)).sum()))
    fit = np.flatnonzero((region >= 0) & (replica >= 0))
    fit = fit[np.lexsort((replica[fit], region[fit]))]
    again = np.zeros(len(fit), dtype=np.bool_)
    again[1:] = (np.diff(region[fit]) == 0) & (np.diff(replica[fit]) == 0)
    count(tally, "last_duplicate", int(again.sum()))
    kept, starts = fit[~again], np.flatnonzero(~again)

    def name(row: int) -> str:
        return fleet.ids[server[row]] if server[row] >= 0 else str(rows.column("gone")[row].as_py())

    # The least server id of each replica counts, also one that is gone.
    for nth in np.unique(np.searchsorted(starts, np.flatnonzero(again), side="right") - 1).tolist():
        end = starts[nth + 1] if nth + 1 < len(starts) else len(fit)
        kept[nth] = min(fit[starts[nth] : end].tolist(), key=name)
    count(tally, "last_server", int((server[kept] < 0).sum()))
    kept = kept[server[kept] >= 0]
    return region[kept], server[kept], replica[kept]


def _candidate_lists(found: Candidates) -> dict[str, Any]:
    """Return the candidates as parallel lists per region."""
    return {
        "server": lists(found.start, found.server, pa.int32()),
        "local": lists(found.start, found.local, pa.int64()),
        # All numbers beyond the region's replicas are equivalent: the replica stays and gets a new number.
        "held": lists(found.start, np.minimum(found.held, 2**31 - 1), pa.int32()),
    }


# --- shards ---------------------------------------------------------------------------------------------------------


def deal_out(bucket: dict[str, Any], tables: TableGroups, cut: Shards) -> Iterator[Any]:
    """Return the regions of a bucket by shard, with the plan's numbers of tables."""
    cards = unpack([bucket["data"]], CARDS)
    number = {pair: i for i, pair in enumerate(tables.pairs)}
    of_code = [number[pair] for pair in zip(bucket["grps"], bucket["tables"], strict=True)]
    table = np.array(of_code, dtype=np.int64)[numbers(cards, "table")]
    cards = cards.set_column(1, CARDS.field("table"), pa.array(table, pa.int32()))
    for shard, data in deal(cards, _shards_of(cut, cards, table)):
        yield _shard_rows([(shard, data)]).to_batches()[0]


def _shards_of(cut: Shards, cards: Any, table: Ints) -> Ints:
    """Return the shard of each region."""
    return cut.of_regions(lambda rows: cards.column("region_id").take(pa.array(rows)).to_pylist(), table)


def _shard_rows(dealt: list[tuple[int, bytes]], cell: Ints | None = None, own: Ints | None = None) -> Any:
    """Return rows of `SHARD`: one per shard, and one with the replicas that the shards begin with."""
    more = [] if cell is None else [None]
    longs = pa.list_(pa.int64())
    return pa.table(
        {
            "shard": pa.array([name for name, _ in dealt] + more, pa.int32()),
            "data": pa.array([data for _, data in dealt] + more, pa.binary()),
            "cell": pa.array([None] * len(dealt) + ([cell] if more else []), longs),
            "own": pa.array([None] * len(dealt) + ([own] if more else []), longs),
        }
    )


def choose(
    shard: int,
    rows: Any,
    params: Params,
    fleet: EligibleServers,
    tables: TableGroups,
    cut: Shards,
    after: Shards | None,
    held: Held | None,
) -> Any:
    """Return the shard's regions with their chosen candidates; see the module docstring."""
    cards = in_order(unpack(blobs_of(rows.column("data")), CARDS))
    table = numbers(cards, "table")
    want = np.minimum(numbers(cards, "replicas"), np.append(fleet.group_servers, 0)[tables.group][table])
    found = candidates_of(cards, params)
    racks = np.append(fleet.group_racks, 1)[tables.group][table]
    taken: Bools = solve_exact(
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
    if after is None:
        return _shard_rows([(shard, pack(cards.append_column("taken", lists(found.start, taken, pa.bool_()))))])
    nexts = _shards_of(after, cards, table)
    region = found.region[taken]
    servers, cells = len(fleet), len(tables) * len(fleet)
    keys = nexts[region] * cells + table[region] * servers + found.server[taken]
    cell, own = np.unique(keys, return_counts=True)
    return _shard_rows(deal(cards, nexts), cell, own)


#: Cards after the last round.
DONE: Final = CARDS.append(pa.field("taken", pa.list_(pa.bool_())))


def in_order(cards: Any) -> Any:
    """Return the cards in the order of their region ids."""
    return cards.take(pc.sort_indices(cards, sort_keys=[("region_id", "ascending")])).combine_chunks()


def candidates_of(cards: Any, params: Params) -> Candidates:
    """Return the candidates of the cards. Regions have the numbers of their cards."""
    region = pc.list_parent_indices(cards.column("server")).to_numpy().astype(np.int64)
    server, local, held = (flat(cards.column(name)) for name in ("server", "local", "held"))
    return Candidates(params, numbers(cards, "size"), region, server, local, held)
