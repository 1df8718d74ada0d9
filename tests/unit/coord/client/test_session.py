"""The client's session in memory: no sockets, no real time. A scripted server stands at the other end."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import LogLevel, globalLogPublisher
from twisted.python.failure import Failure

from coord.client import EVENT_GAP, Create, Delete, SessionState, ZkClient
from coord.client import connection as connection_module
from coord.client.connection import StoreConnection
from coord.errors import (
    AuthFailed,
    BadArguments,
    ConnectionLoss,
    MultiFailed,
    NoNode,
    SessionExpired,
    TooManyOutstanding,
)
from coord.wire import records as r
from coord.wire.client_conn import FrameReader

TIMEOUT_MS = 6000
CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED


class TestClock:
    """Monotonic time that a test moves together with the reactor's timers."""

    __test__ = False

    def __init__(self, reactor: MemoryReactorClock) -> None:
        self._reactor = reactor

    def monotonic_ms(self) -> int:
        """Begins far from 0, as in life."""
        return 1_000_000 + round(self._reactor.seconds() * 1000)

    def wall_ms(self) -> int:
        """Not used by the client."""
        raise AssertionError("the client asks for no wall time")


class LowestRng:
    """Keeps the order of hosts (every swap is with itself) and picks the longest pauses."""

    def below(self, n: int) -> int:
        """The highest number."""
        return n - 1


class CountingTransport(StringTransport):
    """Counts writes."""

    writes = 0

    def write(self, data: bytes) -> None:
        """As the base class, counted."""
        self.writes += 1
        super().write(data)


class Server:
    """The other end of the newest connection, played by the test."""

    def __init__(self, hosts: str = "a:1,b:2,c:3", timeout_ms: int = TIMEOUT_MS) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.clock = TestClock(self.reactor)
        self.client = ZkClient(self.reactor, hosts, timeout_ms, clock=self.clock, rng=LowestRng())
        self.states: list[SessionState] = []
        self.client.on_state(self.states.append)
        self.connection: StoreConnection
        self.transport: CountingTransport
        self._seen = 0
        self._reader = FrameReader(1 << 20, 1)

    def addresses(self) -> list[str]:
        """Every address tried so far."""
        return [f"{host}:{port}" for host, port, *_ in self.reactor.tcpClients]

    def accept(self) -> r.ConnectRequest:
        """Take the newest TCP connection and read its connect request."""
        factory = self.reactor.tcpClients[-1][2]
        self.connection = factory.buildProtocol(None)
        self.transport = CountingTransport()
        self._seen = 0
        self._reader = FrameReader(1 << 20, 1)
        self.connection.makeConnection(self.transport)
        (hello,) = self.frames()
        return r.decode_connect_request(hello, 0, len(hello))

    def refuse(self) -> None:
        """Refuse the newest TCP connection."""
        self.reactor.tcpClients[-1][2].clientConnectionFailed(None, Failure(ConnectError()))

    def welcome(self, session_id: int = 77, timeout_ms: int = TIMEOUT_MS) -> None:
        """Accept the session."""
        self.reply_raw(r.encode_connect_response(r.ConnectResponse(timeout_ms, session_id, b"p" * 16)))

    def begin(self) -> None:
        """From nothing to CONNECTED."""
        self.client.connect().addErrback(lambda reason: None)
        self.accept()
        self.welcome()
        self.turn()

    def turn(self, seconds: float = 0) -> None:
        """Let the reactor do what is due."""
        self.reactor.advance(seconds)

    def frames(self) -> list[bytes]:
        """What the client has written since the last look, frame by frame."""
        value = self.transport.value()
        frames = self._reader.feed(value[self._seen :])
        self._seen = len(value)
        block = self._reader.take_block()
        return [block[at:end] for at, end in frames]

    def requests(self) -> list[tuple[int, int, bytes]]:
        """(xid, opcode, body) of what the client has written since the last look."""
        return [(*struct.unpack_from("!ii", frame), frame[8:]) for frame in self.frames()]

    def reply_raw(self, payload: bytes) -> None:
        """Send a frame."""
        self.connection.dataReceived(struct.pack("!i", len(payload)) + payload)

    def reply(self, xid: int, body: bytes = b"", *, err: int = 0, zxid: int = 5) -> None:
        """Answer a request."""
        self.connection.dataReceived(r.encode_reply_frame(xid, zxid, err, body))

    def event(self, event_type: int, path: bytes, zxid: int = 9) -> None:
        """Fire a watch."""
        self.connection.dataReceived(r.encode_event_frame(event_type, r.STATE_CONNECTED, path, zxid))

    def cut(self) -> None:
        """The network drops the connection."""
        self.connection.connectionLost(Failure(ConnectionDone()))


def result_of(deferred: Any) -> Any:
    """What a Deferred has fired with by now; raises its failure."""
    got: list[Any] = []
    deferred.addBoth(got.append)
    assert got, "not fired"
    if isinstance(got[0], Failure):
        got[0].raiseException()
    return got[0]


def pending(deferred: Any) -> bool:
    """Whether a Deferred has not fired."""
    return not deferred.called


# --- handshake and hosts --------------------------------------------------------------------------------------------


