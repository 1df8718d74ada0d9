"""Real nodes that come back without their disk, or without their log: nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.test_store_cluster import Cluster
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e


def post(cluster: Cluster, folder: Path, node: int, path: str) -> None:
    """Request a cut, or its end, at the node's admin port."""
    token = json.loads((folder / f"n{node}" / "admin.json").read_text())["token"]
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.admin_ports[node]}{path}",
        method="POST",
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


def leads(cluster: Cluster, node: int) -> bool:
    """Return True if the node reports that it leads."""
    return bool(cluster.status(node)["role"] == "leader")


def test_deposed_leader_and_a_wiped_voter_lose_nothing(tmp_path: Path) -> None:
    """L is cut off and stopped; A and X acknowledge; both die, and X is emptied; L continues with X; A returns."""
    cluster = Cluster(tmp_path, options=("--drill-links",))
    cluster.start()
    try:
        old = cluster.leader()
        # A node that starts later than the others joins like one that lost its disk.
        eventually(lambda: not any(cluster.status(node)["joining"] for node in cluster.ids), what="all to count")
        rest = [node for node in cluster.ids if node != old]
        post(cluster, tmp_path, old, "/cut?for_s=60&direction=both")
        committed = cluster.status(old)["commit_index"]
        cluster.processes[old].send_signal(signal.SIGSTOP)
        eventually(lambda: any(leads(cluster, node) for node in rest), what="another leader")
        right = next(node for node in rest if leads(cluster, node))
        wiped = next(node for node in rest if node != right)
        with cluster.client(right) as client:
            client.create("/kept", b"x")
        cluster.kill(right, wiped)
        shutil.rmtree(tmp_path / f"n{wiped}")
        cluster.start(wiped)
        eventually(lambda: cluster.status(wiped)["node_id"] == wiped, what="the emptied node to run")
        cluster.processes[old].send_signal(signal.SIGCONT)
        post(cluster, tmp_path, old, "/heal")
        eventually(lambda: cluster.status(wiped)["joining"], what="the emptied node to know that it is one")
        # Its clients' writes, and all other entries that it appends, never get a majority.
        eventually(lambda: cluster.status(old)["leader"] == 0, what="the deposed leader to step down")
        assert cluster.status(old)["commit_index"] == committed
        assert cluster.status(wiped)["joining"]
        cluster.start(right)
        eventually(lambda: not cluster.status(wiped)["joining"], what="the emptied node to count again")
        with cluster.client(wiped) as client:
            client.sync("/")
            assert client.exists("/kept")
        cluster.assert_agreed()
        assert all(cluster.processes[node].poll() is None for node in cluster.ids)
    finally:
        cluster.processes[old].send_signal(signal.SIGCONT)
        cluster.kill()


def test_log_that_was_removed_is_noticed(tmp_path: Path) -> None:
    """1 and 2 acknowledge, 3 is down; 2 loses its log and keeps its snapshot: 2 and 3 wait for 1."""
    cluster = Cluster(tmp_path, options=("--snapshot-entries", "30"))
    cluster.start()
    try:
        first = cluster.leader()
        eventually(lambda: not any(cluster.status(node)["joining"] for node in cluster.ids), what="all to count")
        harmed, away = (node for node in cluster.ids if node != first)
        cluster.kill(away)
        with cluster.client(first) as client:
            for number in range(100):
                client.create(f"/k{number}", b"x")
        eventually(lambda: cluster.status(harmed)["snapshot_index"] > 0, what="a snapshot")
        cluster.kill(first, harmed)
        shutil.rmtree(tmp_path / f"n{harmed}" / "wal")
        cluster.start(harmed, away)
        text = tmp_path / f"{harmed}.log"
        eventually(lambda: "no such file" in text.read_text(), what="the missing log to be noticed")
        eventually(lambda: cluster.status(harmed)["peers_connected"] == [away], what="the link")
        assert cluster.status(harmed)["joining"]
        assert not leads(cluster, harmed)
        assert not leads(cluster, away)
        cluster.start(first)
        eventually(lambda: not cluster.status(harmed)["joining"], what="the node to count again")
        with cluster.client(harmed) as client:
            client.sync("/")
            assert all(client.exists(f"/k{number}") for number in range(100))
        cluster.assert_agreed()
    finally:
        cluster.kill()
