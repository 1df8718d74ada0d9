"""Real nodes on real disks that are full, damaged or tampered with."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest

from coord.env_os import OsDisk
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.tree.machine import StateMachine
from coord.tree.node import SetDataDelta
from tests.e2e.test_store_cluster import Cluster
from tests.support.helpers import eventually, finished
from tests.support.small_disk import fill, small_disk

pytestmark = pytest.mark.e2e

SMALL_DISK_MB = 6


def flip(path: Path, offset: int) -> None:
    """Flip one bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def health(cluster: Cluster, node: int) -> dict[str, object]:
    """Return the health page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.admin_ports[node]}/health", timeout=10) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def ready(cluster: Cluster, node: int) -> tuple[bool, str]:
    """Return the answer of the ready page, and its reason."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.admin_ports[node], timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        found = json.load(answer)
    assert (answer.status == http.client.OK) == found["ready"]
    return bool(found["ready"]), str(found["problem"])


@pytest.mark.parametrize("harm", ["removed", "moved"])
def test_a_data_directory_that_goes_ends_its_node(tmp_path: Path, harm: str) -> None:
    """Earlier the node accepted a thousand more writes, into files that could not be opened any more."""
    cluster = Cluster(tmp_path, count=1)
    cluster.start()
    try:
        cluster.leader()
        with cluster.client() as client:
            client.create("/before", b"x")
        if harm == "removed":
            shutil.rmtree(tmp_path / "n1")
        else:
            (tmp_path / "n1").rename(tmp_path / "elsewhere")
        process = cluster.processes[1]
        assert eventually(lambda: process.poll() is not None, what="the node to end")
        assert process.returncode == 1
        [line] = [line for line in (tmp_path / "1.log").read_text().splitlines() if "node 1 stops" in line]
        assert "does not exist any more: the data directory of this running node was removed or moved" in line
    finally:
        cluster.kill()


def test_full_disk_stops_writes_and_not_reads_and_passes(tmp_path: Path) -> None:
    """One node: requests that arrive while the disk is full are done when there is room, without a restart."""
    with small_disk(tmp_path / "n1", SMALL_DISK_MB) as folder:
        cluster = Cluster(tmp_path, count=1)
        cluster.start()
        try:
            cluster.leader()
            # Sessions are in the log, too: a new one would have to wait.
            with cluster.client() as reader, cluster.client() as client:
                client.create("/before", b"x")
                filler = fill(folder)
                waiting = [client.create_async(f"/big{number}", bytes(400_000)) for number in range(6)]
                eventually(lambda: cluster.status(1)["disk_full"], what="the disk to be found full")
                assert reader.get("/before")[0] == b"x"
                assert health(cluster, 1)["problem"] == "disk full: rejecting writes until there is space"
                assert ready(cluster, 1) == (False, "disk full: rejecting writes until there is space")
                assert "zk_disk_full\t1\n" in cluster.word(1, b"mntr")
                assert not all(each.ready() for each in waiting)
                filler.unlink()
                assert [each.get(timeout=60) for each in waiting] == [f"/big{number}" for number in range(6)]
            assert not cluster.status(1)["disk_full"]
            assert ready(cluster, 1) == (True, "")
            assert "disk full" in (tmp_path / "1.log").read_text()
            assert "the disk has space again" in (tmp_path / "1.log").read_text()
        finally:
            cluster.kill()


def test_log_damaged_in_the_middle_is_brought_by_the_others(tmp_path: Path) -> None:
    """The node names the damage, sets its log aside, and recovers everything from the others without an operator."""
    cluster = Cluster(tmp_path)
    cluster.start()
    try:
        leader = cluster.leader()
        with cluster.client() as client:
            for number in range(50):
                client.create(f"/k{number}", b"x" * 50)
        victim = next(node for node in cluster.ids if node != leader)
        cluster.kill(victim)
        [segment] = (tmp_path / f"n{victim}" / "wal").iterdir()
        flip(segment, 300)
        cluster.start(victim)
        eventually(lambda: not cluster.status(victim)["joining"], what="the node to have caught up")
        cluster.assert_agreed()
        text = (tmp_path / f"{victim}.log").read_text()
        assert f"moved the damaged log to {tmp_path / f'n{victim}' / 'damaged'}: {segment}: record at byte " in text
        assert (tmp_path / f"n{victim}" / "damaged" / segment.name).stat().st_size > 0
        assert "Traceback" not in text
    finally:
        cluster.kill()


