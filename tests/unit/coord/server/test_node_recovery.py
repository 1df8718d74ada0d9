"""Whole nodes, in memory: restarts, snapshots, full and failing disks, wiped disks, power cuts."""

from __future__ import annotations

import errno

import pytest

from coord.errors import OK
from coord.server.peers import codec
from coord.wire import opcodes as op
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import StoreNodes
from tests.unit.coord.server.node_requests import agree, create, value


def test_a_power_cut_of_all_nodes_keeps_every_acknowledged_write() -> None:
    """The power fails on all nodes at once."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(leader)
    for xid in range(1, 31):
        client.request(xid, op.OP_CREATE, create(b"/k%d" % xid))
        nodes.turn()
    acknowledged = set(client.xids())
    assert acknowledged
    for i in nodes.ids():
        nodes.crash(i)
    for i in nodes.ids():
        nodes.start(i)
    nodes.leader()
    nodes.run(5)
    agree(nodes)
    assert all(value(nodes, 1, b"/k%d" % xid) is not None for xid in acknowledged)


def test_a_lagging_node_catches_up_by_a_snapshot() -> None:
    """The leader's log begins too late: state, sessions and digest are sent in chunks."""
    nodes = StoreNodes(3, snapshot_entries=20, keep_entries=5)
    leader = nodes.leader()
    behind = next(i for i in nodes.ids() if i != leader.settings.node_id)
    nodes.crash(behind)
    client = nodes.client(leader)
    for xid in range(1, 81):
        client.request(xid, op.OP_CREATE, create(b"/k%d" % xid, b"x" * 10_000))
        nodes.run(1)
        client.request(-2, op.OP_PING)
    assert leader.snapshot_policy.index > 20
    nodes.start(behind)
    nodes.run(20)
    assert nodes.nodes[behind].snapshot_policy.index > 20
    agree(nodes)
    nodes.crash(behind)
    nodes.start(behind)
    nodes.run(20)
    agree(nodes)


def test_the_log_is_pruned_below_snapshots_and_a_restart_uses_them() -> None:
    """Old segments are removed; the state comes from the snapshot and the rest of the log."""
    nodes = StoreNodes(1, snapshot_entries=20, keep_entries=5)
    node = nodes.leader()
    client = nodes.client(node, timeout_ms=10_000)
    for xid in range(1, 101):
        client.request(xid, op.OP_CREATE, create(b"/k%d" % xid, b"x" * 5000))
        nodes.run(1)
    before = node.machine.digest()
    assert len(nodes.disks[1].names("snap")) == 2
    assert node.core.log.offset > 0
    nodes.crash(1)
    again = nodes.start(1)
    nodes.leader()
    assert again.snapshot_policy.index > 50
    assert (again.machine.digest(), len(again.machine.tree.nodes)) == (before, len(node.machine.tree.nodes))


def test_the_log_in_memory_is_bounded_by_bytes_also_after_a_restart() -> None:
    """Few large entries: their number alone would keep all of them. (A node without peers keeps none.)"""
    nodes = StoreNodes(3, snapshot_entries=20, keep_entries=1000, keep_bytes=12_000)
    node = nodes.leader()
    client = nodes.client(node, timeout_ms=10_000)
    for xid in range(1, 51):
        client.request(xid, op.OP_CREATE, create(b"/k%d" % xid, b"x" * 5000))
        nodes.run(1)
    kept = node.core.log.snapshot.index - node.core.log.offset
    assert 0 < kept <= 2
    nodes.crash(node.settings.node_id)
    again = nodes.start(node.settings.node_id)
    assert 0 < again.core.log.snapshot.index - again.core.log.offset <= 2


def test_a_full_disk_on_a_follower_rejects_no_write() -> None:
    """The others continue; the follower catches up when there is room."""
    nodes = StoreNodes(3)
    leader, follower = nodes.leader(), nodes.follower()
    client = nodes.client(leader)
    disk = nodes.disks[follower.settings.node_id]
    disk.failures["write"] = errno.ENOSPC
    client.request(1, op.OP_CREATE, create(b"/a"))
    nodes.run(3)
    assert client.xids() == [1]
    assert follower.is_full
    disk.failures.clear()
    client.request(2, op.OP_CREATE, create(b"/b"))
    nodes.run(3)
    assert not follower.is_full
    agree(nodes)


