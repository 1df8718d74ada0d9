"""A node without a leader in read-only mode: which clients and requests it serves, and until when."""

from __future__ import annotations

import pytest

from coord.errors import NO_AUTH, NO_NODE, NOT_READ_ONLY, OK
from coord.server.node import Node
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, Acl, ConnectRequest, CreateRequest
from tests.support.store_nodes import TICK_MS, Client, StoreNodes

ABSENCE_TICKS = 2000 // TICK_MS + 60


def create(path: bytes, acl: list[Acl] = OPEN_ACL) -> bytes:
    """Return the body of a create."""
    return records.encode_create(CreateRequest(op.OP_CREATE, path, b"x", acl, 0))


def get(path: bytes) -> bytes:
    """Return the body of a getData."""
    return records.encode_path_watch(path, False)


def connected(nodes: StoreNodes, node: Node, request: ConnectRequest) -> Client:
    """Return a client that has sent this connect request."""
    client = Client(node, nodes.clock)
    node.pipeline.handshake.open_session(client.connection, request)
    nodes.settle()
    client.drain()
    return client


def ask(nodes: StoreNodes, client: Client, opcode: int, body: bytes = b"", xid: int = 1) -> int:
    """Return the error code of a request's reply."""
    client.request(xid, opcode, body)
    nodes.settle()
    return client.replies()[-1][2]


@pytest.fixture
def nodes() -> StoreNodes:
    """Return three nodes of which two are down."""
    return made(read_only_mode=True)


def made(*, read_only_mode: bool) -> StoreNodes:
    """Return three nodes with some content, then run only the first, until it knows that it is alone."""
    nodes = StoreNodes(3, read_only_mode=read_only_mode)
    nodes.leader()
    writer = nodes.client(nodes.nodes[1])
    assert ask(nodes, writer, op.OP_CREATE, create(b"/a")) == OK
    assert ask(nodes, writer, op.OP_CREATE, create(b"/bobs", [Acl(31, b"digest", b"bob:x")]), 2) == OK
    nodes.run(3)
    nodes.crash(2)
    nodes.crash(3)
    nodes.run(ABSENCE_TICKS)
    assert not writer.is_open, "timeliness: it wants more than reads"
    return nodes


WANTED = ConnectRequest(timeout_ms=4000, read_only=True)


def test_reads_are_served_and_writes_refused(nodes: StoreNodes) -> None:
    """The handshake says so; a rejected write does not end the session."""
    client = connected(nodes, nodes.nodes[1], WANTED)
    assert client.connect_reply is not None
    assert client.connect_reply.read_only
    assert client.connect_reply.session_id != 0
    assert ask(nodes, client, op.OP_GET_DATA, get(b"/a")) == OK
    assert ask(nodes, client, op.OP_GET_DATA, get(b"/missing")) == NO_NODE
    for opcode in (op.OP_CREATE, op.OP_SET_DATA, op.OP_DELETE, op.OP_MULTI, op.OP_SET_ACL, op.OP_SYNC, op.OP_RECONFIG):
        assert ask(nodes, client, opcode, create(b"/b")) == NOT_READ_ONLY
    assert ask(nodes, client, op.OP_PING, xid=op.XID_PING) == OK
    assert nodes.nodes[1].proposals.outstanding() == 0
    assert ask(nodes, client, op.OP_CLOSE_SESSION) == OK
    assert not client.is_open


def test_clients_that_want_to_write_are_sent_away(nodes: StoreNodes) -> None:
    """Such clients get no answer, so that they try the next node."""
    client = connected(nodes, nodes.nodes[1], ConnectRequest(timeout_ms=4000))
    assert not client.is_open
    assert client.connect_reply is None


def test_access_lists_hold(nodes: StoreNodes) -> None:
    """A proved identity counts for its connection, and does not change the replicated table."""
    client = connected(nodes, nodes.nodes[1], WANTED)
    assert ask(nodes, client, op.OP_GET_DATA, get(b"/bobs")) == NO_AUTH
    digest = nodes.nodes[1].machine.digest()
    assert ask(nodes, client, op.OP_AUTH, records.encode_auth(b"digest", b"eve:e"), op.XID_AUTH) == OK
    assert ask(nodes, client, op.OP_GET_DATA, get(b"/bobs")) == NO_AUTH
    assert nodes.nodes[1].machine.digest() == digest
    assert client.connection.session is not None
    assert [scheme for scheme, _ in client.connection.session.identities] == [b"ip", b"digest"]


def test_clients_are_cut_when_there_is_a_leader(nodes: StoreNodes) -> None:
    """So they find the leader; a client's new session works on every node."""
    client = connected(nodes, nodes.nodes[1], WANTED)
    nodes.start(2)
    nodes.leader()
    nodes.run(2)
    assert not client.is_open
    again = connected(nodes, nodes.nodes[1], WANTED)
    assert again.connect_reply is not None
    assert not again.connect_reply.read_only
    assert ask(nodes, again, op.OP_CREATE, create(b"/b")) == OK


def test_a_session_of_another_node_survives_a_read_only_connection(nodes: StoreNodes) -> None:
    """The node requires the session's password and closes its former connections. It does not report a session that it
    does not know as expired."""
    session = next(iter(nodes.nodes[1].machine.sessions.sessions.values()))
    known = ConnectRequest(0, 4000, session.session_id, session.passwd, True)
    client = connected(nodes, nodes.nodes[1], known)
    assert client.connect_reply is not None
    assert (client.connect_reply.session_id, client.connect_reply.read_only) == (session.session_id, True)
    wrong = connected(nodes, nodes.nodes[1], ConnectRequest(0, 4000, session.session_id, b"x" * 16, True))
    assert wrong.connect_reply is not None
    assert wrong.connect_reply.session_id == 0
    assert not wrong.is_open
    unknown = connected(nodes, nodes.nodes[1], ConnectRequest(0, 4000, 12345, session.passwd, True))
    assert unknown.connect_reply is None
    assert not unknown.is_open
    assert client.is_open
    second = connected(nodes, nodes.nodes[1], known)
    assert second.is_open
    assert not client.is_open
    own = connected(nodes, nodes.nodes[1], WANTED).connect_reply
    assert own is not None
    back = connected(nodes, nodes.nodes[1], ConnectRequest(0, 4000, own.session_id, own.passwd, True)).connect_reply
    assert back is not None
    assert back.session_id == own.session_id


def test_client_from_the_future_is_sent_away(nodes: StoreNodes) -> None:
    """It has seen a later zxid than this node: reads would go back in time."""
    zxid = nodes.nodes[1].machine.last_zxid + 1
    client = connected(nodes, nodes.nodes[1], ConnectRequest(zxid, 4000, 0, bytes(16), True))
    assert not client.is_open


def test_mode_is_off_unless_set() -> None:
    """Without the setting a node without a leader serves no client."""
    nodes = made(read_only_mode=False)
    client = connected(nodes, nodes.nodes[1], WANTED)
    nodes.run(2)
    assert not client.is_open
    assert client.connect_reply is None
