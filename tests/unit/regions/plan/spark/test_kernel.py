"""The Spark job's kernels without Spark: the same plan as in one process, for any batches and distribution of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from regions.plan import BlockRow, LastRow, Params, RegionRow, ServerRow, Snapshot, plan
from regions.plan.engines.run import finish, first_stats
from regions.plan.engines.shards import Held, Shards
from regions.plan.problem.model import MISSING, Plan
from regions.plan.problem.numbered import EligibleServers, make_quotas
from regions.plan.problem.scenarios import scenario, shuffled

pa = pytest.importorskip("pyarrow")
pytest.importorskip("ortools")

from regions.plan.spark import kernel  # noqa: E402
from regions.plan.spark import rows as spark_rows  # noqa: E402
from regions.plan.spark.packed import blobs_of, deal, unpack  # noqa: E402

PARAMS = Params()


def _hashes(texts: Sequence[str], clash: bool = False) -> Any:
    """Stands for Spark's xxhash64."""
    width = 1 if clash else 8
    found = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=width).digest(), "big") for text in texts]
    return np.array(found, dtype=np.uint64).astype(np.int64)


def _batches(table: Any, rows: int) -> list[Any]:
    return [batch for batch in table.to_batches(max_chunksize=rows) if batch.num_rows]


def _input(snapshot: Snapshot, fleet: EligibleServers, buckets: int, rows: int) -> Any:
    """Return the output of the map side for the whole snapshot."""
    r, b, p = snapshot.regions, snapshot.blocks, snapshot.last
    absent = [column == MISSING for column in (r.size_bytes, r.replicas, b.bytes, p.replica)]
    said = zip(r.table_id, r.start_key, r.size_bytes, r.replicas, r.grp, strict=True)
    regions = pa.table(
        {
            "rkey": _hashes(r.region_id),
            "name": pa.array(r.region_id, pa.string()),
            "table_id": pa.array(r.table_id, pa.string()),
            "grp": pa.array(r.grp, pa.string()),
            "facts": _hashes([str(row) for row in said]),
            "size": pa.array(r.size_bytes, mask=absent[0]),
            "replicas": pa.array(r.replicas, mask=absent[1]),
        }
    )
    blocks = pa.table(
        {
            "rkey": _hashes(b.region_id),
            "host": pa.array(b.host, pa.string()),
            "bytes": pa.array(b.bytes, mask=absent[2]),
        }
    )
    places = pa.table(
        {
            "rkey": _hashes(p.region_id),
            "server_id": pa.array(p.server_id, pa.string()),
            "replica": pa.array(p.replica, mask=absent[3]),
        }
    )
    pieces = []
    for kind, table, names in (
        (kernel.REGION, regions, []),
        (kernel.BLOCK, blocks, sorted(fleet.live_hosts)),
        (kernel.PLACE, places, fleet.ids),
    ):
        pieces += [kernel.pack_input(kind, buckets, names, batch) for batch in _batches(table, rows)]
    return pa.Table.from_batches(pieces)


def _planned(snapshot: Snapshot, *, buckets: int, rows: int, shards: int) -> Plan:
    """Run the job, stage by stage, as `spark_rows` makes Spark run it."""
    ignored: dict[str, int] = {}
    fleet = EligibleServers(snapshot.servers, ignored)
    pieces = _input(snapshot, fleet, buckets, rows)
    of_bucket = pieces.column("bucket").to_numpy()
    gathered = [
        kernel.gather(pieces.filter(pa.array(of_bucket == bucket)), PARAMS, fleet).to_pylist()[0]
        for bucket in np.unique(of_bucket)
    ]
    tables, _, asked, block_rows = spark_rows._count(gathered, fleet, ignored)
    quotas = make_quotas(PARAMS, fleet, tables)
    cuts = [Shards(fleet, tables, quotas, shards, nth) for nth in range(2 if shards > 1 else 1)]
    dealt = pa.Table.from_batches(
        [batch for bucket in gathered for batch in kernel.deal_out(bucket, tables, cuts[0])],
    )
    held = None
    for cut, after in zip(cuts, [*cuts[1:], None], strict=True):
        of_shard = dealt.column("shard").to_numpy()
        outcome = pa.concat_tables(
            kernel.choose(
                int(shard), dealt.filter(pa.array(of_shard == shard)), PARAMS, fleet, tables, cut, after, held
            )
            for shard in np.unique(of_shard)
        )
        begun = outcome.filter(pa.compute.is_valid(outcome.column("cell"))).to_pylist()
        held = spark_rows.held_of(begun, tables, fleet)
        dealt = outcome.filter(pa.compute.is_valid(outcome.column("data")))
    cards = kernel.in_order(unpack(blobs_of(dealt.column("data")), kernel.DONE))
    problem, taken = spark_rows.problem_of(cards, PARAMS, fleet, tables)
    problem.under_replicated = sum(asked.values()) - int(problem.want.sum())
    return finish(problem, taken, None, first_stats(problem, ignored, blocks=block_rows))


