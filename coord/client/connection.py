"""One TCP connection to one server, from connect request to close: framing, pipelining, pings.

    HANDSHAKE --connect response--> OPEN --any error--> DEAD          (HANDSHAKE may fail too)

Requests are written once per reactor turn. A server replies in order, so each reply belongs to the oldest pending
request. A connection is never reused: the session (session.py) opens a new one.

Liveness. The client sends a ping after a third of the session timeout without a send. After two thirds without a
receive it drops the connection, which leaves a third of the timeout to find another server. A reactor that was blocked
for that long first reads the bytes that arrived in the meantime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet import protocol
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import ITCPTransport
from twisted.python.failure import Failure

from coord.env import Clock
from coord.errors import (
    AUTH_FAILED,
    NO_NODE,
    SESSION_CLOSED_REQUIRE_SASL_AUTH,
    BadArguments,
    ConnectionLoss,
    MultiFailed,
    RemoteProtocolError,
    TooManyOutstanding,
    error_for,
)
from coord.wire import records as r
from coord.wire.client_conn import MAX_FRAME_BYTES, MAX_REPLY_BYTES, FrameReader
from coord.wire.jute import I32

#: Requests that may be pending on one connection. Each request holds a Deferred and its record. More requests in flight
#: would not be faster, and a server that stops replying must not fill our memory.
MAX_OUTSTANDING: Final = 100_000

#: Decodes one reply record inside a block.
Decode = Callable[[bytes, int, int], Any]
#: (kind of watch, path with chroot, callback), registered when the request succeeds.
WatchOrder = tuple[int, bytes, Any]

HANDSHAKE: Final = 0
OPEN: Final = 1
DEAD: Final = 2

_PING: Final = r.encode_request_frame(r.XID_PING, r.OP_PING, b"")
_XID_MAX: Final = 0x7FFFFFFF
_reply_header_at: Final = r.REPLY_HEADER.unpack_from
_request_header: Final = r.FRAMED_REQUEST_HEADER.pack


class ConnectionOwner(Protocol):
    """The methods of a session that its connection calls."""

    def connection_opened(self, connection: StoreConnection, response: r.ConnectResponse) -> None:
        """Handle the server's connect response."""
        ...

    def connection_lost(self, connection: StoreConnection, reason: str) -> None:
        """Handle the end of the connection. Called exactly once, before the pending requests fail."""
        ...

    def events_received(self, block: bytes, frames: list[tuple[int, int]], at: int) -> int:
        """Handle notifications of fired watches, the first in `frames[at]`. Return the index after the last one."""
        ...

    def watch_confirmed(self, order: WatchOrder, *, exists: bool) -> None:
        """Register the watch of a successful request; `exists` is whether the znode exists."""
        ...

    def auth_refused(self, connection: StoreConnection) -> None:
        """Handle a rejected or missing credential; the server closes the connection next."""
        ...


#: (xid, opcode, Deferred, decoder of the reply, path for errors, watch to register)
_Waiting = tuple[int, int, "Deferred[Any]", "Decode | None", str, "WatchOrder | None"]


