"""Whole nodes, in memory: writes, reads, back-pressure, failover of the leader."""

from __future__ import annotations

import pytest

from coord.errors import NO_NODE, OK
from coord.raft.messages import APPEND
from coord.server.clients.connection import Limits
from coord.server.peers import codec, raft_frames
from coord.wire import opcodes as op
from coord.wire import records
from tests.support.store_nodes import StoreNodes
from tests.unit.coord.server.node_requests import agree, create, get, set_data, value


@pytest.fixture(params=[1, 3])
def nodes(request: pytest.FixtureRequest) -> StoreNodes:
    """Return one node alone, and three nodes."""
    return StoreNodes(request.param)


def test_a_write_through_any_node_is_answered_and_replicated(nodes: StoreNodes) -> None:
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


def test_a_session_reads_its_own_earlier_writes(nodes: StoreNodes) -> None:
    """A read after a write of the same session waits for it; replies keep the order of the requests."""
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


def test_a_ping_is_answered_before_waiting_requests() -> None:
    """A ping shows that the server lives."""
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


def test_a_watch_event_precedes_the_reply_and_later_data(nodes: StoreNodes) -> None:
    """A watcher receives an event before it can see the change, also for its own changes."""
    nodes.leader()
    client = nodes.client(nodes.nodes[1])
    client.request(1, op.OP_CREATE, create(b"/a"))
    client.request(2, op.OP_GET_DATA, get(b"/a", watch=True))
    client.request(3, op.OP_SET_DATA, set_data(b"/a", b"2"))
    client.request(4, op.OP_GET_DATA, get(b"/a"))
    nodes.settle()
    assert client.xids() == [1, 2, -1, 3, 4]


def test_an_unknown_operation_is_answered_and_the_connection_closed(nodes: StoreNodes) -> None:
    """As in ZooKeeper, after the earlier requests."""
    nodes.leader()
    client = nodes.client(nodes.nodes[1])
    client.request(1, op.OP_CREATE, create(b"/a"))
    client.request(2, 77)
    client.request(3, op.OP_GET_DATA, get(b"/a"))
    nodes.settle()
    assert [(r[0], r[2]) for r in client.replies()] == [(1, OK), (2, -6)]
    assert not client.is_open


def test_back_pressure_stops_reading_and_resumes_it() -> None:
    """At most that many requests of one client wait."""
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


def test_unread_replies_stop_further_replies() -> None:
    """For any number of large reads at once; they are answered in order as the client reads."""
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
    """Deliver the frames in flight from one node to another, without the end of a turn."""
    queue = nodes.queues[src, dst]
    while queue:
        frame = queue.popleft()
        nodes.nodes[dst].peer_frame(src, nodes.incarnations[src], frame[4], frame, 5, len(frame))


def test_every_write_is_applied_once_across_a_leader_crash() -> None:
    """Commands in flight to a leader that dies are sent again by the nodes of their clients."""
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


def test_forwarded_writes_are_applied_once_when_the_link_to_the_leader_breaks() -> None:
    """Commands that the broken connection lost are sent again, the others are skipped."""
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


def test_a_follower_without_acknowledgments_learns_that_a_write_is_committed() -> None:
    """A follower learns the commit index before its own acknowledgment arrives."""
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


def test_a_read_that_arrives_with_the_commit_of_a_write_sees_the_write() -> None:
    """Within one turn, data of peers is handled before that of clients."""
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
    """Under load the commit index is sent together with the entries of the same turn."""
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


def test_a_deposed_leader_does_not_answer_a_sync() -> None:
    """sync is a read index, so a leader without a majority cannot answer it."""
    nodes = StoreNodes(3)
    leader = nodes.leader()
    client = nodes.client(leader)
    for i in nodes.ids():
        if i != leader.settings.node_id:
            nodes.cut(i, leader.settings.node_id)
    client.request(1, op.OP_SYNC, records.encode_path(b"/"))
    nodes.run(10)
    assert client.xids() == []


def test_a_node_without_a_leader_disconnects_its_clients() -> None:
    """A client is disconnected rather than served stale data."""
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


@pytest.mark.parametrize(("reads", "survives"), [(8, True), (9, False)])
def test_reads_that_wait_for_a_write_are_bounded_in_bytes(reads: int, survives: bool) -> None:
    """They are all sent with the write's answer; beyond the bound the connection ends, so that memory is bounded."""
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
