"""Whole nodes, in memory: writes, reads, failover, sessions, snapshots, disk faults."""

from __future__ import annotations

import errno

import pytest

from coord.errors import NO_NODE, OK, SESSION_EXPIRED, SESSION_MOVED
from coord.raft.messages import APPEND
from coord.server.clients.connection import Limits
from coord.server.peers import codec, raft_frames
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import Client, StoreNodes


def create(path: bytes, data: bytes = b"", flags: int = 0) -> bytes:
    """Body of a create."""
    return records.encode_create(CreateRequest(op.OP_CREATE, path, data, OPEN_ACL, flags))


def set_data(path: bytes, data: bytes, version: int = -1) -> bytes:
    """Body of a setData."""
    return records.encode_set_data(path, data, version)


def get(path: bytes, watch: bool = False) -> bytes:
    """Body of a getData."""
    return records.encode_path_watch(path, watch)


def value(nodes: StoreNodes, node_id: int, path: bytes) -> bytes | None:
    """What one node's tree holds."""
    found = nodes.nodes[node_id].machine.tree.nodes.get(path)
    return found.data if found is not None else None


def agree(nodes: StoreNodes) -> None:
    """All replicas hold the same."""
    states = {(n.machine.last_zxid, n.machine.digest()) for n in nodes.nodes.values()}
    assert len(states) == 1, states


@pytest.fixture(params=[1, 3])
def nodes(request: pytest.FixtureRequest) -> StoreNodes:
    """One node alone, and three."""
    return StoreNodes(request.param)


def test_write_is_answered_and_replicated(nodes: StoreNodes) -> None:
    """Through any node."""
    nodes.leader()
    for i in nodes.ids():
        client = nodes.client(nodes.nodes[i])
        client.request(1, op.OP_CREATE, create(b"/n%d" % i, b"x"))
        nodes.settle()
        assert [r[:1] + r[2:3] for r in client.replies()] == [(1, OK)]
    nodes.run(3)
    agree(nodes)
    assert all(value(nodes, i, b"/n1") == b"x" for i in nodes.ids())


def test_session_sees_its_own_writes(nodes: StoreNodes) -> None:
    """Reads behind a write of the same session wait for it; replies keep the order of the requests."""
    nodes.leader()
    client = nodes.client(nodes.nodes[1])
    client.request(1, op.OP_CREATE, create(b"/a", b"1"))
    client.request(2, op.OP_GET_DATA, get(b"/a"))
    client.request(3, op.OP_SET_DATA, set_data(b"/a", b"2"))
    client.request(4, op.OP_GET_DATA, get(b"/a"))
    client.request(5, op.OP_SYNC, records.encode_path(b"/a"))
    client.request(6, op.OP_GET_DATA, get(b"/missing"))
    client.request(7, op.OP_SET_DATA, set_data(b"/a", b"3"))
    nodes.settle()
    replies = client.replies()
    assert [r[0] for r in replies] == [1, 2, 3, 4, 5, 6, 7]
    assert [r[2] for r in replies] == [OK, OK, OK, OK, OK, NO_NODE, OK]
    assert records.decode_data_reply(replies[1][3], 0, len(replies[1][3]))[0] == b"1"
    assert records.decode_data_reply(replies[3][3], 0, len(replies[3][3]))[0] == b"2"


def test_ping_is_answered_in_front_of_waiting_requests() -> None:
    """A ping says that the server lives."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(leader)
    for i in nodes.ids():
        if i != leader.settings.node_id:
            nodes.cut(i, leader.settings.node_id)
    client.request(1, op.OP_CREATE, create(b"/a"))
    client.request(-2, op.OP_PING)
    nodes.turn()
    assert client.xids() == [-2]


def test_event_precedes_the_reply_and_later_data(nodes: StoreNodes) -> None:
    """A watcher hears of a change before it can see it, also of its own."""
    nodes.leader()
    client = nodes.client(nodes.nodes[1])
    client.request(1, op.OP_CREATE, create(b"/a"))
    client.request(2, op.OP_GET_DATA, get(b"/a", watch=True))
    client.request(3, op.OP_SET_DATA, set_data(b"/a", b"2"))
    client.request(4, op.OP_GET_DATA, get(b"/a"))
    nodes.settle()
    assert client.xids() == [1, 2, -1, 3, 4]


def test_unknown_operation_is_answered_then_closed(nodes: StoreNodes) -> None:
    """As ZooKeeper does, behind what waits in front."""
    nodes.leader()
    client = nodes.client(nodes.nodes[1])
    client.request(1, op.OP_CREATE, create(b"/a"))
    client.request(2, 77)
    client.request(3, op.OP_GET_DATA, get(b"/a"))
    nodes.settle()
    assert [(r[0], r[2]) for r in client.replies()] == [(1, OK), (2, -6)]
    assert not client.is_open


def test_back_pressure_stops_reading_and_resumes() -> None:
    """Not more requests of one client than the bound wait."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    leader.pipeline.limits.outstanding_max = 10
    client = nodes.client(leader)
    for xid in range(1, 11):
        client.request(xid, op.OP_CREATE, create(b"/n%d" % xid))
    assert not client.is_reading
    nodes.settle()
    assert client.is_reading
    assert len(client.xids()) == 10