def test_first_connection_asks_for_a_new_session() -> None:
    """Session 0, no zxid, sixteen zero bytes; afterwards the server's session and timeout count."""
    server = Server()
    connected = server.client.connect()
    hello = server.accept()
    assert (hello.session_id, hello.last_zxid_seen, hello.passwd, hello.timeout_ms) == (0, 0, bytes(16), TIMEOUT_MS)
    assert pending(connected)
    server.welcome(session_id=0x123, timeout_ms=4000)
    assert result_of(connected) is None
    assert (server.client.session_id, server.client.timeout_ms, server.states) == (0x123, 4000, [SUSPENDED, CONNECTED])


def test_handshake_in_pieces_and_requests_may_follow_at_once() -> None:
    """One byte at a time; what a state callback asks goes out in the same turn."""
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
    """All servers once without delay worth mentioning, then 50 ms, 100 ms, ... up to the cap."""
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


def test_silent_server_is_given_up_and_the_next_one_tried() -> None:
    """TCP connects, but no answer to the connect request comes."""
    server = Server()
    server.client.connect()
    server.accept()
    server.turn(TIMEOUT_MS / 3000 + 0.1)
    assert server.transport.disconnected
    server.turn(0.1)
    assert server.addresses() == ["a:1", "b:2"]


def test_server_that_closes_without_answer_is_passed_over() -> None:
    """As servers do that are behind this client's zxid."""
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


def test_requests_of_one_turn_leave_in_one_write() -> None:
    """However many were asked, and also those asked from within an answer's callback."""
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


def test_answers_are_decoded_and_belong_to_their_requests() -> None:
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


def test_failed_multi_names_the_operation() -> None:
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
    """ConnectionLoss, or SessionExpired once that is known."""
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
    """The one too many fails by itself; the others stay."""
    monkeypatch.setattr(connection_module, "MAX_OUTSTANDING", 3)
    server = Server()
    server.begin()
    waiting = [server.client.get("/a") for _ in range(3)]
    with pytest.raises(TooManyOutstanding):
        result_of(server.client.get("/a"))
    assert all(map(pending, waiting))


def test_request_too_long_for_any_server_is_refused_here() -> None:
    """Sent, it would cost the connection of all the others."""
    server = Server()
    server.begin()
    with pytest.raises(BadArguments, match="limit"):
        result_of(server.client.set("/a", bytes(0xFFFFF)))
    server.turn()
    assert server.requests() == []


def test_chroot_is_added_and_taken_off() -> None:
    """In requests, created paths, events; `/` is the chroot itself; nothing escapes it."""
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


# --- connection loss ------------------------------------------------------------------------------------------------


def test_loss_fails_what_waits_and_resumes_the_session_elsewhere() -> None:
    """ConnectionLoss with the path; the next server gets session, password and last zxid; nothing is sent again."""
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


def test_ping_after_a_third_and_loss_after_two_thirds_of_silence() -> None:
    """By the negotiated timeout, not the one asked for."""
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
    """A ping leaves only when nothing else did."""
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


def test_blocked_reactor_reads_before_it_gives_up() -> None:
    """After a long block the answers lie in the socket: one turn later they have been read."""
    server = Server()
    server.begin()
    waiting = server.client.get("/a")
    server.turn()
    ((xid, _, _),) = server.requests()
    # One step of the clock past everything: timers run first, as in a reactor that was blocked.
    server.reactor.rightNow += 60
    server.reactor.callLater(0, server.reply, xid, r.encode_data_reply(b"", r.Stat()))
    server.turn()
    assert result_of(waiting)
    server.turn(0.01)
    assert server.client.state is CONNECTED


def test_contact_is_the_sending_of_what_was_answered() -> None:
    """A late answer proves only that the server heard us when the request left."""
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
def test_server_that_breaks_the_protocol_is_left(garbage: bytes) -> None:
    """Bad lengths, replies to nothing, unreadable records: the connection goes, requests fail, the session lives on."""
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


# --- end of session -------------------------------------------------------------------------------------------------


def test_expiry_ends_everything_and_connect_begins_anew() -> None:
    """Timeout 0 and session 0 say so; waiters fail, watches are gone, no reconnect; connect() asks for a new one."""
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


def test_expiry_callback_may_connect_again() -> None:
    """The usual reaction, from within the callback."""
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
    """closeSession goes last; the answer closes the connection; nothing reconnects."""
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
    """A third of the timeout is the most; while connecting it is at once."""
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


# --- credentials and watches ----------------------------------------------------------------------------------------


def test_credentials_come_first_on_every_connection() -> None:
    """Then watches, then everybody else's requests."""
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


def test_refused_credential_is_final() -> None:
    """AUTH_FAILED, once; requests and waiters fail typed."""
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


def test_gap_is_told_after_the_watch_is_in_force_again() -> None:
    """Not on reconnecting, but when the server has confirmed; removed watches hear nothing."""
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


def test_watches_that_cannot_be_restored_cost_the_connection() -> None:
    """A client without its watches would be deaf without knowing it."""
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


def test_fault_in_a_callback_is_logged_and_harms_nobody_else() -> None:
    """The other callback runs, the connection stays, the fault is in the log."""
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


def test_cancelled_request_does_not_shift_the_answers() -> None:
    """A caller's own timeout gives up one answer; the others stay with their requests."""
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
