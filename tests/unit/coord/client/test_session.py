"""The client's session in memory: handshake, requests, credentials, watches. A scripted server answers."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from twisted.logger import LogLevel, globalLogPublisher

from coord.client import EVENT_GAP, Create, Delete, GetChildren, SessionState
from coord.client import connection as connection_module
from coord.errors import (
    AuthFailed,
    BadArguments,
    ConnectionLoss,
    MultiFailed,
    NoNode,
    SaslRequired,
    SessionExpired,
    ThrottledOp,
    TooManyOutstanding,
)
from coord.wire import records as r
from tests.unit.coord.client.scripted_server import TIMEOUT_MS, Server, pending, result_of

CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED


# --- handshake and hosts --------------------------------------------------------------------------------------------


def test_the_first_connection_asks_for_a_new_session() -> None:
    """Session 0, no zxid, sixteen zero bytes; afterwards the server's session and timeout apply."""
    server = Server()
    connected = server.client.connect()
    hello = server.accept()
    assert (hello.session_id, hello.last_zxid_seen, hello.passwd, hello.timeout_ms) == (0, 0, bytes(16), TIMEOUT_MS)
    assert pending(connected)
    server.welcome(session_id=0x123, timeout_ms=4000)
    assert result_of(connected) is None
    assert (server.client.session_id, server.client.timeout_ms, server.states) == (0x123, 4000, [SUSPENDED, CONNECTED])


def test_a_handshake_may_arrive_in_pieces_with_requests_queued() -> None:
    """One byte at a time; requests of a state callback are sent in the same turn."""
    server = Server()
    asked: list[Any] = []
    server.client.on_state(lambda state: asked.append(server.client.get("/a")) if state is CONNECTED else None)
    server.client.connect()
    server.accept()
    answer = r.encode_connect_response(r.ConnectResponse(4000, 7, b"p" * 16))
    for byte in struct.pack("!i", len(answer)) + answer:
        server.connection.dataReceived(bytes([byte]))
    assert [opcode for _, opcode, _ in server.requests()] == [r.OP_GET_DATA]


def test_hosts_are_tried_in_turn_and_pauses_grow_after_each_round() -> None:
    """All servers once almost without delay, then pauses of 50 ms, 100 ms, ... up to the limit."""
    server = Server("a:1,b:2")
    server.client.connect()
    pauses = []
    for _ in range(16):
        server.refuse()
        (call,) = server.reactor.getDelayedCalls()
        pauses.append(round((call.getTime() - server.reactor.seconds()) * 1000))
        server.turn(call.getTime() - server.reactor.seconds())
    assert server.addresses()[:5] == ["a:1", "b:2", "a:1", "b:2", "a:1"]
    assert pauses[::2] == [19] * 8
    assert pauses[1::2] == [50, 100, 200, 400, 800, 1500, 1500, 1500]


def test_a_silent_server_is_given_up_and_the_next_one_tried() -> None:
    """The TCP connection succeeds, but the connect request gets no answer."""
    server = Server()
    server.client.connect()
    server.accept()
    server.turn(TIMEOUT_MS / 3000 + 0.1)
    assert server.transport.disconnected
    server.turn(0.1)
    assert server.addresses() == ["a:1", "b:2"]


def test_a_server_that_closes_without_a_reply_is_skipped() -> None:
    """Servers behind this client's zxid do so."""
    server = Server()
    connected = server.client.connect()
    server.accept()
    server.cut()
    server.turn(0.1)
    server.accept()
    server.welcome()
    assert result_of(connected) is None
    assert server.addresses() == ["a:1", "b:2"]


# --- requests -------------------------------------------------------------------------------------------------------


def test_requests_of_one_turn_are_sent_in_one_write() -> None:
    """Any number of requests, also those from within an answer's callback."""
    server = Server()
    server.begin()
    server.frames()
    before = server.transport.writes
    answers = [server.client.get(f"/{i}") for i in range(100)]
    assert server.transport.writes == before
    server.turn()
    assert server.transport.writes == before + 1
    requests = server.requests()
    assert [r.decode_path_watch(body, 0, len(body))[0] for _, _, body in requests] == [b"/%d" % i for i in range(100)]
    for answer in answers:
        answer.addErrback(lambda reason: server.client.set("/a", b""))
    block = b"".join(r.encode_reply_frame(xid, 5, -101, b"") for xid, _, _ in requests)
    server.connection.dataReceived(block)
    assert server.transport.writes == before + 2
    assert len(server.requests()) == 100


