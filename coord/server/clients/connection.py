"""One client's connection as the node sees it: what it asked, what waits, what is on its way out, and its bounds.

A connection here knows no socket: `output` is a list of bytes, `ClientTransport` what the node asks of whoever sends
them. What is done with it is `pipeline`'s.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from mypy_extensions import mypyc_attr

from coord.tree.sessions import Session
from coord.wire.codec import encode_reply_frame
from coord.wire.sasl import SaslServer
from coord.wire.values import NO_PASSWD


class Limits:
    """Bounds on what one client may cost this node. All of them are settings."""

    def __init__(
        self,
        *,
        outstanding_max: int = 1000,
        outstanding_bytes_max: int = 8 << 20,
        session_timeout_min_ms: int = 1000,
        session_timeout_max_ms: int = 10_000,
        sessions_max: int = 100_000,
        output_bytes_max: int = 4 << 20,
        backlog_bytes_max: int = 64 << 20,
        watches_max: int = 0,
    ) -> None:
        #: Requests of one connection that wait for an answer; beyond it the connection is not read.
        self.outstanding_max = outstanding_max
        #: Bytes of such requests.
        self.outstanding_bytes_max = outstanding_bytes_max
        #: Bounds of the negotiated session timeout: 2 and 20 ticks as in ZooKeeper.
        self.session_timeout_min_ms = session_timeout_min_ms
        self.session_timeout_max_ms = session_timeout_max_ms
        #: Sessions in the whole cluster; new ones are refused beyond it.
        self.sessions_max = sessions_max
        #: Bytes of answers that may wait for one client before no more of its requests are answered.
        self.output_bytes_max = output_bytes_max
        #: Bytes of answers at which a connection is closed: reads that wait behind a write are answered together with
        #: it, and a thousand of them may ask for a megabyte each.
        self.backlog_bytes_max = backlog_bytes_max
        #: Watches of one session; 0: no bound.
        self.watches_max = watches_max


class ClientTransport(Protocol):
    """What sends a connection's output and reads its input."""

    def wake(self) -> None:
        """There is output; send it at the end of this turn."""
        ...

    def set_reading(self, is_reading: bool) -> None:
        """Stop or resume reading: back-pressure."""
        ...

    def close(self, *, flush: bool) -> None:
        """Close, after sending the output if `flush`; `Pipeline.connection_lost` has been called by then."""
        ...


@mypyc_attr(acyclic=True)
class Pending:
    """One request that waits: a read for its turn, anything else for `reply`."""

    __slots__ = ("body", "closes", "is_read", "opcode", "reply", "size", "xid")

    def __init__(self, xid: int, opcode: int, size: int, body: bytes = b"", *, is_read: bool = False) -> None:
        self.xid = xid
        self.opcode = opcode
        self.size = size
        #: The request's record, where it is still needed: of reads and of sync; of SASL the reply's.
        self.body = body
        self.is_read = is_read
        #: The whole reply frame.
        self.reply: bytes | None = None
        #: The connection ends behind this reply.
        self.closes = False


class Connection:
    """One client's connection, before and after it has a session."""

    def __init__(self, number: int, transport: ClientTransport, address: str, port: int, now_ms: int) -> None:
        #: Unique in this process; also the watcher's id in the watch table.
        self.number = number
        self.transport = transport
        self.address = address
        self.port = port
        self.output: list[bytes] = []
        self.pending: deque[Pending] = deque()
        self.pending_bytes = 0
        self.session: Session | None = None
        self.session_id = 0
        #: Owner of the session that this connection's commands carry (`coord.tree.command`).
        self.owner = 0
        self.timeout_ms = 0
        self.passwd = NO_PASSWD
        self.has_read_only = False
        #: Its requests cannot go into the log (`coord.server.clients.read_only`).
        self.is_read_only = False
        #: It came in by TLS.
        self.is_secure = False
        #: Subject of the client's TLS certificate, b"" without one.
        self.certificate = b""
        #: The SASL exchange that was begun last.
        self.sasl: SaslServer | None = None
        #: Requests that came behind the connect request before the session was there.
        self.early: list[tuple[bytes, list[tuple[int, int]]]] = []
        #: No more requests are taken: closeSession was read, or the connection is being closed.
        self.is_ending = False
        self.is_closed = False
        #: Too many requests wait: its input is not read.
        self.is_paused = False
        #: Too many bytes of answers wait: nothing is answered or read until the transport reports them sent.
        self.is_choked = False
        #: Bytes in `output` and in the transport's hands; the transport sets it anew after each send.
        self.output_bytes = 0
        #: Syncs that wait for the quorum.
        self.syncs = 0
        #: Requests not looked at yet: the connection choked, or the first of them is a write behind a waiting sync.
        self.parked: list[tuple[bytes, list[tuple[int, int]]]] = []
        # For the four-letter words.
        self.established_ms = now_ms
        self.heard_ms = now_ms
        self.received = 0
        self.sent = 0
        self.last_xid = 0
        self.last_opcode = 0

    def send_reply(self, xid: int, zxid: int, err: int, body: bytes) -> None:
        """Put a reply at the end of the output."""
        if err:
            body = b""
        self.output.append(encode_reply_frame(xid, zxid, err, body))


class Latency:
    """Times of requests that went through the log, from the turn they came in to the turn they were answered."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0
        self.min_ms = 0
        self.max_ms = 0

    def add(self, span_ms: int) -> None:
        """One more."""
        if span_ms > self.max_ms:
            self.max_ms = span_ms
        if span_ms < self.min_ms or not self.count:
            self.min_ms = span_ms
        self.count += 1
        self.total_ms += span_ms

    def mean_ms(self) -> float:
        """Their mean to four places, 0 without any."""
        return round(self.total_ms / self.count, 4) if self.count else 0.0
