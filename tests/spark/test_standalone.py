"""A standalone Spark cluster of separate processes runs the job, also when processes die."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from regions.plan import Params, plan
from regions.plan.artifact.files import read_plan, read_snapshot, write_snapshot
from regions.plan.problem.scenarios import scenario
from tests.compat import jvm
from tests.e2e.clusters import free_base_port, local_up, run_rk
from tests.spark.jobs import JOB_S, digest_of, job_command, run_job
from tests.spark.standalone import Standalone
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

SHARDS = 3


@pytest.fixture(scope="module")
def source(work: Path) -> tuple[Path, str]:
    """Return an input with all features, and the digest of its plan in three shards."""
    snapshot = scenario("mixed", regions=1200, servers=40, seed=11)
    write_snapshot(work / "in", snapshot, Params(), kind="parquet")
    return work / "in", plan(snapshot, Params(), engine="sharded", shards=SHARDS).digest


@pytest.mark.parametrize("stage", ["executors", "tables"])
def test_a_worker_that_is_killed_changes_nothing(
    workers: Standalone, source: tuple[Path, str], tmp_path: Path, stage: str
) -> None:
    """The work of its executor is computed again on another one: the digest is that of one process."""
    killed = []

    def kill_once(now: str) -> None:
        if now == stage:
            workers.kill_worker(0)
            killed.append(now)

    words = job_command(source[0], tmp_path / "out", workers.url, workers.conf, "--shards", str(SHARDS))
    job = run_job(words, heard=kill_once)
    assert digest_of(job, tmp_path / "out") == source[1]
    assert killed == [stage]
    workers.wait_workers(1)


def test_spark_submit_runs_the_job(spark: Standalone, source: tuple[Path, str], tmp_path: Path) -> None:
    """Spark's own command runs the same file and names the master; executors get our modules from the job."""
    folder = jvm.jars_folder()
    assert folder is not None
    words = [str(folder.parent / "bin" / "spark-submit"), "--master", spark.url]
    words += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=600m"]
    words += ["regions/plan/submit.py", "--input", str(source[0]), "--output", str(tmp_path / "out")]
    env = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": str(spark.python), "SPARK_HOME": ""}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = run_job([*words, "--shards", str(SHARDS)], {key: value for key, value in env.items() if value})
    assert digest_of(job, tmp_path / "out") == source[1]
    # Spark's own command prints a few lines before the job can silence it; none of them may be a warning of ours.
    assert "Traceback" not in job.errors


def test_executors_that_lack_something_are_told_of_in_a_line(
    spark: Standalone, source: tuple[Path, str], tmp_path: Path
) -> None:
    """The error is one line instead of a Java stack trace: the missing module, the interpreter, and the setting for
    another one."""
    bare = tmp_path / "nothing-installed"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    memory = "spark.executor.memory=600m"
    for python, words in ((bare, "has no module 'msgspec'"), (tmp_path / "gone", "have no Python at")):
        conf = [f"spark.pyspark.python={python}", "spark.task.maxFailures=1", memory]
        output = tmp_path / f"of-{python.name}"
        job = run_job(job_command(source[0], output / "out", spark.url, conf))
        assert job.process.returncode == 6, job.errors[-3000:]
        assert words in job.last["message"], job.last
        assert "\n" not in job.last["message"]


def test_the_master_of_a_running_cluster_has_its_plans_made_there(workers: Standalone, tmp_path: Path) -> None:
    """`rk up --spark-master URL`, then `rk plan create`, `diff` and `apply` with the same engine and address. A worker
    is killed while the master's plan is made: the digest is still that of the exact plan."""
    spark = workers
    address = ["--spark-master", spark.url]
    for setting in spark.conf:
        address += ["--spark-conf", setting]
    before = len(spark.finished())
    patience = ["--plan-deadline-s", f"{JOB_S:g}"]
    size = ["--store-nodes", "1", "--masters", "1", "--servers", "3", "--regions", "60", "--replicas", "1"]
    with local_up(tmp_path / "data", "--base-port", str(free_base_port()), *size, *address, *patience) as up:
        eventually(lambda: [one["cores"] for one in spark.page()["activeapps"]] == [2], JOB_S, "two executors")
        spark.kill_worker(0)
        engine = up.event("up", JOB_S + 60)["plan"]["engine"]
        assert (engine, len(spark.finished())) == ("spark", before + 1), up.said()
        (work,) = (tmp_path / "data" / "master-1" / "plans").iterdir()
        assert read_plan(work / "out")[0].digest == plan(read_snapshot(work / "in"), engine="sharded").digest
        here = ["--data-dir", str(tmp_path / "data"), "--json"]
        made = tmp_path / "plan"
        done = run_rk("plan", "create", "--engine", "spark", *address, "--output", str(made), *here, timeout_s=JOB_S)
        assert done.returncode == 0, done.stderr
        manifest = json.loads(done.stdout)["manifest"]
        assert (manifest["engine"], manifest["note"], manifest["stats"]["violations"]) == ("spark", "", 0)
        assert len(spark.finished()) == before + 2
        other = run_rk("plan", "create", "--engine", "flow", "--output", str(tmp_path / "flow"), *here, timeout_s=JOB_S)
        assert json.loads(other.stdout)["manifest"]["digest"] == manifest["digest"], "one shard: the exact plan"
        done = run_rk("plan", "apply", str(made), *here, timeout_s=JOB_S)
        assert json.loads(done.stdout)["record"]["state"] == "DONE", done.stderr
        assert json.loads(run_rk("plan", "diff", str(made), *here, timeout_s=JOB_S).stdout)["moves"] == []
    assert len(read_plan(made)[0].rows) == 60
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