def test_replies_are_decoded_and_matched_to_their_requests() -> None:
    """Data, Stat, None for a missing znode, typed errors with the path."""
    server = Server()
    server.begin()
    got, missing, refused, made = (
        server.client.get("/a"),
        server.client.exists("/b"),
        server.client.delete("/c"),
        server.client.create("/d", sequence=True),
    )
    server.turn()
    (one, two, three, four) = [xid for xid, _, _ in server.requests()]
    stat = r.Stat(*range(1, 12))
    server.reply(one, r.encode_data_reply(b"x", stat), zxid=11)
    server.reply(two, err=-101, zxid=12)
    server.reply(three, err=-101, zxid=12)
    server.reply(four, r.encode_path(b"/d0000000004"), zxid=13)
    assert result_of(got) == (b"x", stat)
    assert result_of(missing) is None
    with pytest.raises(NoNode, match="/c"):
        result_of(refused)
    assert result_of(made) == "/d0000000004"
    assert server.client.last_zxid == 13


def test_a_failed_multi_names_the_failed_operation() -> None:
    """A reply with err 0 whose parts are errors."""
    server = Server()
    server.begin()
    answer = server.client.multi([Create("/a"), Delete("/b"), Delete("/c")])
    server.turn()
    ((xid, opcode, _),) = server.requests()
    assert opcode == r.OP_MULTI
    server.reply(xid, r.encode_multi_reply([r.MultiResult(r.OP_ERROR, code) for code in (0, -101, -2)]))
    with pytest.raises(MultiFailed) as caught:
        result_of(answer)
    assert (caught.value.index, caught.value.error.path, len(caught.value.errors)) == (1, "/b", 3)


@pytest.mark.parametrize("where", ["before", "expired", "closed"])
def test_requests_without_a_connection_fail_at_once(where: str) -> None:
    """With ConnectionLoss, or SessionExpired once that is known."""
    server = Server()
    if where == "expired":
        server.begin()
        server.cut()
        server.turn(0.1)
        server.accept()
        server.welcome(session_id=0, timeout_ms=0)
    elif where == "closed":
        server.client.close()
    with pytest.raises(SessionExpired if where == "expired" else ConnectionLoss):
        result_of(server.client.get("/a"))


