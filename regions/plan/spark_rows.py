"""The rows of a bulk plan on Spark: from files to a `Problem` and the candidates that are taken.

    region, block and last rows -> one bucket per some hundred thousand regions      (one shuffle, by hash of the id)
    -> candidates per region: server numbers, bytes (`kernel.gather`)                 kept
    -> regions per table, what was set aside                                          to the driver: quotas, shards
    -> shards solved exactly (`kernel.choose`)                                        (one shuffle)
    -> replicas per (next shard, table, server)                                       to the driver, a few numbers
    -> other shards, solved again, keeping what they have; `shards.ROUNDS` times      (one shuffle each)
    -> candidates with their fate                                                     to the driver

All that Spark itself does is read, hash, deal out, and count tables: it is said in SQL, and nothing of Spark is
imported here. Nothing depends on arrival order, partitions or chance: kernels sort, ids alone decide the shard.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

import numpy as np

from .files import COLUMNS, DEFAULTS, Progress
from .model import BadInput, ConflictingRegion, Ints, Params, PlanError
from .problem import REASONS, SIZE_MAX, Fleet, Problem, Tables, count, make_quotas
from .shards import ROUNDS, Shards, shard_count

#: Bytes of input that a bucket should hold; its rows are in one worker's memory at once, several times over.
BUCKET_BYTES: Final = 16 * 2**20
BUCKETS_MAX: Final = 4096
#: Above this, block rows are summed before they travel.
LARGE_BLOCKS_BYTES: Final = 256 * 2**20
#: Salts to try when two region ids share a 64-bit hash: at a million ids a chance of 1 in 37 million each time.
SALTS: Final = 3
#: Columns that a region keeps from the gathering to the end.
_KEPT: Final = "region_id, table_id, grp, size, replicas, server, local, held"

Sources = dict[str, tuple[str, list[Path]]]


class HashClash(PlanError):  # noqa: N818 - an answer about the input
    """Different region ids have the same hash under every salt: the input is not what it seems."""


class Solved:
    """What Spark found: the problem with all candidates, the numbers of those taken, and the input's block rows."""

    def __init__(self, problem: Problem, taken: Ints, block_rows: int, shards: int) -> None:
        self.problem = problem
        self.taken = taken
        self.block_rows = block_rows
        self.shards = shards


def solve_on_spark(
    spark: Any,
    sources: Sources,
    params: Params,
    fleet: Fleet,
    ignored: dict[str, int],
    progress: Progress,
    *,
    shards: int = 0,
    rounds: int = ROUNDS,
) -> Solved:
    """Plan as far as shards can; adds to `ignored` what was set aside.

    `shards` 0: by the size. Raises: BadInput, ConflictingRegion, HashClash; whatever Spark raises.
    """
    gathered, counts = _gather(spark, sources, params, fleet)
    tables, replicas, asked, block_rows = _count(gathered, counts, fleet, ignored)
    progress.stage("tables")
    shards = shards or shard_count(replicas, len(fleet))
    result = _choose(spark, gathered, params, fleet, tables, shards, rounds if shards > 1 else 0)
    progress.stage("shards")
    problem, taken = problem_of(result, params, fleet, tables)
    problem.under_replicated = sum(asked.values()) - int(problem.want.sum())
    return Solved(problem, taken, block_rows, shards)


# --- gather ---------------------------------------------------------------------------------------------------------