def test_a_full_disk_on_the_leader_moves_leadership() -> None:
    """Another node leads; clients keep their connections and lose nothing."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(leader)
    nodes.disks[leader.settings.node_id].failures["write"] = errno.ENOSPC
    client.request(1, op.OP_CREATE, create(b"/a"))
    nodes.run(10)
    nodes.disks[leader.settings.node_id].failures.clear()
    nodes.run(30)
    assert nodes.leader() is not leader or not leader.is_full
    assert client.xids() == [1]
    agree(nodes)


def test_a_failed_sync_stops_the_node() -> None:
    """The disk's content is unknown: no acknowledgment follows."""
    nodes = StoreNodes(1)
    node = nodes.leader()
    client = nodes.client(node)
    nodes.disks[1].failures["sync"] = errno.EIO
    client.request(1, op.OP_CREATE, create(b"/a"))
    node.turn_end()
    assert node.failure is not None
    assert client.xids() == []


def wipe(nodes: StoreNodes, node_id: int) -> None:
    """Replace the node's disk by an empty one."""
    nodes.crash(node_id)
    nodes.disks[node_id] = MemoryDisk()


def test_a_wiped_node_serves_again_and_votes_once_it_has_caught_up() -> None:
    """The leader sends it everything; until then it is marked as joining, also after restarts."""
    nodes = StoreNodes(3)
    leader, follower = nodes.leader(), nodes.follower()
    client = nodes.client(leader, timeout_ms=10_000)
    for xid in range(1, 30):
        client.request(xid, op.OP_CREATE, create(b"/k%d" % xid))
    nodes.settle()
    wiped = follower.settings.node_id
    wipe(nodes, wiped)
    assert nodes.start(wiped).joining.is_joining
    nodes.crash(wiped)
    assert nodes.start(wiped).joining.is_joining
    nodes.run(20)
    assert not nodes.nodes[wiped].joining.is_joining
    agree(nodes)


