"""The client of tablets against real servers: every addition counts once while leaders die or freeze, and while store
and masters are away."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regions.records.members import Storage
from regionserver.client import DataError, RegionClient, connect
from tests.e2e.masters import Cluster, Process, cluster_on
from tests.e2e.nodes import Nodes, store
from tests.support.helpers import PATIENCE_S, eventually, finished, rk

pytestmark = pytest.mark.e2e

#: Each counter is in a separate tablet.
COUNTERS = ("a", "g", "n", "t")
#: No call takes this long on a machine that is only busy.
CALL_S = 60.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Nodes, Cluster]]:
    with store(tmp_path / "store") as nodes, cluster_on(nodes.hosts, tmp_path, masters=1, servers=3) as cluster:
        cluster.wait_servers(3)
        table = ms.CreateTable("counts", list(COUNTERS[1:]), replication=3, wait_ms=60_000)
        assert cluster.ask_active(table, ms.Tables).tables[0].table.storage is Storage.TABLET
        yield nodes, cluster


class Adding:
    """Threads that add 1 to each counter, over and over."""

    def __init__(self, client: RegionClient) -> None:
        self.client = client
        self.sums = dict.fromkeys(COUNTERS, 0)
        self.errors: list[Exception] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(key,)) for key in COUNTERS]

    def __enter__(self) -> Adding:
        for key in COUNTERS:
            self.client.put("counts", key, b"0", timeout_s=CALL_S)
        for thread in self._threads:
            thread.start()
        return self

    def _run(self, key: str) -> None:
        value = b"0"
        while not self._is_over.is_set():
            try:
                following = b"%d" % (int(value) + 1)
                if not self.client.compare_and_set("counts", key, value, following, timeout_s=CALL_S):
                    self.errors.append(AssertionError(f"{key} is not {value!r}, which this thread has written"))
                    return
                value = following
            except DataError as error:
                self.errors.append(error)
                return
            self.sums[key] += 1

    def wait_for_more(self) -> None:
        """Wait until every counter has increased."""
        before = dict(self.sums)
        eventually(lambda: all(self.sums[key] > before[key] + 5 for key in COUNTERS), what="additions to all counters")

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(CALL_S + PATIENCE_S)

    def check(self) -> None:
        """Compare the counters with the additions."""
        assert not self.errors, self.errors
        found = {key: int(self.client.get("counts", key) or b"") for key in COUNTERS}
        assert found == self.sums


def leader_of(client: RegionClient, servers: dict[str, Process], key: str) -> Process:
    """Return the process that leads the tablet of `key`, as the client knows it."""
    region = client.locator.region_of("counts", key)
    assert region is not None
    leader = client._tablets._context.hints.leader(region)
    assert leader is not None
    return servers[leader[1]]


@contextlib.contextmanager
def additions(nodes: Nodes) -> Iterator[tuple[RegionClient, Adding]]:
    """Yield a client that adds to all counters. Compare the counters with the additions at the end."""
    with connect(nodes.hosts) as client:
        with Adding(client) as adding:
            adding.wait_for_more()
            yield client, adding
        adding.check()


def by_uuid(cluster: Cluster) -> dict[str, Process]:
    """Return the servers' processes by uuid."""
    return {cluster.uuid_of(one): one for one in cluster.servers}


def test_every_addition_counts_once_while_leaders_are_killed(running: tuple[Nodes, Cluster]) -> None:
    nodes, cluster = running
    servers = by_uuid(cluster)
    with additions(nodes) as (client, adding):
        for _ in range(2):
            server = leader_of(client, servers, "a")
            server.kill()
            adding.wait_for_more()
            server.start()
            eventually(lambda one=server: cluster.uuid_of(one), what="the server that was started again")  # type: ignore[misc]
            cluster.wait_servers(3)
            adding.wait_for_more()


def test_every_addition_counts_once_while_a_leader_is_frozen(running: tuple[Nodes, Cluster]) -> None:
    nodes, cluster = running
    servers = by_uuid(cluster)
    with additions(nodes) as (client, adding):
        server = leader_of(client, servers, "a")
        server.signal(signal.SIGSTOP)
        try:
            adding.wait_for_more()
        finally:
            server.signal(signal.SIGCONT)
        adding.wait_for_more()


def test_a_leader_dies_while_store_and_masters_are_away(running: tuple[Nodes, Cluster]) -> None:
    nodes, cluster = running
    servers = by_uuid(cluster)
    with additions(nodes) as (client, adding):
        cluster.masters[0].kill()
        nodes.all(signal.SIGSTOP)
        try:
            adding.wait_for_more()
            leader_of(client, servers, "a").kill()
            adding.wait_for_more()
        finally:
            nodes.all(signal.SIGCONT)


def test_the_commands_for_rows(running: tuple[Nodes, Cluster], tmp_path: Path) -> None:
    nodes, _ = running

    def run(*words: str, status: int = 0) -> str:
        done = finished(rk(*words, "--store", nodes.hosts), 2 * PATIENCE_S)
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout

    run("put", "counts", "lock", "me", "--if-absent")
    run("put", "counts", "lock", "you", "--if-absent", status=1)
    run("put", "counts", "lock", "you", "--if-value", "me")
    assert run("get", "counts", "lock") == "you\n"
    run("delete", "counts", "lock", "--if-value", "me", status=1)
    run("delete", "counts", "lock", "--if-value", "you")
    run("get", "counts", "lock", status=4)
    source = tmp_path / "rows.csv"
    source.write_text("id,v\n" + "".join(f"{key}{number:04},x\n" for key in COUNTERS for number in range(1500)))
    run("load", "counts", str(source))
    assert json.loads(run("scan", "counts", "--count", "--json"))["rows"] == 6000
    run("put", "counts", "x" * 512, "v", status=1)