def test_answers_that_nobody_takes_stop_the_answering() -> None:
    """However many large reads are asked for at once; they are answered in order as the client takes them."""
    nodes = StoreNodes(1)
    leader = nodes.leader()
    leader.pipeline.limits.output_bytes_max = 100_000
    client = nodes.client(leader)
    client.request(1, op.OP_CREATE, create(b"/big", b"x" * 50_000))
    nodes.settle()
    client.replies()
    requests = [records.encode_request_frame(xid, op.OP_GET_DATA, get(b"/big")) for xid in range(2, 52)]
    size = len(requests[0])
    leader.pipeline.receive(
        client.connection, b"".join(requests), [(size * i + 4, size * (i + 1)) for i in range(len(requests))]
    )
    client.request(52, op.OP_SET_DATA, set_data(b"/big", b"new"))
    client.request(53, op.OP_GET_DATA, get(b"/big"))
    assert not client.is_reading
    assert sum(map(len, client.output)) < 300_000
    for _ in range(40):
        client.replies()
        leader.pipeline.drained(client.connection)
        nodes.settle()
    assert client.xids() == list(range(1, 54))
    assert client.is_reading
    assert client.replies()[-1][3][4:7] == b"new"


def deliver(nodes: StoreNodes, src: int, dst: int) -> None:
    """What is on its way from one node to another arrives; no turn ends."""
    queue = nodes.queues[src, dst]
    while queue:
        frame = queue.popleft()
        nodes.nodes[dst].peer_frame(src, nodes.incarnations[src], frame[4], frame, 5, len(frame))


def test_every_write_is_applied_once_over_a_leader_crash() -> None:
    """Commands on their way through a leader that dies are sent again by the nodes that hold the clients."""
    for seed in range(1, 13):
        nodes = StoreNodes(3, seed=seed)
        leader = nodes.leader()
        clients = [nodes.client(n) for n in nodes.nodes.values() if n is not leader]
        for number, client in enumerate(clients):
            for xid in range(1, 6):
                client.request(xid, op.OP_CREATE, create(b"/c%d-" % number, flags=2))
        for _ in range(seed % 4):
            nodes.turn()
        nodes.crash(leader.settings.node_id)
        nodes.run(40)
        for number, client in enumerate(clients):
            assert client.is_open, f"seed {seed}"
            assert client.xids() == [1, 2, 3, 4, 5], f"seed {seed}"
            tree = client.node.machine.tree.nodes
            made = [p for p in tree if p.startswith(b"/c%d-" % number)]
            assert len(made) == 5, f"seed {seed}: {made}"
        nodes.start(leader.settings.node_id)
        nodes.run(40)
        agree(nodes)


def test_link_to_the_leader_breaks_within_a_term() -> None:
    """What the broken connection lost is sent again, what it did not lose is skipped."""
    for turns in range(4):
        nodes = StoreNodes(3)
        leader, follower = nodes.leader(), nodes.follower()
        a, b = leader.settings.node_id, follower.settings.node_id
        client = nodes.client(follower)
        for xid in range(1, 4):
            client.request(xid, op.OP_CREATE, create(b"/s-", flags=2))
        follower.turn_end()
        assert codec.FORWARD in nodes.frame_kinds()
        for _ in range(turns):
            nodes.turn()
        nodes.cut(a, b)
        nodes.join(a, b)
        nodes.run(30)
        assert client.xids() == [1, 2, 3]
        assert len([p for p in follower.machine.tree.nodes if p.startswith(b"/s-")]) == 3
        agree(nodes)


