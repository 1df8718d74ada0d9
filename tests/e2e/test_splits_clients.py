"""Clients during splits and merges: scans, loads, rows of columns, the client for asyncio, and backups (X11)."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.backup.files import read_manifest
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import RegionRecord
from regions.records.partitioning import is_whole
from regions.records.schema import ColumnSpec, ColumnType
from regionserver.client import Change, RegionClient, connect, connect_asyncio
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.support.helpers import PATIENCE_S, eventually, finished, rk

pytestmark = pytest.mark.e2e

TABLE, TYPED, HASHED = "rows", "typed", "hashed"
SLOW_S = 120.0
#: Rows of a table: several pages of a scan.
ROWS = 6_000


def key_of(number: int) -> str:
    """Return a key."""
    return f"k{number:05}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a master and two servers, with three tables of the same rows."""
    folder = tmp_path_factory.mktemp("data")
    with (
        own_store(folder / "store", 1) as hosts,
        cluster_on(hosts, folder / "cluster", masters=1, servers=2) as running,
    ):
        running.wait_active()
        running.wait_servers(2)
        columns = [ColumnSpec("id", ColumnType.STRING, key=True), ColumnSpec("n", ColumnType.INT64)]
        running.ask_active(ms.CreateTable(TABLE, wait_ms=60_000), ms.Tables)
        running.ask_active(ms.CreateTable(HASHED, hash_buckets=2, wait_ms=60_000), ms.Tables)
        running.ask_active(ms.CreateTable(TYPED, columns=columns, wait_ms=60_000), ms.Tables)
        with connected(running) as client:
            for table in (TABLE, HASHED):
                client.write(table, [Change(key_of(number), b"%d" % number) for number in range(ROWS)])
            client.write_rows(TYPED, [{"id": key_of(number), "n": number} for number in range(ROWS)])
        yield running


def connected(cluster: Cluster) -> contextlib.AbstractContextManager[RegionClient]:
    """Return a new client."""
    return connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=SLOW_S)


def regions_of(cluster: Cluster, table: str) -> list[RegionRecord]:
    """Return the regions of a table by key."""
    with connected(cluster) as client:
        found = client.locator.regions(table)
    assert found is not None
    assert is_whole(found), found
    return found


def split(cluster: Cluster, table: str, number: int = 0, at: str = "") -> None:
    """Split one of the table's regions, in the middle of its bytes."""
    regions = regions_of(cluster, table)
    region = regions[number % len(regions)]
    cluster.ask_active(ms.SplitRegion(region.region_id, at, wait_ms=int(SLOW_S * 1000)), ms.Resharded)


def merge(cluster: Cluster, table: str, number: int = 0) -> None:
    """Merge two neighbors."""
    regions = regions_of(cluster, table)
    one, two = (regions[at].region_id for at in (number % (len(regions) - 1), number % (len(regions) - 1) + 1))
    cluster.ask_active(ms.MergeRegions(one, two, wait_ms=int(SLOW_S * 1000)), ms.Resharded)


class Splitter:
    """A thread that splits and merges regions of a table all the time."""

    def __init__(self, cluster: Cluster, table: str) -> None:
        self._cluster, self._table = cluster, table
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done = 0
        self.errors: list[str] = []

    def _run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            try:
                (split if number % 4 < 2 else merge)(self._cluster, self._table, number)
                self.done += 1
            except RpcError as error:
                if error.code != ms.BUSY:
                    self.errors.append(str(error))
                    return

    def __enter__(self) -> Splitter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(2 * SLOW_S)
        assert not self.errors, self.errors

    def wait(self, more: int) -> None:
        """Wait until some more splits and merges are done."""
        wanted = self.done + more
        eventually(lambda: self.errors or self.done >= wanted, SLOW_S, "splits and merges")


@pytest.mark.parametrize("table", [TABLE, HASHED, TYPED])
def test_a_scan_that_began_before_returns_each_row_once(cluster: Cluster, table: str) -> None:
    """In order, with a split and a merge between any two of its pages."""
    with connected(cluster) as client:
        rows = client.scan_keyed_rows(table) if table == TYPED else client.scan(table)
        found = list(itertools.islice(rows, 10))
        split(cluster, table)
        found += itertools.islice(rows, 1_500)
        split(cluster, table, -1)
        merge(cluster, table)
        found += itertools.islice(rows, 1_500)
        merge(cluster, table)
        found += rows
        assert [key for key, _ in found] == [key_of(number) for number in range(ROWS)]
        assert len(list(client.scan(table))) == ROWS


def test_a_client_finds_daughters_of_regions_that_it_never_used(cluster: Cluster) -> None:
    """Its names are older than the splits; reads and writes end without an error."""
    with connected(cluster) as client:
        assert client.get(TABLE, key_of(1)) == b"1"
        for number in range(3):
            split(cluster, TABLE, number)
            for at in range(0, ROWS, 500):
                assert client.get(TABLE, key_of(at)) == b"%d" % at
        merge(cluster, TABLE)
        assert client.write(TABLE, [Change(key_of(at), b"%d" % at) for at in range(ROWS)]) == ROWS


def test_rows_are_loaded_while_regions_are_split(cluster: Cluster, tmp_path: Path) -> None:
    """`rk load` into a table that is split and merged all the time, of keys and of columns."""
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["id", "n"])
        writer.writerows([key_of(number), number + 1] for number in range(ROWS))
    for table in (TYPED, TABLE):
        with Splitter(cluster, table) as splitter:
            splitter.wait(1)
            for _ in range(3):
                done = finished(rk("load", table, str(file), "--store", cluster.hosts, "--json"), SLOW_S)
                assert done.returncode == 0, done.stderr
                assert json.loads(done.stdout)["rows"] == ROWS
            splitter.wait(2)
    with connected(cluster) as client:
        assert [row["n"] for row in client.scan_rows(TYPED)] == list(range(1, ROWS + 1))
        assert [json.loads(value)["n"] for _, value in client.scan(TABLE)] == [str(n) for n in range(1, ROWS + 1)]


def test_the_client_for_asyncio_goes_on(cluster: Cluster) -> None:
    """Sixteen tasks write and read rows of columns while regions are split and merged."""

    async def work() -> None:
        async with connect_asyncio(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=SLOW_S) as client:

            async def task(mine: int) -> None:
                for number in range(mine, ROWS, 16 * 10):
                    await client.put_row(TYPED, {"id": key_of(number), "n": -number})
                    found = await client.get_row(TYPED, key_of(number))
                    assert found is not None
                    assert found["n"] == -number

            await asyncio.gather(*(task(mine) for mine in range(16)))
            keys = [row["id"] async for row in client.scan_rows(TYPED)]
            assert keys == [key_of(number) for number in range(ROWS)]

    with Splitter(cluster, TYPED) as splitter:
        splitter.wait(1)
        asyncio.run(work())


def test_a_backup_ends_although_regions_are_split(cluster: Cluster, tmp_path: Path) -> None:
    """The backup is whole: its regions have every key once, and all rows are in it."""
    with Splitter(cluster, TABLE) as splitter:
        splitter.wait(1)
        words = ("backup", "create", str(tmp_path / "b"), "--table", TABLE, "--no-store", "--store", cluster.hosts)
        done = finished(rk(*words), SLOW_S)
        assert done.returncode == 0, done.stderr
    [table] = read_manifest(tmp_path / "b").tables
    bounds = [(one.start_key, one.end_key) for one in table.regions]
    assert bounds[0][0] == bounds[-1][1] == ""
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert sum(one.rows for one in table.regions) == ROWS
