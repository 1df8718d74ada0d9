"""Splits and merges of regions under writers, and with a process that dies at each point of them (X11)."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator
from unittest import mock

import pytest

from cli.common.options import variable_of
from coord.compiled import is_switched_on
from coord.kill_points import KILL_VARIABLE
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.model import RegionRecord, TableIntent
from regions.records.partitioning import RegionSpec, check_ranges
from regionserver.client import DataError, RegionClient, connect
from tests.e2e.armed import is_dead
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.support.helpers import PATIENCE_S, eventually, finished, rk

pytestmark = pytest.mark.e2e

TABLE = "rows"
#: Time limit of a split on a busy machine, in which a process dies and another takes over.
SLOW_S = 120.0
#: Points of the active master: it has just written this.
MASTER_POINTS = ("Create reshardings", "SetData reshardings", "SetData regions", "Delete reshardings")
#: Points of the server that has the regions.
SERVER_POINTS = (
    "rows prepared",
    "wrote CLOSING",
    "prepared rows complete",
    "wrote CLOSED",
    "rows taken over",
    "wrote OPENED",
    "former files set aside",
)
POINTS = (*MASTER_POINTS, *SERVER_POINTS)
#: (point, whether it is one of a merge). With RK_ALL_POINTS all (`make kill-points`), otherwise each point once.
CASES = [
    (point, is_merge)
    for at, point in enumerate(POINTS)
    for is_merge in ((False, True) if is_switched_on("RK_ALL_POINTS") else (at % 2 == 1,))
]


class Writers:
    """Threads that put and delete rows all the time, and know what was acknowledged."""

    def __init__(self, client: RegionClient, count: int = 4) -> None:
        self._client = client
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        #: The rows that the table must have.
        self.rows = dict(client.scan(TABLE))
        self.errors: list[str] = []
        self.writes = 0

    def _run(self, mine: int) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            key = f"{'acemprtx'[number % 8]}-{mine}-{number % 64:02}"
            try:
                if number % 11 == 10:
                    self._client.delete(TABLE, key, timeout_s=SLOW_S)
                    self.rows.pop(key, None)
                else:
                    value = b"%d" % number
                    self._client.put(TABLE, key, value, timeout_s=SLOW_S)
                    self.rows[key] = value
            except DataError as error:
                self.errors.append(str(error))
                return
            self.writes += 1

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.writes > 100, what="rows are written")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * SLOW_S)

    def check(self) -> None:
        """Check that the table has exactly the acknowledged rows, each once."""
        assert not self.errors, self.errors
        found = list(self._client.scan(TABLE))
        assert [key for key, _ in found] == sorted(self.rows)
        assert dict(found) == self.rows


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return two masters and three servers that die at the point in the file `kill.point`."""
    folder = tmp_path_factory.mktemp("data")
    environ = {KILL_VARIABLE: f"@{folder / 'kill.point'}"}
    with (
        own_store(folder / "store", 1) as hosts,
        cluster_on(hosts, folder / "cluster", masters=2, servers=3, environ=environ) as running,
    ):
        running.wait_active()
        running.wait_servers(3)
        running.ask_active(ms.CreateTable(TABLE, wait_ms=60_000), ms.Tables)
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RegionClient]:
    """Return a client that keeps its locations of regions during a test."""
    with connect(cluster.hosts, connect_timeout_s=PATIENCE_S, timeout_s=SLOW_S) as made:
        yield made


def regions_of(cluster: Cluster) -> list[RegionRecord]:
    """Return the regions of the table by key, and check that they have each key once."""
    found = [one for one in cluster.regions() if not one.is_replaced]
    found.sort(key=lambda one: one.start_key)
    check_ranges([RegionSpec(one.start_key, one.end_key) for one in found])
    return found


def said(cluster: Cluster, *words: str, status: int = 0) -> str:
    """Return the output of a command of rk, which must end with this status."""
    # No local cluster in the working directory counts, whatever its addresses.
    with mock.patch.dict(os.environ, {variable_of("data-dir"): str(cluster.folder)}):
        done = finished(rk(*words, "--store", cluster.hosts), 2 * SLOW_S)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def merge_all(cluster: Cluster) -> None:
    """Merge all regions of the table into one."""
    while len(found := regions_of(cluster)) > 1:
        ids = [one.region_id for one in found[:2]]
        cluster.ask_active(ms.MergeRegions(*ids, wait_ms=int(SLOW_S * 1000)), ms.Resharded)
        cluster.wait_settled()


def nothing_under_way(cluster: Cluster) -> None:
    """Wait until no split or merge is under way, and every region is open."""
    eventually(lambda: not cluster.zk.get_children(cluster.layout.reshardings), SLOW_S, "no split under way")
    cluster.wait_settled()


def folders(cluster: Cluster) -> set[str]:
    """Return the names of the regions' directories."""
    return {path.name for path in (cluster.folder / "shared" / "regions").glob("*/*")}


def test_a_region_is_split_and_merged_under_writers(cluster: Cluster, client: RegionClient) -> None:
    """No row is lost or doubled, the former files are removed, and clients find the daughters."""
    with Writers(client) as writers:
        answer = json.loads(said(cluster, "region", "split", f"{TABLE}:m", "--at", "m", "--json"))
        assert [one["region_id"][-1] for one in answer["daughters"]] == ["A", "B"]
        assert answer["is_done"]
        assert "became" in said(cluster, "region", "split", f"{TABLE}:a")
        assert len(regions_of(cluster)) == 3
        said(cluster, "region", "merge", f"{TABLE}:a", f"{TABLE}:x", status=1)
        before = writers.writes
        eventually(lambda: writers.writes > before + 50, what="rows are written to the daughters")
        merge_all(cluster)
    writers.check()
    nothing_under_way(cluster)
    assert folders(cluster) == {one.region_id for one in regions_of(cluster)}
    assert said(cluster, "fsck") == "nothing is wrong\n"


