"""Plans by Spark, from files to files: `python -m regions.plan.spark_job --input DIR --output DIR`.

Spark reads, checks and groups what may be too much for one process: region rows, block rows, former places. Each shard
(`shards`) is solved where its rows are (`kernel`); leftovers, repair, numbering and the manifest are the driver's, by
the code that the engine `sharded` uses, so both give the same plan, bit for bit. The command line, the progress lines
and the exit status are in docs/planning.md.

    regions + blocks + last -> one row per region   (one shuffle, by region_id)
    -> counts per table, and what is bad             (to the driver: quotas, shards)
    -> one group per shard, solved                   (one shuffle, by shard)
    -> candidates with their fate                    (to the driver)

Nothing depends on arrival order, partitions or chance: kernels sort, ids alone decide the shard. This is the only
module that knows Spark; it is imported only when a job starts.
"""

# ruff: noqa: N818

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from .engines import finish, first_stats
from .files import (
    COLUMNS,
    DEFAULTS,
    PARAMS,
    Progress,
    find_table,
    prepare_output,
    progress_on_stdout,
    read_file,
    read_params,
    write_plan,
    write_snapshot,
)
from .model import (
    BadInput,
    BlockRow,
    ConflictingRegion,
    LastRow,
    NoServers,
    Params,
    PlanError,
    RegionRow,
    ServerRow,
    Servers,
    Snapshot,
    Stats,
)
from .problem import SIZE_MAX, Candidates, Fleet, Problem, Tables, count, make_quotas
from .shards import Shards, shard_count
from .verify import judge

EXIT_BAD_INPUT: Final = 3
EXIT_NO_SERVERS: Final = 4
EXIT_NO_SPARK: Final = 5
EXIT_SPARK_FAILED: Final = 6
#: Spark 4 runs on this Java or a later one.
JAVA_MIN: Final = 17
#: Up to this many bytes of input a job is over before the JVM's optimising compiler has paid for itself.
SMALL_INPUT_BYTES: Final = 2 * 2**20
#: Above this, block rows are summed before they are grouped by region.
LARGE_BLOCKS_BYTES: Final = 256 * 2**20
STAGES: Final = ("check", "session", "tables", "shards", "leftovers", "verify", "write")
#: Linux: the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG: Final = 1


class NoSpark(PlanError):
    """Java or PySpark is missing on this machine; `greedy` and `sharded` need neither."""


class SparkFailed(PlanError):
    """Spark gave up."""


def main(arguments: list[str]) -> int:
    """Parse, check what can be checked without Spark, run; returns the exit status."""
    options = parse(arguments)
    if options.die_with_parent:
        _die_with_parent()
    progress = progress_on_stdout(total=len(STAGES))
    try:
        _run(options, progress)
        return 0
    except PlanError as error:
        progress.failed(type(error).__name__, str(error))
        print(f"plan: {error}", file=sys.stderr)  # noqa: T201
        if isinstance(error, NoServers):
            return EXIT_NO_SERVERS
        if isinstance(error, NoSpark):
            return EXIT_NO_SPARK
        return EXIT_SPARK_FAILED if isinstance(error, SparkFailed) else EXIT_BAD_INPUT


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent dies: a plan that nobody waits for is only load."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(EXIT_SPARK_FAILED)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m regions.plan.spark_job", description="A bulk plan by Spark.")
    parser.add_argument("--input", required=True, type=Path, help="directory of regions, servers, blocks, last, params")
    parser.add_argument("--output", required=True, type=Path, help="directory for the plan; it must hold none yet")
    parser.add_argument("--master", default="local[*]", help="Spark master URL")
    parser.add_argument("--plan-id", default="", help="name of the plan in its manifest; by default from its digest")
    parser.add_argument("--shuffle-partitions", type=int, default=0, help="by default from the size and the cores")
    parser.add_argument("--shards", type=int, default=0, help="by default from the size")
    parser.add_argument(
        "--wait-input", type=float, default=0.0, metavar="S", help="start now; wait that long for params.json"
    )
    parser.add_argument(
        "--class-archive", type=Path, default=None, help="file of loaded Java classes, made on first use (170 MB)"
    )
    parser.add_argument("--die-with-parent", action="store_true", help="end when its parent process does")
    parser.add_argument("--driver-memory", default="", help="heap of the driver, as 4g; by default from the size")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, progress: Progress) -> None:
    """The stages of a job. With --wait-input and no input yet, Spark is started and warmed up meanwhile."""
    _check_java()
    _check_pyspark()
    prepare_output(options.output)
    early = options.wait_input > 0 and not (options.input / PARAMS).exists()
    given = None if early else read_input(options.input)
    progress.stage("check")
    with session(options, given) as spark:
        progress.stage("session")
        if given is None:
            progress.total += 1
            _warm_up(spark, options)
            _await_input(options)
            given = read_input(options.input)
            progress.stage("warm-up")
        for key, value in sql_settings(options, given.size).items():
            spark.conf.set(key, value)
        problem, taken, block_rows = solve_on_spark(spark, options, given, progress)
        stats = first_stats(problem, given.ignored, blocks=block_rows)
        _deliver(options, given.params, problem, taken, stats, progress)


