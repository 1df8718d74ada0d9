"""Forged registrations, and two servers with one identity: an operator declares a copied directory to be moved."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.diagnose.reach import MASTERS_ASKED_MAX
from regions import messages as ms
from regions.records.model import MasterRecord
from regions.records.znodes import encode
from regionserver.session.instance import MOVED
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.support.helpers import eventually, finished, free_ports, rk

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield one master and one region server."""
    tmp_path: Path = tmp_path_factory.mktemp("registrations")
    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path, masters=1, servers=1) as running:
        running.wait_servers(1)
        yield running


def registrations(cluster: Cluster) -> int:
    """Return how often the servers say that they have registered."""
    return sum(log.read_text().count("registered as") for log in cluster.folder.glob("server*.log"))


def test_forged_registrations_do_not_hold_commands_up(cluster: Cluster) -> None:
    """They name a port that never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(200)
        port = silent.getsockname()[1]
        forged = []
        for number in range(3 * MASTERS_ASKED_MAX):
            forged.append(cluster.layout.master(f"ghost{number}"))
            cluster.zk.create(forged[-1], encode(MasterRecord(f"ghost{number}", "127.0.0.1", port, 1)), ephemeral=True)
        done = finished(rk("status", "--store", cluster.hosts, "--json"), 60)
        assert done.returncode == 0, done.stderr
        reach = json.loads(done.stdout)["heartbeats"]
        assert len(reach) == 3 * MASTERS_ASKED_MAX + 1
        assert sum("not asked" in one.get("unknown", "") for one in reach) == 2 * MASTERS_ASKED_MAX + 1
    for path in forged:
        cluster.zk.delete(path)


def test_the_server_whose_registration_was_taken_over_stands_back(cluster: Cluster) -> None:
    """It says what to do and serves nothing. When the copy ends, it registers again."""
    original = cluster.servers[0]
    (port,) = free_ports(1)
    folder = cluster.folder / "server9"
    shutil.copytree(cluster.folder / "server0", folder)
    # A copy is refused at the start, unless an operator says that the original is gone.
    (folder / MOVED).touch()
    replaced = {
        "127.0.0.1:" + str(original.address[1]): f"127.0.0.1:{port}",
        str(cluster.folder / "server0"): str(folder),
    }
    words = [replaced.get(word, word) for word in original.arguments]
    copy = Process(words, ("127.0.0.1", port), cluster.folder / "server9.log")
    copy.start()
    try:
        eventually(lambda: "its data directory was copied" in original.log.read_text(), what="the advice")
        assert cluster.uuid_of(original) == cluster.uuid_of(copy)
        assert registrations(cluster) == 2
        (known,) = cluster.ask_active(ms.ListServers(), ms.Servers).servers
        assert known.server.port == port
    finally:
        copy.kill()
    eventually(lambda: registrations(cluster) == 3, what="the original registers again")
