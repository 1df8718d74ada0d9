"""The rows of a bulk plan on Spark: from files to a `NumberedProblem` and the candidates that are taken.

    region, block and last rows -> numbers and hashes, packed (`kernel.pack_input`)
    -> one bucket per some hundred thousand regions                                   (one shuffle, by hash of the id)
    -> candidates per region: server numbers, bytes (`kernel.gather`)                 kept
    -> regions per table, what was set aside                                          to the driver: quotas, shards
    -> shards solved exactly (`kernel.choose`)                                        (one shuffle)
    -> replicas per (next shard, table, server)                                       to the driver, a few numbers
    -> other shards, solved again, keeping what they have; `shards.ROUNDS` times      (one shuffle each)
    -> candidates with their fate                                                     to the driver

Spark itself only reads, hashes and transports packed rows (`packed`). This module imports nothing of Spark. The result
does not depend on arrival order, partitions or randomness: kernels sort, and only ids decide the shard.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

import numpy as np

from regions.plan.artifact.files import COLUMNS, DEFAULTS, ProgressWriter, check_columns, check_types
from regions.plan.engines.shards import ROUNDS, Held, Shards, shard_count
from regions.plan.problem.model import MISSING, BadInput, ConflictingRegion, Ints, Params, PlanError
from regions.plan.problem.numbered import REASONS, EligibleServers, NumberedProblem, TableGroups, count, make_quotas

#: Bytes of input per bucket. A worker holds several times this amount in memory.
BUCKET_BYTES: Final = 8 * 2**20
BUCKETS_MAX: Final = 4096
#: Partitions per bucket or shard. Buckets or shards that share a partition are solved one after the other.
SPREAD: Final = 4
#: Salts to try when two region ids share a 64-bit hash: at a million ids a chance of 1 in 37 million each time.
SALTS: Final = 3
Sources = dict[str, tuple[str, list[Path]]]


class HashClash(PlanError):  # noqa: N818 - an answer about the input
    """Raised when different region ids have the same hash under every salt."""


class Solved:
    """The result of Spark: the problem with all candidates, the numbers of the chosen ones, and the block rows."""

    def __init__(self, problem: NumberedProblem, taken: Ints, block_rows: int, shards: int) -> None:
        self.problem = problem
        self.taken = taken
        self.block_rows = block_rows
        self.shards = shards


def solve_on_spark(
    spark: Any,
    sources: Sources,
    params: Params,
    fleet: EligibleServers,
    ignored: dict[str, int],
    progress: ProgressWriter,
    *,
    shards: int = 0,
    rounds: int = ROUNDS,
) -> Solved:
    """Plan as far as shards can. Count the ignored rows in `ignored`.

    `shards` 0: by the size. Raise BadInput, ConflictingRegion, HashClash, or any error of Spark.
    """
    gathered, counts = _gather(spark, sources, params, fleet)
    tables, replicas, asked, block_rows = _count(counts, fleet, ignored)
    progress.stage("tables")
    shards = shards or shard_count(replicas, len(fleet))
    result = _choose(gathered, params, fleet, tables, shards, rounds if shards > 1 else 0)
    progress.stage("shards")
    problem, taken = problem_of(result, params, fleet, tables)
    problem.under_replicated = sum(asked.values()) - int(problem.want.sum())
    return Solved(problem, taken, block_rows, shards)


# --- gather ---------------------------------------------------------------------------------------------------------


def _gather(spark: Any, sources: Sources, params: Params, fleet: EligibleServers) -> tuple[Any, list[Any]]:
    """Return the gathered buckets, cached, and their counts. Use another salt if hashes clash."""
    from regions.plan.spark.kernel import BUCKET, TALLY, gatherer

    size = sum(path.stat().st_size for _, paths in sources.values() for path in paths)
    buckets = max(1, min(BUCKETS_MAX, size // BUCKET_BYTES))
    clashes = 0
    for salt in range(SALTS):
        rows = _dealt(_all_rows(spark, sources, fleet, salt, buckets), "bucket", buckets)
        gathered = rows.groupBy("bucket").applyInArrow(gatherer(params, fleet), BUCKET).persist()
        counts = gathered.drop("data").collect()
        clashes = sum(row["tally"][TALLY.index("clashes")] for row in counts)
        if not clashes:
            return gathered, counts
        gathered.unpersist()
    raise HashClash(f"{clashes} region ids share their hash with another one, under {SALTS} different salts")


def _dealt(rows: Any, key: str, values: int) -> Any:
    """Return the rows with each key in one partition, with enough partitions to spread the keys evenly."""
    partitions = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions"))
    return rows.repartition(max(partitions, SPREAD * values if values > 1 else 1), key)


def _all_rows(spark: Any, sources: Sources, fleet: EligibleServers, salt: int, buckets: int) -> Any:
    """Return region, block and last rows, packed by bucket."""
    from regions.plan.spark.kernel import BLOCK, PIECE, PLACE, REGION, packer

    key = f"xxhash64(coalesce(region_id, ''), {salt}) AS rkey"
    regions = _frame(spark, sources, "regions").selectExpr(
        key,
        "coalesce(region_id, '') AS name",
        "coalesce(table_id, '') AS table_id",
        "coalesce(grp, '') AS grp",
        f"xxhash64(coalesce(table_id, ''), coalesce(start_key, ''), coalesce(size_bytes, {MISSING}), "
        f"coalesce(nanvl(load, -1.0D), -1.0D), coalesce(replicas, {MISSING}), coalesce(grp, '')) AS facts",
        "size_bytes AS size",
        "replicas",
    )
    rows = regions.mapInArrow(packer(REGION, buckets, []), PIECE)
    if sources["blocks"][1]:
        blocks = _frame(spark, sources, "blocks").selectExpr(key, "coalesce(host, '') AS host", "bytes")
        rows = rows.unionAll(blocks.mapInArrow(packer(BLOCK, buckets, sorted(fleet.live_hosts)), PIECE))
    if sources["last"][1]:
        places = _frame(spark, sources, "last").selectExpr(key, "coalesce(server_id, '') AS server_id", "replica")
        rows = rows.unionAll(places.mapInArrow(packer(PLACE, buckets, fleet.ids), PIECE))
    return rows


def _frame(spark: Any, sources: Sources, name: str) -> Any:
    """Return one input table with the columns and types of COLUMNS, and defaults for missing optional columns."""
    columns = COLUMNS[name]
    kind, paths = sources[name]
    frames = [_parts(spark, name, kind, found, files) for found, files in _alike(paths, kind, columns)]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _alike(paths: list[Path], kind: str, columns: dict[str, str]) -> list[tuple[tuple[str, ...], list[Path]]]:
    """Return the files by their columns: parts of one table may have different columns. Raise BadInput."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in paths:
        found = tuple(_columns_of(path, kind, columns))
        check_columns(path, found, columns)
        groups.setdefault(found, []).append(path)
    return list(groups.items())


