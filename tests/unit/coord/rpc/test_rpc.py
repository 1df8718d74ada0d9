"""coord.rpc: frames, pipelining, rejections, timeouts, reconnecting, and a real loopback connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from coord.rpc import blocking
from coord.rpc.blocking import call_blocking
from coord.rpc.client import Reconnect, RpcClient
from coord.rpc.server import RpcServer
from coord.rpc.wire import (
    FRAME_BYTES_MAX,
    PREAMBLE,
    Code,
    Failed,
    Reply,
    Request,
    RpcError,
    RpcFrameReader,
    StreamError,
    encode_body,
    encode_frame,
)


class Ask(msgspec.Struct, tag=True):
    n: int


class Shout(msgspec.Struct, tag=True):
    text: str


class Answer(msgspec.Struct, tag=True):
    n: int


class Other(msgspec.Struct, tag=True):
    pass


Requests = Ask | Shout
Replies = Answer | Other


class TestFrames:
    """The byte format, without a transport."""

    @given(st.lists(st.integers(0, 2**40), max_size=8), st.integers(1, 40))
    def test_any_cut_of_the_stream_yields_the_same_payloads(self, numbers: list[int], piece: int) -> None:
        """For any split of the bytes, the frames come out whole and in order."""
        stream = PREAMBLE + b"".join(encode_frame(Request(n, encode_body(Ask(n)))) for n in numbers)
        reader = RpcFrameReader()
        got = []
        for start in range(0, len(stream), piece):
            got += list(reader.feed(stream[start : start + piece]))
        assert [payload.id for payload in got] == numbers

    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\n",
            b"RKRP\x00\x02",
            b"X",
            PREAMBLE + b"\xff\xff\xff\xff",
            PREAMBLE + b"\x00\x00\x00\x01\xc1",
        ],
        ids=["another protocol", "another version", "first byte", "oversized", "undecodable"],
    )
    def test_foreign_bytes_are_refused(self, data: bytes) -> None:
        """The first byte that does not belong to this protocol ends the connection."""
        with pytest.raises(StreamError):
            list(RpcFrameReader().feed(data))

    def test_a_message_beyond_the_limit_is_refused_before_it_is_sent(self) -> None:
        """FRAME_BYTES_MAX applies on the sending side too."""
        with pytest.raises(RpcError) as caught:
            encode_frame(Request(1, encode_body(Shout("x" * (FRAME_BYTES_MAX + 1)))))
        assert caught.value.code == Code.TOO_LARGE


class ServerSide(SynchronousTestCase):
    """The server's end over a StringTransport."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.pending: dict[int, Deferred[Any]] = {}
        server = self.server = RpcServer(self.dispatch, requests=Requests)
        self.connection = server.factory(self.reactor).buildProtocol(None)
        self.transport = StringTransport()
        self.connection.makeConnection(self.transport)
        self.reader = RpcFrameReader()
        self.connection.dataReceived(PREAMBLE)

    def dispatch(self, request: Any) -> Any:
        if isinstance(request, Shout):
            if request.text == "refuse":
                raise RpcError("not_active", "ask the other one", hint="127.0.0.1:9")
            raise ValueError("a secret")
        deferred: Deferred[Any] = Deferred()
        self.pending[request.n] = deferred
        return deferred

    def ask(self, call_id: int, message: msgspec.Struct) -> None:
        self.connection.dataReceived(encode_frame(Request(call_id, encode_body(message))))

    def answers(self) -> list[Any]:
        self.reactor.advance(0)
        data = self.transport.value()
        self.transport.clear()
        return list(self.reader.feed(data))

    def test_replies_come_in_the_order_they_finish(self) -> None:
        """Out-of-order replies carry the id of their request."""
        for n in (1, 2, 3):
            self.ask(n, Ask(n))
        self.pending[3].callback(Answer(30))
        self.pending[1].callback(Answer(10))
        assert [payload.id for payload in self.answers()] == [3, 1]

    def test_a_request_is_known_by_where_it_came_from(self) -> None:
        """The receiver's log names the sender of a request."""
        assert self.server.caller() == ""
        self.ask(1, Ask(1))
        peer = self.transport.getPeer()
        assert self.server.caller() == f"{peer.host}:{peer.port}"

    def test_all_replies_of_a_turn_leave_in_one_write(self) -> None:
        """Two replies of one turn are one write to the transport."""
        writes: list[bytes] = []
        self.answers()
        self.transport.write = writes.append  # type: ignore[method-assign]
        for n in (1, 2):
            self.ask(n, Ask(n))
            self.pending[n].callback(Answer(n))
        self.reactor.advance(0)
        assert len(writes) == 1

    def test_a_refusal_reaches_the_caller_as_it_was_raised(self) -> None:
        """RpcError raised by dispatch is sent with code, message and hint."""
        self.ask(1, Shout("refuse"))
        (failed,) = self.answers()
        assert failed == Failed(1, "not_active", "ask the other one", "127.0.0.1:9")

    def test_a_fault_is_logged_here_and_tells_the_caller_nothing(self) -> None:
        """No detail of an unexpected exception leaves the process."""
        self.ask(1, Shout("fault"))
        (failed,) = self.answers()
        assert failed.code == Code.INTERNAL
        assert "secret" not in failed.message
        assert len(self.flushLoggedErrors(ValueError)) == 1

    def test_an_unknown_request_costs_only_itself(self) -> None:
        """A body that is not a request of the union is rejected; the connection continues."""
        self.ask(1, Other())
        self.ask(2, Ask(2))
        self.pending[2].callback(Answer(2))
        first, second = self.answers()
        assert (first.code, second.id) == (Code.UNSUPPORTED, 2)
        assert first.message == "the receiver does not answer Other requests"

    def test_a_refusal_names_receiver_and_type_and_repeats_no_rubbish(self) -> None:
        """The type comes from a stranger: only identifiers of bounded length are shown."""
        self.server.receiver = lambda: "server s1 of kind counters/1"
        bodies = [{"type": "KvScan", "at": 1}, {"type": "Ask", "n": "x"}, {"type": "x" * 129}, {"type": "\x1b[2J"}]
        for number, body in enumerate([*bodies, {}, [1], "text"]):
            self.connection.dataReceived(encode_frame(Request(number, msgspec.Raw(msgspec.msgpack.encode(body)))))
        told = [(one.code, one.message.partition(": ")[0]) for one in self.answers()]
        nameless = (Code.BAD_REQUEST, "server s1 of kind counters/1 cannot read this unnamed request")
        assert told == [
            (Code.UNSUPPORTED, "server s1 of kind counters/1 does not answer KvScan requests"),
            (Code.BAD_REQUEST, "server s1 of kind counters/1 cannot read this Ask request"),
            *[nameless] * 5,
        ]

    def test_a_request_for_somebody_else_is_not_even_decoded(self) -> None:
        """The envelope is checked first: a rejected request reaches no dispatch."""

        def check(request: Request) -> None:
            if request.cluster == "other":
                raise RpcError("wrong_cluster", "not here")

        self.server.check = check
        self.connection.dataReceived(encode_frame(Request(1, encode_body(Ask(1)), "other")))
        self.connection.dataReceived(encode_frame(Request(2, encode_body(Ask(2)), "mine")))
        self.pending[2].callback(Answer(2))
        first, second = self.answers()
        assert (first.code, second.id, 1 in self.pending) == ("wrong_cluster", 2, False)

    def test_envelopes_of_earlier_and_later_builds_are_read(self) -> None:
        """An earlier build sends no cluster; a later one may send unknown fields."""
        for number, more in enumerate(([], ["", 7, "later"])):
            payload = msgspec.msgpack.encode([0, number, {"type": "Ask", "n": number}, *more])
            self.connection.dataReceived(struct.pack(">I", len(payload)) + payload)
            self.pending[number].callback(Answer(number))
        assert [one.id for one in self.answers()] == [0, 1]

    def test_a_caller_that_does_not_read_is_not_read_from(self) -> None:
        """When replies pile up the transport is paused, and resumed when they have been sent."""
        self.connection.pauseProducing()
        assert self.transport.producerState == "paused"
        self.connection.resumeProducing()
        assert self.transport.producerState == "producing"

    def test_more_requests_than_the_bound_are_refused(self) -> None:
        """The bound on requests in progress is kept per connection."""
        self.patch(__import__("coord.rpc.server", fromlist=["rpc"]), "REQUESTS_MAX", 2)
        for n in (1, 2, 3):
            self.ask(n, Ask(n))
        (failed,) = self.answers()
        assert (failed.id, failed.code) == (3, Code.BUSY)

    def test_a_broken_stream_closes_the_connection(self) -> None:
        """After an oversized length the rest of the stream is meaningless."""
        self.connection.dataReceived(struct.pack(">I", FRAME_BYTES_MAX + 1))
        assert self.transport.disconnected

    def test_an_answer_after_the_caller_has_gone_is_dropped(self) -> None:
        """The caller may disconnect while its request runs."""
        self.ask(1, Ask(1))
        self.connection.connectionLost(Failure(error.ConnectionDone()))
        self.pending[1].callback(Answer(1))
        self.reactor.advance(0)


