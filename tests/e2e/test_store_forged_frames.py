"""Forged frames to an open peer port, in the name of a node, cost connections, but never a node or its disk."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.env_os import OsDisk
from coord.peers import framing
from coord.raft.membership import Configuration
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    COMMIT,
    HEARTBEAT,
    HEARTBEAT_RESP,
    NOOP,
    PRE_VOTE,
    READ_INDEX_RESP,
    SNAPSHOT,
    TIMEOUT_NOW,
    VOTE,
    Entry,
    Message,
    RaftSnapshot,
)
from coord.server.config.settings import StoreSettings
from coord.server.peers import hello_frames, raft_frames
from coord.storage.records import WriteBatch
from coord.storage.wal import open_wal
from coord.tree.levels import SUPPORTED
from tests.e2e.clusters import run_rk
from tests.e2e.test_store_cluster import Cluster
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

NAME = "forged"
#: More elections than this test can cause by real means.
TERM_MAX = 1 << 20


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Yield three nodes without secret or certificates."""
    cluster = Cluster(folder, options=("--cluster", NAME))
    cluster.start()
    try:
        cluster.leader()
        yield cluster
    finally:
        cluster.kill()


def send(cluster: Cluster, node: int, hello: hello_frames.Hello, frames: bytes) -> None:
    """Send a hello to a node, then `frames`, and wait until the node closes or answers."""
    with socket.create_connection(("127.0.0.1", cluster.peer_ports[node]), 10) as sock:
        sock.sendall(hello_frames.encode_hello(hello))
        sock.settimeout(30)
        if not frames:
            with contextlib.suppress(OSError):
                sock.recv(4096)
            return
        answer = sock.recv(4096)
        assert answer[4] == framing.HELLO, answer
        with contextlib.suppress(OSError):
            sock.sendall(frames)
            # After an accepted frame the connection stays open, or the next hello in this name closes it.
            sock.settimeout(0.3)
            sock.recv(4096)


def identity() -> bytes:
    """Return the id of the cluster, which every peer port discloses."""
    return StoreSettings(1, Path(), ("", 1), cluster=NAME).cluster_id()


def forged(src: int, dst: int, term: int) -> Iterator[Message]:
    """Return messages that no node sends, in a term in which the receiver leads or follows, and far beyond."""
    meta = RaftSnapshot(1, 1, Configuration([1, 2, 3]), "0000000000000009-0000000000000002.snap")
    for high in ((1 << 63) - 2, 1 << 62, (1 << 62) - 1, (1 << 32) + 100):
        for kind in range(PRE_VOTE, READ_INDEX_RESP + 1):
            snapshot = meta if kind == SNAPSHOT else None
            yield Message(kind, src, dst, high, match_index=1, granted=True, snapshot=snapshot)
            yield Message(kind, src, dst, high, high - 1, high - 1, snapshot=snapshot)
    for kind in (APPEND, HEARTBEAT, COMMIT):
        yield Message(kind, src, dst, term)
    yield Message(APPEND, src, dst, term, 1, 1, entries=[Entry(1, 9, 0, b"")])
    yield Message(APPEND, src, dst, term, entries=[Entry(term, 1, 7, b"")])
    yield Message(APPEND_RESP, src, dst, term, match_index=1 << 40, granted=True)
    yield Message(HEARTBEAT_RESP, src, dst, term, context=1 << 50)
    yield Message(0, src, dst, term)
    yield Message(99, src, dst, term)


def alive(cluster: Cluster) -> None:
    """Check that all processes run, in a term that an election or two explain."""
    for node, process in cluster.processes.items():
        assert process.poll() is None, (cluster.folder / f"{node}.log").read_text()[-3000:]
        assert cluster.status(node)["term"] < TERM_MAX


