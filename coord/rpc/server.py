"""RPC between masters, region servers and tools: typed messages over one pipelined TCP connection.

    server = RpcServer(dispatch, requests=messages.ServerRequest)    # dispatch(request) -> reply, or awaitable of it
    port = server.listen(reactor, "127.0.0.1", 21831)

    client = RpcClient(reactor, "127.0.0.1", 21831)
    reply = await client.call(messages.OpenRegions(...), timeout_s=5.0, expect=messages.OrderResults)

`dispatch` refuses by raising RpcError(code, message, hint): the caller gets exactly that. Any other exception is
logged here and reaches the caller as Code.INTERNAL without a word of detail. Frames and codes: `coord.rpc.wire`,
`coord.rpc.blocking` has the form for tools.

A client connects when it is first called and keeps the connection. What it does about a peer that cannot be reached,
each call says for itself (`Reconnect`). All frames queued in one turn of the reactor leave in one write. A caller
that asks faster than answers come is refused beyond `REQUESTS_MAX`; a caller that does not read its replies is not
read from any more.
"""

from __future__ import annotations

import enum
import heapq
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar, overload

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IDelayedCall,
    IListeningPort,
    IPushProducer,
    ITransport,
)
from twisted.internet.protocol import ClientFactory, Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from coord.daemon import ListeningReactor
from coord.rpc.wire import (
    FRAME_BYTES_MAX,
    PREAMBLE,
    Code,
    Failed,
    Payload,
    Reply,
    Request,
    RpcError,
    RpcFrameReader,
    StreamError,
    decode_reply,
    decode_request,
    encode_body,
    encode_frame,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "Code",
    "Reconnect",
    "RpcClient",
    "RpcError",
    "RpcServer",
]

log = Logger()

#: Requests of one connection that may be in progress in the server, and calls that one client may have waiting.
REQUESTS_MAX: Final = 4096
#: How long one attempt to connect may take.
CONNECT_TIMEOUT_S: Final = 2.0
#: Pause after the first failed attempt; it doubles up to the maximum. A call that does not wait skips it.
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0

T = TypeVar("T", bound=msgspec.Struct)
Dispatch = Callable[[Any], "msgspec.Struct | Awaitable[msgspec.Struct]"]


