"""Plans by Spark, from files to files: `python -m regions.plan.spark_job --input DIR --output DIR`.

The master URL (`spark.target`) names the Spark: this process, a standalone cluster, YARN, Kubernetes, or a Spark
Connect server. With `spark-submit` (`submit`) its own master is used. Remote executors get the planner's modules from
this process (`ship`).

Spark reads, checks and groups the large tables: region rows, block rows, former places. Each shard is solved where its
rows are (`spark.rows`, `spark.kernel`). The driver does leftovers, repair, numbering and the manifest with the code of
the engine `sharded`, so both compute the same plan, bit for bit. docs/planning.md has the command line, the progress
lines and the exit status. Only this module imports Spark, and only when a job starts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from regions.plan.artifact.files import (
    COLUMNS,
    PARAMS,
    ProgressWriter,
    die_with_parent,
    find_table,
    prepare_output,
    progress_on_stdout,
    read_file,
    read_params,
    usual_id,
    write_plan,
    write_snapshot,
)
from regions.plan.artifact.verify import judge
from regions.plan.engines.run import finish, first_stats
from regions.plan.problem.model import (
    BadInput,
    BlockRow,
    Blocks,
    LastRow,
    NoServers,
    Params,
    Plan,
    PlanError,
    RegionRow,
    ServerColumns,
    ServerRow,
    Snapshot,
)
from regions.plan.problem.numbered import EligibleServers
from regions.plan.spark.arguments import NoSpark, SparkFailed, as_plan_error, first_words
from regions.plan.spark.locate import LocalBytes, locate, read_paths
from regions.plan.spark.rows import Solved, Sources, solve_on_spark
from regions.plan.spark.target import (
    DEFAULT,
    REACH_S,
    SUBMITTED,
    BadTarget,
    SparkTarget,
    TargetKind,
    missing,
    parse_conf,
    parse_target,
    unreachable,
)

from .ship import NAME as ARCHIVE
from .ship import source_root, write_archive

EXIT_USAGE: Final = 2
EXIT_BAD_INPUT: Final = 3
EXIT_NO_SERVERS: Final = 4
EXIT_NO_SPARK: Final = 5
EXIT_SPARK_FAILED: Final = 6
#: Spark 4 runs on this Java or a later one.
JAVA_MIN: Final = 17
#: Up to this many bytes of input, a job needs one partition, no generated Java and no large heap.
SMALL_INPUT_BYTES: Final = 2 * 2**20
#: Up to this many bytes a job ends before the JVM's optimizing compiler and concurrent collector pay off: without them
#: a million regions took Java half the processor time. Java only reads rows and transports packed ones.
PLAIN_JAVA_BYTES: Final = 256 * 2**20
STAGES: Final = ("check", "session", "tables", "shards", "leftovers", "verify", "write")
#: Period of checking for the first executor, and of reporting the wait.
_LOOK_S: Final = 0.1
_SAY_S: Final = 10.0
#: Directory below the output, while the job runs, for the rows of the table `blocks` that the job has found.
LOCATED: Final = ".located"


def main(arguments: list[str]) -> int:
    """Parse the arguments, do the checks that need no Spark, and run. Return the exit status."""
    options = parse(arguments)
    if options.die_with_parent:
        die_with_parent()
    progress = progress_on_stdout(len(STAGES), time.monotonic)
    try:
        (_locate_only if options.locate else _run)(options, progress)
        return 0
    except PlanError as error:
        progress.failed(type(error).__name__, str(error))
        print(f"plan: {error}", file=sys.stderr)  # noqa: T201
        kinds = {
            BadTarget: EXIT_USAGE,
            NoServers: EXIT_NO_SERVERS,
            NoSpark: EXIT_NO_SPARK,
            SparkFailed: EXIT_SPARK_FAILED,
        }
        return kinds.get(type(error), EXIT_BAD_INPUT)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m regions.plan.spark_job", description="A bulk plan by Spark.")
    parser.add_argument("--input", required=True, type=Path, help="directory of regions, servers, blocks, last, params")
    parser.add_argument("--output", required=True, type=Path, help="directory for the plan; it must hold none yet")
    parser.add_argument("--master", default="", help=f"Spark master URL; by default spark-submit's, else {DEFAULT}")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be given again"
    )
    parser.add_argument(
        "--plan-id", default="", help="name of the plan in its manifest; by default from its engine and digest"
    )
    parser.add_argument("--shuffle-partitions", type=int, default=0, help="by default from the size and the cores")
    parser.add_argument("--shards", type=int, default=0, help="by default from the size")
    parser.add_argument(
        "--wait-input", type=float, default=0.0, metavar="S", help="start now; wait that long for params.json"
    )
    parser.add_argument(
        "--warm-up", action="store_true", help="plan two regions before the input, so that all is loaded and running"
    )
    parser.add_argument(
        "--class-archive", type=Path, default=None, help="file of loaded Java classes, made on first use (170 MB)"
    )
    parser.add_argument("--locate", action="store_true", help="only find where the blocks of the table paths lie")
    parser.add_argument("--die-with-parent", action="store_true", help="end when its parent process does")
    parser.add_argument("--driver-memory", default="", help="heap of the driver, as 4g; by default from the size")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, progress: ProgressWriter) -> None:
    """Run the stages of a job. With --warm-up, or while --wait-input waits, a tiny plan warms Spark up."""
    target = check_target(options)
    prepare_output(options.output)
    early = options.wait_input > 0 and not (options.input / PARAMS).exists()
    given = None if early else read_input(options.input)
    progress.stage("check")
    if target.has_executors:
        progress.note(f"waiting for a session of {target.url}")
    with session(options, given) as spark:
        progress.stage("session")
        if target.has_executors and target.kind is not TargetKind.CONNECT:
            progress.total += 1
            _await_executor(spark, target, progress)
            progress.stage("executors")
        if given is None or options.warm_up:
            progress.total += 1
            _warm_up(spark, options, given)
            if given is None:
                _await_input(options)
            progress.stage("warm-up")
        given = given or read_input(options.input)
        if paths := read_paths(options.input):
            progress.total += 1
            given.add_blocks(_blocks_of(spark, options, target, paths, progress), options.output / LOCATED)
            progress.stage("blocks")
        _set(spark, options, given.size)
        _deliver(options, given, solve(spark, given, progress, options.shards), progress)


def _locate_only(options: argparse.Namespace, progress: ProgressWriter) -> None:
    """Only locate blocks: write a table `blocks` from the table `paths` of the input."""
    progress.total = 2
    paths = read_paths(options.input)
    with hadoop(options) as java:
        progress.stage("java")
        blocks = find_blocks(*java, paths, progress)
    write_snapshot(options.output, Snapshot.of((), ()).with_blocks(blocks), kind="parquet")
    progress.stage("blocks")


def _blocks_of(
    spark: Any, options: argparse.Namespace, target: SparkTarget, paths: list[tuple[str, str]], progress: ProgressWriter
) -> Blocks:
    """Return the hosts of the blocks from the session's Java, or from another process if that Java cannot be asked.

    A separate process is necessary, because starting a Java forks, which is unsafe in this process with gRPC's
    threads.
    """
    if target.kind is not TargetKind.CONNECT:
        return find_blocks(spark.sparkContext._jvm, spark.sparkContext._jsc.hadoopConfiguration(), paths, progress)
    with tempfile.TemporaryDirectory(prefix="regionkeeper-plan-") as found:
        words = ["--input", str(options.input), "--output", found, "--locate", "--die-with-parent"]
        for setting in options.conf:
            words += ["--conf", setting]
        command = [sys.executable, "-m", "regions.plan.spark_job", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            last = {}
            for line in process.stdout:
                last = msgspec.json.decode(line)
                progress.note(str(last["stage"]))
        if process.returncode:
            kind = NoSpark if process.returncode == EXIT_NO_SPARK else BadInput
            raise kind(str(last.get("message", f"the search for blocks ended with status {process.returncode}")))
        table, (file,) = find_table(Path(found), "blocks")
        return Blocks(*read_file(file, table, COLUMNS["blocks"]))


@contextlib.contextmanager
def hadoop(options: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """Start a Java virtual machine with Hadoop's classes; yield it and a Hadoop configuration. Raise NoSpark."""
    if lack := missing(parse_target(DEFAULT)) or _unfit_java():
        raise NoSpark(f"locating blocks needs Java {JAVA_MIN} or later on this machine: {lack}")
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    with tempfile.TemporaryDirectory(prefix="regionkeeper-plan-") as scratch:
        asked = parse_conf(options.conf)
        conf = SparkConf(loadDefaults=False)
        for key, value in _joined(_settings(options, parse_target(DEFAULT), None, scratch), asked).items():
            conf.set(key, value)
        try:
            gateway: Any = launch_gateway(conf)  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError) as error:
            raise NoSpark(f"no Java machine could be started: {as_plan_error(error)}") from error
        try:
            configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
            for key, value in asked.items():
                if key.startswith("spark.hadoop."):
                    configuration.set(key.removeprefix("spark.hadoop."), value)
            yield gateway.jvm, configuration
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()


