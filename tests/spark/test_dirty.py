"""Malformed input, read by the Spark job: it counts and refuses the rows that the other engines count and refuse."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from regions.plan import Params, Plan, PlanError, spark_job
from regions.plan.artifact.files import ProgressWriter, write_snapshot
from regions.plan.artifact.verify import judge
from tests.spark.standalone import spark_missing
from tests.support.malformed import DIRTY

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(spark_missing()), reason=spark_missing())]


def test_every_case_from_both_kinds_of_files(tmp_path: Path) -> None:
    """One session for all cases."""
    for case in DIRTY:
        for kind in ("csv", "parquet"):
            write_snapshot(tmp_path / kind / case.name, case.snapshot, Params(), kind=kind)
    inputs = [(case, tmp_path / kind / case.name) for case in DIRTY for kind in ("csv", "parquet")]
    options = spark_job.parse(["--input", str(inputs[0][1]), "--output", str(tmp_path / "o"), "--master", "local[2]"])
    with spark_job.session(options, spark_job.read_input(inputs[0][1])) as spark:
        for key, value in spark_job.sql_settings(options, 1000).items():
            spark.conf.set(key, value)
        for case, directory in inputs:
            if case.error:
                with pytest.raises(PlanError) as caught:
                    _planned(spark, directory)
                assert type(caught.value).__name__ == case.error
                continue
            made = _planned(spark, directory)
            assert len(made.rows) == case.rows, case.name
            assert {name: getattr(made.stats, name) for name in case.stats} == case.stats, (case.name, directory)


def _planned(spark: object, directory: Path) -> Plan:
    """Return the plan of one input directory, with the job's additions from the verdict."""
    given = spark_job.read_input(directory)
    solved = spark_job.solve(spark, given, ProgressWriter(io.StringIO(), 1, time.monotonic))
    made = spark_job.finished(given, solved)
    made.stats.racks_shared = judge(solved.problem, made.rows).racks_shared
    return made
