"""Masters and region servers of two builds, upgraded one after the other while rows are written and read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regions.records.formats import KNOWN
from regions.records.znodes import decode_cluster
from regionserver.client import RegionClient, connect
from tests.e2e.masters import Cluster, Process, own_store
from tests.support.helpers import PATIENCE_S, daemon, eventually
from tests.upgrade.builds import NEWER, rk_of

pytestmark = pytest.mark.e2e

TABLE = "rows"
SPLITS = [f"k{number:02}" for number in range(1, 12)]


class BuiltProcess(Process):
    """A daemon whose next start uses the build in `root`."""

    root = NEWER

    def start(self) -> None:
        command, environment, cwd = rk_of(self.root, *self.arguments)
        self.popen = self._running.enter_context(daemon(command, log=self.log, env=environment, cwd=cwd))

    def replace(self, root: Path) -> None:
        """Stop the process as an operator does, and start it with another build."""
        assert self.terminate() == 0, self.log.read_text(errors="replace")[-3000:]
        self.root = root
        self.start()


class Rows(threading.Thread):
    """Writes rows and reads them back, until it is stopped or a row is missing."""

    def __init__(self, client: RegionClient) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._is_over = threading.Event()
        self.written: dict[str, bytes] = {}
        self.fault: BaseException | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self._is_over.is_set():
                key, value = f"k{number % 13:02}-{number}", b"%d" % number
                self._client.put(TABLE, key, value)
                self.written[key] = value
                known = f"k{(number // 2) % 13:02}-{number // 2}"
                assert self._client.get(TABLE, known) == self.written[known], known
                number += 1
        except BaseException as fault:
            self.fault = fault

    def end(self) -> None:
        """Stop, and check that every acknowledged row exists."""
        self._is_over.set()
        self.join(2 * PATIENCE_S)
        assert self.fault is None, repr(self.fault)
        assert self.written
        lost = [key for key, value in self.written.items() if self._client.get(TABLE, key) != value]
        assert not lost, lost[:10]


@contextlib.contextmanager
def cluster_of(root: Path, folder: Path, hosts: str) -> Iterator[Cluster]:
    """Yield two masters and three servers of one build."""
    folder.mkdir()
    cluster = Cluster(folder, hosts, masters=2, servers=3)
    cluster.masters = [_built(one, root) for one in cluster.masters]
    cluster.servers = [_built(one, root) for one in cluster.servers]
    with cluster:
        try:
            yield cluster
        except BaseException:
            for process in [*cluster.masters, *cluster.servers]:
                print(f"--- {process.log.name}\n{process.log.read_text(errors='replace')[-3000:]}")  # noqa: T201
            raise


def _built(process: Process, root: Path) -> BuiltProcess:
    made = BuiltProcess(process.arguments, process.address, process.log)
    made.root = root
    return made


def format_of(cluster: Cluster) -> int:
    """Return the format in force."""
    return decode_cluster(cluster.zk.get(cluster.layout.cluster)[0]).format_version


def test_masters_and_servers_are_upgraded_while_rows_are_read(tmp_path: Path, older: Path) -> None:
    """No row is lost or unreadable, and the format rises with the last upgraded process."""
    with own_store(tmp_path / "store", 1) as hosts, cluster_of(older, tmp_path / "cluster", hosts) as cluster:
        cluster.wait_active()
        cluster.wait_servers(3)
        before = format_of(cluster)
        cluster.ask_active(ms.CreateTable(TABLE, SPLITS, wait_ms=60_000), ms.Tables)
        cluster.wait_settled()
        with connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=2 * PATIENCE_S) as client:
            rows = Rows(client)
            rows.start()
            standby_first = sorted(cluster.masters, key=lambda one: one is cluster.active())
            for process in [*standby_first, *cluster.servers]:
                assert isinstance(process, BuiltProcess)
                if before < KNOWN:
                    assert format_of(cluster) == before
                process.replace(NEWER)
                cluster.wait_masters(2)
                cluster.wait_servers(3)
                cluster.wait_settled()
                assert rows.fault is None, repr(rows.fault)
            eventually(lambda: format_of(cluster) == KNOWN, what="the format rises")
            rows.end()
        cluster.check_owners()
