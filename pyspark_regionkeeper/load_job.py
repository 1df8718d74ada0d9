"""The job of `rk load --spark`: `python -m pyspark_regionkeeper.load_job TABLE SOURCE …`, in a process of its own.

The cluster comes from RK_… variables, which `rk` sets, so no credential stands on a command line. Standard output has
one JSON object a line: stages with `done` of `total` tasks, then `finished`, or `failed` with a message.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.common.errors import CliError
from cli.rows.files import PARQUET
from pyspark_regionkeeper.encoding import Form, Known, Objects, Texts
from pyspark_regionkeeper.errors import SourceError, words_of
from pyspark_regionkeeper.options import opened_regions, parse
from regions.plan.artifact.files import die_with_parent
from regions.plan.spark.arguments import as_plan_error
from regions.plan.spark.target import parse_conf, parse_target
from regions.records.rows.codec import TypedTable

#: Time between two looks at the progress.
LOOK_S: Final = 0.5
_NO_NULL: Final = "\x01no field is null\x01"
_QUIET_LOG: Final = """status = error
rootLogger.level = off
"""


def main(arguments: list[str]) -> int:
    """Load, and return the exit status of `rk load`."""
    options = parse_arguments(arguments)
    die_with_parent()
    try:
        _load(options)
        return 0
    except CliError as error:
        _say(stage="failed", message=error.message, hint=error.hint, status=int(error.exit_code))
    except SourceError as error:
        _say(stage="failed", message=str(error), hint="", status=1)
    return 1


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_regionkeeper.load_job", description="rk load by Spark.")
    parser.add_argument("table")
    parser.add_argument("source", help="path or URI of CSV or Parquet: a file, or a directory of files")
    parser.add_argument("--key", default="", help="column of the key, in a table without columns")
    parser.add_argument("--null", default="", help="CSV field that stands for null")
    parser.add_argument("--skip-unknown", action="store_true")
    parser.add_argument("--threads", default="")
    parser.add_argument("--timeout", default="")
    parser.add_argument("--master", default="local[*]", help="Spark master URL")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(arguments)


def _load(options: argparse.Namespace) -> None:
    """Load the source. Raise SourceError, CliError."""
    given = parse({"table": options.table})
    with opened_regions(given) as client:
        columns = client.columns(options.table)
    _say(stage="starting Spark", done=0, total=0)
    with _session(options) as spark, _progress(spark) as progress:
        progress.stage = "reading"
        frame, form = _frame(spark, options, columns)
        from pyspark_regionkeeper.saving import save

        settings = {name: value for name in ("threads", "timeout") if (value := getattr(options, name))}
        saved = save(frame, options.table, form=form, stage=progress.begin, **settings)
    _say(stage="finished", rows=saved.rows, tasks=saved.tasks, regions=saved.regions)


def _frame(spark: Any, options: argparse.Namespace, columns: TypedTable | None) -> tuple[Any, Form]:
    """Return the rows of the source, and how they become rows of the table."""
    source = options.source
    if _is_parquet(spark, source):
        if columns is None:
            raise CliError(
                f"{source} is Parquet, and the table has no columns", "Make the table with --column NAME:TYPE."
            )
        return spark.read.parquet(source), Known(columns, source, skip_unknown=options.skip_unknown)
    # Fields stay texts, as they are: empty ones, blanks, quotes doubled. Lines may end within quotes.
    csv = spark.read.option("header", True).option("quote", '"').option("escape", '"').option("multiLine", True)
    csv = csv.option("mode", "FAILFAST").option("nullValue", _NO_NULL).option("emptyValue", "")
    frame = csv.option("maxCharsPerColumn", "-1").csv(source)
    if not frame.columns:
        raise CliError(f"{source} is empty", "The first line must name the columns.")
    cores = spark.sparkContext.defaultParallelism
    frame = frame.repartition(cores) if frame.rdd.getNumPartitions() < cores else frame
    if columns is None:
        return frame, Objects(source, options.key or frame.columns[0])
    return frame, Texts(columns, source, options.null, skip_unknown=options.skip_unknown)


def _is_parquet(spark: Any, source: str) -> bool:
    """Return True for a Parquet file, or a directory of such files. A file of this machine may have any name."""
    if Path(source).is_file():
        with Path(source).open("rb") as file:
            return file.read(len(PARQUET)) == PARQUET
    head = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(source)
    names = [row[0] for row in head.select("path").limit(100).collect()]
    return any(name.endswith((".parquet", ".parq")) for name in names)


class _Progress:
    """Says which stage runs, and how many of its tasks are done."""

    def __init__(self, spark: Any) -> None:
        self.stage = ""
        self._tracker = spark.sparkContext.statusTracker()

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self.stage = stage

    def say(self) -> None:
        """Say how far the stage is."""
        found = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
        known = [one for one in found if one is not None]
        done, total = sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)
        _say(stage=self.stage, done=done, total=total)


@contextlib.contextmanager
def _progress(spark: Any) -> Iterator[_Progress]:
    """Yield the progress, said again and again by a thread."""
    progress, over = _Progress(spark), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            with contextlib.suppress(Exception):  # the session may end at any moment
                progress.say()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield progress
    finally:
        over.set()
        watching.join()


@contextlib.contextmanager
def _session(options: argparse.Namespace) -> Iterator[Any]:
    """Yield a quiet session. Raise SourceError for an error of Spark, in the data source's own words if it has some."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    target, asked = parse_target(options.master), parse_conf(options.conf)
    os.environ["PYSPARK_PYTHON"] = asked.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="regionkeeper-load-") as scratch:
        log = Path(scratch, "log4j2.properties")
        log.write_text(_QUIET_LOG)
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.caseSensitive": "true",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log.as_uri()} -Xlog:disable",
        }
        if target.is_here:
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        builder = SparkSession.builder.appName("regionkeeper-load").master(target.url)
        for name, value in (settings | asked).items():
            builder = builder.config(name, value)
        try:
            spark = builder.getOrCreate()
            try:
                yield spark
            finally:
                spark.stop()
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            raise SourceError(words_of(str(error)) or _spark_words(error)) from None


def _spark_words(error: Exception) -> str:
    """Return one sentence for an error of Spark itself."""
    return f"Spark: {as_plan_error(error)}"


def _say(**fields: object) -> None:
    sys.stdout.write(msgspec.json.encode(fields).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
