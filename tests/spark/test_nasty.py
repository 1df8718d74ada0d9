"""Random malformed inputs, planned by the Spark job: the plan of one process, bit for bit, or its error."""

from __future__ import annotations

import io
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from regions.plan import PlanError, ServerRow, Snapshot, plan, spark_job
from regions.plan.artifact.files import ProgressWriter, read_snapshot, write_snapshot
from regions.plan.spark.arguments import as_plan_error
from tests.spark.standalone import spark_missing
from tests.support.hostile import nasty, write_nasty

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(spark_missing()), reason=spark_missing())]

SEEDS: Final = (0, 1, 2, 3, 8, 11, 12, 19)


def test_the_same_plan_from_other_orders_and_parts(tmp_path: Path) -> None:
    """One session; each seed in two forms, the second shuffled and in other kinds of files. The counts are the same,
    too."""
    inputs = []
    for seed in SEEDS:
        for shuffle in (0, 1):
            inputs.append((seed, tmp_path / f"{seed}-{shuffle}"))
            write_nasty(inputs[-1][1], seed, shuffle=shuffle)
    options = spark_job.parse(["--input", str(tmp_path), "--output", str(tmp_path / "o"), "--master", "local[2]"])
    with spark_job.session(options, None) as spark:
        for key, value in spark_job.sql_settings(options, 1000).items():
            spark.conf.set(key, value)
        for seed, directory in inputs:
            found, wanted = _by_spark(spark, directory), _here(directory)
            assert found == wanted, (seed, directory.name, nasty(seed).done)


def _columns(column: str, values: Any) -> Any:
    """Return a table of one region with a different column."""
    good = {"region_id": pa.array(["r"]), "table_id": pa.array(["t"]), "size_bytes": pa.array([1])}
    return pa.table({**good, column: values})


def test_columns_of_other_types_are_read_alike(tmp_path: Path) -> None:
    """Spark would cut off fractions and print records as text; such a plan would belong to another input."""
    cases = {
        "whole": _columns("size_bytes", pa.array([5.0])),
        "fraction": _columns("size_bytes", pa.array([1.5])),
        "no number": _columns("size_bytes", pa.array([float("nan")])),
        "decimal": _columns("size_bytes", pa.array([Decimal("1.50")])),
        "beyond 64 bits": _columns("size_bytes", pa.array([2**64 - 1], pa.uint64())),
        "times": _columns("size_bytes", pa.array([1], pa.timestamp("s"))),
        "texts": _columns("size_bytes", pa.array(["7"])),
        "words": _columns("size_bytes", pa.array(["many"])),
        "record": _columns("region_id", pa.array([{"a": 1}])),
        "no UTF-8": _columns("region_id", pa.array([b"a\xff"])),
        "numbers": _columns("region_id", pa.array([12])),
    }
    for name, rows in cases.items():
        write_snapshot(tmp_path / name, Snapshot.of((), [ServerRow("s", "h")]), kind="parquet")
        pq.write_table(rows, tmp_path / name / "regions.parquet")
    options = spark_job.parse(["--input", str(tmp_path), "--output", str(tmp_path / "o"), "--master", "local[2]"])
    with spark_job.session(options, None) as spark:
        for key, value in spark_job.sql_settings(options, 1000).items():
            spark.conf.set(key, value)
        for name in cases:
            assert _by_spark(spark, tmp_path / name) == _here(tmp_path / name), name


def _by_spark(spark: object, directory: Path) -> object:
    """Return digest and counts, or the kind of error."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        given = spark_job.read_input(directory)
        solved = spark_job.solve(spark, given, ProgressWriter(io.StringIO(), 1, time.monotonic))
        made = spark_job.finished(given, solved)
    except PlanError as error:
        return type(error).__name__
    except (PySparkException, Py4JError, pa.ArrowException) as error:  # as `session` does at its end
        return type(as_plan_error(error)).__name__
    return made.digest, made.stats.ignored, made.stats.under_replicated, made.stats.unassignable


def _here(directory: Path) -> object:
    try:
        made = plan(read_snapshot(directory), engine="sharded")
    except PlanError as error:
        return type(error).__name__
    return made.digest, made.stats.ignored, made.stats.under_replicated, made.stats.unassignable