def find_blocks(jvm: Any, configuration: Any, paths: list[tuple[str, str]], progress: ProgressWriter) -> Blocks:
    """Return the hosts of the blocks of these tables. Raise BadInput with the path."""
    from py4j.protocol import Py4JError

    found = LocalBytes()
    for table_id, path in paths:
        try:
            locate(jvm, configuration, path, found, lambda files: progress.note(f"{files} files"))
        except (Py4JError, BadInput) as error:
            raise BadInput(f"the path of table {table_id}: {first_words(str(error))}") from error
    progress.note(f"{found.files} files")
    return found.blocks()


def _await_input(options: argparse.Namespace) -> None:
    """Wait for `params.json`, the last file of an input. Raise BadInput after --wait-input seconds."""
    end = time.monotonic() + options.wait_input
    while not (options.input / PARAMS).exists():
        if time.monotonic() > end:
            raise BadInput(f"{options.input / PARAMS} did not appear within {options.wait_input:g} s")
        time.sleep(0.05)


def _set(spark: Any, options: argparse.Namespace, size: int) -> None:
    """Set the settings for an input of this size, except those that the user has given."""
    asked = parse_conf(options.conf)
    for key, value in sql_settings(options, size).items():
        if key not in asked:
            spark.conf.set(key, value)


