"""Tables as data source and sink on a standalone Spark cluster, while workers and servers are killed and regions move;
`rk load --spark`."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.up.control import ControlRequest, ask
from master.client import MasterClient
from regions import messages as ms
from regionserver.client import RegionClient, connect
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.spark.jobs import JOB_S, ROOT, run_job
from tests.spark.standalone import Standalone
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

ROWS = 120_000
#: Rows of the tests in which regions move and servers die.
FEWER = 24_000
COLUMNS = ("area:string:key", "id:int64:key", "amount:double", "note:string")
#: Executors of these jobs have RegionKeeper; those of planning jobs need none.
CONF = (
    f"spark.pyspark.python={sys.executable}",
    "spark.executor.memory=600m",
    "spark.executorEnv.PYTHONPATH=" + str(ROOT),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """Yield a cluster that speaks TLS on every port, with the table `sales` of twelve tablets, and the empty table
    `loaded`."""
    folder = tmp_path_factory.mktemp("cluster") / "data"
    size = ["--tls", "--store-nodes", "1", "--masters", "1", "--servers", "3", "--no-table", "--plan-engine", "greedy"]
    with local_up(folder, "--base-port", str(free_base_port()), *size) as up:
        up.event("up", JOB_S)
        options = ["--data-dir", str(folder)]
        words = [word for column in COLUMNS for word in ("--column", column)]
        cuts = sorted(f"area=area{number}" for number in range(1, 12))
        splits = [word for cut in cuts for word in ("--split", cut)]
        few = [word for cut in cuts[::2][:5] for word in ("--split", cut)]
        for name, copies, more in (
            ("sales", "3", splits),
            ("loaded", "3", ["--split", "area=m"]),
            ("moving", "1", few),
        ):
            done = run_rk("table", "create", name, "--replicas", copies, *words, *more, *options, timeout_s=JOB_S)
            assert done.returncode == 0, done.stderr
        yield up


@pytest.fixture
def here(cluster: LocalUp) -> list[str]:
    """Return the options of `rk` for the cluster."""
    return ["--data-dir", str(cluster.data_dir)]


@pytest.fixture
def of_alice(cluster: LocalUp, here: list[str], tmp_path: Path) -> list[str]:
    """Return the options of a job of alice, who has a certificate, a grant on `sales`, and no file of the cluster."""
    home = str(tmp_path / "alice")
    for words in (
        ["certs", "issue", "--user", "alice", "--to", home],
        ["grant", "alice", "write", "--table", "sales"],
    ):
        done = run_rk(*words, *here, timeout_s=JOB_S)
        assert done.returncode == 0, done.stderr
    return ["--store", cluster.event("up")["cluster"]["store"], "--certs-dir", home]


@pytest.fixture
def client(cluster: LocalUp) -> Iterator[RegionClient]:
    """Yield a client of the cluster in this process, which looks sooner than `rk` starts."""
    store = cluster.event("up")["cluster"]["store"]
    with connect(store, connect_timeout_s=JOB_S, timeout_s=JOB_S, store_auth=cluster.store_auth()) as client:
        yield client


def scanned(table: str, here: list[str]) -> list[list[str]]:
    """Return all rows as the client reads them, with the header."""
    done = run_rk("scan", table, "--csv", "--limit", "0", "--null", "-", *here, timeout_s=JOB_S)
    assert done.returncode == 0, done.stderr
    return list(csv.reader(io.StringIO(done.stdout)))


def row_of(number: int) -> list[str]:
    """Return the row of `tests.spark.tables_job.frame_of`, as `rk scan --csv` prints it."""
    return [f"area{number % 12}", str(number), repr(number / 8), f"note {number}" if number % 5 else "-"]


def test_rows_are_there_once_after_killed_workers(
    workers: Standalone, here: list[str], of_alice: list[str], client: RegionClient
) -> None:
    """A worker is killed while rows are written, another one while they are read: equal counts and digests. Driver and
    executors have nothing of the cluster but the user's certificate.

    Fails without the settings among the options that `save` gives the sink. Fails when a second attempt of a task skips
    its rows because the first one has begun: 10,000 rows were missing.
    """
    killed: list[str] = []

    def kill(stage: str) -> None:
        if stage == "writing":
            eventually(lambda: any(client.scan_rows("sales", rows_max=1)), JOB_S, "the first rows in the table")
            workers.kill_worker(0)
            workers.start_worker(0)
            killed.append(stage)
        if stage == "read-task":
            workers.kill_worker(1)
            killed.append(stage)

    words = [sys.executable, "-m", "tests.spark.tables_job", "--master", workers.url, "--rows", str(ROWS), *of_alice]
    for setting in CONF:
        words += ["--conf", setting]
    job = run_job(words, {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}, kill)
    assert job.process.returncode == 0, job.errors[-4000:]
    assert killed == ["writing", "read-task"]
    last = job.last
    assert last["saved"] == ROWS
    assert last["read"] == last["wanted"]
    assert last["part"] == 2, "the areas 3 and 4"
    header, *rows = scanned("sales", here)
    assert header == ["area", "id", "amount", "note"]
    assert sorted(rows) == sorted(row_of(number) for number in range(ROWS))


def read_during(
    workers: Standalone, table: str, tmp_path: Path, here: list[str], disturb: Callable[[Callable[[], None]], None]
) -> dict[str, Any]:
    """Write and read a table by a job; when tasks have begun to read, call `disturb`
    with a function that lets the tasks continue.

    The tasks of the other regions begin later: their executors know the places that the driver found before.
    """
    hold = tmp_path / "hold"

    def heard(stage: str) -> None:
        if stage == "holding":
            disturb(hold.touch)

    words = [sys.executable, "-m", "tests.spark.tables_job", "--master", workers.url, "--rows", str(FEWER), *here]
    words += ["--table", table, "--hold", str(hold)]
    for setting in CONF:
        words += ["--conf", setting]
    job = run_job(words, {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}, heard)
    assert job.process.returncode == 0, job.errors[-4000:]
    assert [one["stage"] for one in job.lines if one["stage"] == "holding"] == ["holding"]
    return job.last


def test_regions_that_move_are_read_once(spark: Standalone, cluster: LocalUp, here: list[str], tmp_path: Path) -> None:
    """Every region of a table with one copy moves again and again during `spark.read.format("regionkeeper")`."""
    summary = cluster.event("up")["cluster"]
    masters = MasterClient([one["address"] for one in summary["masters"]])
    regions = [one.region.region_id for one in masters.ask(ms.DescribeTable("moving"), ms.Regions, JOB_S).regions]
    assert len(regions) == 6
    is_over, moves = threading.Event(), 0

    def move_on() -> None:
        nonlocal moves
        for region_id in itertools.cycle(regions):
            if is_over.is_set():
                return
            masters.ask(ms.MoveRegion(region_id, wait_ms=60_000), ms.Accepted, JOB_S)
            moves += 1

    moving = threading.Thread(target=move_on, daemon=True)

    def disturb(go_on: Callable[[], None]) -> None:
        moving.start()
        eventually(lambda: moves >= len(regions), JOB_S, "every region has moved")
        go_on()

    try:
        last = read_during(spark, "moving", tmp_path, here, disturb)
    finally:
        is_over.set()
    moving.join(JOB_S)
    assert last["read"] == last["wanted"]
    assert moves > len(regions)


@pytest.mark.parametrize("table", ["moving", "sales"])
def test_regions_of_a_dead_server_are_read_once(
    spark: Standalone, cluster: LocalUp, here: list[str], tmp_path: Path, table: str
) -> None:
    """A server is killed during `spark.read.format("regionkeeper")`: regions with one copy open elsewhere when the
    store has noticed, tablets have another leader at once.

    A reader without patience does not fail this test: Spark repeats its task.
    """

    def disturb(go_on: Callable[[], None]) -> None:
        victim = next(one for one in ask(cluster.data_dir, ControlRequest("list")) if one.name == "server-1")
        os.kill(victim.pid, signal.SIGKILL)
        go_on()

    last = read_during(spark, table, tmp_path, here, disturb)
    assert last["read"] == last["wanted"]


def test_load_by_spark_writes_what_load_writes(spark: Standalone, here: list[str], tmp_path: Path) -> None:
    """Quotes, line ends and blanks of CSV, times and null: the rows are those that `rk load` writes.

    Fails with Spark's default of a backslash before quotes.
    """
    source = tmp_path / "rows.csv"
    notes = ["", " blank ", 'a "quoted" word', "two\nlines", "back\\slash", "ä, ö", "-"]
    with source.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "note", "area", "amount"])
        writer.writerows([number, note, "a" if number % 2 else "z", number / 3] for number, note in enumerate(notes))
    words = ["load", "loaded", str(source), "--null", "-", *here]
    assert run_rk(*words, timeout_s=JOB_S).returncode == 0
    wanted = scanned("loaded", here)
    for row in wanted[1:]:
        run_rk("delete", "loaded", f"area={row[0]}", f"id={row[1]}", *here, timeout_s=JOB_S)
    assert len(scanned("loaded", here)) == 1
    by_spark = ["--spark", "--spark-master", spark.url]
    for setting in CONF:
        by_spark += ["--spark-conf", setting]
    done = run_rk(*words, *by_spark, "--json", timeout_s=JOB_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == len(notes)
    assert "writing" in done.stderr
    assert scanned("loaded", here) == wanted


def test_wrong_rows_write_nothing(spark: Standalone, here: list[str], tmp_path: Path) -> None:
    """The error names column, value and row; status 1."""
    source = tmp_path / "wrong.csv"
    source.write_text("area,id,amount\nnew,1,2.5\nnew,2,many\n", encoding="ascii")
    words = ["load", "loaded", str(source), *here, "--spark", "--spark-master", spark.url]
    for setting in CONF:
        words += ["--spark-conf", setting]
    done = run_rk(*words, timeout_s=JOB_S)
    assert done.returncode == 1
    assert "column 'amount': 'many' is no double; the row is area='new', id='2', amount='many'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [row for row in scanned("loaded", here) if row[0] == "new"]


def test_the_example_runs(here: list[str]) -> None:
    """examples/spark_tables.py, against a table of the columns that it names."""
    words = [word for column in ("region:string:key", "id:int64:key", "amount:double") for word in ("--column", column)]
    assert run_rk("table", "delete", "sales", "--yes", *here, timeout_s=JOB_S).returncode == 0
    assert run_rk("table", "create", "sales", "--replicas", "3", *words, *here, timeout_s=JOB_S).returncode == 0
    surroundings = {**os.environ, "RK_DATA_DIR": here[1], "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "examples/spark_tables.py"],
        cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=JOB_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Saved(rows=20000, regions=1, tasks=1)" in done.stdout
    assert "50 rows of a range" in done.stdout