def test_a_write_that_is_acknowledged_is_committed_at_a_follower_that_has_acknowledged_nothing() -> None:
    """The commit index does not wait for the acknowledgment of the follower that it goes to."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    quick, slow = (node for node in nodes.nodes.values() if node is not leader)
    lead, late = leader.settings.node_id, slow.settings.node_id
    client = nodes.client(leader)
    nodes.settle()
    client.request(1, op.OP_CREATE, create(b"/x"))
    leader.turn_end()
    deliver(nodes, lead, quick.settings.node_id)
    quick.turn_end()
    deliver(nodes, quick.settings.node_id, lead)
    leader.turn_end()
    assert client.xids() == [1]
    held = slow.core.log.last
    deliver(nodes, lead, late)
    assert slow.core.log.last == held + 1
    slow.turn_end()
    assert b"/x" in slow.machine.tree.nodes


def test_a_read_that_comes_with_the_commit_of_a_write_sees_the_write() -> None:
    """In one turn, peers are dealt with before clients."""
    nodes = StoreNodes(3)
    leader, follower = nodes.leader(), nodes.follower()
    lead, follows = leader.settings.node_id, follower.settings.node_id
    writer, reader = nodes.client(leader), nodes.client(follower)
    writer.request(1, op.OP_CREATE, create(b"/x"))
    while writer.xids() != [1]:
        for src, dst in sorted(nodes.queues):
            if dst == lead:
                deliver(nodes, src, dst)
        for node in nodes.nodes.values():
            node.turn_end()
        if writer.xids() != [1]:
            deliver(nodes, lead, follows)
    assert b"/x" not in follower.machine.tree.nodes
    deliver(nodes, lead, follows)
    follower.peers_served()
    reader.request(1, op.OP_EXISTS, records.encode_path_watch(b"/x", False))
    assert [reply[2] for reply in reader.replies()] == [0]


def test_a_leader_does_not_split_its_turn_between_peers_and_clients() -> None:
    """Under load the commit index travels with the entries that come in the same turn."""
    nodes = StoreNodes(3)
    leader, follower = nodes.leader(), nodes.follower()
    lead, follows = leader.settings.node_id, follower.settings.node_id
    client = nodes.client(leader)
    client.request(1, op.OP_CREATE, create(b"/x"))
    leader.turn_end()
    deliver(nodes, lead, follows)
    follower.turn_end()
    deliver(nodes, follows, lead)
    leader.peers_served()
    client.request(2, op.OP_CREATE, create(b"/y"))
    leader.turn_end()
    frames = [raft_frames.decode_raft(f, 5, len(f)) for f in nodes.queues[lead, follows] if f[4] == codec.RAFT]
    assert [(m.kind, m.commit) for m in frames] == [(APPEND, leader.core.log.commit)]
    assert client.xids() == [1]


def test_deposed_leader_answers_no_sync() -> None:
    """sync is a read index: a leader that lost its majority cannot answer it."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(leader)
    for i in nodes.ids():
        if i != leader.settings.node_id:
            nodes.cut(i, leader.settings.node_id)
    client.request(1, op.OP_SYNC, records.encode_path(b"/"))
    nodes.run(10)
    assert client.xids() == []


def test_node_without_a_leader_sends_its_clients_away() -> None:
    """Timeliness: rather cut off than stale."""
    nodes = StoreNodes(3, leader_absence_ms=1000)
    leader = nodes.leader()
    client = nodes.client(leader)
    for i in nodes.ids():
        if i != leader.settings.node_id:
            nodes.cut(i, leader.settings.node_id)
    nodes.run(15)
    assert client.is_open
    nodes.run(60)
    assert not client.is_open


def test_silent_session_expires_on_all_nodes_and_not_early() -> None:
    """Only an EXPIRE in the log ends a session, within its timeout and two ticks."""
    nodes = StoreNodes(3)
    nodes.leader()
    follower = nodes.follower()
    client = nodes.client(follower, timeout_ms=2000)
    client.request(1, op.OP_CREATE, create(b"/e", flags=1))
    nodes.settle()
    nodes.run(39)
    assert value(nodes, 1, b"/e") == b""
    nodes.run(2 * 10 + 5)
    assert all(value(nodes, i, b"/e") is None for i in nodes.ids())
    assert not client.is_open