def _await_input(options: argparse.Namespace) -> None:
    """Look for `params.json`, which is written last, until it is there. Raises: BadInput after --wait-input seconds."""
    end = time.monotonic() + options.wait_input
    while not (options.input / PARAMS).exists():
        if time.monotonic() > end:
            raise BadInput(f"{options.input / PARAMS} did not appear within {options.wait_input:g} s")
        time.sleep(0.05)


def _warm_up(spark: Any, options: argparse.Namespace) -> None:
    """Plan two regions, so that the classes are loaded and a Python worker runs when the real input comes."""
    tiny = Snapshot.of(
        [RegionRow("a", "t", 1), RegionRow("b", "t", 1)],
        [ServerRow("s", "h"), ServerRow("u", "i")],
        [BlockRow("a", "h", 1)],
        [LastRow("b", 0, "u")],
    )
    with tempfile.TemporaryDirectory(prefix="regionkeeper-plan-") as scratch:
        write_snapshot(Path(scratch), tiny, Params(), kind="parquet")
        given = read_input(Path(scratch))
        for key, value in sql_settings(options, given.size).items():
            spark.conf.set(key, value)
        solve_on_spark(spark, argparse.Namespace(shards=1), given, Progress(io.StringIO(), 0))
        spark.catalog.clearCache()


def _deliver(
    options: argparse.Namespace, params: Params, problem: Problem, taken: Any, stats: Stats, progress: Progress
) -> None:
    """The driver's half: leftovers, repair, verdict, files."""
    stats.engine = "spark"
    stats.shards = options.shards
    plan = finish(problem, taken, None, stats)
    progress.stage("leftovers")
    plan.stats.violations = judge(problem, plan.rows).violations
    progress.stage("verify")
    plan_id = options.plan_id or f"plan-{plan.digest[:16]}"
    manifest = write_plan(options.output, plan, plan_id=plan_id, params=params, seconds=progress.seconds)
    progress.stage("write")
    progress.finished(manifest)


# --- before anything is started -------------------------------------------------------------------------------------