class RpcReactor(ListeningReactor, Protocol):
    """The part of a reactor that RPCs use: time and TCP."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> IDelayedCall: ...
    def seconds(self) -> float: ...
    def connectTCP(self, host: str, port: int, factory: ClientFactory, timeout: float = ...) -> IConnector: ...


class Reconnect(enum.Enum):
    """What a call does about a peer that cannot be reached."""

    #: Fail as soon as one attempt to connect has failed, or the connection breaks.
    ONCE = "once"
    #: Keep trying to connect until the call's time is over; once sent, a broken connection fails it.
    WAIT = "wait"
    #: Keep trying, and send again after a broken connection: only for requests that may be executed twice.
    RESEND = "resend"


class _Frames(TwistedProtocol):
    """Either end of a connection: frames in, frames out, one write per turn."""

    transport: Any

    def __init__(self, reactor: RpcReactor) -> None:
        self._reactor = reactor
        self._reader = RpcFrameReader()
        self._outbox: list[bytes] = []
        self._is_reading = False
        self.is_open = False

    def connectionMade(self) -> None:
        """Greet."""
        self.is_open = True
        for option in ("setTcpNoDelay", "setTcpKeepAlive"):
            getattr(self.transport, option, lambda _on: None)(True)
        self.send(PREAMBLE)

    def send(self, frame: bytes) -> None:
        """Queue one frame for the end of this turn, or of what is being read."""
        if not self._outbox and not self._is_reading:
            self._reactor.callLater(0, self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        data = b"".join(self._outbox)
        self._outbox.clear()
        if data and self.is_open:
            self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        """Hand each complete payload on; drop a peer that speaks something else.

        What is sent meanwhile leaves right afterwards: a turn of the reactor between a question and its answer costs
        more than most answers.
        """
        self._is_reading = is_first = not self._outbox
        try:
            for payload in self._reader.feed(data):
                self.payload_received(payload)
        except StreamError as error:
            log.warn("connection with {peer} dropped: {error}", peer=_peer_name(self.transport), error=error)
            self.drop(RpcError(Code.PROTOCOL, str(error)))
        finally:
            self._is_reading = False
            if is_first:
                self._flush()

    def payload_received(self, payload: Payload) -> None:
        """One complete payload."""
        raise NotImplementedError

    def drop(self, error: RpcError) -> None:  # noqa: ARG002
        """Close at once; `error` is what those who wait on this connection should hear."""
        self.transport.abortConnection()


def _peer_name(transport: ITransport) -> str:
    peer = transport.getPeer()
    return f"{getattr(peer, 'host', peer)}:{getattr(peer, 'port', '')}"


# --- the answering side ---------------------------------------------------------------------------------------


@implementer(IPushProducer)
class _ServerConnection(_Frames):
    """One caller. Its requests are dispatched as they come and answered as they finish.

    As the producer of its own replies it is told when the caller does not read them, and then stops reading the caller.
    """

    def __init__(self, server: RpcServer, reactor: RpcReactor) -> None:
        super().__init__(reactor)
        self._server = server
        self._in_progress: set[int] = set()

    def connectionMade(self) -> None:
        """Greet, and ask to be told about a caller that does not read."""
        super().connectionMade()
        self._server.connections.add(self)
        self.transport.registerProducer(self, True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002
        """Forget the caller. What it asked for goes on to its end: the answer has nowhere to go, that is all."""
        self.is_open = False
        self._server.connections.discard(self)

    def pauseProducing(self) -> None:
        """Replies pile up: read no more requests."""
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """The caller has read its replies."""
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """The transport is closing; nothing to stop."""

    def payload_received(self, payload: Payload) -> None:
        """Dispatch one request, or refuse it."""
        if not isinstance(payload, Request):
            raise StreamError("a reply where only requests belong")
        request_id = payload.id
        if request_id in self._in_progress:
            raise StreamError(f"request id {request_id} is in use")
        if len(self._in_progress) >= REQUESTS_MAX:
            self._fail(request_id, RpcError(Code.BUSY, f"{REQUESTS_MAX} requests of this connection are in progress"))
            return
        try:
            self._server.check(payload)
            request = decode_request(payload, self._server.requests, self._server.receiver())
        except RpcError as error:
            self._fail(request_id, error)
            return
        self._in_progress.add(request_id)
        try:
            self._server.calling = self.transport
            reply = self._server.dispatch(request)
        except Exception:  # the boundary: whatever it is, the caller hears of it, and the log if it is our fault
            self._failed(request_id, request, Failure())  # type: ignore[no-untyped-call]
            return
        if isinstance(reply, msgspec.Struct):
            self._reply(request_id, reply)
            return
        answer: Deferred[msgspec.Struct] = ensureDeferred(_awaited(request, reply))
        answer.addCallbacks(
            lambda reply: self._reply(request_id, reply), lambda failure: self._failed(request_id, request, failure)
        )

    def _reply(self, request_id: int, reply: msgspec.Struct) -> None:
        self._in_progress.discard(request_id)
        try:
            self.send(encode_frame(Reply(request_id, encode_body(reply))))
        except RpcError as error:
            self._fail(request_id, error)

    def _failed(self, request_id: int, request: object, failure: Failure) -> None:
        self._in_progress.discard(request_id)
        if isinstance(failure.value, RpcError):
            self._fail(request_id, failure.value)
            return
        log.failure("request {kind} failed", failure=failure, kind=type(request).__name__)
        self._fail(request_id, RpcError(Code.INTERNAL, f"{type(request).__name__} failed; the receiver's log says why"))

    def _fail(self, request_id: int, error: RpcError) -> None:
        self.send(encode_frame(Failed(request_id, error.code, error.message, error.hint)))


class RpcServer:
    """Answers the requests of any number of callers by `dispatch`.

    `requests` is the tagged union of Structs that may be asked. `dispatch` runs on the reactor's thread and returns a
    Struct or an awaitable of one. `receiver` says what refusals call this process. `check` looks at each request before
    it is decoded, and raises RpcError for one that is meant for somebody else.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        requests: Any,
        receiver: Callable[[], str] = lambda: "the receiver",
        check: Callable[[Request], None] = lambda _request: None,
    ) -> None:
        self.dispatch = dispatch
        self.requests = requests
        self.receiver = receiver
        self.check = check
        self.connections: set[_ServerConnection] = set()
        #: Connection of the request that is being dispatched, or was last.
        self.calling: ITransport | None = None
        self._port: IListeningPort | None = None

    def caller(self) -> str:
        """Return "host:port" of the caller whose request is being dispatched; valid until `dispatch` returns, and in a
        coroutine until its first await."""
        return "" if self.calling is None else _peer_name(self.calling)

    def factory(self, reactor: RpcReactor) -> Factory:
        """A Twisted factory, for those who bring their own listening port (TLS, tests)."""
        server = self

        class _ServerFactory(Factory):
            noisy = False

            def buildProtocol(self, addr: IAddress | None) -> _ServerConnection:  # noqa: ARG002
                return _ServerConnection(server, reactor)

        return _ServerFactory()

    def listen(self, reactor: RpcReactor, host: str, port: int) -> IListeningPort:
        """Listen on `host`:`port` (0: any free port). Raises twisted's CannotListenError when it is taken."""
        assert self._port is None, "this server listens already"
        self._port = reactor.listenTCP(port, self.factory(reactor), interface=host)
        return self._port

    async def stop(self) -> None:
        """Stop listening and close every connection; callers that still wait see a broken connection."""
        for connection in list(self.connections):
            connection.transport.loseConnection()
        port, self._port = self._port, None
        if port is not None:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped


async def _awaited(request: object, answer: Awaitable[msgspec.Struct]) -> msgspec.Struct:
    """The reply once it is there; raises what it fails with."""
    assert inspect.isawaitable(answer), f"{type(request).__name__} was answered with {answer!r}"
    reply = await answer
    assert isinstance(reply, msgspec.Struct), f"{type(request).__name__} was answered with {reply!r}"
    return reply


# --- the asking side ------------------------------------------------------------------------------------------


class _Call:
    """A request that waits for its reply."""

    def __init__(self, call_id: int, frame: bytes, deadline: float, reconnect: Reconnect, what: str) -> None:
        self.id = call_id
        self.frame = frame
        self.deadline = deadline
        self.reconnect = reconnect
        self.what = what
        self.answer: Deferred[Any] = Deferred()
        #: Count of bytes-received events of the connection when this was sent; None while it has not been sent.
        self.sent_at: int | None = None


class _ClientConnection(_Frames):
    """The connection of an RpcClient, from the first attempt until it is lost."""

    def __init__(self, client: RpcClient, reactor: RpcReactor) -> None:
        super().__init__(reactor)
        self._client = client
        #: Moves with everything received: a call that times out while it stood still makes the connection suspect.
        self.received = 0
        self._reason = RpcError(Code.CONNECTION_LOST, "")

    def connectionMade(self) -> None:
        """Greet, and let the client send what has waited."""
        super().connectionMade()
        self._client.connected(self)

    def dataReceived(self, data: bytes) -> None:
        """Count the sign of life, then read."""
        self.received += 1
        super().dataReceived(data)

    def payload_received(self, payload: Payload) -> None:
        """One reply."""
        self._client.answered(payload)

    def drop(self, error: RpcError) -> None:
        """Close at once, and remember why."""
        self._reason = error
        super().drop(error)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002
        """Tell the client, once."""
        self.is_open = False
        self._client.disconnected(self._reason)