@pytest.mark.parametrize("name", ["uniform", "mixed"])
@pytest.mark.parametrize(("buckets", "rows", "shards"), [(1, 10**6, 1), (5, 700, 3)])
def test_kernels_give_the_plan_of_one_process(name: str, buckets: int, rows: int, shards: int) -> None:
    """N9: batches, buckets and the order of rows do not change the digest."""
    snapshot = scenario(name, regions=900, servers=30, seed=71)
    wanted = plan(snapshot, PARAMS, engine="sharded", shards=shards)
    made = _planned(shuffled(snapshot, buckets), buckets=buckets, rows=rows, shards=shards)
    assert made.digest == wanted.digest
    assert made.stats.value == wanted.stats.value


def test_kernels_count_what_they_set_aside_as_one_process_does() -> None:
    """Every kind of unusable row, in one bucket or several, in one batch or row by row."""
    snapshot = Snapshot.of(
        [
            RegionRow("a", "t", 9),
            RegionRow("a", "t", 9),
            RegionRow("b", "t", -3, replicas=0),
            RegionRow("c", "t", 4, grp="x"),
            RegionRow("", "t", 4),
            RegionRow("d", "u", 4, replicas=5),
        ],
        [ServerRow("s1", "h1"), ServerRow("s2", "h2"), ServerRow("s3", "h3", draining=True)],
        [
            BlockRow("a", "h2", 5),
            BlockRow("a", "h2", 5),
            BlockRow("a", "h9", 5),
            BlockRow("q", "h9", 5),
            BlockRow("a", "h1", None),
            BlockRow("a", "h1", -1),
        ],
        [
            LastRow("b", 0, "s9"),
            LastRow("b", 0, "s1"),
            LastRow("d", 0, "s2"),
            LastRow("d", 0, "s1"),
            LastRow("d", 0, "s1"),
            LastRow("q", 0, "s1"),
            LastRow("a", -1, "s1"),
            LastRow("d", 1, "s0"),
            LastRow("d", 1, "s2"),
        ],
    )
    wanted = plan(snapshot, PARAMS, engine="sharded")
    for buckets, rows in ((1, 100), (4, 1)):
        made = _planned(snapshot, buckets=buckets, rows=rows, shards=1)
        assert made.digest == wanted.digest
        assert made.stats.ignored == wanted.stats.ignored
        assert (made.stats.unassignable, made.stats.under_replicated) == ({"x": 1}, 3)
        assert made.stats.degraded == wanted.stats.degraded


def test_ids_with_one_hash_are_noticed() -> None:
    """A bucket reports how many ids share their hash, so that the job can begin again."""
    rows = pa.table(
        {
            "rkey": [7, 7, 8],
            "name": ["a", "b", "c"],
            "table_id": ["t"] * 3,
            "grp": [""] * 3,
            "facts": [1, 1, 1],
            "size": [1, 1, 1],
            "replicas": [1, 1, 1],
        }
    )
    fleet = EligibleServers(Snapshot.of([], [ServerRow("s", "h")]).servers, {})
    pieces = pa.Table.from_batches([kernel.pack_input(kernel.REGION, 1, [], batch) for batch in rows.to_batches()])
    row = kernel.gather(pieces, PARAMS, fleet).to_pylist()[0]
    assert row["tally"][kernel.TALLY.index("clashes")] == 1


def test_dealt_rows_come_back_whole() -> None:
    """Packing neither loses nor mixes up data, also lists and nulls."""
    table = pa.table({"n": [5, 1, 4, 1], "l": [[1], None, [2, 3], []], "s": ["a", None, "", "ü"]})
    parts = deal(table, np.array([2, 0, 2, 0]))
    assert [name for name, _ in parts] == [0, 2]
    assert unpack([parts[0][1]], table.schema).to_pylist() == [table.to_pylist()[i] for i in (1, 3)]
    assert unpack([data for _, data in parts], table.schema).num_rows == 4
    assert unpack([], table.schema).num_rows == 0


def test_held_counts_are_those_of_a_full_table() -> None:
    """The sparse replicas of the shards, compared with the table of all shards and cells."""
    shards, servers, cells = 4, 3, 6
    keys = np.array([0, 5, 5, 7, 20, 23, 7])
    held = Held(servers, cells, keys, np.array([1, 2, 3, 1, 4, 1, 1]))
    full = np.zeros((shards, cells), dtype=np.int64)
    np.add.at(full.reshape(-1), keys, [1, 2, 3, 1, 4, 1, 1])
    assert held.total().tolist() == full.sum(axis=0).tolist()
    for shard in range(shards):
        assert held.of(shard).tolist() == full[shard].tolist()
        assert held.before(shard).tolist() == full[:shard].reshape(-1, servers).sum(axis=0).tolist()
    assert not Held.none(servers, cells).total().any()
