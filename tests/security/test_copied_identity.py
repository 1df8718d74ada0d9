"""Two region servers with one identity: a copied data directory that an operator has declared to be the moved one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regionserver.session.instance import MOVED
from tests.e2e.masters import Cluster, Process, cluster_on, own_store
from tests.support.helpers import eventually, free_ports

pytestmark = pytest.mark.e2e


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield one master and one region server."""
    with own_store(tmp_path / "store", 1) as hosts, cluster_on(hosts, tmp_path, masters=1, servers=1) as running:
        running.wait_servers(1)
        yield running


def registrations(cluster: Cluster) -> int:
    """Return how often the servers say that they have registered."""
    return sum(log.read_text().count("registered as") for log in cluster.folder.glob("server*.log"))


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