class ClientSide(SynchronousTestCase):
    """The client's end over a MemoryReactorClock."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.client = RpcClient(self.reactor, "server", 21851, replies=Replies)

    def connect(self) -> tuple[Any, StringTransport]:
        """Let the latest attempt succeed."""
        factory = self.reactor.tcpClients[-1][2]
        connection = factory.buildProtocol(None)
        transport = StringTransport()
        connection.makeConnection(transport)
        connection.dataReceived(PREAMBLE)
        self.reactor.advance(0)
        return connection, transport

    def refuse(self) -> None:
        """Let the latest attempt fail."""
        factory = self.reactor.tcpClients[-1][2]
        factory.clientConnectionFailed(None, Failure(error.ConnectionRefusedError()))

    def failure_code(self, deferred: Deferred[Any]) -> str:
        return str(self.failureResultOf(deferred, RpcError).value.code)

    def sent(self, transport: StringTransport) -> list[int]:
        return [payload.id for payload in RpcFrameReader().feed(transport.value())]

    def test_calls_made_before_the_connection_stands_are_sent_together(self) -> None:
        """One attempt, one write, all requests."""
        self.client.call(Ask(1))
        self.client.call(Ask(2))
        assert len(self.reactor.tcpClients) == 1
        _, transport = self.connect()
        assert self.sent(transport) == [1, 2]

    def test_each_reply_fires_its_own_call(self) -> None:
        """Replies in any order find their callers."""
        first, second = self.client.call(Ask(1)), self.client.call(Ask(2))
        connection, _ = self.connect()
        connection.dataReceived(encode_frame(Reply(2, encode_body(Answer(20)))))
        self.assertNoResult(first)
        assert self.successResultOf(second) == Answer(20)
        connection.dataReceived(encode_frame(Failed(1, "stale_epoch", "epoch 3 < 4")))
        assert self.failure_code(first) == "stale_epoch"

    def test_a_reply_of_another_kind_is_an_error_not_a_value(self) -> None:
        """`expect` is checked by decoding into that type alone."""
        call = self.client.call(Ask(1), expect=Answer)
        connection, _ = self.connect()
        connection.dataReceived(encode_frame(Reply(1, encode_body(Other()))))
        assert self.failure_code(call) == Code.BAD_REPLY

    def test_once_fails_with_the_first_refused_attempt(self) -> None:
        """Reconnect.ONCE: certainly not executed."""
        call = self.client.call(Ask(1))
        self.refuse()
        assert self.failure_code(call) == Code.UNREACHABLE

    def test_wait_connects_again_until_it_can_be_sent(self) -> None:
        """Reconnect.WAIT: refused attempts do not fail the call."""
        call = self.client.call(Ask(1), reconnect=Reconnect.WAIT)
        self.refuse()
        self.reactor.advance(0.05)
        self.refuse()
        self.reactor.advance(0.1)
        assert len(self.reactor.tcpClients) == 3
        _, transport = self.connect()
        self.assertNoResult(call)
        assert self.sent(transport) == [1]

    def test_only_resend_survives_a_broken_connection(self) -> None:
        """A request that was sent fails, unless it may be sent twice."""
        wait = self.client.call(Ask(1), reconnect=Reconnect.WAIT)
        resend = self.client.call(Ask(2), reconnect=Reconnect.RESEND)
        connection, _ = self.connect()
        connection.connectionLost(Failure(error.ConnectionDone()))
        assert self.failure_code(wait) == Code.CONNECTION_LOST
        self.assertNoResult(resend)
        self.reactor.advance(0.05)
        _, transport = self.connect()
        assert self.sent(transport) == [2]

    def test_a_timeout_without_any_sign_of_life_drops_the_connection(self) -> None:
        """The next call must not wait on a dead link."""
        self.client.call(Ask(0), timeout_s=9.0).addErrback(lambda _failure: None)
        connection, transport = self.connect()
        call = self.client.call(Ask(1), timeout_s=1.0)
        self.reactor.advance(1.0)
        assert self.failure_code(call) == Code.TIMEOUT
        assert transport.disconnected
        connection.connectionLost(Failure(error.ConnectionDone()))
        self.client.call(Ask(2))
        assert len(self.reactor.tcpClients) == 2

    def test_a_timeout_on_a_living_connection_costs_one_call(self) -> None:
        """A slow request does not break the others; its late reply is dropped."""
        slow = self.client.call(Ask(1), timeout_s=1.0)
        quick = self.client.call(Ask(2), timeout_s=5.0)
        connection, transport = self.connect()
        connection.dataReceived(encode_frame(Reply(2, encode_body(Answer(2)))))
        self.reactor.advance(1.0)
        assert self.failure_code(slow) == Code.TIMEOUT
        assert not transport.disconnected
        assert self.successResultOf(quick) == Answer(2)
        connection.dataReceived(encode_frame(Reply(1, encode_body(Answer(1)))))

    def test_deadlines_fire_in_their_order_whatever_the_order_of_calls(self) -> None:
        """One timer serves all deadlines."""
        late, early = self.client.call(Ask(1), 3.0), self.client.call(Ask(2), 1.0)
        self.connect()
        self.reactor.advance(1.0)
        assert self.failure_code(early) == Code.TIMEOUT
        self.assertNoResult(late)
        self.reactor.advance(2.0)
        assert self.failure_code(late) == Code.TIMEOUT

    def test_close_fails_what_waits_and_leaves_no_timer(self) -> None:
        """After close nothing of the client is left in the reactor."""
        call = self.client.call(Ask(1), reconnect=Reconnect.WAIT)
        self.refuse()
        self.client.close()
        assert self.failure_code(call) == Code.CLOSED
        assert self.failure_code(self.client.call(Ask(2))) == Code.CLOSED
        assert not [delayed for delayed in self.reactor.getDelayedCalls() if delayed.active()]

    def test_a_cancelled_call_is_forgotten(self) -> None:
        """Canceling gives up the reply, not the connection."""
        call = self.client.call(Ask(1))
        connection, _ = self.connect()
        call.cancel()
        self.failureResultOf(call)
        connection.dataReceived(encode_frame(Reply(1, encode_body(Answer(1)))))
        other = self.client.call(Ask(2))
        connection.dataReceived(encode_frame(Reply(2, encode_body(Answer(2)))))
        assert self.successResultOf(other) == Answer(2)


class _OnePeer:
    """A listening socket that handles its one caller as `behave` says, on a thread that the test joins."""

    def __init__(self, behave: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve, args=(behave,))
        self._thread.start()

    def _serve(self, behave: Any) -> None:
        connection, _ = self._listener.accept()
        with connection:
            behave(connection)

    def __enter__(self) -> _OnePeer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._thread.join(60)
        self._listener.close()


class TestCallBlocking:
    """The call of the command line, over real sockets."""

    def test_reply(self) -> None:
        """A request, its reply, one connection."""

        def behave(connection: socket.socket) -> None:
            (request,) = RpcFrameReader().feed(connection.recv(65536))
            assert isinstance(request, Request)
            connection.sendall(PREAMBLE + encode_frame(Reply(request.id, encode_body(Answer(7)))))

        with _OnePeer(behave) as peer:
            assert call_blocking(peer.address, Ask(7), 60.0, expect=Answer) == Answer(7)

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (PREAMBLE + encode_frame(Failed(1, "not_leader", "127.0.0.1:2")), "not_leader"),
            (b"HTTP/1.1 400 Bad Request\r\n", Code.PROTOCOL),
            (PREAMBLE, Code.CONNECTION_LOST),
        ],
        ids=["refused", "another protocol", "closed"],
    )
    def test_what_is_no_reply_is_a_typed_error(self, answer: bytes, code: str) -> None:
        """Each kind of failure has its own code."""

        def behave(connection: socket.socket) -> None:
            connection.recv(65536)
            connection.sendall(answer)

        with _OnePeer(behave) as peer, pytest.raises(RpcError) as caught:
            call_blocking(peer.address, Ask(1), 60.0, expect=Answer)
        assert caught.value.code == code

    def test_silence_is_a_timeout(self) -> None:
        """A peer that accepts and sends nothing."""
        done = threading.Event()
        with _OnePeer(lambda _connection: done.wait(60)) as peer:
            with pytest.raises(RpcError) as caught:
                call_blocking(peer.address, Ask(1), 0.2, expect=Answer)
            done.set()
        assert caught.value.code == Code.TIMEOUT

    def test_a_number_that_no_request_can_carry_is_a_typed_error(self) -> None:
        """A command line takes integers of any size."""
        with pytest.raises(RpcError, match="a number in the Ask request needs more than 64 bits") as caught:
            call_blocking(("127.0.0.1", 1), Ask(1 << 64), 60.0, expect=Answer)
        assert caught.value.code == Code.BAD_REQUEST

    def test_nobody_there(self) -> None:
        """After a refused connection the request was certainly not executed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
        with pytest.raises(RpcError) as caught:
            call_blocking(address, Ask(1), 60.0, expect=Answer)
        assert caught.value.code == Code.UNREACHABLE
        assert not caught.value.is_outcome_unknown


def test_one_thread_at_a_time_builds_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that built decoders of the same Structs ended `rk fsck` with a segmentation fault."""
    both = threading.Barrier(2)
    overlaps: list[object] = []

    def build(union: object) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
            overlaps.append(union)

    monkeypatch.setattr(blocking, "body_decoder", build)
    monkeypatch.setattr(blocking, "decode_reply", lambda _payload, _replies: None)
    threads = [threading.Thread(target=blocking.reply_in_thread, args=(None, kind)) for kind in (bytes, bytearray)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not overlaps