def test_leader_that_stood_still_expires_nobody_for_it() -> None:
    """A suspended machine wakes with pings unread: each session gets its whole timeout once more, and only that."""
    nodes = StoreNodes(3)
    nodes.leader()
    client = nodes.client(nodes.follower(), timeout_ms=2000)
    client.request(1, op.OP_CREATE, create(b"/e", flags=1))
    nodes.settle()
    nodes.clock.now_ms += 60_000
    nodes.run(39)
    assert value(nodes, 1, b"/e") == b""
    nodes.run(2 * 10 + 5)
    assert value(nodes, 1, b"/e") is None


def test_pings_through_a_follower_keep_a_session() -> None:
    """Followers tell the leader whom they heard from."""
    nodes = StoreNodes(3)
    nodes.leader()
    client = nodes.client(nodes.follower(), timeout_ms=1000)
    for _ in range(20):
        client.request(-2, op.OP_PING)
        nodes.run(8)
    assert client.is_open


def test_session_moves_to_another_node() -> None:
    """The old connection is cut, its late commands are refused, ephemerals stay."""
    nodes = StoreNodes(3)
    nodes.leader()
    first = nodes.client(nodes.nodes[1])
    first.request(1, op.OP_CREATE, create(b"/e", flags=1))
    nodes.settle()
    assert first.connect_reply is not None
    session_id, passwd = first.connect_reply.session_id, first.connect_reply.passwd
    second = Client(nodes.nodes[2], nodes.clock)
    second.connect(session_id=session_id, passwd=passwd)
    first.request(2, op.OP_SET_DATA, set_data(b"/e", b"late"))
    nodes.run(3)
    second.drain()
    assert second.connect_reply is not None
    assert second.connect_reply.session_id == session_id
    assert not first.is_open
    assert all(r[2] in (OK, SESSION_MOVED) for r in first.replies())
    second.request(1, op.OP_GET_DATA, get(b"/e"))
    nodes.settle()
    assert second.replies()[-1][2] == OK


def test_wrong_password_and_unknown_session_are_refused() -> None:
    """Answer: timeout 0, session 0, then the end; the true owner keeps its connection."""
    nodes = StoreNodes(3)
    nodes.leader()
    owner = nodes.client(nodes.nodes[1])
    assert owner.connect_reply is not None
    for session_id, passwd in ((owner.connect_reply.session_id, b"?" * 16), (12345, bytes(16))):
        thief = Client(nodes.nodes[2], nodes.clock)
        thief.connect(session_id=session_id, passwd=passwd)
        nodes.settle()
        assert thief.connect_reply is not None
        assert (thief.connect_reply.session_id, thief.connect_reply.timeout_ms) == (0, 0)
        assert not thief.is_open
    assert owner.is_open


def test_client_from_the_future_is_dropped() -> None:
    """A node that is behind what the client has seen must not serve it."""
    nodes = StoreNodes(1)
    client = Client(nodes.leader(), nodes.clock)
    client.connect(last_zxid=1_000_000)
    nodes.settle()
    assert not client.is_open
    assert client.connect_reply is None


def test_close_session_answers_then_ends() -> None:
    """Ephemerals go with it, the next requests are not taken."""
    nodes = StoreNodes(3)
    nodes.leader()
    client = nodes.client(nodes.follower())
    client.request(1, op.OP_CREATE, create(b"/e", flags=1))
    client.request(2, op.OP_CLOSE_SESSION)
    client.request(3, op.OP_CREATE, create(b"/never"))
    nodes.run(2)
    assert [(r[0], r[2]) for r in client.replies()] == [(1, OK), (2, OK)]
    assert not client.is_open
    assert value(nodes, 1, b"/e") is None
    assert value(nodes, 1, b"/never") is None


def test_restart_of_all_keeps_every_acknowledged_write() -> None:
    """Power cut on all nodes at once."""
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


def test_lagging_node_catches_up_by_a_snapshot() -> None:
    """The log does not reach back far enough: state, sessions and digest come over in chunks."""
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


def test_log_is_pruned_behind_snapshots_and_a_restart_uses_them() -> None:
    """Old segments go, the state comes from the snapshot and the rest of the log."""
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
    """Few large entries: their count alone would keep all of them. (A node without peers keeps none.)"""
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


def test_full_disk_on_a_follower_costs_nothing() -> None:
    """The others go on; the follower follows again when there is room."""
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