def _check_java() -> None:
    """Java is there and new enough. Raises: NoSpark."""
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home} but has no bin/java" if home else "there is no java on PATH and no JAVA_HOME"
        raise NoSpark(f"Spark needs Java {JAVA_MIN} or later: {where}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoSpark(f"{java} does not run: {error}") from error
    version = said.split('"')[1] if said.count('"') >= 2 else ""
    major = version.split(".")[0].split("-")[0]
    if not major.isdigit() or int(major) < JAVA_MIN:
        raise NoSpark(f"Spark needs Java {JAVA_MIN} or later; {java} is {version or said.strip() or 'silent'}")


def _check_pyspark() -> None:
    """PySpark and pyarrow are installed. Raises: NoSpark."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise NoSpark(f"{error.name} is not installed: install RegionKeeper with its extra 'spark'") from error


Sources = dict[str, tuple[str, list[Path]]]


class Input:
    """An input directory: parameters, the servers (few, read here), and where the large tables lie."""

    def __init__(self, params: Params, fleet: Fleet, sources: Sources, ignored: dict[str, int]) -> None:
        self.params = params
        self.fleet = fleet
        self.sources = sources
        self.ignored = ignored
        self.size = sum(path.stat().st_size for _, paths in sources.values() for path in paths)


def read_input(directory: Path) -> Input:
    """What the driver itself reads of the input. Raises: BadInput, NoServers."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no directory")
    params = read_params(directory)
    ignored: dict[str, int] = {}
    kind, paths = find_table(directory, "servers")
    parts = [read_file(path, kind, COLUMNS["servers"]) for path in paths]
    fleet = Fleet(Servers(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), ignored)
    if not len(fleet):
        raise NoServers(f"none of {fleet.live} live servers may take regions")
    sources = {name: find_table(directory, name) for name in ("regions", "blocks", "last")}
    return Input(params, fleet, sources, ignored)


# --- the session ----------------------------------------------------------------------------------------------------

QUIET_LOG: Final = """status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


@contextlib.contextmanager
def session(options: argparse.Namespace, given: Input | None) -> Iterator[Any]:
    """A Spark session with the settings that planning needs, ended on leaving. Raises: SparkFailed, BadInput."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Workers must be this interpreter, not whatever python3 the PATH has: they need numpy and pyarrow.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="regionkeeper-plan-") as scratch:
        log = Path(scratch, "log4j2.properties")
        log.write_text(QUIET_LOG)
        builder = SparkSession.builder.appName("regionkeeper-plan").master(options.master)
        for key, value in _settings(options, given, scratch, log).items():
            builder = builder.config(key, value)
        try:
            spark = builder.getOrCreate()
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            raise SparkFailed(f"no Spark session on {options.master}: {_first_line(error)}") from error
        try:
            yield spark
        except (PySparkException, Py4JError) as error:
            words = str(error)
            if "MALFORMED_RECORD" in words or "FAILED_READ_FILE" in words:
                raise BadInput(f"an input file cannot be read: {_first_line(error)}") from error
            raise SparkFailed(_first_line(error)) from error
        finally:
            spark.stop()


def _settings(options: argparse.Namespace, given: Input | None, scratch: str, log: Path) -> dict[str, str]:
    """Spark's configuration that is fixed when it starts; without an input yet, for one of any size."""
    small = given is not None and given.size <= SMALL_INPUT_BYTES
    java = [f"-Dlog4j2.configurationFile={log.as_uri()}", "-Dlog4j2.disableJmx=true", "-Xlog:disable"]
    if small:
        java += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    if options.class_archive is not None:
        use = "SharedArchiveFile" if options.class_archive.exists() else "ArchiveClassesAtExit"
        java.append(f"-XX:{use}={options.class_archive.resolve()}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.driver.maxResultSize": "0",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    if options.driver_memory or not small:
        settings["spark.driver.memory"] = options.driver_memory or "4g"
    if options.master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": scratch,
        }
    return settings


def sql_settings(options: argparse.Namespace, size: int) -> dict[str, str]:
    """Configuration for `size` bytes of input, which may change while Spark runs."""
    small = size <= SMALL_INPUT_BYTES
    partitions = options.shuffle_partitions or (1 if small else 3 * (os.cpu_count() or 1))
    return {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.adaptive.enabled": "false" if small else "true",
        # Merging small partitions would put all shards into one task.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.files.openCostInBytes": "0" if small else str(4 * 2**20),
        # Compiling generated Java costs more than it saves on a small input.
        "spark.sql.codegen.wholeStage": "false" if small else "true",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if small else "FALLBACK",
    }