def _await_executor(spark: Any, target: SparkTarget, progress: ProgressWriter) -> None:
    """Wait until the cluster has started an executor, and report the wait, which Spark does not.

    Raise SparkFailed when the cluster has refused the job.
    """
    context = spark.sparkContext._jsc.sc()
    since = said = time.monotonic()
    while context.isStopped() or context.getExecutorMemoryStatus().size() <= 1:
        if context.isStopped():
            raise SparkFailed(f"{target.url} has ended the job before it began: see its log")
        if time.monotonic() - said > _SAY_S:
            said = time.monotonic()
            progress.note(f"has waited {said - since:.0f} s for an executor of {target.url}")
        time.sleep(_LOOK_S)


def _warm_up(spark: Any, options: argparse.Namespace, wanted: Input | None) -> None:
    """Plan two regions, so that the classes are loaded and a Python worker runs when the real input arrives.

    Use the settings of the real input, if it is known.
    """
    tiny = Snapshot.of(
        [RegionRow("a", "t", 1), RegionRow("b", "t", 1)],
        [ServerRow("s", "h"), ServerRow("u", "i")],
        [BlockRow("a", "h", 1)],
        [LastRow("b", 0, "u")],
    )
    # Below the output, which executors elsewhere can be expected to see; the driver's /tmp is its own.
    with tempfile.TemporaryDirectory(prefix=".warm-up-", dir=options.output) as scratch:
        write_snapshot(Path(scratch), tiny, Params(), kind="parquet")
        given = read_input(Path(scratch))
        _set(spark, options, (wanted or given).size)
        solve(spark, given, ProgressWriter(io.StringIO(), 0, time.monotonic), shards=1)
        spark.catalog.clearCache()