def test_a_wiped_node_does_not_vote_for_a_candidate_that_lacks_its_acknowledged_writes() -> None:
    """A write on the disks of the leader and the wiped node survives the wipe and the leader's absence."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    others = [i for i in nodes.ids() if i != leader.settings.node_id]
    lagging, wiped = others
    nodes.cut(leader.settings.node_id, lagging)
    nodes.cut(wiped, lagging)
    client = nodes.client(leader, timeout_ms=10_000)
    client.request(1, op.OP_CREATE, create(b"/precious"))
    nodes.run(2)
    assert client.xids() == [1]
    wipe(nodes, wiped)
    nodes.crash(leader.settings.node_id)
    nodes.start(wiped)
    nodes.run(200)
    assert all(node.core.leadership is None for node in nodes.nodes.values())
    nodes.start(leader.settings.node_id)
    nodes.run(100)
    agree(nodes)
    assert all(value(nodes, i, b"/precious") == b"" for i in nodes.ids())


class PowerCut(Exception):  # noqa: N818
    """Raised when a machine loses power."""


def cut_power_at(nodes: StoreNodes, node_id: int, calls: int) -> None:
    """Let every disk call of this node from the `calls`-th on raise PowerCut."""
    left = calls

    def count(name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCut(name)

    nodes.disks[node_id].on_call = count


@pytest.mark.parametrize("first", range(6))
def test_a_power_cut_at_any_disk_call_loses_no_acknowledged_write(first: int) -> None:
    """In log, rotation, snapshot or installation: the node comes back, and all replicas are equal."""
    for calls in range(first, 90, 6):
        nodes = StoreNodes(3, seed=calls, snapshot_entries=8, keep_entries=2)
        nodes.leader()
        victim = calls % 3 + 1
        writer = nodes.client(nodes.nodes[victim % 3 + 1], timeout_ms=10_000)
        cut_power_at(nodes, victim, calls)
        asked = 0
        for _ in range(40):
            if asked < 60:
                writer.request(asked, op.OP_CREATE, create(b"/k%d" % asked, b"x" * 3000))
                asked += 1
            try:
                nodes.run(1)
                stopped = nodes.nodes[victim].failure is not None
            except (PowerCut, AssertionError):
                stopped = True
            if stopped:
                nodes.crash(victim)
                nodes.run(6)
                nodes.start(victim)
        for node_id in nodes.ids():
            nodes.disks[node_id].on_call = lambda name: None
        nodes.run(60)
        agree(nodes)
        acknowledged = [reply[0] for reply in writer.replies() if reply[0] >= 0 and reply[2] == OK]
        assert all(value(nodes, 1, b"/k%d" % xid) is not None for xid in acknowledged), f"calls {calls}"


def test_a_command_covered_by_an_installed_snapshot_is_not_sent_again() -> None:
    """It cannot be distinguished from a lost command: the client gets no answer, only the end of its connection."""
    nodes = StoreNodes(3, snapshot_entries=20, keep_entries=2, leader_absence_ms=600_000)
    leader, follower = nodes.leader(), nodes.follower()
    behind = follower.settings.node_id
    client = nodes.client(follower, timeout_ms=10_000)
    other = nodes.client(leader, timeout_ms=10_000)
    client.request(1, op.OP_CREATE, create(b"/s-", flags=2))
    follower.turn_end()
    queue = nodes.queues[(behind, leader.settings.node_id)]
    while queue:
        frame = queue.popleft()
        leader.peer_frame(behind, 1, frame[4], frame, 5, len(frame))
    for i in nodes.ids():
        if i != behind:
            nodes.cut(behind, i)
    for xid in range(1, 60):
        other.request(xid, op.OP_CREATE, create(b"/k%d" % xid))
        nodes.run(1)
    assert client.is_open
    assert follower.proposals.outstanding() == 1
    for i in nodes.ids():
        if i != behind:
            nodes.join(behind, i)
    nodes.run(60)
    assert follower.snapshot_policy.index > 0
    assert not client.is_open
    assert client.xids() == []
    nodes.crash(leader.settings.node_id)
    nodes.run(60)
    agree(nodes)
    assert len([path for path in follower.machine.tree.nodes if path.startswith(b"/s-")]) == 1


def test_commands_after_an_installed_snapshot_are_answered() -> None:
    """Commands sent to the leader before the snapshot are forgotten; their numbers are not used again."""
    for reaches in (True, False):
        nodes = StoreNodes(3, snapshot_entries=4, keep_entries=0)
        leader = nodes.leader().settings.node_id
        behind = nodes.follower().settings.node_id
        waiting = nodes.client(nodes.nodes[behind])
        nodes.cut(leader, behind)
        writer = nodes.client(nodes.nodes[leader])
        for k in range(12):
            writer.request(k, op.OP_CREATE, create(b"/n%d" % k))
            nodes.settle()
        nodes.run(1)
        assert nodes.nodes[leader].snapshot_policy.index > nodes.nodes[behind].applied_index
        waiting.request(1, op.OP_CREATE, create(b"/sent"))
        nodes.join(leader, behind)
        for _ in range(40):
            nodes.clock.now_ms += 50
            for node in nodes.nodes.values():
                node.tick()
                node.turn_end()
            if not reaches:
                queue = nodes.queues[behind, leader]
                kept = [frame for frame in queue if frame[4] != codec.FORWARD]
                queue.clear()
                queue.extend(kept)
            nodes.turn()
            if not waiting.is_open:
                break
        assert not waiting.is_open, "the state was not taken over"
        later = nodes.client(nodes.nodes[behind])
        later.request(2, op.OP_CREATE, create(b"/later"))
        nodes.run(2)
        assert [r[2] for r in later.replies()] == [OK]
        agree(nodes)