def _first_line(error: Exception) -> str:
    """What an error says, without the Java stack below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__


# --- the job --------------------------------------------------------------------------------------------------------


def solve_on_spark(
    spark: Any, options: argparse.Namespace, given: Input, progress: Progress
) -> tuple[Problem, Any, int]:
    """The problem with all candidates, the numbers of those taken, and how many block rows there were."""
    import pyarrow.compute as pc

    from .kernel import OUTPUT, shard_solver

    params, fleet, ignored = given.params, given.fleet, given.ignored
    rows = _one_row_per_region(spark, given.sources).persist()
    tables, replicas, asked, block_rows = _count_tables(rows, fleet, ignored)
    progress.stage("tables")
    options.shards = options.shards or shard_count(replicas, len(fleet))
    cut = Shards(fleet, tables, make_quotas(params, fleet, tables), options.shards)
    good = _with_shard(spark, rows.filter("rows > 0 and region_id <> ''"), tables, cut)
    solved = good.groupBy("shard").applyInArrow(shard_solver(params, fleet, tables, cut), OUTPUT)
    result = solved.toArrow().combine_chunks()
    progress.stage("shards")
    problem, taken = _problem_of(result, params, fleet, tables)
    count(ignored, "last_server", pc.sum(result.column("gone")).as_py() or 0)
    count(ignored, "block_host", pc.sum(result.column("strange")).as_py() or 0)
    problem.under_replicated = sum(asked.values()) - int(problem.want.sum())
    return problem, taken, block_rows


def _frame(spark: Any, sources: Sources, name: str) -> Any:
    """One input table with the columns of COLUMNS, typed; missing optional columns have their defaults."""
    from pyspark.sql import functions as F  # noqa: N812

    kinds = {"text": "string", "int": "bigint", "float": "double", "bool": "boolean"}
    columns = COLUMNS[name]
    kind, paths = sources[name]
    if not paths:
        return spark.createDataFrame([], ", ".join(f"{c} {kinds[k]}" for c, k in columns.items()))
    found = _columns_of(paths[0], kind)
    missing = [c for c in columns if c not in found and c not in DEFAULTS]
    if missing:
        raise BadInput(f"{paths[0]}: no column {', '.join(missing)}")
    if kind == "csv":
        schema = ", ".join(f"`{c}` {kinds[columns[c]] if c in columns else 'string'}" for c in found)
        reader = spark.read.schema(schema).options(header=True, mode="FAILFAST", escape='"', multiLine=True)
        frame = reader.csv([str(path) for path in paths])
    else:
        frame = spark.read.parquet(*[str(path) for path in paths])
    return frame.select(
        *[
            (F.col(c).cast(kinds[k]) if c in found else F.lit(DEFAULTS[c]).cast(kinds[k])).alias(c)
            for c, k in columns.items()
        ]
    )


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


def _one_row_per_region(spark: Any, sources: Sources) -> Any:
    """Everything known about each region id, also about ids that no region row has; all bad rows counted beside."""
    from pyspark.sql import functions as F  # noqa: N812

    empty_text = F.lit("")
    facts = F.struct("table_id", "start_key", "size_bytes", "load", "replicas", "grp")
    regions = _frame(spark, sources, "regions").fillna("", ["table_id", "start_key", "grp"])
    parts = [regions.select(F.coalesce("region_id", empty_text).alias("region_id"), facts.alias("facts"))]
    if sources["blocks"][1]:
        parts.append(_block_parts(spark, sources))
    if sources["last"][1]:
        last = _frame(spark, sources, "last")
        place = F.struct(
            F.coalesce("replica", F.lit(-1)).alias("replica"), F.coalesce("server_id", empty_text).alias("id")
        )
        parts.append(last.select(F.coalesce("region_id", empty_text).alias("region_id"), place.alias("place")))
    united = parts[0]
    for part in parts[1:]:
        united = united.unionByName(part, allowMissingColumns=True)
    for column, kind in (
        ("block", "struct<host:string,bytes:bigint,rows:bigint>"),
        ("place", "struct<replica:bigint,id:string>"),
    ):
        if column not in united.columns:
            united = united.withColumn(column, F.lit(None).cast(kind))
    for column in ("good_blocks", "bad_bytes"):
        if column not in united.columns:
            united = united.withColumn(column, F.lit(0).cast("bigint"))
    return united.groupBy("region_id").agg(
        F.count("facts").alias("rows"),
        F.min("facts").alias("facts"),
        (F.count("facts") > 0).__and__(F.min("facts") != F.max("facts")).alias("differs"),
        F.collect_list("block").alias("blocks"),
        F.collect_list("place").alias("places"),
        F.coalesce(F.sum("good_blocks"), F.lit(0)).alias("good_blocks"),
        F.coalesce(F.sum("bad_bytes"), F.lit(0)).alias("bad_bytes"),
    )


def _block_parts(spark: Any, sources: Sources) -> Any:
    """Usable block rows, and how many are not. Large inputs are summed per region and host before they travel."""
    from pyspark.sql import functions as F  # noqa: N812

    blocks = _frame(spark, sources, "blocks").fillna("", ["region_id", "host"])
    good = F.col("bytes").isNotNull() & (F.col("bytes") > 0)
    blocks = blocks.select(
        "region_id",
        F.when(good, F.col("host")).alias("host"),
        F.least("bytes", F.lit(SIZE_MAX)).alias("bytes"),
        good.cast("bigint").alias("good_blocks"),
        (~good).cast("bigint").alias("bad_bytes"),
    )
    if sum(path.stat().st_size for path in sources["blocks"][1]) > LARGE_BLOCKS_BYTES:
        sums = [F.sum(c).alias(c) for c in ("bytes", "good_blocks", "bad_bytes")]
        blocks = blocks.groupBy("region_id", "host").agg(*sums)
    block = F.struct("host", F.least("bytes", F.lit(SIZE_MAX)).alias("bytes"), F.col("good_blocks").alias("rows"))
    return blocks.select(
        "region_id", F.when(F.col("host").isNotNull(), block).alias("block"), "good_blocks", "bad_bytes"
    )


def _count_tables(rows: Any, fleet: Fleet, ignored: dict[str, int]) -> tuple[Tables, int, dict[str, int], int]:
    """Regions per table and replica count, and everything that was set aside. Raises: ConflictingRegion.

    Returns the tables, all replicas that can exist, replicas asked for per group with servers, and the block rows.
    """
    from pyspark.sql import functions as F  # noqa: N812

    known = (F.col("rows") > 0) & (F.col("region_id") != "")
    number = F.expr("transform(filter(places, p -> p.replica >= 0), p -> p.replica)")
    size, replicas = F.col("facts.size_bytes"), F.col("facts.replicas")
    bad_size = size.isNull() | (size < 0) | (size > SIZE_MAX)
    counted = rows.groupBy(
        known.alias("known"),
        F.when(known, F.col("facts.grp")).alias("grp"),
        F.when(known, F.col("facts.table_id")).alias("table_id"),
        F.when(known, F.greatest(F.coalesce(replicas, F.lit(1)), F.lit(1))).alias("replicas"),
    ).agg(
        F.count("*").alias("regions"),
        F.sum("rows").alias("rows"),
        F.sum((known & F.col("differs")).cast("bigint")).alias("differ"),
        F.sum((known & bad_size).cast("bigint")).alias("size"),
        F.sum((known & (replicas.isNull() | (replicas < 1))).cast("bigint")).alias("wrong_replicas"),
        F.sum("good_blocks").alias("good_blocks"),
        F.sum("bad_bytes").alias("bad_bytes"),
        F.sum(F.size("places")).alias("places"),
        F.sum(F.size(number)).alias("numbered"),
        F.sum(F.size(F.array_distinct(number))).alias("distinct"),
    )
    counts = counted.collect()
    if sum(c["differ"] for c in counts):
        some = rows.filter(known & F.col("differs")).select("region_id").orderBy("region_id").limit(20).collect()
        raise ConflictingRegion([row["region_id"] for row in some], sum(c["differ"] for c in counts))
    demands: dict[tuple[str, str], dict[int, int]] = {}
    asked: dict[str, int] = {}
    limit = {g: int(n) for g, n in zip(fleet.groups, fleet.group_servers, strict=True)}
    for c in counts:
        count(ignored, "block_bytes", c["bad_bytes"])
        if not c["known"]:
            count(ignored, "region_without_id", c["rows"])
            count(ignored, "block_region", c["good_blocks"])
            count(ignored, "last_region", c["places"])
            continue
        count(ignored, "region_duplicate", c["rows"] - c["regions"])
        count(ignored, "region_size", c["size"])
        count(ignored, "region_replicas", c["wrong_replicas"])
        count(ignored, "last_replica", c["places"] - c["numbered"])
        count(ignored, "last_duplicate", c["numbered"] - c["distinct"])
        demand = demands.setdefault((c["grp"], c["table_id"]), {})
        want = min(c["replicas"], limit.get(c["grp"], 0))
        if want:
            demand[want] = demand.get(want, 0) + c["regions"]
            asked[c["grp"]] = asked.get(c["grp"], 0) + c["replicas"] * c["regions"]
    pairs = sorted(demands)
    tables = Tables(pairs, [demands[pair] for pair in pairs], fleet)
    block_rows = sum(c["good_blocks"] + c["bad_bytes"] for c in counts)
    return tables, sum(w * n for d in demands.values() for w, n in d.items()), asked, block_rows


def _with_shard(spark: Any, rows: Any, tables: Tables, cut: Shards) -> Any:
    """The kernel's input: cleaned columns, and the shard of each region."""
    from pyspark.sql import functions as F  # noqa: N812

    shard = F.lit(0)
    if cut.shards > 1:
        pieces = [(grp, table, int(cut.first[i]), int(cut.pieces[i])) for i, (grp, table) in enumerate(tables.pairs)]
        known = spark.createDataFrame(pieces, "piece_grp string, piece_table string, first bigint, pieces bigint")
        same = (F.col("facts.grp") == F.col("piece_grp")) & (F.col("facts.table_id") == F.col("piece_table"))
        rows = rows.join(F.broadcast(known), same)
        of_piece = F.array(*[F.lit(int(s)) for s in cut.shard_of_piece])
        piece = F.col("first") + F.crc32(F.col("region_id").cast("binary")) % F.col("pieces")
        shard = F.element_at(of_piece, (piece + 1).cast("int"))
    size = F.greatest(F.least(F.coalesce("facts.size_bytes", F.lit(0)), F.lit(SIZE_MAX)), F.lit(0))
    return rows.select(
        shard.alias("shard"),
        "region_id",
        F.col("facts.table_id").alias("table_id"),
        F.col("facts.grp").alias("grp"),
        size.alias("size"),
        F.greatest(F.coalesce("facts.replicas", F.lit(1)), F.lit(1)).alias("replicas"),
        F.col("blocks.host").alias("host"),
        F.col("blocks.bytes").alias("bytes"),
        F.col("blocks.rows").alias("block_rows"),
        F.col("places.replica").alias("held_replica"),
        F.col("places.id").alias("held_server"),
    )


