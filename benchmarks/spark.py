"""Tables in Spark beside `rk load` and `rk scan`: rows per second written and read, in the same run on the same rows.

    python -m benchmarks.spark [--rows N] [--cores N] [--regions N] [--memory 2g] [--work DIR] [--json]

Real processes on this machine: a store of one node, one master, three region servers, tablets with three copies. The
rows are a Parquet file that Spark writes first. Each way writes into a table of its own; then the rows are compared by
count and digest. 1,000,000 rows by default; `--rows 10000000` needs 4 GB of memory for `rk load` and some minutes.

    load          rk load                     reads the file whole, 8 requests at once
    load --spark  rk load --spark             with the start of Spark, and without it
    scan          rk scan --count             one process, region after region
    read          the data source             decoded to columns, counted, and the digest of all columns
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.arguments import made_folder, positive
from tests.e2e.clusters import free_base_port, local_up, run_rk

DEADLINE_S: Final = 24 * 3600.0
UP_S: Final = 600.0
COLUMNS: Final = ("id:int64:key", "amount:double", "note:string")
_ROOT: Final = Path(__file__).resolve().parents[1]


class Figure(NamedTuple):
    """One measurement."""

    name: str
    rows: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Return rows per second."""
        return self.rows / self.seconds if self.seconds else 0.0


def measure(options: argparse.Namespace, work: Path) -> list[Figure]:
    """Start a cluster, write and read by both ways, and compare the rows. Raise AssertionError if they differ."""
    source = work / "rows.parquet"
    _say(f"writing {options.rows} rows to {source.name}")
    wanted = _spark(options, "make", str(source), str(options.rows))["digest"]
    size = ["--store-nodes", "1", "--masters", "1", "--servers", "3", "--no-table", "--plan-engine", "greedy"]
    found = []
    with local_up(work / "data", "--base-port", str(free_base_port()), *size) as up:
        up.event("up", UP_S)
        here = ["--data-dir", str(work / "data")]
        for table in ("plain", "sparked"):
            _create(table, options, here)
        _say("rk load")
        found.append(_timed("load", options.rows, lambda: _rk("load", "plain", str(source), *here)))
        _say("rk load --spark")
        by_spark = ["--spark", "--spark-master", f"local[{options.cores}]"]
        by_spark += ["--spark-conf", f"spark.driver.memory={options.memory}"]
        loading: list[str] = []
        whole = _timed(
            "load --spark", options.rows, lambda: loading.append(_rk("load", "sparked", str(source), *here, *by_spark))
        )
        found += [whole, Figure("  without the start", options.rows, whole.seconds - started_s(loading[0]))]
        for table in ("plain", "sparked"):
            _say(f"rk scan {table}")
            found.append(_timed(f"scan {table}", options.rows, lambda name=table: _counted(name, options.rows, here)))
            _say(f"reading {table} by Spark")
            read = _spark(options, "read", table, str(work / "data"))
            assert read["digest"] == wanted, f"{table} has other rows than the file: {read['digest']}, not {wanted}"
            found.append(Figure(f"read {table}", options.rows, read["seconds"]))
    return found


def started_s(said: str) -> float:
    """Return the seconds until Spark had started, from the progress of `rk load --spark`."""
    for line in said.splitlines():
        name, _, rest = line.partition(": ")
        if name == "starting Spark" and rest.endswith(" s"):
            return float(rest.removesuffix(" s"))
    return 0.0


def table_text(found: list[Figure]) -> str:
    """Return the figures as a table of Markdown."""
    lines = ["| way | rows | seconds | rows/s |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {one.name} | {one.rows:,} | {one.seconds:.1f} | {one.per_second:,.0f} |" for one in found]
    return "\n".join(lines)


def _create(table: str, options: argparse.Namespace, here: list[str]) -> None:
    words = [word for column in COLUMNS for word in ("--column", column)]
    for number in range(1, options.regions):
        words += ["--split", str(options.rows * number // options.regions)]
    _rk("table", "create", table, "--replicas", "3", *words, *here)


def _timed(name: str, rows: int, call: Any) -> Figure:
    began = time.monotonic()
    call()
    return Figure(name, rows, time.monotonic() - began)


def _rk(*words: str) -> str:
    """Run `rk`; return what it has said on standard error. Raise AssertionError if it fails."""
    done = run_rk(*words, timeout_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _counted(table: str, rows: int, here: list[str]) -> None:
    done = run_rk("scan", table, "--count", *here, timeout_s=DEADLINE_S)
    assert done.stdout.strip() == str(rows), done.stdout + done.stderr


def _spark(options: argparse.Namespace, *words: str) -> dict[str, Any]:
    """Run one job of this module in a process of its own, so that Java's memory is given back."""
    command = [sys.executable, "-m", "benchmarks.spark", "--cores", str(options.cores), "--memory", options.memory]
    surroundings = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [*command, "--job", *words], capture_output=True, text=True, env=surroundings, cwd=_ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _job(options: argparse.Namespace) -> dict[str, Any]:
    """Make the rows, or read them, in this process."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as sql

    builder = SparkSession.builder.master(f"local[{options.cores}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", options.memory).getOrCreate()

    def digest(frame: DataFrame) -> list[int]:
        text = sql.concat_ws("|", "id", "amount", "note")
        return [int(one) for one in frame.agg(sql.count("*"), sql.sum(sql.crc32(text))).collect()[0]]

    kind, *words = options.job
    if kind == "make":
        path, rows = words[0], int(words[1])
        note = sql.concat(sql.lit("the note of row "), "id")
        frame = spark.range(rows).select("id", (sql.col("id") / 8).alias("amount"), note.alias("note"))
        frame.coalesce(1).write.parquet(f"{path}.parts")
        (part,) = Path(f"{path}.parts").glob("*.parquet")
        part.rename(path)
        return {"digest": digest(spark.read.parquet(path))}
    began = time.monotonic()
    frame = spark.read.format("regionkeeper").options(table=words[0], data_dir=words[1]).load()
    return {"digest": digest(frame), "seconds": time.monotonic() - began}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description="Tables in Spark beside rk.")
    parser.add_argument("--rows", type=positive, default=1_000_000)
    parser.add_argument("--cores", type=positive, default=os.cpu_count() or 1, help="tasks of Spark at once")
    parser.add_argument("--regions", type=positive, default=16)
    parser.add_argument("--memory", default="1g", help="heap of Spark")
    parser.add_argument("--work", type=made_folder, help="directory for the cluster; by default a temporary one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = _arguments()
    if options.job:
        print(json.dumps(_job(options)))
        return
    with tempfile.TemporaryDirectory(prefix="regionkeeper-spark-", dir=options.work) as work:
        found = measure(options, Path(work))
    print(json.dumps([one._asdict() for one in found]) if options.json else table_text(found))


if __name__ == "__main__":
    main()
