"""Planning through a Spark Connect server: the machine that starts the job has no Spark and no Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from regions.plan import Params, plan
from regions.plan.artifact.files import write_snapshot
from regions.plan.problem.scenarios import scenario
from tests.spark.connect import connect_missing, connect_server
from tests.spark.jobs import digest_of, job_command, run_job

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(connect_missing()), reason=connect_missing())]


def test_a_plan_through_spark_connect_is_the_same_plan(tmp_path: Path) -> None:
    """The server's workers get our modules as an artifact of the session; the client never starts Java."""
    snapshot = scenario("mixed", regions=1200, servers=40, seed=11)
    write_snapshot(tmp_path / "in", snapshot, Params(), kind="parquet")
    wanted = plan(snapshot, Params(), engine="sharded", shards=3).digest
    with connect_server(tmp_path / "server") as url:
        no_java = {"JAVA_HOME": "", "PATH": str(tmp_path)}
        job = run_job(job_command(tmp_path / "in", tmp_path / "out", url, [], "--shards", "3"), no_java)
        assert digest_of(job, tmp_path / "out") == wanted
