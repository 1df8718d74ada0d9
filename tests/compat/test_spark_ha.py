"""Spark keeps its masters' state in our store: the active one is killed, and the job goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import jvm
from tests.compat.ensembles import OURS, ensemble
from tests.compat.spark_ha import SparkCluster
from tests.support.helpers import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(jvm.missing()), reason=jvm.missing())]

TASKS = 8


def test_job_goes_on_when_the_active_master_is_killed(tmp_path: Path) -> None:
    """The store's leader is killed with it: the standby takes over worker and application, and accepts new ones."""
    with ensemble(OURS, tmp_path / "store") as servers:
        spark = SparkCluster(tmp_path, servers.hosts)
        try:
            spark.start()
            active = spark.active()
            (standby,) = [master for master in spark.masters if master is not active]
            eventually(lambda: standby.status() == "STANDBY", what="the other master stands by")
            with spark.job("squares", TASKS) as job:
                job.wait_begun(1)
                leader = servers.leader()
                servers.stop(leader)
                active.kill()
                assert spark.active(90) is standby
                assert [app["name"] for app in standby.page()["activeapps"]] == ["squares"]
                servers.start(leader)
                job.let_go()
                assert job.result() == sum(n * n for n in range(TASKS))
            with spark.job("more", 1) as job:
                assert job.result() == 0
        finally:
            spark.close()