def test_refusals_say_what_is_in_the_way(cluster: Cluster) -> None:
    """A split is refused with its reason: the region is unassigned, its table is disabled, or it lacks the key."""
    merge_all(cluster)
    [region] = regions_of(cluster)
    itself = said(cluster, "region", "merge", region.region_id, region.region_id, status=1)
    assert "cannot be merged with itself" in itself
    said(cluster, "region", "split", region.region_id, "--at", "m")
    low, high = (one.region_id for one in regions_of(cluster))
    assert f"'x' is not in region {low}" in said(cluster, "region", "split", low, "--at", "x", status=1)
    assert "is the first key" in said(cluster, "region", "split", high, "--at", "m", status=1)
    said(cluster, "region", "unassign", low)
    assert f"region {low} is unassigned" in said(cluster, "region", "merge", low, high, status=1)
    said(cluster, "region", "assign", low)
    cluster.ask_active(ms.SetTableIntent(TABLE, TableIntent.DISABLED, wait_ms=60_000), ms.Tables)
    assert f"table {TABLE} is disabled" in said(cluster, "region", "split", low, status=1)
    cluster.ask_active(ms.SetTableIntent(TABLE, TableIntent.ENABLED, wait_ms=60_000), ms.Tables)
    assert json.loads(said(cluster, "region", "split", low, "--at", "c", "--dry-run", "--json"))["dry_run"]
    assert len(regions_of(cluster)) == 2


@pytest.mark.parametrize(("point", "is_merge"), CASES, ids=lambda one: str(one).replace(" ", "-"))
def test_a_death_between_two_steps_ends_before_or_after(
    cluster: Cluster, client: RegionClient, point: str, is_merge: bool
) -> None:
    """For any process that dies at any point: the key space is whole, no row is lost, and the work is done or
    undone."""
    merge_all(cluster)
    nothing_under_way(cluster)
    [region] = regions_of(cluster)
    if is_merge:
        cluster.ask_active(ms.SplitRegion(region.region_id, "m", wait_ms=60_000), ms.Resharded)
        nothing_under_way(cluster)
    pair = [one.region_id for one in regions_of(cluster)]
    request = ms.MergeRegions(*pair) if is_merge else ms.SplitRegion(region.region_id, "m")
    file = cluster.folder.parent / "kill.point"
    with Writers(client, 2) as writers:
        file.write_text(point)
        threading.Thread(target=_ask, args=(cluster, request), daemon=True).start()
        processes = [*cluster.masters, *cluster.servers]
        dead: Process = eventually(lambda: next(filter(is_dead, processes), None), SLOW_S, f"a death at {point}")
        dead.kill()
        dead.start()
        cluster.wait_servers(3)
        nothing_under_way(cluster)
        assert len(regions_of(cluster)) == (1 if is_merge else 2)
    writers.check()
    assert folders(cluster) == {one.region_id for one in regions_of(cluster)}


def _ask(cluster: Cluster, request: ms.SplitRegion | ms.MergeRegions) -> None:
    """Send the request, again while the region is busy. The master may die before it answers."""

    def is_answered() -> bool:
        try:
            cluster.ask(cluster.wait_active(), request, ms.Resharded)
        except RpcError as error:
            return error.code != ms.BUSY
        except OSError:
            pass
        return True

    eventually(is_answered, SLOW_S, "an answer other than BUSY")


def test_a_hole_is_closed_by_fsck(cluster: Cluster, client: RegionClient) -> None:
    """The lost record of a region is written again while the master knows it, with its rows; else an empty region."""
    merge_all(cluster)
    nothing_under_way(cluster)
    [region] = regions_of(cluster)
    said(cluster, "region", "split", region.region_id, "--at", "m")
    nothing_under_way(cluster)
    high = regions_of(cluster)[1]
    path = cluster.layout.region(high.table_id, high.region_id)
    client.put(TABLE, "x-hole", b"1")
    cluster.zk.delete(path)
    found = finished(rk("fsck", "--store", cluster.hosts), SLOW_S)
    assert found.returncode == 1
    assert f"no region of {TABLE} holds the keys from 'm' on" in found.stdout
    shown = finished(rk("fsck", "--fix", "--dry-run", "--store", cluster.hosts), SLOW_S).stdout
    assert f"would be done  {TABLE}:m: the record of {high.region_id} is written again" in shown
    assert cluster.zk.exists(path) is None
    finished(rk("fsck", "--fix", "--yes", "--store", cluster.hosts), SLOW_S)
    assert client.get(TABLE, "x-hole") == b"1"
    assert said(cluster, "fsck") == "nothing is wrong\n"

    for one in cluster.masters:
        one.kill()
    cluster.zk.delete(path)
    for one in cluster.masters:
        one.start()
    cluster.wait_active()
    cluster.wait_servers(3)
    fixed = finished(rk("fsck", "--fix", "--yes", "--store", cluster.hosts), SLOW_S)
    assert "the empty region" in fixed.stdout, fixed.stdout
    eventually(lambda: said_status(cluster) == 0, SLOW_S, "nothing is wrong any more")
    assert client.get(TABLE, "x-hole", timeout_s=SLOW_S) is None
    client.put(TABLE, "x-hole", b"2", timeout_s=SLOW_S)
    assert len(regions_of(cluster)) == 2


def said_status(cluster: Cluster) -> int:
    """Return the exit status of rk fsck."""
    return finished(rk("fsck", "--store", cluster.hosts), SLOW_S).returncode
