"""Bugs that the simulation has found, each as the shortest history that shows it."""

from __future__ import annotations

import errno
from collections import deque

import pytest

from coord.server.membership.joining import Joining
from coord.server.peers import codec
from coord.storage.records import WriteBatch
from coord.storage.segments import SyncFailed
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import open_wal
from coord.wire import opcodes as op
from coord.wire import records
from simulation.engine.chance import SeededRandom
from simulation.engine.disk import SimDisk
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import TICK_MS, Client, SeededRng, StoreNodes

PATH = b"/x"


def _batch(index: int) -> WriteBatch:
    batch = WriteBatch()
    batch.add_entry(1, index, 0, b"entry %d" % index)
    return batch


def _set(client: Client, xid: int, data: bytes) -> None:
    client.request(xid, op.OP_SET_DATA, records.encode_set_data(PATH, data, -1))


def _with_znode() -> tuple[StoreNodes, Client]:
    """Return three nodes, and a client on a follower that has created a znode."""
    nodes = StoreNodes(3)
    client = nodes.client(nodes.follower())
    create = records.CreateRequest(op.OP_CREATE, PATH, b"old", records.OPEN_ACL, 0)
    client.request(1, op.OP_CREATE, records.encode_create(create))
    nodes.settle()
    client.replies()
    client.frames.clear()
    return nodes, client


def test_neither_a_sync_nor_the_reads_behind_it_see_later_writes() -> None:
    """sync, get, set at once: the set must not overtake the others, and no answer has a lower zxid than an earlier
    one."""
    nodes, client = _with_znode()
    client.request(2, op.OP_SYNC, records.encode_path(PATH))
    client.request(3, op.OP_GET_DATA, records.encode_path_watch(PATH, False))
    _set(client, 4, b"new")
    nodes.settle()
    replies = client.replies()
    assert [reply[0] for reply in replies] == [2, 3, 4]
    assert replies[1][3][4:7] == b"old"
    assert replies[0][1] <= replies[1][1] < replies[2][1]


def test_a_client_that_goes_is_heard_of_to_its_last_word() -> None:
    """A ping and then the end of the connection, between two ticks: the ping counts."""
    nodes = StoreNodes(1)
    client = nodes.client(nodes.leader())
    pipeline = nodes.leader().pipeline
    pipeline.clients.take_active()
    client.request(records.XID_PING, op.OP_PING)
    pipeline.clients.connection_lost(client.connection)
    assert pipeline.clients.take_active() == [client.connection.session_id]


def test_a_record_whose_sync_failed_is_durable_once_a_restart_has_taken_it_up() -> None:
    """After a failed sync the pages count as written, so a process that reads the record back must write it again."""
    for seed in range(20):
        now = [0]
        disk = SimDisk("disk", SeededRandom(seed), lambda: now[0])  # noqa: B023
        wal, _ = open_wal(disk, "wal")
        wal.write([_batch(1)])
        disk.failures["sync"] = (errno.EIO, 1)
        with pytest.raises(SyncFailed):
            wal.write([_batch(2)])
        disk.killed()
        wal, found = open_wal(disk, "wal")
        assert found.last_index() == 2
        wal.write([_batch(3)])
        disk.power_cut()
        assert open_wal(disk, "wal")[1].last_index() == 3


def test_names_that_a_restart_found_are_durable() -> None:
    """A process dies between creating or renaming a file and syncing the folder; its successor uses the file."""
    for seed in range(20):
        disk = SimDisk("disk", SeededRandom(seed), lambda: 0)
        wal, _ = open_wal(disk, "wal", segment_bytes=1)
        snapshots = Snapshots(disk, "snap")
        disk.failures["sync_folder"] = (errno.EIO, 2)
        with pytest.raises(SyncFailed, match="injected"):
            wal.write([_batch(1)])
        with pytest.raises(OSError, match="injected"):
            snapshots.write(SnapshotMeta(1, 1, b""), [b"state"])
        disk.killed()
        wal, _ = open_wal(disk, "wal", segment_bytes=10_000)
        wal.write([_batch(1)])
        assert len(Snapshots(disk, "snap").names()) == 1
        disk.power_cut()
        assert open_wal(disk, "wal")[1].last_index() == 1
        assert len(Snapshots(disk, "snap").names()) == 1


def test_requests_that_came_before_their_session_see_nothing_before_its_events() -> None:
    """An early read sets a watch; a later write in the same group, after the session's start, changes the watched
    znode."""
    nodes, writer = _with_znode()
    early = Client(writer.node, nodes.clock)
    early.connect()
    early.request(1, op.OP_GET_DATA, records.encode_path_watch(PATH, True))
    _set(writer, 2, b"new")
    nodes.settle()
    (read,) = early.replies()
    assert read[0] == 1
    assert read[3][4:7] == b"new"
    _set(writer, 3, b"newer")
    nodes.settle()
    assert [reply[0] for reply in early.replies()] == [1, records.XID_NOTIFICATION]


def test_a_node_that_has_voted_has_not_lost_its_disk() -> None:
    """The first leader has a log; its voters died before they received any of it. They must vote again, because
    otherwise there is no leader."""
    voter, wiped = StoreNodes(3).nodes[1], StoreNodes(3).nodes[1]
    voter.core.term = 1
    for node in (voter, wiped):
        node.joining = Joining(MemoryDisk(), SeededRng(1))  # a process that has met nobody yet
    for node in (voter, wiped):
        node.peer_introduced(2, True)
    assert not voter.joining.is_joining
    assert wiped.joining.is_joining


def test_a_crash_while_the_log_is_pruned_leaves_no_gap() -> None:
    """Unsynced removals may be lost one by one, so the older ones have to be durable first."""
    for seed in range(40):
        disk = SimDisk("disk", SeededRandom(seed), lambda: 0)
        wal, _ = open_wal(disk, "wal", segment_bytes=1)
        for index in range(1, 8):
            wal.write([_batch(index)])
        disk.failures["sync_folder"] = (errno.EIO, 1)
        with pytest.raises(SyncFailed):
            wal.prune(6)
        disk.power_cut()
        assert open_wal(disk, "wal")[1].last_index() == 7


def test_a_snapshot_whose_receipt_is_lost_is_not_waited_for_for_ever() -> None:
    """The leader's link to a node works and the way back does not: the state arrives, the answer never does."""
    nodes = StoreNodes(3, snapshot_entries=5, keep_entries=0)
    leader = nodes.leader()
    lead = leader.settings.node_id
    late = nodes.follower().settings.node_id
    nodes.crash(late)
    client = nodes.client(leader)
    for xid in range(1, 21):
        create = records.CreateRequest(op.OP_CREATE, b"/n%d" % xid, b"", records.OPEN_ACL, 0)
        client.request(xid, op.OP_CREATE, records.encode_create(create))
        nodes.settle()
    nodes.run(2)
    nodes.start(late)
    for _ in range(200):
        if codec.CHUNK in [frame[4] for frame in nodes.queues[lead, late]]:
            break
        if not nodes.turn():
            nodes.clock.now_ms += TICK_MS
            leader.tick()
    del nodes.queues[late, lead]
    nodes.settle()
    behind = nodes.nodes[late]
    assert behind.applied_index > 0
    nodes.queues[late, lead] = deque()
    leader.peer_introduced(late, True)
    behind.peer_connected(lead)
    client.request(21, op.OP_CREATE, records.encode_create(records.CreateRequest(1, b"/end", b"", records.OPEN_ACL, 0)))
    nodes.run(10)
    assert behind.applied_index == leader.applied_index