def _parts(spark: Any, name: str, kind: str, found: tuple[str, ...], paths: list[Path]) -> Any:
    """Return files with equal columns, with the types and order of COLUMNS."""
    kinds = {"text": "string", "int": "bigint", "float": "double", "bool": "boolean"}
    columns = COLUMNS[name]
    if kind == "csv":
        quoted = [column.replace("`", "``") for column in found]
        schema = ", ".join(f"`{c}` {kinds[columns[c]] if c in columns else 'string'}" for c in quoted)
        reader = spark.read.schema(schema).options(header=True, mode="FAILFAST", escape='"', multiLine=True)
        # Python's spellings. Spark accepts Java's spellings as well.
        reader = reader.options(nanValue="nan", positiveInf="inf", negativeInf="-inf")
        frame = reader.csv(_places(paths))
    else:
        frame = spark.read.parquet(*_places(paths))
    types = {column: type_name for column, type_name in frame.dtypes if column in columns}
    return frame.selectExpr(
        *(
            f"CAST({_cell(column, kind, types[column]) if column in found else _literal(DEFAULTS[column])} "
            f"AS {kinds[kind]}) AS {column}"
            for column, kind in columns.items()
        )
    )


def _cell(column: str, kind: str, type_name: str) -> str:
    """Return a column in SQL. Without the check Spark would truncate fractions in integer columns."""
    if kind != "int" or not type_name.startswith(("float", "double", "decimal")):
        return f"`{column}`"
    return f"IF(`{column}` <> floor(`{column}`), raise_error('a fraction in column {column}'), `{column}`)"


def _places(paths: list[Path]) -> list[str]:
    """Return files as URLs of this machine's file system, whatever file system the cluster uses for bare paths."""
    return [f"file://{path.resolve()}" for path in paths]


