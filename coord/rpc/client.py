"""The calling side of RPC between masters, region servers and tools: any number of pending calls, one connection.

    client = RpcClient(reactor, "127.0.0.1", 21831)
    reply = await client.call(messages.OpenRegions(...), timeout_s=5.0, expect=messages.OrderResults)

A client connects on its first call and keeps the connection. Each call chooses what happens if the peer cannot be
reached (`Reconnect`). All frames queued in one turn of the reactor leave in one write. A client with `REQUESTS_MAX`
pending calls rejects further calls. Frames and codes: `coord.rpc.wire`.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall
from twisted.internet.protocol import ClientFactory, connectionDone
from twisted.python.failure import Failure

from coord.rpc.connection import REQUESTS_MAX, Frames, RpcReactor
from coord.rpc.wire import Code, Payload, Request, RpcError, decode_reply, encode_body, encode_frame
from coord.security import process
from coord.security.credentials import Credentials
from coord.security.revocation import watch

__all__ = ["Reconnect", "RpcClient"]

#: Time limit of one attempt to connect.
CONNECT_TIMEOUT_S: Final = 2.0
#: Pause after the first failed attempt; it doubles up to the maximum. A call with Reconnect.ONCE skips the pause.
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0

T = TypeVar("T", bound=msgspec.Struct)


class Reconnect(enum.Enum):
    """Reaction of a call to a peer that cannot be reached."""

    #: Fail when one attempt to connect fails or the connection breaks.
    ONCE = "once"
    #: Retry connecting until the call times out. If the connection breaks after the request was sent, fail.
    WAIT = "wait"
    #: Retry connecting and resend after a broken connection: only for requests that may be executed twice.
    RESEND = "resend"


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


class _ClientConnection(Frames):
    """The connection of an RpcClient, from the connect attempt until it is lost."""

    def __init__(self, client: RpcClient, reactor: RpcReactor) -> None:
        credentials = None if client.dials_open else client.credentials
        super().__init__(reactor, None if credentials is None else credentials.dialer(client.wanted, client.host))
        self.is_unproven = client.dials_open
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
        self._client.disconnected(self._reason, is_open_daemon=self.meets_open)


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

    def __init__(
        self,
        reactor: RpcReactor,
        host: str,
        port: int,
        *,
        replies: Any = None,
        credentials: Credentials | None = None,
        wanted: str = "",
        lost: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            reactor: Time and TCP.
            host: Where the peer listens.
            port: Where the peer listens.
            replies: The possible replies.
            credentials: Credentials that this end proves, by default those of this process.
            wanted: The identity that the peer must prove; `kind:` for any identity of a kind.
            lost: Called when a connection ends without `close`, before its calls fail.
        """
        self._reactor = reactor
        self.credentials = credentials or process.own()
        self.wanted = wanted
        self.host = host
        self.port = port
        self._replies = replies
        self._lost = lost
        #: The next connection begins without a proof, because the peer runs without credentials while the cluster is
        #: being secured.
        self.dials_open = False
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
        watch(self)

    def revocations_changed(self) -> None:
        """Leave a peer whose credential is revoked; the next call tries whether it has another one."""
        why = "" if self._connection is None else self._connection.revoked()
        if why and self._connection is not None:
            self._connection.drop(RpcError(Code.UNAUTHENTICATED, why))

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
        error = RpcError(Code.UNREACHABLE, f"cannot connect to {self.address}: {_first_line(reason)}")
        error.__cause__ = reason.value
        self._fail_calls(impatient, error)
        self._maybe_retry()

    def disconnected(self, reason: RpcError, *, is_open_daemon: bool = False) -> None:
        """Handle the end of the connection: fail the calls that were sent and must not be sent twice."""
        self._connection = self._connector = None
        self.dials_open = is_open_daemon and self.credentials is not None and self.credentials.is_securing()
        if self.dials_open and not self._closed:
            self._connect_open()
            return
        if self._lost is not None and not self._closed:
            self._lost()
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

    def _connect_open(self) -> None:
        """Send the calls again without a proof. The channel has held them back, so the peer has received none."""
        for call in self._calls.values():
            call.sent_at = None
        if self._calls:
            self._connect()

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
            # No bytes have arrived since the call was sent. The peer may be dead or the link cut; TCP may report this
            # only minutes later. The next call opens a new connection.
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
