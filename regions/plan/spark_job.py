"""Plans by Spark, from files to files: `python -m regions.plan.spark_job --input DIR --output DIR`.

Spark reads, checks and groups what may be too much for one process: region rows, block rows, former places. Each shard
is solved where its rows are (`spark_rows`, `kernel`); leftovers, repair, numbering and the manifest are the driver's,
by the code that the engine `sharded` uses, so both give the same plan, bit for bit. The command line, the progress
lines and the exit status are in docs/planning.md. This is the only module that imports Spark, and only when a job
starts.
"""

# ruff: noqa: N818

from __future__ import annotations

import argparse
import contextlib
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
    LastRow,
    NoServers,
    Params,
    Plan,
    PlanError,
    RegionRow,
    ServerRow,
    Servers,
    Snapshot,
)
from .problem import Fleet
from .spark_rows import Solved, Sources, solve_on_spark
from .verify import judge

EXIT_BAD_INPUT: Final = 3
EXIT_NO_SERVERS: Final = 4
EXIT_NO_SPARK: Final = 5
EXIT_SPARK_FAILED: Final = 6
#: Spark 4 runs on this Java or a later one.
JAVA_MIN: Final = 17
#: Up to this many bytes of input a job is over before the JVM's optimising compiler has paid for itself.
SMALL_INPUT_BYTES: Final = 2 * 2**20
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
        _deliver(options, given, solve(spark, given, progress, options.shards), progress)


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
        solve(spark, given, Progress(io.StringIO(), 0), shards=1)
        spark.catalog.clearCache()


def solve(spark: Any, given: Input, progress: Progress, shards: int = 0) -> Solved:
    """Spark's half of the work; `shards` 0: by the size."""
    return solve_on_spark(spark, given.sources, given.params, given.fleet, given.ignored, progress, shards=shards)


def _deliver(options: argparse.Namespace, given: Input, solved: Solved, progress: Progress) -> None:
    """The driver's half: leftovers, repair, verdict, files."""
    plan = finished(given, solved)
    progress.stage("leftovers")
    plan.stats.violations = judge(solved.problem, plan.rows).violations
    progress.stage("verify")
    plan_id = options.plan_id or f"plan-{plan.digest[:16]}"
    manifest = write_plan(options.output, plan, plan_id=plan_id, params=given.params, seconds=progress.seconds)
    progress.stage("write")
    progress.finished(manifest)


def finished(given: Input, solved: Solved) -> Plan:
    """The complete plan."""
    stats = first_stats(solved.problem, given.ignored, blocks=solved.block_rows)
    stats.engine, stats.shards = "spark", solved.shards
    return finish(solved.problem, solved.taken, None, stats)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
