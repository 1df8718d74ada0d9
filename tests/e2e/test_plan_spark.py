"""The Spark job: the same plan as in one process, bit for bit, for any partitions and order of rows."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regions.plan import BlockRow, ConflictingRegion, LastRow, Params, RegionRow, ServerRow, Snapshot, plan, verify
from regions.plan.artifact.files import ProgressWriter, read_manifest, read_plan, write_snapshot
from regions.plan.problem.model import Plan
from regions.plan.problem.scenarios import scenario, shuffled

JOB = "regions.plan.spark_job"
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.e2e


def has_spark() -> bool:
    """Return True if this machine can run Spark."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return False
    return shutil.which("java") is not None


def test_same_plan_for_any_partitions_and_row_order(tmp_path: Path) -> None:
    """One session plans several inputs: every digest equals that of the engine `sharded`, every count that of
    `encode`."""
    if not has_spark():
        pytest.skip("needs Java and PySpark")
    from regions.plan import spark_job

    mixed = scenario("mixed", regions=1200, servers=40, seed=11)
    unruly = Snapshot.of(
        [
            RegionRow("a", "t", 9),
            RegionRow("a", "t", 9),
            RegionRow("b", "t", -3, replicas=0),
            RegionRow("c", "t", 4, grp="x"),
        ],
        [ServerRow("s1", "h1"), ServerRow("s2", "h2"), ServerRow("s3", "h3", draining=True)],
        [BlockRow("a", "h2", 5), BlockRow("a", "h9", 5), BlockRow("q", "h1", 5), BlockRow("a", "h1", None)],
        [LastRow("b", 0, "s3"), LastRow("b", 0, "s9"), LastRow("q", 0, "s1"), LastRow("a", -1, "s1")],
    )
    cases = [
        ("csv", mixed, 2, 3),
        ("parquet", shuffled(mixed, 4), 8, 3),
        ("csv", shuffled(mixed, 9), 1, 1),
        ("parquet", unruly, 2, 1),
    ]
    for i, (kind, snapshot, _, _) in enumerate(cases):
        write_snapshot(tmp_path / str(i), snapshot, Params(), kind=kind)
    options = spark_job.parse(
        ["--input", str(tmp_path / "0"), "--output", str(tmp_path / "out"), "--master", "local[2]"]
    )
    with spark_job.session(options, spark_job.read_input(tmp_path / "0")) as spark:
        for i, (_, snapshot, partitions, shards) in enumerate(cases):
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
            made = _planned(spark, tmp_path / str(i), shards)
            local = plan(snapshot, Params(), engine="sharded", shards=shards)
            assert made.digest == local.digest, (i, made.stats, local.stats)
            assert made.stats.ignored == local.stats.ignored
            assert (made.stats.value, made.stats.unassignable) == (local.stats.value, local.stats.unassignable)
            assert made.stats.degraded == local.stats.degraded
            assert verify(snapshot, Params(), made.rows).ok
        regions = [RegionRow("a", "t", 1), RegionRow("a", "t", 2)]
        write_snapshot(tmp_path / "bad", Snapshot.of(regions, [ServerRow("s", "h")]), Params())
        with pytest.raises(ConflictingRegion, match="a"):
            _planned(spark, tmp_path / "bad", 1)


def _planned(spark: object, directory: Path, shards: int) -> Plan:
    """Return the plan of one input directory, made in a running session."""
    from regions.plan import spark_job

    given = spark_job.read_input(directory)
    return spark_job.finished(
        given, spark_job.solve(spark, given, ProgressWriter(io.StringIO(), 1, time.monotonic), shards)
    )


def _run(module: str, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, list[dict[str, object]], str]:
    """Return exit status, progress lines and standard error of a planning process."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_without_java_it_says_so_and_starts_nothing(tmp_path: Path) -> None:
    """One line names the missing part; the exit status is different from other failures."""
    status, lines, stderr = _run(
        JOB, "--input", str(tmp_path), "--output", str(tmp_path / "o"), env={"JAVA_HOME": str(tmp_path / "nojava")}
    )
    assert status == 5
    assert lines[-1]["stage"] == "failed"
    assert lines[-1]["error"] == "NoSpark"
    assert "JAVA_HOME" in stderr


def test_bad_inputs_are_refused_before_spark_starts(tmp_path: Path) -> None:
    """No table, no server, an existing plan: a clear message, a distinct status, nothing written."""
    if not has_spark():
        pytest.skip("needs Java and PySpark")
    empty = tmp_path / "empty"
    empty.mkdir()
    status, lines, _ = _run(JOB, "--input", str(empty), "--output", str(tmp_path / "o1"))
    assert (status, lines[-1]["error"]) == (3, "BadInput")
    write_snapshot(
        tmp_path / "none", Snapshot.of([RegionRow("a", "t")], [ServerRow("s", "h", draining=True)]), Params()
    )
    status, lines, _ = _run(JOB, "--input", str(tmp_path / "none"), "--output", str(tmp_path / "o2"))
    assert (status, lines[-1]["error"]) == (4, "NoServers")
    assert not (tmp_path / "o2" / "manifest.json").exists()


def test_command_line_without_spark_plans_files(tmp_path: Path) -> None:
    """`python -m regions.plan` from files to files: the plan that is read back equals the plan that was made."""
    pytest.importorskip("pyarrow")
    snapshot = scenario("hetero", regions=300, servers=10, seed=1)
    write_snapshot(tmp_path / "in", snapshot, Params(snapshot_id="snap-1", master_epoch=7))
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--plan-id", "p1"]
    status, lines, _ = _run("regions.plan", *arguments)
    assert status == 0
    assert lines[-1]["stage"] == "done"
    made, manifest = read_plan(tmp_path / "out")
    assert made.digest == plan(snapshot).digest == lines[-1]["digest"]
    assert (manifest.plan_id, manifest.snapshot_id, manifest.master_epoch) == ("p1", "snap-1", 7)
    assert read_manifest(tmp_path / "out").stats.violations == 0
    status, lines, _ = _run("regions.plan", *arguments)
    assert (status, lines[-1]["error"]) == (3, "UnusableOutput")