def test_forged_frames_cost_connections_only(tmp_path: Path) -> None:
    """One such frame could once stop a leader; another could ruin every directory for good."""
    with running(tmp_path) as cluster:
        with cluster.client() as client:
            client.create("/before", b"kept")
        leader = cluster.leader()
        for node in (leader, leader % 3 + 1):
            src = next(i for i in cluster.ids if i not in (leader, node))
            term = cluster.status(node)["term"]
            hello = hello_frames.Hello(identity(), src, node, 4711, True, supported=SUPPORTED)
            for message in forged(src, node, term):
                with contextlib.suppress(OverflowError, ValueError):
                    send(cluster, node, hello, raft_frames.encode_raft(message))
                assert cluster.processes[node].poll() is None, repr((message.kind, message.term))
            # This frame asks the node to stand for election, which is allowed: the cluster finds a leader again.
            send(cluster, node, hello, raft_frames.encode_raft(Message(TIMEOUT_NOW, src, node, term)))
            send(cluster, node, hello, raft_frames.encode_raft(Message(VOTE, src, node, term + 5)))
        eventually(cluster.leader, what="a leader")
        alive(cluster)
        with cluster.client() as client:
            assert client.get("/before")[0] == b"kept"
            client.create("/after", b"kept")
        cluster.kill()
        cluster.start()
        cluster.leader()
        with cluster.client() as client:
            assert client.get("/after")[0] == b"kept"
        alive(cluster)


def test_hellos_with_impossible_numbers_cost_connections_only(tmp_path: Path) -> None:
    """Port 99999 once stopped a node; and unknown ids were dialed forever."""
    with running(tmp_path) as cluster:
        for address in ("127.0.0.1:99999", "127.0.0.1:0", ":1", "127.0.0.1:1"):
            for config in (1 << 61, 1 << 62, (1 << 64) - 1):
                for src in (9, 1 << 62, (1 << 63) + 1):
                    send(
                        cluster,
                        1,
                        hello_frames.Hello(
                            identity(), src, 1, 1, True, config=config, address=address, supported=SUPPORTED
                        ),
                        b"",
                    )
        for src in range(20, 40):
            send(
                cluster,
                1,
                hello_frames.Hello(
                    identity(), src, 1, 1, True, config=1 << 61, address="127.0.0.1:1", supported=SUPPORTED
                ),
                b"",
            )
        alive(cluster)
        log = (tmp_path / "1.log").read_text()
        assert "nodes outside of this node's configuration have links already" in log
        with cluster.client(1) as client:
            client.create("/after", b"kept")


def test_a_ruined_directory_comes_back_by_backup_and_restore(tmp_path: Path) -> None:
    """An older build has accepted a forged term into the directory: no node starts on it, and nothing is lost."""
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "file"
    old.mkdir()
    new.mkdir()
    cluster = Cluster(old, count=1)
    cluster.start()
    try:
        cluster.leader()
        with cluster.client() as client:
            client.create("/kept", b"data")
        running_node = run_rk("coord", "backup", str(old / "n1"), str(file))
        assert running_node.returncode == 1
        assert "in use by a running node" in running_node.stderr
        assert cluster.stop() == [0]
        wal, found = open_wal(OsDisk(old / "n1"), "wal")
        batch = WriteBatch()
        batch.set_hard_state((1 << 63) - 2, 0)
        batch.add_entry((1 << 63) - 2, found.last_index() + 1, NOOP, b"")
        wal.write([batch])
        wal.close()
        cluster.start()
        assert cluster.processes.pop(1).wait(60) == 1
        assert "rk coord backup DIR FILE" in (old / "1.log").read_text().splitlines()[-1]
    finally:
        cluster.kill()
    done = run_rk("coord", "backup", str(old / "n1"), str(file))
    assert done.returncode == 0, done.stderr
    assert "committed: all of it" in done.stdout
    done = run_rk("coord", "backup", str(old / "n1"), str(file))
    assert done.returncode == 1
    assert "already exists" in done.stderr
    done = run_rk("coord", "restore", str(file), "--data-dir", str(new / "n1"))
    assert done.returncode == 0, done.stderr
    cluster = Cluster(new, count=1)
    cluster.start()
    try:
        cluster.leader()
        with cluster.client() as client:
            assert client.get("/kept")[0] == b"data"
            client.create("/after", b"")
    finally:
        cluster.kill()
