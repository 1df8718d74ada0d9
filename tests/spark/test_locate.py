"""Block locality of a path, from a Hadoop file system that reports hosts: the same plan as from a table of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from regions.plan import BlockRow, Params, RegionRow, ServerRow, Snapshot, plan
from regions.plan.artifact.files import read_plan, write_snapshot
from tests.compat import jvm
from tests.e2e.clusters import run_rk
from tests.spark.connect import connect_missing, connect_server
from tests.spark.jobs import JOB_S, digest_of, job_command, run_job
from tests.spark.standalone import spark_missing

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(spark_missing()), reason=spark_missing())]

JAVA = Path(__file__).parent / "java"
#: Region -> its files: the hosts in the name, and bytes.
FILES = {
    "r1": [("cf/a-h1+h2", 2500), ("cf/b-h1+h3", 10), ("_temporary/x-h3", 9000), ("cf/.hidden-h3", 9000)],
    "r2": [("one-h2+h3+h4", 3000)],
    "r3": [("empty-h1", 0)],
    "nobodys": [("a-h1+h2", 1)],
}
#: The resulting rows: blocks of 1000 bytes, each on a host and the next one.
ROWS = [
    *(BlockRow("r1", "h1", n) for n in (1000, 1000, 500, 10)),
    *(BlockRow("r1", "h2", n) for n in (1000, 1000, 500)),
    BlockRow("r1", "h3", 10),
    *(BlockRow("r2", host, n) for host in ("h2", "h3", "h4") for n in (1000, 1000)),
    BlockRow("nobodys", "h1", 1),
    BlockRow("nobodys", "h2", 1),
]


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the settings by which the driver's Java knows the file system `hosts:`."""
    classes = tmp_path_factory.mktemp("classes")
    folder = jvm.jars_folder()
    assert folder is not None
    command = ["javac", "-J-Xmx256m", "-proc:none", "-nowarn", "-d", str(classes), "-cp", f"{folder}/*"]
    subprocess.run([*command, str(JAVA / "HostsFileSystem.java")], check=True)
    return [f"spark.driver.extraClassPath={classes}", "spark.hadoop.fs.hosts.impl=HostsFileSystem"]


@pytest.fixture(scope="module")
def source(work: Path) -> tuple[Path, Snapshot]:
    """Return an input directory whose table names a path, and the snapshot with the same locations in block rows."""
    for region, files in FILES.items():
        for name, size in files:
            path = work / "located" / "data" / region / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
    regions = [RegionRow(f"r{n}", "t", 3000) for n in range(1, 5)]
    servers = [ServerRow(f"s{n}", f"h{n}") for n in range(1, 4)]
    snapshot = Snapshot.of(regions, servers)
    write_snapshot(work / "located" / "in", snapshot, Params())
    (work / "located" / "in" / "blocks.csv").unlink()
    (work / "located" / "in" / "paths.csv").write_text(f"table_id,path\nt,hosts://{work}/located/data\n")
    return work / "located" / "in", Snapshot.of(regions, servers, ROWS)


def test_a_path_instead_of_block_rows(source: tuple[Path, Snapshot], conf: list[str], tmp_path: Path) -> None:
    """`rk plan create` locates the blocks before any engine plans, and keeps them in the plan's input, so `explain` has
    them, too."""
    wanted = plan(source[1], Params())
    settings = [word for setting in conf for word in ("--spark-conf", setting)]
    words = ["plan", "create", "--input", str(source[0]), "--output", str(tmp_path / "plan"), "--engine", "greedy"]
    done = run_rk(*words, *settings, "--json", timeout_s=JOB_S)
    assert done.returncode == 0, done.stderr
    assert "of 2 regions, 2 regions without any" in done.stderr
    stats = json.loads(done.stdout)["manifest"]["stats"]
    assert read_plan(tmp_path / "plan")[0].digest == wanted.digest
    # One row for each region and host: h4 has no server, and the region on two hosts is unknown.
    assert stats["ignored"] == {"block_host": 1, "block_region": 2}
    assert stats["local_bytes"] == wanted.stats.local_bytes > 0


def test_the_job_asks_by_itself(source: tuple[Path, Snapshot], conf: list[str], tmp_path: Path) -> None:
    """The job locates the blocks in its own session when `rk plan create` has not started it."""
    job = run_job(job_command(source[0], tmp_path / "out", "local[2]", conf))
    assert digest_of(job, tmp_path / "out") == plan(source[1], Params(), engine="sharded").digest
    assert "blocks" in [line["stage"] for line in job.lines]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "part-00000.parquet"]


@pytest.mark.skipif(bool(connect_missing()), reason=connect_missing())
def test_behind_spark_connect_a_java_of_this_machine_asks(
    source: tuple[Path, Snapshot], conf: list[str], tmp_path: Path
) -> None:
    """A client of Connect cannot ask its server for hosts, so a Java of this machine does."""
    with connect_server(tmp_path / "server") as url:
        hadoop = [one for one in conf if "hadoop" in one or "ClassPath" in one]
        job = run_job(job_command(source[0], tmp_path / "out", url, hadoop))
    assert digest_of(job, tmp_path / "out") == plan(source[1], Params(), engine="sharded").digest


def test_a_path_that_is_not_there_is_named(source: tuple[Path, Snapshot], tmp_path: Path) -> None:
    """The error names the path, also for an unknown file system."""
    for uri, said in (("file:///no/such/place", "there is no file:///no/such/place"), ("hosts:///x", "hosts")):
        words = ["plan", "create", "--input", str(source[0]), "--output", str(tmp_path / "p"), "--path", f"t={uri}"]
        done = run_rk(*words, timeout_s=JOB_S)
        assert done.returncode == 1
        (line, *_) = [line for line in done.stderr.splitlines() if "the path of table t" in line]
        assert said in line, done.stderr
