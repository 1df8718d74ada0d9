"""Ready means that a write would be accepted; a log that has disappeared is noticed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from coord.env_os import OsDisk
from coord.server.admin.readiness import CHECK_MS, STALL_MS, DirectoryGone, Readiness
from coord.storage.records import WriteBatch
from coord.storage.wal import Wal, open_wal
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import TICK_MS, Client, StoreNodes


def readiness_of(nodes: StoreNodes, i: int) -> Readiness:
    """Return the readiness of one node; its log is in memory, and its file is not checked."""
    wal: Any = None
    found = Readiness(nodes.nodes[i], wal, nodes.clock)
    found.check_log_file = lambda: None  # type: ignore[method-assign]
    return found


def run(nodes: StoreNodes, readiness: Readiness, ms: int) -> None:
    """Let time pass."""
    for _ in range(ms // TICK_MS + 1):
        nodes.run(1)
        readiness.tick()


def full(name: str) -> None:
    """Raise the error of a full disk."""
    if name in ("write", "create"):
        raise OSError(errno.ENOSPC, "no room")


def create(path: bytes) -> bytes:
    """A create request."""
    return records.encode_create(CreateRequest(op.OP_CREATE, path, b"", OPEN_ACL, 0))


def test_a_lone_node_with_a_full_disk_is_not_ready() -> None:
    """No client could open a session there, but /ready was 200."""
    nodes = StoreNodes(1)
    node = nodes.leader()
    readiness = readiness_of(nodes, 1)
    run(nodes, readiness, STALL_MS)
    assert readiness.why_not() == ""
    client = nodes.client(node)
    nodes.disks[1].on_call = full
    client.request(1, op.OP_CREATE, create(b"/a"))
    nodes.settle()
    assert "disk full" in readiness.why_not()
    nodes.disks[1].on_call = lambda name: None
    client.request(2, op.OP_CREATE, create(b"/b"))
    nodes.run(2)
    readiness.tick()
    assert client.xids() == [1, 2]
    assert readiness.why_not() == ""


def test_a_node_whose_writes_wait_is_not_ready() -> None:
    """For any reason: here the acknowledgments of the others are missing."""
    nodes = StoreNodes(3)
    node = nodes.leader()
    own = node.settings.node_id
    other = next(i for i in nodes.ids() if i != own)
    readiness, others = readiness_of(nodes, own), readiness_of(nodes, other)
    client = nodes.client(nodes.nodes[other])
    for i in nodes.ids():
        if i != own:
            nodes.disks[i].on_call = full
    nodes.disks[own].on_call = full
    client.request(1, op.OP_CREATE, create(b"/a"))
    for _ in range(STALL_MS // TICK_MS + 2):
        nodes.run(1)
        readiness.tick()
        others.tick()
    assert readiness.why_not() != ""
    assert others.why_not() != ""
    for i in nodes.ids():
        nodes.disks[i].on_call = lambda name: None
    client.request(2, op.OP_CREATE, create(b"/b"))
    run(nodes, others, 20 * TICK_MS)
    assert client.xids() == [1, 2]
    assert others.why_not() == ""


def test_a_session_that_has_just_been_asked_for_is_no_write_that_waits() -> None:
    """A command to open a session carries the time of its arrival, like every other command."""
    nodes = StoreNodes(3)
    node = nodes.leader()
    readiness = readiness_of(nodes, node.settings.node_id)
    run(nodes, readiness, 2 * STALL_MS)
    Client(node, nodes.clock).connect()
    assert len(node.proposals.waiting) == 1
    readiness.tick()
    assert readiness.why_not() == ""


def test_without_a_leader_nobody_is_ready() -> None:
    """Unchanged."""
    nodes = StoreNodes(3)
    node = nodes.follower()
    readiness = readiness_of(nodes, node.settings.node_id)
    for i in nodes.ids():
        if i != node.settings.node_id:
            nodes.crash(i)
    nodes.run(50)
    assert readiness.why_not() == "no leader"


class _Idle:
    """The attributes of a node that `tick` reads when there is nothing to do."""

    def __init__(self) -> None:
        self.core = self
        self.log = self
        self.commit = self.last = 0
        self.leadership = None


class _Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


def written(wal: Wal) -> None:
    """Write one more record."""
    batch = WriteBatch()
    batch.set_hard_state(1, 1)
    wal.write([batch])


@pytest.mark.parametrize("harm", ["removed", "moved", "replaced"])
def test_a_directory_that_goes_is_noticed(tmp_path: Path, harm: str) -> None:
    """Within two checks. The end of a segment is not a reason for alarm."""
    folder = tmp_path / "data"
    folder.mkdir()
    wal, _ = open_wal(OsDisk(folder), "wal", segment_bytes=300)
    clock, idle = _Clock(), _Idle()
    node: Any = idle
    readiness = Readiness(node, wal, clock)

    def look() -> None:
        clock.now_ms += CHECK_MS
        readiness.tick()

    for _ in range(20):
        written(wal)
        look()
    assert wal.segment_count() > 1
    path = Path(wal.newest_path())
    if harm == "removed":
        path.unlink()
    elif harm == "moved":
        os.rename(folder, tmp_path / "elsewhere")
    else:
        content = path.read_bytes()
        path.rename(tmp_path / "old")
        path.write_bytes(content)
    with pytest.raises(DirectoryGone, match=path.name):
        look()
