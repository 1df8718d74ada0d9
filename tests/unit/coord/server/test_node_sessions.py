"""Sessions on whole nodes, in memory: expiry, moves between nodes, rejections, the end."""

from __future__ import annotations

from coord.errors import OK, SESSION_EXPIRED, SESSION_MOVED
from coord.wire import opcodes as op
from coord.wire import records
from tests.support.store_nodes import Client, StoreNodes
from tests.unit.coord.server.node_requests import create, get, set_data, value


def test_a_silent_session_expires_on_all_nodes_and_not_early() -> None:
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


def test_a_suspended_leader_expires_no_session_for_its_own_pause() -> None:
    """A suspended machine continues with pings unread: each session gets its whole timeout once more, and not
    longer."""
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


def test_pings_through_a_follower_keep_a_session_alive() -> None:
    """Followers report to the leader which sessions were active."""
    nodes = StoreNodes(3)
    nodes.leader()
    client = nodes.client(nodes.follower(), timeout_ms=1000)
    for _ in range(20):
        client.request(-2, op.OP_PING)
        nodes.run(8)
    assert client.is_open


def test_a_session_moves_to_another_node() -> None:
    """The old connection is closed, its late commands are rejected, ephemerals stay."""
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


def test_a_wrong_password_and_an_unknown_session_are_rejected() -> None:
    """The answer has timeout 0 and session 0, then the connection ends; the owner keeps its connection."""
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


def test_a_client_that_has_seen_a_later_zxid_is_disconnected() -> None:
    """A node behind the client's last zxid must not serve it."""
    nodes = StoreNodes(1)
    client = Client(nodes.leader(), nodes.clock)
    client.connect(last_zxid=1_000_000)
    nodes.settle()
    assert not client.is_open
    assert client.connect_reply is None


def test_close_session_is_answered_before_the_session_ends() -> None:
    """Ephemerals are deleted with it, later requests are ignored."""
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


def test_a_client_learns_that_its_session_has_expired() -> None:
    """Its request gets SessionExpired, then the connection ends."""
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


def test_the_leader_deletes_empty_containers() -> None:
    """A container that had a child and lost it is deleted."""
    nodes = StoreNodes(3, reap_interval_ms=1000)
    nodes.leader()
    client = nodes.client(nodes.follower())
    client.request(1, op.OP_CREATE_CONTAINER, create(b"/c", flags=4))
    client.request(2, op.OP_CREATE, create(b"/c/x"))
    client.request(3, op.OP_DELETE, records.encode_path_version(b"/c/x", -1))
    nodes.run(30)
    assert [r[2] for r in client.replies()] == [OK, OK, OK]
    assert all(value(nodes, i, b"/c") is None for i in nodes.ids())