def test_full_disk_on_the_leader_moves_leadership() -> None:
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


def test_failed_sync_stops_the_node() -> None:
    """What the disk holds is unknown: no acknowledgement after that."""
    nodes = StoreNodes(1)
    node = nodes.leader()
    client = nodes.client(node)
    nodes.disks[1].failures["sync"] = errno.EIO
    client.request(1, op.OP_CREATE, create(b"/a"))
    node.turn_end()
    assert node.failure is not None
    assert client.xids() == []


def test_expired_session_is_told_so() -> None:
    """A request that meets the end of its session gets SessionExpired and the end of the connection."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(nodes.follower(), timeout_ms=1000)
    assert client.connect_reply is not None
    session_id = client.connect_reply.session_id
    session = leader.machine.sessions.find(session_id)
    assert session is not None
    nodes.run(18)
    client.request(1, op.OP_CREATE, create(b"/a"))
    nodes.run(40)
    late = Client(nodes.nodes[1], nodes.clock)
    late.connect(session_id=session_id, passwd=session.passwd)
    nodes.settle()
    assert late.connect_reply is not None
    assert late.connect_reply.session_id == 0
    assert all(r[2] in (OK, SESSION_EXPIRED) for r in client.replies())


def test_leader_ends_empty_containers() -> None:
    """A container that has had a child and lost it goes."""
    nodes = StoreNodes(3, reap_interval_ms=1000)
    nodes.leader()
    client = nodes.client(nodes.follower())
    client.request(1, op.OP_CREATE_CONTAINER, create(b"/c", flags=4))
    client.request(2, op.OP_CREATE, create(b"/c/x"))
    client.request(3, op.OP_DELETE, records.encode_path_version(b"/c/x", -1))
    nodes.run(30)
    assert [r[2] for r in client.replies()] == [OK, OK, OK]
    assert all(value(nodes, i, b"/c") is None for i in nodes.ids())


def wipe(nodes: StoreNodes, node_id: int) -> None:
    """The node's disk is replaced by an empty one."""
    nodes.crash(node_id)
    nodes.disks[node_id] = MemoryDisk()


def test_wiped_node_serves_again_and_votes_once_it_has_caught_up() -> None:
    """The leader brings it everything; until then it is marked as joining, over restarts too."""
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


def test_wiped_node_does_not_help_a_candidate_that_lacks_what_it_acknowledged() -> None:
    """A write that only the leader and the wiped node held survives the wipe and the leader's absence."""
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
    """The machine of one node lost its power."""


def cut_power_at(nodes: StoreNodes, node_id: int, calls: int) -> None:
    """From the `calls`-th disk call on, nothing of this node happens any more."""
    left = calls

    def count(name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCut(name)

    nodes.disks[node_id].on_call = count


@pytest.mark.parametrize("first", range(6))
def test_power_cut_at_any_disk_call_of_any_node(first: int) -> None:
    """Log, rotation, snapshot, installation: whatever was being done, the node comes back and all agree."""
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


def test_command_inside_a_snapshot_is_not_sent_again() -> None:
    """Nobody can tell it from one that was lost: the client gets no answer but the end of its connection."""
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


def test_commands_after_a_state_taken_over_are_answered() -> None:
    """What was sent to the leader before the snapshot came is forgotten; its numbers are not given to others."""
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


@pytest.mark.parametrize(("reads", "survives"), [(8, True), (9, False)])
def test_reads_behind_a_write_are_bounded_in_bytes_together(reads: int, survives: bool) -> None:
    """They leave with the write's answer, however many; beyond the bound the connection ends instead of the memory."""
    size = 10_000
    answer = 4 + size + 68
    nodes = StoreNodes(1, limits=Limits(backlog_bytes_max=8 * answer, output_bytes_max=answer))
    client = nodes.client(nodes.leader())
    client.request(1, op.OP_CREATE, create(b"/big", bytes(size)))
    nodes.settle()
    client.replies()
    client.request(2, op.OP_SET_DATA, set_data(b"/big", bytes(size)))
    for xid in range(3, 3 + reads):
        client.request(xid, op.OP_GET_DATA, get(b"/big"))
    nodes.settle()
    assert client.is_open == survives
    assert nodes.nodes[1].clients.waiting_reads == 0
    if survives:
        assert client.xids() == list(range(1, 3 + reads))