def solve(spark: Any, given: Input, progress: ProgressWriter, shards: int = 0) -> Solved:
    """Do Spark's part of the work. `shards` 0: by the size."""
    return solve_on_spark(spark, given.sources, given.params, given.fleet, given.ignored, progress, shards=shards)


def _deliver(options: argparse.Namespace, given: Input, solved: Solved, progress: ProgressWriter) -> None:
    """Do the driver's part: leftovers, repair, verdict, files."""
    plan = finished(given, solved)
    progress.stage("leftovers")
    verdict = judge(solved.problem, plan.rows)
    plan.stats.violations, plan.stats.racks_shared = verdict.violations, verdict.racks_shared
    progress.stage("verify")
    plan_id = options.plan_id or usual_id(plan)
    manifest = write_plan(options.output, plan, plan_id=plan_id, params=given.params, seconds=progress.seconds)
    shutil.rmtree(options.output / LOCATED, ignore_errors=True)
    progress.stage("write")
    progress.finished(manifest)


def finished(given: Input, solved: Solved) -> Plan:
    """Return the complete plan."""
    stats = first_stats(solved.problem, given.ignored, blocks=solved.block_rows)
    stats.engine, stats.shards = "spark", solved.shards
    return finish(solved.problem, solved.taken, None, stats)


# --- before anything is started -------------------------------------------------------------------------------------


def check_target(options: argparse.Namespace) -> SparkTarget:
    """Return the job's target after the checks that need no Spark. Raise BadTarget, NoSpark."""
    parse_conf(options.conf)
    target = target_of(options)
    lack = missing(target)
    if not lack and target.kind is not TargetKind.CONNECT and SUBMITTED not in os.environ:
        lack = _unfit_java()
    if lack:
        raise NoSpark(f"Spark needs Java {JAVA_MIN} or later: {lack}" if "JAVA" in lack.upper() else lack)
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise NoSpark("pyarrow is not installed: install RegionKeeper with its extra 'spark'") from error
    silence = unreachable(target, _connect)
    if silence:
        raise NoSpark(silence)
    return target


def _connect(host: str, port: int) -> None:
    """Open and close a connection. Raise OSError if that fails within REACH_S."""
    socket.create_connection((host, port), REACH_S).close()


def target_of(options: argparse.Namespace) -> SparkTarget:
    """Return the target of the options, by default that of `spark-submit`. Raise BadTarget."""
    if options.master or SUBMITTED not in os.environ:
        return parse_target(options.master or DEFAULT)
    from pyspark import SparkConf

    return parse_target(SparkConf().get("spark.master", DEFAULT))