def test_outstanding_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the request beyond the bound fails."""
    monkeypatch.setattr(connection_module, "MAX_OUTSTANDING", 3)
    server = Server()
    server.begin()
    waiting = [server.client.get("/a") for _ in range(3)]
    with pytest.raises(TooManyOutstanding):
        result_of(server.client.get("/a"))
    assert all(map(pending, waiting))


def test_a_request_too_long_for_any_server_is_rejected_by_the_client() -> None:
    """If it were sent, the server would close the connection for all other requests."""
    server = Server()
    server.begin()
    with pytest.raises(BadArguments, match="limit"):
        result_of(server.client.set("/a", bytes(0xFFFFF)))
    server.turn()
    assert server.requests() == []


def test_the_chroot_is_added_to_requests_and_removed_from_replies() -> None:
    """It applies to requests, created paths and events; `/` is the chroot itself; no path leaves it."""
    server = Server("a:1/root/deep")
    server.begin()
    events: list[tuple[int, str, int]] = []
    server.client.get("/", lambda *event: events.append(event))
    made = server.client.create("/a")
    multi = server.client.multi([Create("/m")])
    server.turn()
    (get, create, three) = server.requests()
    assert r.decode_path_watch(get[2], 0, len(get[2])) == (b"/root/deep", True)
    server.reply(get[0], r.encode_data_reply(None, r.Stat()))
    server.reply(create[0], r.encode_path(b"/root/deep/a"))
    server.reply(three[0], r.encode_multi_reply([r.MultiResult(r.OP_CREATE, path=b"/root/deep/m")]))
    assert result_of(made) == "/a"
    assert result_of(multi) == ["/m"]
    server.event(r.EVENT_DATA_CHANGED, b"/root/deep")
    assert events == [(r.EVENT_DATA_CHANGED, "/", 9)]
    for request in (server.client.get("er"), server.client.multi([Create("er")])):
        with pytest.raises(BadArguments):
            result_of(request)


# --- credentials and watches ----------------------------------------------------------------------------------------


def test_credentials_are_sent_first_on_every_connection() -> None:
    """Watches are sent next, then all other requests."""
    server = Server()
    server.begin()
    taken = server.client.add_auth("digest", b"u:p")
    server.client.get("/w", lambda *event: None)
    server.client.add_watch("/p", lambda *event: None)
    server.turn()
    (auth, get, add) = server.requests()
    assert auth == (r.XID_AUTH, r.OP_AUTH, r.encode_auth(b"digest", b"u:p"))
    server.reply(r.XID_AUTH)
    assert result_of(taken) is None
    server.reply(get[0], r.encode_data_reply(b"", r.Stat()))
    server.reply(add[0], zxid=44)
    server.cut()
    server.client.on_state(lambda state: server.client.get("/user") if state is CONNECTED else None)
    server.turn(0.1)
    server.accept()
    server.welcome()
    (auth, watches, get) = server.requests()
    assert (auth[0], watches[1], get[1]) == (r.XID_AUTH, r.OP_SET_WATCHES2, r.OP_GET_DATA)
    sets = r.decode_set_watches(watches[2], 0, len(watches[2]), second=True)
    assert (sets.relative_zxid, sets.data, sets.recursive) == (44, [b"/w"], [b"/p"])


def test_a_rejected_credential_is_final() -> None:
    """AUTH_FAILED is reported once; requests and waiters fail with typed errors."""
    server = Server()
    server.begin()
    taken = server.client.add_auth("digest", b"x")
    server.turn()
    server.reply(r.XID_AUTH, err=-115)
    with pytest.raises(AuthFailed):
        result_of(taken)
    with pytest.raises(AuthFailed):
        result_of(server.client.get("/a"))
    assert server.states[-1] is SessionState.AUTH_FAILED
    server.turn(60)
    assert len(server.addresses()) == 1


def test_what_a_multi_read_leaves_is_asked_for_again() -> None:
    """The server answers some megabytes at a time; the caller gets one list."""
    server = Server()
    server.begin()
    read = server.client.multi_read([GetChildren(f"/{name}") for name in "abc"])
    listing = r.MultiResult(r.OP_GET_CHILDREN, children=[b"x"])
    throttled = r.MultiResult(r.OP_ERROR, err=-127)
    for count, answered in ((3, [listing, throttled, throttled]), (2, [listing, listing])):
        server.turn()
        [(xid, opcode, body)] = server.requests()
        assert (opcode, len(r.decode_multi(body, 0, len(body)))) == (r.OP_MULTI_READ, count)
        server.reply(xid, r.encode_multi_reply(answered))
    assert result_of(read) == [["x"]] * 3
    alone = server.client.multi_read([GetChildren("/a")])
    server.turn()
    [(xid, _, _)] = server.requests()
    server.reply(xid, r.encode_multi_reply([throttled]))
    [refused] = result_of(alone)
    assert isinstance(refused, ThrottledOp), "a store that reads nothing at all is not asked for ever"


@pytest.mark.parametrize("is_ping", [False, True])
def test_a_store_that_requires_identities_ends_the_session(is_ping: bool) -> None:
    """As a rejected credential does: a daemon that has none stops instead of dialing for ever."""
    server = Server()
    server.begin()
    get = None if is_ping else server.client.get("/a")
    server.turn(TIMEOUT_MS / 2900 if is_ping else 0)
    [(xid, _, _)] = server.requests()
    assert (xid == r.XID_PING) is is_ping
    server.reply(xid, err=-124)
    if get is not None:
        with pytest.raises(SaslRequired):
            result_of(get)
    assert server.states[-1] is SessionState.AUTH_FAILED
    server.turn(60)
    assert len(server.addresses()) == 1


def test_a_gap_is_reported_after_the_watch_is_restored() -> None:
    """The gap is reported when the server has confirmed the watch, not at the reconnect; removed watches get no
    event."""
    server = Server()
    server.begin()
    heard: list[tuple[int, str, int]] = []
    removed: list[Any] = []
    server.client.add_watch("/a", lambda *event: heard.append(event))
    server.client.add_watch("/b", lambda *event: removed.append(event), recursive=False)
    server.turn()
    for xid, _, _ in server.requests():
        server.reply(xid, zxid=30)
    server.client.remove_watch("/b", recursive=False)
    server.turn()
    server.reply(server.requests()[0][0], zxid=31)
    server.cut()
    server.turn(0.1)
    server.accept()
    server.welcome()
    assert heard == []
    ((xid, opcode, _),) = server.requests()
    assert opcode == r.OP_SET_WATCHES2
    server.reply(xid)
    assert heard == [(EVENT_GAP, "/a", 31)]
    assert removed == []


def test_a_receiver_gets_the_events_that_arrive_together() -> None:
    """In one call, with the chroot cut off. An event of another watch's callback, and a gap, come alone."""
    server = Server("a:1/x")
    server.begin()
    heard: list[object] = []
    server.client.watch_below("/a", heard.append)
    server.client.get("/a/2/c", lambda *event: heard.append(event))
    server.turn()
    (watch, get) = server.requests()
    assert watch[1:] == (r.OP_ADD_WATCH, r.encode_path_version(b"/x/a", r.WATCH_PERSISTENT_RECURSIVE))
    server.reply(watch[0])
    server.reply(get[0], r.encode_data_reply(b"", r.Stat()))
    fired = [(r.EVENT_CREATED, b"/x/a/1/b", 7), (r.EVENT_DELETED, b"/x/a/2/b", 8), (r.EVENT_DELETED, b"/x/a/2/c", 8),
             (r.EVENT_CREATED, b"/x/a/2/c", 9), (r.EVENT_CREATED, b"/x/b", 9)]  # fmt: skip
    frames = [r.encode_event_frame(kind, r.STATE_CONNECTED, path, zxid) for kind, path, zxid in fired]
    server.connection.dataReceived(b"".join(frames))
    third = (r.EVENT_DELETED, "/a/2/c", 8)
    assert heard[0] == [(r.EVENT_CREATED, "/a/1/b", 7), (r.EVENT_DELETED, "/a/2/b", 8)]
    assert sorted(heard[1:3], key=str) == [third, [third]]
    assert heard[3:] == [[(r.EVENT_CREATED, "/a/2/c", 9)]]
    server.cut()
    server.turn(0.1)
    server.accept()
    server.welcome()
    server.reply(server.requests()[0][0])
    assert heard[4:] == [[(EVENT_GAP, "/a", 5)]]
    server.client.remove_watch("/a", heard.append)
    server.event(r.EVENT_CREATED, b"/x/a/1/d")
    assert len(heard) == 5


