"""RPC between masters, region servers and tools: typed messages over one pipelined TCP connection.

    server = RpcServer(dispatch, requests=messages.ServerRequest)    # dispatch(request) -> reply, or awaitable of it
    port = server.listen(reactor, "127.0.0.1", 21831)

    client = RpcClient(reactor, "127.0.0.1", 21831)
    reply = await client.call(messages.OpenRegions(...), timeout_s=5.0, expect=messages.OrderResults)

`dispatch` rejects a request by raising RpcError(code, message, hint), which reaches the caller unchanged. Any other
exception is logged here and reaches the caller as Code.INTERNAL without details. Frames and codes: `coord.rpc.wire`.
Tools use `coord.rpc.blocking`.

A client connects on its first call and keeps the connection. Each call chooses what happens if the peer cannot be
reached (`Reconnect`). All frames queued in one turn of the reactor leave in one write. A client with `REQUESTS_MAX`
pending calls rejects further calls. A server stops reading from a caller that does not read its replies.
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

#: Bound of requests in progress per connection of the server, and of pending calls per client.
REQUESTS_MAX: Final = 4096
#: Time limit of one attempt to connect.
CONNECT_TIMEOUT_S: Final = 2.0
#: Pause after the first failed attempt; it doubles up to the maximum. A call with Reconnect.ONCE skips the pause.
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0

T = TypeVar("T", bound=msgspec.Struct)
Dispatch = Callable[[Any], "msgspec.Struct | Awaitable[msgspec.Struct]"]


class RpcReactor(ListeningReactor, Protocol):
    """The part of a reactor that RPC uses: time and TCP."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> IDelayedCall: ...
    def seconds(self) -> float: ...
    def connectTCP(self, host: str, port: int, factory: ClientFactory, timeout: float = ...) -> IConnector: ...


class Reconnect(enum.Enum):
    """What a call does if the peer cannot be reached."""

    #: Fail when one attempt to connect fails or the connection breaks.
    ONCE = "once"
    #: Retry connecting until the call times out. If the connection breaks after the request was sent, fail.
    WAIT = "wait"
    #: Retry connecting and resend after a broken connection: only for requests that may be executed twice.
    RESEND = "resend"


