"""Tablets of real servers become quiet, and whatever matters wakes them: a request, and the death of a leader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regions import messages as ms
from regions.messages.server import GetServerStatus, ServerStatus, TabletFigures
from regionserver.client import connect
from tests.e2e.masters import Cluster, Process, any_store, cluster_on
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

SPLITS = ("g", "n", "t")
TABLETS = len(SPLITS) + 1
SLOW_S = 120.0
CALL_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a master and three servers, with a table of four tablets."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", servers=3) as running,
    ):
        running.wait_active()
        running.wait_servers(3)
        running.ask_active(ms.CreateTable("rows", list(SPLITS), replication=3, wait_ms=60_000), ms.Tables)
        yield running


def figures(cluster: Cluster, server: Process) -> TabletFigures:
    found = cluster.ask(server, GetServerStatus(), ServerStatus).tablets
    assert found is not None
    return found


def wait_quiet(cluster: Cluster, servers: list[Process]) -> None:
    """Wait until all tablets are quiet on these servers."""
    eventually(lambda: all(figures(cluster, one).quiet == TABLETS for one in servers), SLOW_S, "all tablets are quiet")


def test_quiet_tablets_serve_requests_and_replace_a_dead_leader(cluster: Cluster) -> None:
    """After kill -9 of a server other servers lead its tablets without any request, and the tablets become quiet
    without it."""
    with connect(cluster.hosts, timeout_s=CALL_S) as client:
        client.put("rows", "a", b"1")
        wait_quiet(cluster, cluster.servers)
        client.put("rows", "a", b"2")
        assert client.get("rows", "a") == b"2"
        wait_quiet(cluster, cluster.servers)
        victim = max(cluster.servers, key=lambda one: figures(cluster, one).leaders)
        others = [one for one in cluster.servers if one is not victim]
        victim.kill()
        eventually(lambda: sum(figures(cluster, one).leaders for one in others) == TABLETS, SLOW_S, "other leaders")
        wait_quiet(cluster, others)
        client.put("rows", "z", b"3")
        victim.start()
        wait_quiet(cluster, cluster.servers)
        assert dict(client.scan("rows")) == {"a": b"2", "z": b"3"}
