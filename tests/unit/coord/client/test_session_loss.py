"""The client's session when connections break, servers fail, or the session ends."""

from __future__ import annotations

import struct

import pytest

from coord.client import SessionState
from coord.errors import (
    ConnectionLoss,
    SessionExpired,
)
from coord.wire import records as r
from tests.unit.coord.client.scripted_server import TIMEOUT_MS, Server, result_of

CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED


def test_a_lost_connection_fails_pending_requests_and_resumes_the_session_on_another_server() -> None:
    """Requests fail with ConnectionLoss and the path; the next server gets session, password and last zxid; nothing is
    sent again."""
    server = Server()
    server.begin()
    done, waiting = server.client.get("/a"), server.client.set("/b", b"")
    server.turn()
    ((xid, _, _), _) = server.requests()
    server.reply(xid, r.encode_data_reply(b"", r.Stat()), zxid=42)
    seen: list[SessionState] = []
    waiting.addErrback(lambda reason: seen.append(server.client.state) or reason)
    server.cut()
    assert result_of(done)
    with pytest.raises(ConnectionLoss, match="/b"):
        result_of(waiting)
    assert seen == [SUSPENDED], "the state is known before the errors are"
    again = server.client.when_connected()
    server.turn(0.1)
    assert server.addresses() == ["a:1", "b:2"]
    hello = server.accept()
    assert (hello.session_id, hello.passwd, hello.last_zxid_seen) == (77, b"p" * 16, 42)
    server.welcome()
    assert result_of(again) is None
    server.turn()
    assert server.requests() == []
    assert server.states == [SUSPENDED, CONNECTED, SUSPENDED, CONNECTED]


def test_the_client_pings_after_a_third_of_the_timeout_and_disconnects_after_two_thirds() -> None:
    """The negotiated timeout counts, not the requested one."""
    server = Server()
    server.client.connect()
    server.accept()
    server.welcome(timeout_ms=3000)
    server.turn(0.999)
    assert server.requests() == []
    server.turn(0.002)
    assert server.requests() == [(r.XID_PING, r.OP_PING, b"")]
    server.reply(r.XID_PING)
    server.turn(1.0)
    assert server.requests() == [(r.XID_PING, r.OP_PING, b"")]
    server.turn(0.9)
    assert server.client.state is CONNECTED
    server.turn(0.2)
    server.turn()
    assert server.client.state is SUSPENDED
    assert server.transport.disconnected


def test_steady_requests_need_no_pings() -> None:
    """A ping is sent only if no other request was."""
    server = Server()
    server.begin()
    server.frames()
    for _ in range(20):
        answer = server.client.get("/a")
        server.turn(0.5)
        ((xid, opcode, _),) = server.requests()
        assert opcode == r.OP_GET_DATA
        server.reply(xid, r.encode_data_reply(b"", r.Stat()))
        result_of(answer)


def test_a_blocked_reactor_reads_waiting_bytes_before_it_disconnects() -> None:
    """After a long pause the answers are in the socket: one turn later they have been read."""
    server = Server()
    server.begin()
    waiting = server.client.get("/a")
    server.turn()
    ((xid, _, _),) = server.requests()
    # One step of the clock past all deadlines: timers run first, as in a blocked reactor.
    server.reactor.rightNow += 60
    server.reactor.callLater(0, server.reply, xid, r.encode_data_reply(b"", r.Stat()))
    server.turn()
    assert result_of(waiting)
    server.turn(0.01)
    assert server.client.state is CONNECTED


