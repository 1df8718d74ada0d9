"""One client's connection inside the node: identity, pending requests, output, and limits.

A connection has no socket: `output` is a list of bytes that a `ClientTransport` sends. This module has the state; the
module `pipeline` changes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from coord.security.revocation import ShownCredential
from coord.tree.reads import WatchRestore
from coord.tree.sessions import Session
from coord.wire.codec import encode_reply_frame
from coord.wire.sasl import SaslServer
from coord.wire.values import NO_PASSWD

#: Bounds of the counted times of requests; the node's clock has a resolution of a millisecond.
REQUEST_BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
#: Time in ms -> the index of its bucket, for short times.
_PLACES: Final = bytes([bisect_left(REQUEST_BOUNDS_MS, span_ms) for span_ms in range(REQUEST_BOUNDS_MS[-1] + 1)])


class Limits:
    """Limits on the resources that one client may use at this node. Each limit is a setting."""

    def __init__(
        self,
        *,
        outstanding_max: int = 1000,
        outstanding_bytes_max: int = 8 << 20,
        session_timeout_min_ms: int = 1000,
        session_timeout_max_ms: int = 10_000,
        sessions_max: int = 100_000,
        sessions_per_address_max: int = 0,
        output_bytes_max: int = 4 << 20,
        backlog_bytes_max: int = 64 << 20,
        watches_max: int = 0,
    ) -> None:
        #: Pending requests of one connection at which the node stops reading from it.
        self.outstanding_max = outstanding_max
        #: Bytes of such requests.
        self.outstanding_bytes_max = outstanding_bytes_max
        #: Bounds of the negotiated session timeout: 2 and 20 ticks as in ZooKeeper.
        self.session_timeout_min_ms = session_timeout_min_ms
        self.session_timeout_max_ms = session_timeout_max_ms
        #: Sessions in the whole cluster at which new sessions are rejected.
        self.sessions_max = sessions_max
        #: Number of sessions of one address at which the address gets no more; 0: half of the sessions that other
        #: addresses do not use.
        self.sessions_per_address_max = sessions_per_address_max
        #: Bytes of unsent replies to one client beyond which the node handles no further requests of this client.
        self.output_bytes_max = output_bytes_max
        #: Bytes of unsent replies at which a connection is closed: reads that wait for a write are answered together,
        #: and a thousand of them may read a megabyte each.
        self.backlog_bytes_max = backlog_bytes_max
        #: Watches of one session; 0: no limit.
        self.watches_max = watches_max


class ClientTransport(Protocol):
    """The transport of a connection: sends its output and reads its input."""

    def wake(self) -> None:
        """Send the output at the end of this turn."""
        ...

    def set_reading(self, is_reading: bool) -> None:
        """Stop or resume reading: back-pressure."""
        ...

    def resume_later(self) -> None:
        """Call `Pipeline.resume` in the next turn."""
        ...

    def close(self, *, flush: bool) -> None:
        """Close the connection, if `flush` after sending the output. `Pipeline.connection_lost` has been called
        already."""
        ...


@mypyc_attr(acyclic=True)
class Pending:
    """One pending request: a read until it is first in the queue, any other request until `reply` is set."""

    __slots__ = ("body", "closes", "is_read", "opcode", "reply", "restore", "size", "xid")

    def __init__(self, xid: int, opcode: int, size: int, body: bytes = b"", *, is_read: bool = False) -> None:
        self.xid = xid
        self.opcode = opcode
        self.size = size
        #: The request's record for reads and sync, the reply's record for SASL, else empty.
        self.body = body
        self.is_read = is_read
        #: The whole reply frame.
        self.reply: bytes | None = None
        #: A setWatches that has begun.
        self.restore: WatchRestore | None = None
        #: The connection is closed after this reply.
        self.closes = False


class Connection:
    """One client's connection, before and after it has a session."""

    def __init__(self, number: int, transport: ClientTransport, address: str, port: int, now_ms: int) -> None:
        #: Unique in this process; also the watcher's id in the watch table.
        #: Unique in this process.
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
        #: The connection's requests do not go into the log (`coord.server.clients.read_only`).
        self.is_read_only = False
        #: Connected by TLS.
        self.is_secure = False
        #: Subject of the client's TLS certificate, b"" without one.
        self.certificate = b""
        #: Keys of the cluster that the client has proved.
        self.shown: list[ShownCredential] = []
        #: The client has proved an identity of a required scheme, or none is required. Set when the session begins.
        self.is_admitted = True
        #: The client has not proved an identity of a required scheme. It is served while the cluster is being secured.
        self.is_unproven = False
        #: The SASL exchange begun last.
        self.sasl: SaslServer | None = None
        #: Requests that followed the connect request before the session was open.
        self.early: list[tuple[bytes, list[tuple[int, int]]]] = []
        #: The first pending request is a setWatches that goes on in a later turn.
        self.is_restoring = False
        #: No more requests are accepted: closeSession was received, or the connection is being closed.
        self.is_ending = False
        self.is_closed = False
        #: Too many requests are pending: the node does not read from the connection.
        self.is_paused = False
        #: Too many bytes of replies are unsent: the node reads and answers nothing until the transport has sent them.
        self.is_choked = False
        #: Bytes in `output` and in the transport; the transport updates the number after each send.
        self.output_bytes = 0
        #: Pending syncs, membership requests and barriers.
        self.syncs = 0
        #: Requests that wait for a later turn. The reason is one of these: the connection is choked, a sync is pending
        #: before a write, or earlier reads have used up the connection's time in this turn.
        self.parked: list[tuple[bytes, list[tuple[int, int]]]] = []
        # For the four-letter words.
        self.established_ms = now_ms
        self.heard_ms = now_ms
        self.received = 0
        self.sent = 0
        self.last_xid = 0
        self.last_opcode = 0

    def send_reply(self, xid: int, zxid: int, err: int, body: bytes) -> None:
        """Append a reply to the output."""
        if err:
            body = b""
        self.output.append(encode_reply_frame(xid, zxid, err, body))


class RequestTimes:
    """Counts of requests through the log by opcode and time, for a histogram. They are never reset."""

    def __init__(self) -> None:
        #: Opcode -> counts by REQUEST_BOUNDS_MS, the count beyond these bounds, and the sum in ms.
        self.counts: dict[int, list[int]] = {}

    def add(self, opcode: int, span_ms: int) -> None:
        """Count a request that took `span_ms`."""
        counts = self.counts.get(opcode)
        if counts is None:
            counts = self.counts[opcode] = [0] * (len(REQUEST_BOUNDS_MS) + 2)
        counts[_PLACES[span_ms] if span_ms < len(_PLACES) else len(REQUEST_BOUNDS_MS)] += 1
        counts[-1] += span_ms


class Latency:
    """Latencies of requests through the log, from the turn of the request to the turn of the reply."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0
        self.min_ms = 0
        self.max_ms = 0

    def add(self, span_ms: int) -> None:
        """Count a request that took `span_ms`."""
        if span_ms > self.max_ms:
            self.max_ms = span_ms
        if span_ms < self.min_ms or not self.count:
            self.min_ms = span_ms
        self.count += 1
        self.total_ms += span_ms

    def mean_ms(self) -> float:
        """Return the mean in ms, rounded to four places; 0 before the first request."""
        return round(self.total_ms / self.count, 4) if self.count else 0.0