def test_one_node_starts_on_a_log_whose_damage_its_snapshot_covers(tmp_path: Path) -> None:
    """Nothing is missing, so nothing has to be restored: the node names what it skipped, and starts twice."""
    cluster = Cluster(tmp_path, count=1, options=("--snapshot-entries", "50"))
    cluster.start()
    try:
        cluster.leader()
        with cluster.client() as client:
            for number in range(200):
                client.create(f"/k{number}", b"x" * 50)
        eventually(lambda: cluster.status(1)["snapshot_index"] > 90, what="a second snapshot")
        with cluster.client() as client:
            for number in range(5):
                client.create(f"/behind{number}")
        cluster.kill()
        directory = tmp_path / "n1"
        [segment] = (directory / "wal").iterdir()
        flip(segment, 3000)
        verify = [sys.executable, "-m", "cli", "coord", "verify", str(directory)]
        first = finished(verify, 120)
        assert first.returncode == 0, first.stdout + first.stderr
        assert f"{segment}: bytes " in first.stdout
        for _ in range(2):
            cluster.start()
            cluster.leader()
            with cluster.client() as client:
                assert len(client.get_children("/")) == 200 + 5 + 1  # and /zookeeper
                assert client.get("/k60")[0] == b"x" * 50
            assert cluster.stop() == [0]
        text = (tmp_path / "1.log").read_text()
        assert text.count("skipped damage in the log") == 1
        assert f"skipped damage in the log: {segment}: bytes " in text
        assert (directory / "damaged" / segment.name).stat().st_size > 0
        assert "Traceback" not in text
        again = finished(verify, 120)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "damaged" not in again.stdout
    finally:
        cluster.kill()


def test_replica_with_another_state_stops_and_says_so(tmp_path: Path) -> None:
    """In a snapshot one value was changed, with all checksums and the digest correct: only a comparison finds it."""
    cluster = Cluster(tmp_path, options=("--snapshot-entries", "20"))
    cluster.start()
    try:
        leader = cluster.leader()
        with cluster.client() as client:
            for number in range(60):
                client.create(f"/k{number}", b"x")
        victim = next(node for node in cluster.ids if node != leader)
        eventually(lambda: cluster.status(victim)["snapshot_index"] > 20, what="a snapshot")
        cluster.kill(victim)
        disk = OsDisk(tmp_path / f"n{victim}")
        snapshots = Snapshots(disk, "snap")
        reader = snapshots.open_named(snapshots.names()[0])
        meta = reader.meta
        machine = StateMachine.restore(reader.chunks())
        reader.close()
        machine.tree.apply(SetDataDelta(b"/k3", b"y", 0), machine.tree.nodes[b"/k3"].mzxid, 0, [])
        changed = SnapshotMeta(meta.index, meta.term, meta.config, meta.zxid, machine.digest())
        snapshots.write(changed, machine.snapshot_chunks())
        cluster.start(victim)
        process = cluster.processes.pop(victim)
        assert process.wait(timeout=60) == 1
        text = (tmp_path / f"{victim}.log").read_text()
        assert "the state of this node differs from the others: after entry" in text
        assert "Traceback" not in text
        with cluster.client(leader) as client:
            assert client.get("/k3")[0] == b"x"
            client.create("/goes-on")
        others = [node for node in cluster.ids if node != victim]
        assert any(
            f"node {victim} differs from the majority" in (tmp_path / f"{node}.log").read_text() for node in others
        )
        # The remedy that the log line names.
        shutil.rmtree(tmp_path / f"n{victim}")
        cluster.start(victim)
        cluster.assert_agreed()
    finally:
        cluster.kill()