def _problem_of(result: Any, params: Params, fleet: Fleet, tables: Tables) -> tuple[Problem, Any]:
    """The problem as `encode` would have made it, and the candidates that the shards took."""
    import pyarrow.compute as pc

    result = result.take(pc.sort_indices(result, sort_keys=[("region_id", "ascending")])).combine_chunks()

    def column(name: str) -> Any:
        return result.column(name).to_numpy()

    region = pc.list_parent_indices(result.column("server")).to_numpy().astype(np.int64)
    flat = {name: pc.list_flatten(result.column(name)).to_numpy() for name in ("server", "local", "held", "taken")}
    held = flat["held"] >= 0
    candidates = Candidates(
        params,
        column("size"),
        region,
        flat["server"],
        flat["local"],
        region[held],
        flat["server"][held],
        flat["held"][held],
        len(fleet),
    )
    problem = Problem(
        params,
        fleet,
        tables,
        column("region_id").astype(object),
        column("table"),
        column("want"),
        column("size"),
        candidates,
    )
    grp_of = np.array([grp for grp, _ in tables.pairs], dtype=object)[problem.table[problem.want == 0]]
    for grp in sorted(set(grp_of.tolist())):
        problem.unassignable[grp] = int((grp_of == grp).sum())
    return problem, np.flatnonzero(flat["taken"].astype(np.bool_))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