def test_the_last_contact_is_when_the_answered_request_was_sent() -> None:
    """A late answer only proves that the server was in contact when the request was sent."""
    server = Server()
    server.begin()
    base = server.clock.monotonic_ms() / 1000
    assert server.client.last_contact_s == base
    server.turn(1)
    server.client.get("/a")
    server.turn()
    server.turn(0.5)
    server.client.get("/b")
    server.turn()
    server.turn(1)
    (first, second) = [xid for xid, _, _ in server.requests()]
    assert server.client.last_contact_s == base
    server.reply(first, r.encode_data_reply(b"", r.Stat()))
    assert server.client.last_contact_s == pytest.approx(base + 1)
    server.reply(second, r.encode_data_reply(b"", r.Stat()))
    assert server.client.last_contact_s == pytest.approx(base + 1.5)
    assert server.client.last_contact_s < server.clock.monotonic_ms() / 1000
    contact = server.client.last_contact_s
    server.cut()
    assert server.client.last_contact_s == contact, "kept over the loss"


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("!i", -1),
        struct.pack("!i", 3),
        r.encode_reply_frame(999, 1, 0, b""),
        r.encode_reply_frame(r.XID_PING, 1, 0, b""),
        r.encode_reply_frame(1, 1, 0, b"no data reply"),
        r.encode_reply_frame(r.XID_NOTIFICATION, 1, 0, struct.pack("!iii", 3, 3, 99) + b"/a"),
    ],
)
def test_the_client_leaves_a_server_that_breaks_the_protocol(garbage: bytes) -> None:
    """Bad lengths, unexpected replies, invalid records: the connection is closed, requests fail, the session
    survives."""
    server = Server()
    server.begin()
    waiting = server.client.get("/a")
    server.turn()
    server.connection.dataReceived(garbage)
    server.connection.dataReceived(struct.pack("!i", 1 << 30))
    with pytest.raises(ConnectionLoss):
        result_of(waiting)
    assert server.client.state is SUSPENDED
    server.connection.dataReceived(b"ignored")


def test_expiry_fails_everything_and_connect_begins_a_new_session() -> None:
    """The server answers with timeout 0 and session 0. Waiters fail, watches are gone, there is no reconnect; connect()
    asks for a new session."""
    server = Server()
    server.begin()
    server.client.add_watch("/a", lambda *event: None)
    server.turn()
    server.reply(server.requests()[0][0])
    server.cut()
    waiting = server.client.when_connected()
    server.turn(0.1)
    server.accept()
    server.welcome(session_id=0, timeout_ms=0)
    with pytest.raises(SessionExpired):
        result_of(waiting)
    assert server.states[-1] is EXPIRED
    server.turn(60)
    assert len(server.addresses()) == 2
    connected = server.client.connect()
    hello = server.accept()
    assert (hello.session_id, hello.last_zxid_seen) == (0, 0)
    server.welcome(session_id=78)
    assert result_of(connected) is None
    server.turn()
    assert server.requests() == [], "no watch of the old session is set in the new one"


def test_an_expiry_callback_may_connect_again() -> None:
    """The usual reaction of programs, within the callback."""
    server = Server()
    server.begin()
    server.client.on_state(lambda state: server.client.connect() if state is EXPIRED else None)
    server.cut()
    server.turn(0.1)
    server.accept()
    server.welcome(session_id=0, timeout_ms=0)
    assert server.client.state is SUSPENDED
    server.accept()
    server.welcome(session_id=79)
    assert (server.client.state, server.client.session_id) == (CONNECTED, 79)


def test_close_ends_the_session_after_earlier_requests() -> None:
    """closeSession is sent last; its answer closes the connection, and there is no reconnect."""
    server = Server()
    server.begin()
    waiting = server.client.get("/a")
    closed = server.client.close()
    assert server.client.close() is closed
    server.turn()
    (one, two) = server.requests()
    assert two[1] == r.OP_CLOSE_SESSION
    server.reply(one[0], r.encode_data_reply(b"", r.Stat()))
    server.reply(two[0])
    assert result_of(waiting)
    assert result_of(closed) is None
    assert server.transport.disconnected
    server.turn(60)
    assert len(server.addresses()) == 1
    assert server.states[-1] is SessionState.CLOSED


def test_close_does_not_wait_for_a_dead_server() -> None:
    """It waits at most a third of the timeout; while connecting it does not wait."""
    server = Server()
    server.begin()
    closed = server.client.close()
    server.turn(TIMEOUT_MS / 3000 + 0.1)
    assert result_of(closed) is None
    server = Server()
    connecting = server.client.connect()
    assert result_of(server.client.close()) is None
    with pytest.raises(ConnectionLoss):
        result_of(connecting)
    server.turn(60)
    assert len(server.addresses()) == 1