def test_events_and_replies_keep_their_order() -> None:
    """A receiver gets the events before a reply when that reply fires, and those behind it later."""
    server = Server()
    server.begin()
    heard: list[object] = []
    server.client.watch_below("/a", heard.append)
    server.client.sync().addCallback(lambda _: heard.append("reply"))
    server.turn()
    (watch, sync) = server.requests()
    server.reply(watch[0])
    before, after = (r.encode_event_frame(r.EVENT_CREATED, r.STATE_CONNECTED, path, 6) for path in (b"/a/1", b"/a/2"))
    server.connection.dataReceived(before + r.encode_reply_frame(sync[0], 6, 0, b"") + after)
    assert heard == [[(r.EVENT_CREATED, "/a/1", 6)], "reply", [(r.EVENT_CREATED, "/a/2", 6)]]


def test_watches_that_cannot_be_restored_close_the_connection() -> None:
    """Otherwise the client would miss events without knowing it."""
    server = Server()
    server.begin()
    server.client.add_watch("/a", lambda *event: None)
    server.turn()
    server.reply(server.requests()[0][0])
    server.cut()
    server.turn(0.1)
    server.accept()
    server.welcome()
    server.reply(server.requests()[0][0], err=-5)
    assert server.client.state is SUSPENDED
    server.turn(1)
    assert len(server.addresses()) == 3


def test_an_exception_in_one_callback_is_logged_and_stops_no_other_callback() -> None:
    """The other callback runs, the connection stays, and the log has the error."""
    server = Server()
    server.begin()
    heard: list[Any] = []

    def broken(event_type: int, path: str, zxid: int) -> None:
        raise ZeroDivisionError

    server.client.get("/a", broken)
    server.client.get("/a", lambda *event: heard.append(event))
    server.turn()
    for xid, _, _ in server.requests():
        server.reply(xid, r.encode_data_reply(b"", r.Stat()))
    logged: list[Any] = []
    globalLogPublisher.addObserver(logged.append)
    try:
        server.event(r.EVENT_DATA_CHANGED, b"/a")
    finally:
        globalLogPublisher.removeObserver(logged.append)
    assert len(heard) == 1
    assert [entry["log_failure"].type for entry in logged if entry["log_level"] is LogLevel.critical] == [
        ZeroDivisionError
    ]
    assert server.client.state is CONNECTED


def test_a_canceled_request_does_not_shift_the_replies() -> None:
    """A caller's timeout drops one answer; the others still match their requests."""
    server = Server()
    server.begin()
    given_up, kept = server.client.get("/a"), server.client.get("/b")
    given_up.addErrback(lambda reason: None)
    server.turn()
    given_up.cancel()
    (one, two) = [xid for xid, _, _ in server.requests()]
    server.reply(one, r.encode_data_reply(b"1", r.Stat()))
    server.reply(two, r.encode_data_reply(b"2", r.Stat()))
    assert result_of(kept)[0] == b"2"