def _literal(value: object) -> str:
    """Return a default in SQL."""
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def _columns_of(path: Path, kind: str, columns: dict[str, str]) -> list[str]:
    """Return the column names of a file, from its header or footer. Raise BadInput."""
    try:
        if kind == "csv":
            with path.open(newline="", encoding="utf-8-sig") as file:
                return next(csv.reader(file), [])
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(path)
            check_types(path, schema, columns)
            return list(schema.names)
        except pa.ArrowException as error:
            raise BadInput(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: {error}") from error


# --- count ----------------------------------------------------------------------------------------------------------


def _count(
    counts: list[Any], fleet: EligibleServers, ignored: dict[str, int]
) -> tuple[TableGroups, int, dict[str, int], int]:
    """Return tables with their demands, the number of placeable replicas, demands per group, and block rows.

    Raise ConflictingRegion.
    """
    from regions.plan.spark.kernel import DIFFERING_MAX, TALLY

    if differ := sum(row["differs"] for row in counts):
        raise ConflictingRegion(sorted(name for row in counts for name in row["differ"])[:DIFFERING_MAX], differ)
    tally = dict.fromkeys(TALLY, 0)
    demands: dict[tuple[str, str], dict[int, int]] = {}
    asked: dict[str, int] = {}
    limit = {g: int(n) for g, n in zip(fleet.groups, fleet.group_servers, strict=True)}
    for row in counts:
        for name, number in zip(TALLY, row["tally"], strict=True):
            tally[name] += number
        for code, replicas, regions in zip(row["code"], row["replicas"], row["regions"], strict=True):
            grp, table = row["grps"][code], row["tables"][code]
            demand = demands.setdefault((grp, table), {})
            want = min(replicas, limit.get(grp, 0))
            if want:
                demand[want] = demand.get(want, 0) + regions
                asked[grp] = asked.get(grp, 0) + replicas * regions
    for reason in REASONS:
        count(ignored, reason, tally[reason])
    pairs = sorted(demands)
    tables = TableGroups(pairs, [demands[pair] for pair in pairs], fleet)
    total = sum(want * number for demand in demands.values() for want, number in demand.items())
    return tables, total, asked, tally["block_rows"]


# --- choose ---------------------------------------------------------------------------------------------------------


def _choose(
    gathered: Any, params: Params, fleet: EligibleServers, tables: TableGroups, shards: int, rounds: int
) -> Any:
    """Return the regions with their candidates and the chosen ones (`kernel.DONE`), in the order of their ids."""
    from regions.plan.spark.kernel import DONE, SHARD, chooser, dealer, in_order
    from regions.plan.spark.packed import blobs_of, unpack

    quotas = make_quotas(params, fleet, tables)
    cuts = [Shards(fleet, tables, quotas, shards, nth_round) for nth_round in range(rounds + 1)]
    rows = gathered.select("data", "grps", "tables").mapInArrow(dealer(tables, cuts[0]), SHARD)
    held: Held | None = None
    for nth_round, cut in enumerate(cuts):
        after = cuts[nth_round + 1] if nth_round < rounds else None
        function = chooser(params, fleet, tables, cut, after, held)
        chosen = _dealt(rows, "shard", shards).groupBy("shard").applyInArrow(function, SHARD)
        if after is None:
            return in_order(unpack(blobs_of(chosen.select("data").toArrow().column("data")), DONE))
        chosen = chosen.persist()
        begun = chosen.filter("cell IS NOT NULL").select("cell", "own").collect()
        held = held_of(begun, tables, fleet)
        rows = chosen.filter("data IS NOT NULL")
    raise AssertionError("the last round returns")


def held_of(begun: list[Any], tables: TableGroups, fleet: EligibleServers) -> Held:
    """Return the replicas that the shards of a round begin with, from the rows of `kernel.choose`."""
    cell, own = (np.array([n for row in begun for n in row[name]], dtype=np.int64) for name in ("cell", "own"))
    return Held(len(fleet), len(tables) * len(fleet), cell, own)


def problem_of(cards: Any, params: Params, fleet: EligibleServers, tables: TableGroups) -> tuple[NumberedProblem, Ints]:
    """Return the problem as `encode` would build it, and the candidates that the shards have chosen."""
    import pyarrow.compute as pc

    from regions.plan.spark.kernel import candidates_of

    table = cards.column("table").to_numpy().astype(np.int64)
    size = cards.column("size").to_numpy()
    limit = np.append(fleet.group_servers, 0)[tables.group]
    want = np.minimum(cards.column("replicas").to_numpy(), limit[table])
    ids = cards.column("region_id").to_numpy(zero_copy_only=False).astype(object)
    problem = NumberedProblem(params, fleet, tables, ids, table, want, size, candidates_of(cards, params))
    grp_of = np.array([grp for grp, _ in tables.pairs], dtype=object)[problem.table[problem.want == 0]]
    for grp in sorted(set(grp_of.tolist())):
        problem.unassignable[grp] = int((grp_of == grp).sum())
    taken = pc.list_flatten(cards.column("taken")).to_numpy(zero_copy_only=False).astype(np.bool_)
    return problem, np.flatnonzero(taken)
