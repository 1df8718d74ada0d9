"""Inputs as strangers make them, by the Spark job: the plan of one process, bit for bit, or its refusal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import pytest

from regions.plan import PlanError, plan, spark_job
from regions.plan.files import Progress, read_snapshot
from tests.nasty import nasty, write_nasty
from tests.spark.standalone import spark_missing

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(spark_missing()), reason=spark_missing())]

SEEDS: Final = (0, 1, 2, 3, 8, 11, 12, 19)


def test_the_same_plan_from_other_orders_and_parts(tmp_path: Path) -> None:
    """One session; each seed as it is and shuffled, in files of other kinds; counts are the same, too."""
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


def _by_spark(spark: object, directory: Path) -> object:
    """Digest and counts, or the kind of refusal."""
    try:
        given = spark_job.read_input(directory)
        solved = spark_job.solve(spark, given, Progress(io.StringIO(), 1))
        made = spark_job.finished(given, solved)
    except PlanError as error:
        return type(error).__name__
    return made.digest, made.stats.ignored, made.stats.under_replicated, made.stats.unassignable


def _here(directory: Path) -> object:
    try:
        made = plan(read_snapshot(directory), engine="sharded")
    except PlanError as error:
        return type(error).__name__
    return made.digest, made.stats.ignored, made.stats.under_replicated, made.stats.unassignable