class _ClientFactory(ClientFactory):
    noisy = False

    def __init__(self, client: RpcClient, reactor: RpcReactor) -> None:
        self._client = client
        self._reactor = reactor

    def buildProtocol(self, addr: IAddress | None) -> _ClientConnection:  # noqa: ARG002
        return _ClientConnection(self._client, self._reactor)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:  # noqa: ARG002
        self._client.connect_failed(reason)


class RpcClient:
    """The asking end of one peer's RPC: any number of calls under way, one connection.

    `replies` is the tagged union of Structs that may come back; a call that names its one type with `expect` does not
    need it.
    """

    def __init__(self, reactor: RpcReactor, host: str, port: int, *, replies: Any = None) -> None:
        self._reactor = reactor
        self.host = host
        self.port = port
        self._replies = replies
        self._connection: _ClientConnection | None = None
        self._connector: IConnector | None = None
        self._retry: IDelayedCall | None = None
        self._backoff_s = BACKOFF_FIRST_S
        self._calls: dict[int, _Call] = {}
        self._expects: dict[int, Any] = {}
        self._last_id = 0
        self._deadlines: list[tuple[float, int]] = []
        self._timer: IDelayedCall | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """`host:port`, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def is_connected(self) -> bool:
        """True while a connection stands."""
        return self._connection is not None

    @overload
    def call(
        self, message: msgspec.Struct, timeout_s: float = ..., *, expect: type[T], reconnect: Reconnect = ...
    ) -> Deferred[T]: ...
    @overload
    def call(self, message: msgspec.Struct, timeout_s: float = ..., *, reconnect: Reconnect = ...) -> Deferred[Any]: ...
    def call(
        self,
        message: msgspec.Struct,
        timeout_s: float = 10.0,
        *,
        expect: type[Any] | None = None,
        reconnect: Reconnect = Reconnect.ONCE,
    ) -> Deferred[Any]:
        """Send `message` and fire with the reply Struct, or fail with RpcError; cancelling gives the reply up.

        `timeout_s` covers everything, connecting included.
        """
        assert expect is not None or self._replies is not None, "nobody said what may be answered"
        if self._closed:
            return fail(RpcError(Code.CLOSED, f"the client of {self.address} is closed"))
        if len(self._calls) >= REQUESTS_MAX:
            return fail(RpcError(Code.BUSY, f"{REQUESTS_MAX} calls to {self.address} are waiting"))
        self._last_id += 1
        try:
            frame = encode_frame(Request(self._last_id, encode_body(message)))
        except RpcError as error:
            return fail(error)
        deadline = self._reactor.seconds() + timeout_s
        call = _Call(self._last_id, frame, deadline, reconnect, type(message).__name__)
        call.answer = Deferred(lambda _deferred: self._forget(call))
        self._calls[call.id] = call
        self._expects[call.id] = self._replies if expect is None else expect
        self._watch_deadline(call)
        if self._connection is not None:
            self._send(call, self._connection)
        elif self._connector is None and (self._retry is None or reconnect is Reconnect.ONCE):
            self._connect()
        return call.answer

    def close(self) -> None:
        """Give up all calls and the connection. The client cannot be used again."""
        self._closed = True
        for delayed in (self._retry, self._timer):
            if delayed is not None and delayed.active():
                delayed.cancel()
        self._retry = self._timer = None
        if self._connector is not None:
            self._connector.disconnect()
        self._fail_calls(list(self._calls.values()), RpcError(Code.CLOSED, f"the client of {self.address} was closed"))

    # --- what the connection tells ---

    def connected(self, connection: _ClientConnection) -> None:
        """The connection stands: send what waits."""
        self._connection = connection
        self._backoff_s = BACKOFF_FIRST_S
        for call in list(self._calls.values()):
            self._send(call, connection)

    def answered(self, payload: Payload) -> None:
        """A reply came; one that nobody waits for any more is dropped."""
        call = self._calls.get(payload.id)
        if call is None:
            return
        expect = self._expects[call.id]
        self._forget(call)
        try:
            reply = decode_reply(payload, expect)
        except RpcError as error:
            call.answer.errback(error)
        else:
            call.answer.callback(reply)

    def connect_failed(self, reason: Failure) -> None:
        """One attempt to connect failed: calls that do not wait hear it, for the others there is a next attempt."""
        self._connector = None
        impatient = [call for call in self._calls.values() if call.reconnect is Reconnect.ONCE]
        self._fail_calls(
            impatient, RpcError(Code.UNREACHABLE, f"{self.address} does not answer: {_first_line(reason)}")
        )
        self._maybe_retry()

    def disconnected(self, reason: RpcError) -> None:
        """The connection is gone: whatever was sent and may not be sent twice has failed."""
        self._connection = self._connector = None
        lost = []
        for call in self._calls.values():
            if call.sent_at is not None and call.reconnect is not Reconnect.RESEND:
                lost.append(call)
            call.sent_at = None
        message = reason.message or "closed before the reply"
        self._fail_calls(lost, RpcError(reason.code, f"connection with {self.address}: {message}"))
        self._maybe_retry()

    # --- inside ---

    def _connect(self) -> None:
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._retry = None
        self._connector = self._reactor.connectTCP(
            self.host, self.port, _ClientFactory(self, self._reactor), timeout=CONNECT_TIMEOUT_S
        )

    def _maybe_retry(self) -> None:
        """Arm the next attempt if any call still waits for it and no attempt is under way."""
        if self._closed or not self._calls or self._connector is not None or self._retry is not None:
            return
        self._retry = self._reactor.callLater(self._backoff_s, self._retry_now)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    def _retry_now(self) -> None:
        self._retry = None
        if self._calls:
            self._connect()

    def _send(self, call: _Call, connection: _ClientConnection) -> None:
        call.sent_at = connection.received
        connection.send(call.frame)

    def _watch_deadline(self, call: _Call) -> None:
        heapq.heappush(self._deadlines, (call.deadline, call.id))
        if self._deadlines[0][1] == call.id:
            self._arm_timer()

    def _arm_timer(self) -> None:
        """One timer for the nearest deadline of a call that still waits."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        while self._deadlines and self._deadlines[0][1] not in self._calls:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            delay_s = max(0.0, self._deadlines[0][0] - self._reactor.seconds())
            self._timer = self._reactor.callLater(delay_s, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._timer = None
        now = self._reactor.seconds()
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            call = self._calls.get(heapq.heappop(self._deadlines)[1])
            if call is not None:
                late.append(call)
        silent = self._connection is not None and any(call.sent_at == self._connection.received for call in late)
        for call in late:
            self._fail_calls([call], RpcError(Code.TIMEOUT, f"{self.address} did not reply to {call.what} in time"))
        if silent and self._connection is not None:
            # Nothing at all came since that call was sent: a dead peer or a cut link looks like this, and TCP may take
            # minutes to say so. The next call starts with a fresh connection.
            self._connection.drop(RpcError(Code.CONNECTION_LOST, "silent for too long"))
        self._arm_timer()

    def _forget(self, call: _Call) -> None:
        self._calls.pop(call.id, None)
        self._expects.pop(call.id, None)

    def _fail_calls(self, calls: list[_Call], error: RpcError) -> None:
        for call in calls:
            if call.id in self._calls:
                self._forget(call)
                call.answer.errback(error)


def _first_line(reason: Failure) -> str:
    text = reason.getErrorMessage().strip()
    return text.splitlines()[0] if text else type(reason.value).__name__
