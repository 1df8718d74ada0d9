"""A real job, killed at each stage under `rk plan create`: another engine plans, and no process of Spark is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cli.common.output import console
from cli.common.views.display import PlainDisplay
from cli.plan.make import PlanRequest, make
from regions.plan import Params, plan, verify
from regions.plan.artifact.files import Origin, read_plan
from regions.plan.problem.scenarios import scenario
from tests.e2e.clusters import processes_of
from tests.spark.jobs import JOB_S
from tests.spark.standalone import START_S, spark_missing
from tests.support.helpers import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(spark_missing()), reason=spark_missing())]


class Killer(PlainDisplay):
    """Kills the job when it reports that it has finished a stage."""

    def __init__(self, folder: Path, stage: str) -> None:
        super().__init__(console(stderr=True))
        self._folder = folder
        self._stage = stage
        self.killed = 0

    def _show_update(self, done: int, total: int, detail: str) -> None:
        super()._show_update(done, total, detail)
        if detail == self._stage:
            for line in processes_of(self._folder):
                pid, _, words = line.partition(" ")
                if "regions.plan.spark_job" in words:
                    os.kill(int(pid), signal.SIGKILL)
                    self.killed += 1


@pytest.mark.parametrize("stage", ["check", "session", "tables", "shards"])
def test_a_job_killed_at_a_stage(tmp_path: Path, stage: str) -> None:
    """Another engine makes the plan, with Spark's bytes (N9). The note names the kill; no process, no file is left."""
    snapshot = scenario("mixed", regions=600, servers=20, seed=5)
    display = Killer(tmp_path, stage)
    wish = PlanRequest("spark", "local[2]", deadline_s=JOB_S)
    manifest, verdict = make(snapshot, Params(), tmp_path / "plan", wish, display, Origin(origin="files"))
    display.close()
    assert display.killed == 1
    assert (manifest.engine, verdict.violations) == ("sharded", 0)
    assert manifest.digest == plan(snapshot, Params(), engine="sharded").digest
    assert manifest.note.startswith("spark: the job ended with status -9"), manifest.note
    assert verify(snapshot, Params(), read_plan(tmp_path / "plan")[0].rows).ok
    # The JVM ends by itself when it loses its driver.
    eventually(lambda: not processes_of(tmp_path), START_S, "no process of the job is left")
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == [
        "input",
        "manifest.json",
        "part-00000.parquet",
    ]
