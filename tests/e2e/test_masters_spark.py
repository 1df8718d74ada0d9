"""Bulk plans by a real Spark job, and the fallback when the job is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from regions import messages as ms
from regions.plan.spark.target import DEFAULT, missing, parse_target
from tests.e2e.masters import cluster_on, own_store

LACK = missing(parse_target(DEFAULT))
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(LACK), reason=LACK or "Spark is here")]

SPLITS = [f"k{number:04d}" for number in range(1, 40)]


@pytest.mark.parametrize(
    ("deadline_s", "engine", "note"),
    [("300", "spark", ""), ("0.3", "greedy", "spark: no plan within 0.3 s (last progress")],
    ids=["in-time", "late"],
)
def test_spark_plans_and_greedy_is_the_fallback(tmp_path: Path, deadline_s: str, engine: str, note: str) -> None:
    """RT-06: the steps after the plan are the same; the plan's record and the status name the engine, and the
    reason."""
    options = ["--plan-engine", "spark", "--plan-deadline-s", deadline_s, "--spark-master", "local[1]"]
    options += ["--min-servers", "3"]
    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path / "c", masters=1, options=options) as c:
        c.ask_active(ms.CreateTable("orders", SPLITS, wait_ms=310_000), ms.Tables)
        plan = c.status().plan
        assert plan is not None
        assert (plan.engine, plan.state, plan.assigned) == (engine, "DONE", 40)
        assert plan.note.startswith(note) if note else not plan.note
        owners = c.check_owners()
        assert sorted(list(owners.values()).count(uuid) for uuid in set(owners.values())) == [13, 13, 14]