class StoreConnection(protocol.Protocol):
    """See the module docstring. `reactor` needs only callLater; `patience_ms` limits the handshake."""

    def __init__(
        self, owner: ConnectionOwner, reactor: Any, clock: Clock, hello: r.ConnectRequest, *, patience_ms: int
    ) -> None:
        self.phase: int = HANDSHAKE
        #: Highest zxid of any reply; the next connection starts with it.
        self.last_zxid: int = hello.last_zxid_seen
        #: Monotonic time at which the newest acknowledged bytes were sent: the server received them then or later.
        self.proven_ms: int = 0
        self._owner = owner
        self._reactor = reactor
        self._clock = clock
        self._hello = hello
        self._patience_ms = patience_ms
        self._timeout_ms: int = 0
        self._reader = FrameReader(MAX_REPLY_BYTES, r.REPLY_HEADER_BYTES)
        self._pending: deque[_Waiting] = deque()
        self._auths: deque[Deferred[None]] = deque()
        self._pings_ms: deque[int] = deque()
        self._xid: int = 0
        self._out: list[bytes] = []
        self._flush_due: bool = False
        # Invariant: answered <= flushed <= asked (counts of requests).
        self._asked: int = 0
        self._flushed: int = 0
        self._answered: int = 0
        #: Per socket write: the number of its first request and the time of the write.
        self._writes: deque[tuple[int, int]] = deque()
        self._sent_ms: int = 0
        self._received_ms: int = 0
        self._overdue: bool = False
        self._timer: Any = None

    # --- sending ------------------------------------------------------------------------------------------------------

    def ask(
        self, opcode: int, body: bytes, decode: Decode | None, path: str, watch: WatchOrder | None = None
    ) -> Deferred[Any]:
        """Send a request. The Deferred fires with the decoded reply, or with None without `decode`.

        It fails with the OperationError of the reply, ConnectionLoss, TooManyOutstanding, or BadArguments for a
        request that exceeds the frame limit.
        """
        if len(self._pending) >= MAX_OUTSTANDING:
            return fail(TooManyOutstanding(MAX_OUTSTANDING))
        length = len(body) + r.REQUEST_HEADER_BYTES
        if length > MAX_FRAME_BYTES:
            # The server would close the connection and fail every request on it.
            return fail(BadArguments(path, f"the request has {length} bytes; the limit is {MAX_FRAME_BYTES}"))
        xid = self._xid = self._xid + 1 if self._xid < _XID_MAX else 1
        answer: Deferred[Any] = Deferred()
        self._out.append(_request_header(length, xid, opcode))
        self._out.append(body)
        self._pending.append((xid, opcode, answer, decode, path, watch))
        self._asked += 1
        if not self._flush_due:
            self._flush_due = True
            self._reactor.callLater(0, self._flush)
        return answer

    def authenticate(self, scheme: bytes, credential: bytes) -> Deferred[None]:
        """Send a credential. The Deferred fires when the server accepts it; it fails with AuthFailed or
        ConnectionLoss."""
        answer: Deferred[None] = Deferred()
        self._auths.append(answer)
        self._out.append(r.encode_request_frame(r.XID_AUTH, r.OP_AUTH, r.encode_auth(scheme, credential)))
        self._flush_soon()
        return answer

    def _flush_soon(self) -> None:
        """Schedule a flush for the end of this turn."""
        if not self._flush_due:
            self._flush_due = True
            self._reactor.callLater(0, self._flush)

    def _flush(self) -> None:
        """Write the bytes queued since the last flush."""
        self._flush_due = False
        if not self._out or self.phase == DEAD:
            return
        now = self._sent_ms = self._clock.monotonic_ms()
        if self._asked > self._flushed:
            self._writes.append((self._flushed, now))
            self._flushed = self._asked
        out = b"".join(self._out)
        self._out.clear()
        assert self.transport is not None, "bytes are queued on connected protocols only"
        self.transport.write(out)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Twisted: send the connect request."""
        transport = self.transport
        assert transport is not None, "Twisted sets it before this call"
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self._sent_ms = self._clock.monotonic_ms()
        hello = r.encode_connect_request(self._hello)
        transport.write(I32.pack(len(hello)) + hello)
        self._timer = self._reactor.callLater(self._patience_ms / 1000, self._handshake_timed_out)

    def dataReceived(self, data: bytes) -> None:
        """Twisted: receive bytes."""
        if self.phase == DEAD:
            return
        self._received_ms = self._clock.monotonic_ms()
        self._overdue = False
        frames = self._reader.feed(data)
        block = self._reader.take_block()
        # One write at the end of this function carries all requests that the callbacks below send.
        self._flush_due = True
        try:
            if frames and self.phase == HANDSHAKE:
                self._take_connect_response(block, *frames.pop(0))
            self._take_replies(block, frames)
        except RemoteProtocolError as error:
            self.drop(str(error))
        if self._reader.violation:
            self.drop(self._reader.violation)
        self._note_contact()
        self._flush()

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """Twisted: the connection is gone."""
        self.drop(reason.getErrorMessage())

    def _take_connect_response(self, block: bytes, at: int, end: int) -> None:
        """Handle the connect response."""
        response = r.decode_connect_response(block, at, end)
        self._timer.cancel()
        self._timer = None
        self.phase = OPEN
        self.proven_ms = self._sent_ms
        self._timeout_ms = response.timeout_ms
        self._owner.connection_opened(self, response)
        if self.phase == OPEN:
            self._check_liveness()

    def _take_replies(self, block: bytes, frames: list[tuple[int, int]]) -> None:
        """Fire the Deferred of each reply. Raise RemoteProtocolError for a reply out of order or malformed."""
        pending = self._pending
        number, count = 0, len(frames)
        while number < count:
            if self.phase == DEAD:
                return
            at, end = frames[number]
            xid, zxid, err = _reply_header_at(block, at)
            if xid == r.XID_NOTIFICATION:
                number = self._owner.events_received(block, frames, number)
                continue
            number += 1
            if xid < 0:
                self._take_special(xid, err)
                continue
            if not pending or pending[0][0] != xid:
                raise RemoteProtocolError(f"received reply {xid}, expected {pending[0][0] if pending else 'none'}")
            _, opcode, answer, decode, path, watch = pending.popleft()
            self._answered += 1
            if zxid > self.last_zxid:
                self.last_zxid = zxid
            if err:
                if err == SESSION_CLOSED_REQUIRE_SASL_AUTH:
                    self._owner.auth_refused(self)
                if watch is not None and err == NO_NODE and opcode == r.OP_EXISTS:
                    self._owner.watch_confirmed(watch, exists=False)
                answer.errback(error_for(err, path))
                continue
            if watch is not None:
                self._owner.watch_confirmed(watch, exists=True)
            try:
                result = None if decode is None else decode(block, at + r.REPLY_HEADER_BYTES, end)
            except MultiFailed as refused:
                answer.errback(refused)
            except (RemoteProtocolError, UnicodeDecodeError) as error:
                answer.errback(ConnectionLoss(path, f"malformed reply: {error}"))
                raise RemoteProtocolError(f"malformed reply to {r.OPCODE_NAMES.get(opcode, opcode)}") from error
            else:
                answer.callback(result)

    def _take_special(self, xid: int, err: int) -> None:
        """Handle the replies that are not in request order."""
        if xid == r.XID_PING and err == SESSION_CLOSED_REQUIRE_SASL_AUTH:
            self._owner.auth_refused(self)
        elif xid == r.XID_PING and self._pings_ms:
            self.proven_ms = max(self.proven_ms, self._pings_ms.popleft())
        elif xid == r.XID_AUTH and self._auths:
            answer = self._auths.popleft()
            if err == AUTH_FAILED:
                self._owner.auth_refused(self)
            if err:
                answer.errback(error_for(err))
            else:
                answer.callback(None)
        else:
            raise RemoteProtocolError(f"reply {xid} belongs to no request")

    def _note_contact(self) -> None:
        """Advance `proven_ms`: a reply proves that the server received its request at or after the send time."""
        writes = self._writes
        while writes and writes[0][0] < self._answered:
            self.proven_ms = max(self.proven_ms, writes.popleft()[1])

    # --- liveness -----------------------------------------------------------------------------------------------------

    def _check_liveness(self) -> None:
        """Ping an idle connection, drop a silent one, and schedule the next check."""
        self._timer = None
        now = self._clock.monotonic_ms()
        ping_ms = self._timeout_ms // 3
        patience_ms = self._timeout_ms * 2 // 3
        silent_ms = now - self._received_ms
        if silent_ms >= patience_ms:
            if self._overdue:
                self.drop(f"no reply for {silent_ms} ms")
                return
            # Our reactor may have been blocked. Wait for one turn, in which the socket is read, before dropping.
            self._overdue = True
            self._timer = self._reactor.callLater(0, self._check_liveness)
            return
        if now - self._sent_ms >= ping_ms:
            self._pings_ms.append(now)
            self._out.append(_PING)
            self._flush()
        due_ms = min(self._sent_ms + ping_ms, self._received_ms + patience_ms) - now
        self._timer = self._reactor.callLater(max(1, due_ms) / 1000, self._check_liveness)

    def _handshake_timed_out(self) -> None:
        """Drop a connection whose handshake took too long."""
        self._timer = None
        self.drop(f"no reply to the connect request within {self._patience_ms} ms")

    def drop(self, reason: str) -> None:
        """Close the connection now and fail all pending requests with ConnectionLoss. No effect on a dead
        connection."""
        if self.phase == DEAD:
            return
        self.phase = DEAD
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport: Any = self.transport
        if transport is not None:
            transport.abortConnection()
        self._owner.connection_lost(self, reason)
        self._out.clear()
        while self._auths:
            self._auths.popleft().errback(ConnectionLoss("", reason))
        while self._pending:
            _, _, answer, _, path, _ = self._pending.popleft()
            answer.errback(ConnectionLoss(path, reason))