def _gather(spark: Any, sources: Sources, params: Params, fleet: Fleet) -> tuple[Any, list[Any]]:
    """The gathered rows, kept, and their counts per table; under another salt if hashes clash."""
    from .kernel import GATHERED, gatherer

    size = sum(path.stat().st_size for _, paths in sources.values() for path in paths)
    buckets = max(1, min(BUCKETS_MAX, size // BUCKET_BYTES))
    for salt in range(SALTS):
        rows = _all_rows(spark, sources, salt).selectExpr("*", f"pmod(rkey, {buckets}) AS bucket")
        gathered = rows.groupBy("bucket").applyInArrow(gatherer(params, fleet), GATHERED).persist()
        gathered.createOrReplaceTempView("gathered")
        counts = spark.sql(
            "SELECT grp, table_id, replicas, count(*) AS regions, count_if(differs) AS differ, "
            "collect_list(tally) AS tallies FROM gathered GROUP BY grp, table_id, replicas"
        ).collect()
        clashes = sum(tally[-1] for row in counts for tally in row["tallies"])
        if not clashes:
            return gathered, counts
        gathered.unpersist()
    raise HashClash(f"{clashes} region ids share their hash with another one, under {SALTS} different salts")


def _all_rows(spark: Any, sources: Sources, salt: int) -> Any:
    """Region, block and last rows in one form (`kernel`)."""
    key = f"xxhash64(coalesce(region_id, ''), {salt})"
    frame = _frame(spark, sources, "regions").selectExpr(
        "0 AS kind",
        f"{key} AS rkey",
        "coalesce(region_id, '') AS name",
        "coalesce(table_id, '') AS table_id",
        "coalesce(grp, '') AS grp",
        "xxhash64(coalesce(table_id, ''), coalesce(start_key, ''), coalesce(size_bytes, -1), "
        "coalesce(load, -1.0D), coalesce(replicas, -1), coalesce(grp, '')) AS facts",
        "size_bytes AS amount",
        "replicas AS copies",
        "0 AS bad",
    )
    if sources["blocks"][1]:
        frame = frame.unionByName(_block_rows(spark, sources, key), allowMissingColumns=True)
    if sources["last"][1]:
        places = _frame(spark, sources, "last").selectExpr(
            "2 AS kind", f"{key} AS rkey", "coalesce(server_id, '') AS name", "replica AS amount"
        )
        frame = frame.unionByName(places, allowMissingColumns=True)
    return frame


def _block_rows(spark: Any, sources: Sources, key: str) -> Any:
    """Block rows; of large inputs the sums per region and host."""
    blocks = _frame(spark, sources, "blocks").selectExpr(
        "1 AS kind",
        f"{key} AS rkey",
        "coalesce(host, '') AS name",
        f"CASE WHEN bytes > 0 THEN least(bytes, {SIZE_MAX}) ELSE 0 END AS amount",
        "CASE WHEN bytes > 0 THEN 1 ELSE 0 END AS copies",
        "CASE WHEN bytes > 0 THEN 0 ELSE 1 END AS bad",
    )
    if sum(path.stat().st_size for path in sources["blocks"][1]) <= LARGE_BLOCKS_BYTES:
        return blocks
    blocks.createOrReplaceTempView("blocks")
    return spark.sql(
        f"SELECT 1 AS kind, rkey, name, least(sum(amount), {SIZE_MAX}) AS amount, sum(copies) AS copies, "
        "sum(bad) AS bad FROM blocks GROUP BY rkey, name"
    )


def _frame(spark: Any, sources: Sources, name: str) -> Any:
    """One input table with the columns of COLUMNS, typed; missing optional columns have their defaults."""
    kinds = {"text": "string", "int": "bigint", "float": "double", "bool": "boolean"}
    columns = COLUMNS[name]
    kind, paths = sources[name]
    found = _columns_of(paths[0], kind)
    missing = [column for column in columns if column not in found and column not in DEFAULTS]
    if missing:
        raise BadInput(f"{paths[0]}: no column {', '.join(missing)}")
    if kind == "csv":
        schema = ", ".join(f"`{c}` {kinds[columns[c]] if c in columns else 'string'}" for c in found)
        reader = spark.read.schema(schema).options(header=True, mode="FAILFAST", escape='"', multiLine=True)
        frame = reader.csv([str(path) for path in paths])
    else:
        frame = spark.read.parquet(*[str(path) for path in paths])
    return frame.selectExpr(
        *(
            f"CAST({f'`{column}`' if column in found else _literal(DEFAULTS[column])} AS {kinds[kind]}) AS {column}"
            for column, kind in columns.items()
        )
    )


def _literal(value: object) -> str:
    """A default in SQL."""
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


def _columns_of(path: Path, kind: str) -> list[str]:
    """Column names of a file, from its header or footer. Raises: BadInput."""
    try:
        if kind == "csv":
            with path.open(newline="", encoding="utf-8") as file:
                return next(csv.reader(file), [])
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(path).names)
        except pa.ArrowException as error:
            raise BadInput(f"{path}: {error}") from error
    except OSError as error:
        raise BadInput(f"{path}: {error}") from error


# --- count ----------------------------------------------------------------------------------------------------------


def _count(
    gathered: Any, counts: list[Any], fleet: Fleet, ignored: dict[str, int]
) -> tuple[Tables, int, dict[str, int], int]:
    """Tables with their demands, all replicas that can exist, those asked for per group, and the block rows.

    Raises: ConflictingRegion.
    """
    from .kernel import TALLY

    if differ := sum(row["differ"] for row in counts):
        some = gathered.filter("differs").select("region_id").orderBy("region_id").limit(20).collect()
        raise ConflictingRegion([row["region_id"] for row in some], differ)
    tally = dict.fromkeys(TALLY, 0)
    demands: dict[tuple[str, str], dict[int, int]] = {}
    asked: dict[str, int] = {}
    limit = {g: int(n) for g, n in zip(fleet.groups, fleet.group_servers, strict=True)}
    for row in counts:
        for numbers in row["tallies"]:
            for name, number in zip(TALLY, numbers, strict=True):
                tally[name] += number
        if row["table_id"] is None:
            continue
        demand = demands.setdefault((row["grp"], row["table_id"]), {})
        want = min(row["replicas"], limit.get(row["grp"], 0))
        if want:
            demand[want] = demand.get(want, 0) + row["regions"]
            asked[row["grp"]] = asked.get(row["grp"], 0) + row["replicas"] * row["regions"]
    for reason in REASONS:
        count(ignored, reason, tally[reason])
    pairs = sorted(demands)
    tables = Tables(pairs, [demands[pair] for pair in pairs], fleet)
    replicas = sum(want * number for demand in demands.values() for want, number in demand.items())
    return tables, replicas, asked, tally["block_rows"]


# --- choose ---------------------------------------------------------------------------------------------------------


def _choose(spark: Any, gathered: Any, params: Params, fleet: Fleet, tables: Tables, shards: int, rounds: int) -> Any:
    """The regions with their candidates and what is taken of them, as an Arrow table."""
    from .kernel import CHOSEN, chooser

    quotas = make_quotas(params, fleet, tables)
    cuts = [Shards(fleet, tables, quotas, shards, nth_round) for nth_round in range(rounds + 1)]
    rows = _first_shards(spark, gathered, tables, cuts[0])
    held: Ints | None = None
    for nth_round, cut in enumerate(cuts):
        after = cuts[nth_round + 1] if nth_round < rounds else None
        chosen = rows.groupBy("shard").applyInArrow(chooser(params, fleet, tables, cut, after, held), CHOSEN)
        if after is None:
            return chosen.select(*_KEPT.split(", "), "taken").toArrow().combine_chunks()
        chosen = chosen.persist()
        held = np.zeros((shards, len(tables) * len(fleet)), dtype=np.int64)
        for row in chosen.filter("cell IS NOT NULL").select("cell", "own").collect():
            np.add.at(held.reshape(-1), np.array(row["cell"], dtype=np.int64), np.array(row["own"], dtype=np.int64))
        rows = chosen.filter("cell IS NULL").selectExpr(*_KEPT.split(", "), "next AS shard")
    raise AssertionError("the last round returns")


def _first_shards(spark: Any, gathered: Any, tables: Tables, cut: Shards) -> Any:
    """The regions with their shard of the first round: `Shards.of_regions`, said in SQL."""
    kept = _KEPT.split(", ")
    regions = gathered.filter("region_id IS NOT NULL")
    if cut.shards == 1:
        return regions.selectExpr(*kept, "0 AS shard")
    pieces = [(grp, table, int(cut.first[i]), int(cut.pieces[i])) for i, (grp, table) in enumerate(tables.pairs)]
    known = spark.createDataFrame(pieces, "grp string, table_id string, first int, pieces int")
    of_piece = ", ".join(str(int(shard)) for shard in cut.shard_of_piece)
    piece = "CAST(first + crc32(CAST(region_id AS BINARY)) % pieces AS INT)"
    joined = regions.join(known.hint("broadcast"), ["grp", "table_id"])
    return joined.selectExpr(*kept, f"element_at(array({of_piece}), {piece} + 1) AS shard")


def problem_of(result: Any, params: Params, fleet: Fleet, tables: Tables) -> tuple[Problem, Ints]:
    """The problem as `encode` would have made it, and the candidates that the shards took."""
    import pyarrow.compute as pc

    from .kernel import candidates_of, table_numbers

    result = result.take(pc.sort_indices(result, sort_keys=[("region_id", "ascending")])).combine_chunks()
    table = table_numbers(result, tables)
    size = result.column("size").to_numpy()
    limit = np.append(fleet.group_servers, 0)[tables.group]
    want = np.minimum(result.column("replicas").to_numpy(), limit[table])
    ids = result.column("region_id").to_numpy(zero_copy_only=False).astype(object)
    problem = Problem(params, fleet, tables, ids, table, want, size, candidates_of(result, params, size, len(fleet)))
    grp_of = np.array([grp for grp, _ in tables.pairs], dtype=object)[problem.table[problem.want == 0]]
    for grp in sorted(set(grp_of.tolist())):
        problem.unassignable[grp] = int((grp_of == grp).sum())
    taken = pc.list_flatten(result.column("taken")).to_numpy(zero_copy_only=False).astype(np.bool_)
    return problem, np.flatnonzero(taken)
