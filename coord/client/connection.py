"""One TCP connection to one server, from the connect request to the end: framing, pipelining, pings.

    HANDSHAKE --connect response--> OPEN --anything wrong--> DEAD          (HANDSHAKE may die too)

Requests are written once per reactor turn, however many there were; a server answers them in order, so the oldest
waiting one is the one a reply belongs to. A connection is never used again: the session (session.py) makes a new one.

Liveness. A ping leaves when nothing was sent for a third of the session timeout; when nothing came for two thirds the
connection is given up, which leaves a third to find another server. A reactor that was blocked for that long first
reads what came meanwhile.
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

#: Requests that may wait for their answers on one connection. Each holds a Deferred and its record; a caller that has
#: so many in flight gains nothing from more, and a server that stopped answering must not fill our memory.
MAX_OUTSTANDING: Final = 100_000

#: Reads one reply's record out of a block.
Decode = Callable[[bytes, int, int], Any]
#: (kind of watch, path with chroot, callback), to be registered when the request has succeeded.
WatchOrder = tuple[int, bytes, Any]

HANDSHAKE: Final = 0
OPEN: Final = 1
DEAD: Final = 2

_PING: Final = r.encode_request_frame(r.XID_PING, r.OP_PING, b"")
_XID_MAX: Final = 0x7FFFFFFF
_reply_header_at: Final = r.REPLY_HEADER.unpack_from
_request_header: Final = r.FRAMED_REQUEST_HEADER.pack


class ConnectionOwner(Protocol):
    """What a connection tells its session."""

    def connection_opened(self, connection: StoreConnection, response: r.ConnectResponse) -> None:
        """The server has answered the connect request."""
        ...

    def connection_lost(self, connection: StoreConnection, reason: str) -> None:
        """The connection is of no more use; its requests fail right after this call. Called exactly once."""
        ...

    def event_received(self, event: r.WatcherEvent, zxid: int) -> None:
        """A watch fired."""
        ...

    def watch_confirmed(self, order: WatchOrder, *, exists: bool) -> None:
        """A request that leaves a watch was answered: `exists` says whether the znode is there."""
        ...

    def auth_refused(self, connection: StoreConnection) -> None:
        """The server takes none of our credentials and will close."""
        ...


#: (xid, opcode, the Deferred, how to read the answer, path for errors, watch to register)
_Waiting = tuple[int, int, "Deferred[Any]", "Decode | None", str, "WatchOrder | None"]


class StoreConnection(protocol.Protocol):
    """See the module docstring. `reactor` needs callLater only; `patience_ms` bounds the handshake."""

    def __init__(
        self, owner: ConnectionOwner, reactor: Any, clock: Clock, hello: r.ConnectRequest, *, patience_ms: int
    ) -> None:
        self.phase: int = HANDSHAKE
        #: The highest zxid of any answer; what the next connection begins with.
        self.last_zxid: int = hello.last_zxid_seen
        #: When the newest answered bytes were sent, by the monotonic clock: the server heard from us then or later.
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
        # Invariant: answered <= flushed <= asked, counts of requests.
        self._asked: int = 0
        self._flushed: int = 0
        self._answered: int = 0
        #: Per write: the number of its first request and when it was written.
        self._writes: deque[tuple[int, int]] = deque()
        self._sent_ms: int = 0
        self._received_ms: int = 0
        self._overdue: bool = False
        self._timer: Any = None

    # --- sending ------------------------------------------------------------------------------------------------------

    def ask(
        self, opcode: int, body: bytes, decode: Decode | None, path: str, watch: WatchOrder | None = None
    ) -> Deferred[Any]:
        """Send a request; fires with what `decode` makes of the answer, or None without `decode`.

        Fails with the OperationError that the server gives, ConnectionLoss, TooManyOutstanding, or BadArguments for a
        request too long for any server.
        """
        if len(self._pending) >= MAX_OUTSTANDING:
            return fail(TooManyOutstanding(MAX_OUTSTANDING))
        length = len(body) + r.REQUEST_HEADER_BYTES
        if length > MAX_FRAME_BYTES:
            # Sent, it would cost the connection and every request on it.
            return fail(BadArguments(path, f"request of {length} bytes, the limit is {MAX_FRAME_BYTES}"))
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
        """Send a credential; fires when the server took it, fails with AuthFailed or ConnectionLoss."""
        answer: Deferred[None] = Deferred()
        self._auths.append(answer)
        self._out.append(r.encode_request_frame(r.XID_AUTH, r.OP_AUTH, r.encode_auth(scheme, credential)))
        self._flush_soon()
        return answer

    def _flush_soon(self) -> None:
        """Write at the end of this turn."""
        if not self._flush_due:
            self._flush_due = True
            self._reactor.callLater(0, self._flush)

    def _flush(self) -> None:
        """Write what has gathered since the last time."""
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
        """Twisted: say hello."""
        transport = self.transport
        assert transport is not None, "Twisted sets it before this call"
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self._sent_ms = self._clock.monotonic_ms()
        hello = r.encode_connect_request(self._hello)
        transport.write(I32.pack(len(hello)) + hello)
        self._timer = self._reactor.callLater(self._patience_ms / 1000, self._give_up)

    def dataReceived(self, data: bytes) -> None:
        """Twisted: bytes came."""
        if self.phase == DEAD:
            return
        self._received_ms = self._clock.monotonic_ms()
        self._overdue = False
        frames = self._reader.feed(data)
        block = self._reader.take_block()
        # Whatever the callbacks below ask leaves in one write at the end.
        self._flush_due = True
        try:
            if frames and self.phase == HANDSHAKE:
                self._welcome(block, *frames.pop(0))
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

    def _welcome(self, block: bytes, at: int, end: int) -> None:
        """The handshake's answer."""
        response = r.decode_connect_response(block, at, end)
        self._timer.cancel()
        self._timer = None
        self.phase = OPEN
        self.proven_ms = self._sent_ms
        self._timeout_ms = response.timeout_ms
        self._owner.connection_opened(self, response)
        if self.phase == OPEN:
            self._watch_over()

    def _take_replies(self, block: bytes, frames: list[tuple[int, int]]) -> None:
        """Give each reply to whoever waits for it. Raises RemoteProtocolError."""
        pending = self._pending
        for at, end in frames:
            if self.phase == DEAD:
                return
            xid, zxid, err = _reply_header_at(block, at)
            if xid < 0:
                self._take_special(xid, zxid, err, block, at + r.REPLY_HEADER_BYTES, end)
                continue
            if not pending or pending[0][0] != xid:
                raise RemoteProtocolError(f"reply {xid}, but {pending[0][0] if pending else 'none'} is due")
            _, opcode, answer, decode, path, watch = pending.popleft()
            self._answered += 1
            if zxid > self.last_zxid:
                self.last_zxid = zxid
            if err:
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
                answer.errback(ConnectionLoss(path, f"unreadable answer: {error}"))
                raise RemoteProtocolError(f"unreadable answer to {r.OPCODE_NAMES.get(opcode, opcode)}") from error
            else:
                answer.callback(result)

    def _take_special(self, xid: int, zxid: int, err: int, block: bytes, at: int, end: int) -> None:
        """Events and the answers that have no place in the order of requests."""
        if xid == r.XID_NOTIFICATION:
            self._owner.event_received(r.decode_watcher_event(block, at, end), zxid)
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
            raise RemoteProtocolError(f"reply {xid} to nothing")

    def _note_contact(self) -> None:
        """An answer proves that the server heard from us when its request was sent, or later."""
        writes = self._writes
        while writes and writes[0][0] < self._answered:
            self.proven_ms = max(self.proven_ms, writes.popleft()[1])

    # --- liveness -----------------------------------------------------------------------------------------------------

    def _watch_over(self) -> None:
        """Ping when nothing was sent for a while, give up when nothing came for long, look again when that is due."""
        self._timer = None
        now = self._clock.monotonic_ms()
        ping_ms = self._timeout_ms // 3
        patience_ms = self._timeout_ms * 2 // 3
        silent_ms = now - self._received_ms
        if silent_ms >= patience_ms:
            if self._overdue:
                self.drop(f"no answer for {silent_ms} ms")
                return
            # Perhaps it was us who did not look: one turn, in which the socket is read, decides.
            self._overdue = True
            self._timer = self._reactor.callLater(0, self._watch_over)
            return
        if now - self._sent_ms >= ping_ms:
            self._pings_ms.append(now)
            self._out.append(_PING)
            self._flush()
        due_ms = min(self._sent_ms + ping_ms, self._received_ms + patience_ms) - now
        self._timer = self._reactor.callLater(max(1, due_ms) / 1000, self._watch_over)

    def _give_up(self) -> None:
        """The handshake took too long."""
        self._timer = None
        self.drop(f"no answer to the connect request within {self._patience_ms} ms")

    def drop(self, reason: str) -> None:
        """End the connection now; whatever waits fails with ConnectionLoss. Harmless when already dead."""
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