class _Frames(TwistedProtocol):
    """One end of a connection: receives frames, and sends all queued frames in one write per turn."""

    transport: Any

    def __init__(self, reactor: RpcReactor) -> None:
        self._reactor = reactor
        self._reader = RpcFrameReader()
        self._outbox: list[bytes] = []
        self._is_reading = False
        self.is_open = False

    def connectionMade(self) -> None:
        """Send the preamble."""
        self.is_open = True
        for option in ("setTcpNoDelay", "setTcpKeepAlive"):
            getattr(self.transport, option, lambda _on: None)(True)
        self.send(PREAMBLE)

    def send(self, frame: bytes) -> None:
        """Queue one frame for the end of this turn, or for the end of `dataReceived`."""
        if not self._outbox and not self._is_reading:
            self._reactor.callLater(0, self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        data = b"".join(self._outbox)
        self._outbox.clear()
        if data and self.is_open:
            self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        """Pass on each complete payload; drop a peer that violates the protocol.

        Frames sent while payloads are processed are written at the end of this method: an additional reactor turn
        between request and reply would take longer than most replies.
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
        """Handle one complete payload."""
        raise NotImplementedError

    def drop(self, error: RpcError) -> None:  # noqa: ARG002
        """Close at once; `error` is the failure of the calls that wait on this connection."""
        self.transport.abortConnection()


def _peer_name(transport: ITransport) -> str:
    peer = transport.getPeer()
    return f"{getattr(peer, 'host', peer)}:{getattr(peer, 'port', '')}"


# --- server side ----------------------------------------------------------------------------------------------


@implementer(IPushProducer)
class _ServerConnection(_Frames):
    """One caller. Requests are dispatched as they arrive and answered as they finish.

    The connection is the push producer of its replies: when the caller does not read them, the transport pauses it and
    it stops reading requests.
    """

    def __init__(self, server: RpcServer, reactor: RpcReactor) -> None:
        super().__init__(reactor)
        self._server = server
        self._in_progress: set[int] = set()

    def connectionMade(self) -> None:
        """Send the preamble and register for back-pressure."""
        super().connectionMade()
        self._server.connections.add(self)
        self.transport.registerProducer(self, True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002
        """Unregister the connection. Requests in progress continue; their replies are dropped."""
        self.is_open = False
        self._server.connections.discard(self)

    def pauseProducing(self) -> None:
        """Stop reading requests: unread replies pile up."""
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read requests again: the caller has read its replies."""
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Do nothing: the transport is closing."""

    def payload_received(self, payload: Payload) -> None:
        """Dispatch or reject one request."""
        if not isinstance(payload, Request):
            raise StreamError("the caller sent a reply; only requests are expected")
        request_id = payload.id
        if request_id in self._in_progress:
            raise StreamError(f"request id {request_id} is already in use")
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
        except Exception:  # boundary: send any error to the caller, and log it unless it is an RpcError
            self._failed(request_id, request, Failure())  # type: ignore[no-untyped-call]
            return
        if isinstance(reply, msgspec.Struct):
            self._reply(request_id, reply)
            return
        # A Deferred that is awaited costs a coroutine, and as much time as the rest of a small request.
        answer: Deferred[Any] = reply if isinstance(reply, Deferred) else ensureDeferred(_awaited(request, reply))
        answer.addCallback(self._answered, request_id, request)
        answer.addErrback(self._answer_failed, request_id, request)

    def _answered(self, reply: object, request_id: int, request: object) -> None:
        assert isinstance(reply, msgspec.Struct), f"dispatch of {type(request).__name__} returned {reply!r}"
        self._reply(request_id, reply)

    def _answer_failed(self, failure: Failure, request_id: int, request: object) -> None:
        self._failed(request_id, request, failure)

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
    """Dispatches the requests of any number of callers.

    `requests` is the tagged union of Structs that the server accepts. `dispatch` runs on the reactor's thread and
    returns a Struct or an awaitable of one. `receiver` names this process in error messages. `check` sees each request
    before it is decoded and raises RpcError for a request that is addressed to another receiver.
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
        #: Connection of the request that is being dispatched, or was dispatched last.
        self.calling: ITransport | None = None
        self._port: IListeningPort | None = None

    def caller(self) -> str:
        """Return "host:port" of the caller whose request is being dispatched.

        The value is valid until `dispatch` returns, and in a coroutine until its first await.
        """
        return "" if self.calling is None else _peer_name(self.calling)

    def factory(self, reactor: RpcReactor) -> Factory:
        """Return a Twisted factory, for callers with their own listening port (TLS, tests)."""
        server = self

        class _ServerFactory(Factory):
            noisy = False

            def buildProtocol(self, addr: IAddress | None) -> _ServerConnection:  # noqa: ARG002
                return _ServerConnection(server, reactor)

        return _ServerFactory()

    def listen(self, reactor: RpcReactor, host: str, port: int) -> IListeningPort:
        """Listen on `host`:`port` (0: any free port). Raise twisted's CannotListenError if the port is in use."""
        assert self._port is None, "this server listens already"
        self._port = reactor.listenTCP(port, self.factory(reactor), interface=host)
        return self._port

    async def stop(self) -> None:
        """Stop listening and close every connection; pending calls fail with a broken connection."""
        for connection in list(self.connections):
            connection.transport.loseConnection()
        port, self._port = self._port, None
        if port is not None:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped


async def _awaited(request: object, answer: Awaitable[msgspec.Struct]) -> msgspec.Struct:
    """Await the reply. Raise the exception of `answer`."""
    assert inspect.isawaitable(answer), f"dispatch of {type(request).__name__} returned {answer!r}"
    return await answer


# --- client side ----------------------------------------------------------------------------------------------


class _Call:
    """A pending request."""

    def __init__(self, call_id: int, frame: bytes, deadline: float, reconnect: Reconnect, what: str) -> None:
        self.id = call_id
        self.frame = frame
        self.deadline = deadline
        self.reconnect = reconnect
        self.what = what
        self.answer: Deferred[Any] = Deferred()
        #: Connection's count of receive events when the request was sent; None before it is sent.
        self.sent_at: int | None = None


class _ClientConnection(_Frames):
    """The connection of an RpcClient, from the connect attempt until it is lost."""

    def __init__(self, client: RpcClient, reactor: RpcReactor) -> None:
        super().__init__(reactor)
        self._client = client
        #: Count of receive events. If it has not moved when a call times out, the connection is suspect.
        self.received = 0
        self._reason = RpcError(Code.CONNECTION_LOST, "")

    def connectionMade(self) -> None:
        """Send the preamble and the waiting requests."""
        super().connectionMade()
        self._client.connected(self)

    def dataReceived(self, data: bytes) -> None:
        """Count the receive event and process the data."""
        self.received += 1
        super().dataReceived(data)

    def payload_received(self, payload: Payload) -> None:
        """Handle one reply."""
        self._client.answered(payload)

    def drop(self, error: RpcError) -> None:
        """Close at once and keep `error` for the pending calls."""
        self._reason = error
        super().drop(error)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002
        """Report the end of the connection to the client, once."""
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
    """The calling side of one peer's RPC: any number of pending calls over one connection.

    `replies` is the tagged union of possible replies. A call that passes `expect` does not need it.
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
        """True while connected."""
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
        """Send `message`. Fires with the reply Struct or fails with RpcError; canceling drops the reply.

        `timeout_s` covers everything, connecting included.
        """
        assert expect is not None or self._replies is not None, "call needs `expect`, or a client with `replies`"
        if self._closed:
            return fail(RpcError(Code.CLOSED, f"the client of {self.address} is closed"))
        if len(self._calls) >= REQUESTS_MAX:
            return fail(RpcError(Code.BUSY, f"{REQUESTS_MAX} calls to {self.address} are pending"))
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
        """Fail all pending calls and close the connection. The client cannot be used again."""
        self._closed = True
        for delayed in (self._retry, self._timer):
            if delayed is not None and delayed.active():
                delayed.cancel()
        self._retry = self._timer = None
        if self._connector is not None:
            self._connector.disconnect()
        self._fail_calls(list(self._calls.values()), RpcError(Code.CLOSED, f"the client of {self.address} was closed"))

    # --- called by the connection ---

    def connected(self, connection: _ClientConnection) -> None:
        """Send the waiting requests over the new connection."""
        self._connection = connection
        self._backoff_s = BACKOFF_FIRST_S
        for call in list(self._calls.values()):
            self._send(call, connection)

    def answered(self, payload: Payload) -> None:
        """Complete the call of a reply; drop a reply whose call has ended."""
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
        """Handle a failed attempt to connect: fail the calls that do not wait, schedule another attempt for the
        others."""
        self._connector = None
        impatient = [call for call in self._calls.values() if call.reconnect is Reconnect.ONCE]
        self._fail_calls(
            impatient, RpcError(Code.UNREACHABLE, f"cannot connect to {self.address}: {_first_line(reason)}")
        )
        self._maybe_retry()

    def disconnected(self, reason: RpcError) -> None:
        """Handle the end of the connection: fail the calls that were sent and must not be sent twice."""
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
        """Schedule the next attempt to connect if calls wait for one and none is under way."""
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
        """Set the timer to the nearest deadline of a pending call."""
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
            # Nothing has arrived since the call was sent. The peer may be dead or the link cut, which TCP may report
            # minutes later. The next call opens a new connection.
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