def _unfit_java() -> str:
    """Return why this machine's Java does not fit Spark, or ""."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home, "bin", "java")) if home else str(shutil.which("java"))
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run: {error}"
    version = said.split('"')[1] if said.count('"') >= 2 else ""
    major = version.split(".")[0].split("-")[0]
    if not major.isdigit() or int(major) < JAVA_MIN:
        return f"{java} is {version or said.strip() or 'silent'}"
    return ""


class Input:
    """An input directory: parameters, servers (few, read here), and the files of the large tables."""

    def __init__(self, params: Params, fleet: EligibleServers, sources: Sources, ignored: dict[str, int]) -> None:
        self.params = params
        self.fleet = fleet
        self.sources = sources
        self.ignored = ignored
        self.size = sum(path.stat().st_size for _, paths in sources.values() for path in paths)

    def add_blocks(self, blocks: Blocks, directory: Path) -> None:
        """Add rows to the table `blocks`, written to `directory` for the executors."""
        kind, paths = self.sources["blocks"]
        kind = kind if paths else "parquet"
        write_snapshot(directory, Snapshot.of((), ()).with_blocks(blocks), kind=kind)
        self.sources["blocks"] = kind, [*paths, directory / f"blocks.{kind}"]
        self.size += (directory / f"blocks.{kind}").stat().st_size


def read_input(directory: Path) -> Input:
    """Return the part of the input that the driver reads. Raise BadInput, NoServers."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is no directory")
    params = read_params(directory)
    ignored: dict[str, int] = {}
    kind, paths = find_table(directory, "servers")
    parts = [read_file(path, kind, COLUMNS["servers"]) for path in paths]
    fleet = EligibleServers(ServerColumns(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), ignored)
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
    """Yield a Spark session with the settings for planning, and stop it afterwards. Raise SparkFailed, BadInput."""
    from py4j.protocol import Py4JError
    from pyarrow import ArrowException
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    target, asked = target_of(options), parse_conf(options.conf)
    _choose_python(asked)
    with tempfile.TemporaryDirectory(prefix="regionkeeper-plan-") as scratch:
        if target.kind is TargetKind.CONNECT:
            builder = SparkSession.builder.remote(target.url)
            asked = {key: value for key, value in asked.items() if not key.startswith("spark.driver.")}
            settings = {f"spark.sql.execution.{key[6:]}": asked.pop(key) for key in _PYTHONS if key in asked}
        else:
            builder = SparkSession.builder.appName("regionkeeper-plan")
            settings = _settings(options, target, given, scratch)
            if SUBMITTED not in os.environ:
                builder = builder.master(target.url)
        for key, value in _joined(settings, asked).items():
            builder = builder.config(key, value)
        try:
            spark = builder.getOrCreate()
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            raise SparkFailed(f"no Spark session on {target.url}: {as_plan_error(error)}") from error
        try:
            if target.has_executors:
                _ship(spark, Path(scratch))
            yield spark
        except (PySparkException, Py4JError, ArrowException) as error:
            raise as_plan_error(error) from error
        finally:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                spark.stop()


#: Settings that name the executors' interpreter.
_PYTHONS: Final = ("spark.pyspark.python",)


def _choose_python(asked: dict[str, str]) -> None:
    """Set the executors' interpreter: the user's, else this one, not the one on the PATH."""
    chosen = asked.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = chosen, sys.executable
    root = source_root()
    if root is not None:  # processes on this machine find the planner in its present place
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])


def _ship(spark: Any, scratch: Path) -> None:
    """Send the planner's modules to the executors, unless `spark-submit --py-files` did."""
    if source_root() is None:
        return
    write_archive(scratch / ARCHIVE)
    spark.addArtifacts(str(scratch / ARCHIVE), pyfile=True)


def _joined(ours: dict[str, str], asked: dict[str, str]) -> dict[str, str]:
    """Return our settings overridden by the user's. Java options are concatenated."""
    both = {**ours, **asked}
    java = "spark.driver.extraJavaOptions"
    if java in ours and java in asked:
        both[java] = f"{ours[java]} {asked[java]}"
    return both


def _settings(options: argparse.Namespace, target: SparkTarget, given: Input | None, scratch: str) -> dict[str, str]:
    """Return Spark's configuration that is fixed at its start, for any input size without an input yet."""
    small = given is not None and given.size <= SMALL_INPUT_BYTES
    log = Path(scratch, "log4j2.properties")
    log.write_text(QUIET_LOG)
    java = [f"-Dlog4j2.configurationFile={log.as_uri()}", "-Dlog4j2.disableJmx=true", "-Xlog:disable"]
    if given is not None and given.size <= PLAIN_JAVA_BYTES:
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
    }
    if options.driver_memory or not small:
        settings["spark.driver.memory"] = options.driver_memory or "4g"
    if target.is_here:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if not target.has_executors:
        settings |= {"spark.local.dir": scratch, "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    return settings


def sql_settings(options: argparse.Namespace, size: int) -> dict[str, str]:
    """Return the configuration for `size` bytes of input, which may change while Spark runs."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
