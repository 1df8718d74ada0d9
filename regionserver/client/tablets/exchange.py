"""Requests to several servers at once over pooled connections, for one call and its thread.

Only `wait` waits. Connections are made and frames are sent without blocking, so a server that is frozen or cut off
delays a call only for the time that the call allows.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
from typing import Any, Final, NamedTuple

import msgspec

from coord.rpc.blocking import reply_in_thread, unseal
from coord.rpc.wire import (
    PREAMBLE,
    Code,
    Payload,
    Request,
    RpcError,
    RpcFrameReader,
    StreamError,
    encode_body,
    encode_frame,
)
from coord.security import process
from coord.security.channel import ProofChannel, address_of
from regionserver.client.connections import Address, Pool, looks_alive

_READ_BYTES: Final = 256 * 1024
_CONNECTING: Final = (0, errno.EINPROGRESS)


class Received(NamedTuple):
    """The outcome of one message: a reply, or the error in its place."""

    key: Any
    reply: Any
    error: RpcError | None


class NonblockingConnection:
    """One connection that carries one request after the other, without blocking."""

    def __init__(self, address: Address) -> None:
        """Begin to connect. Raise OSError."""
        family, kind, protocol, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._socket.connect_ex(target)
            if code not in _CONNECTING:
                raise OSError(code, os.strerror(code))
        except BaseException:
            self._socket.close()
            raise
        #: Kept, because most waits are for one reply on one connection.
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._reader = RpcFrameReader()
        self._ids = itertools.count(1)
        self._unsent: bytes | memoryview = b""
        credentials = process.own()
        #: The proof at the beginning of this connection; None once bytes pass through unchanged.
        self._channel: ProofChannel | None = None if credentials is None else credentials.dialer(host=address[0])
        self._greeting = PREAMBLE
        self._waits_for = 0
        self.is_connected = False
        if code == 0:
            self._connected()

    def begin(self, message: msgspec.Struct, cluster: str) -> None:
        """Send a request, or as much of the request as the socket takes. Raise OSError, RpcError."""
        self._waits_for = next(self._ids)
        greeting, self._greeting = self._greeting, b""
        frame = greeting + encode_frame(Request(self._waits_for, encode_body(message), cluster))
        self._queue(frame if self._channel is None else self._channel.send(frame))
        if self.is_connected and self._unsent:
            self._send()

    def events(self) -> int:
        """Return the events that this connection waits for."""
        return select.POLLIN | select.POLLOUT if self._must_write() else select.POLLIN

    def _must_write(self) -> bool:
        """Return True if the socket's readiness to write is awaited: for bytes, or for the end of connecting."""
        return bool(self._unsent) or not self.is_connected

    @property
    def has_sent(self) -> bool:
        """True if a byte of a request may have been sent."""
        return self.is_connected and (self._channel is None or self._channel.is_done)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def advance(self) -> Payload | None:
        """Send and receive as many bytes as possible now. Return the reply once it is complete. Raise OSError,
        StreamError."""
        if not self.is_connected:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self._connected()
        if self._unsent:
            self._send()
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "end of stream before the reply")
        for payload in self._reader.feed(data if self._channel is None else self._unseal(self._channel, data)):
            if payload.id == self._waits_for:
                self._waits_for = 0
                return payload
        return None

    def _connected(self) -> None:
        """Begin the proof: the connection is made."""
        self.is_connected = True
        if self._channel is not None:
            name, peer = self._socket.getsockname(), self._socket.getpeername()
            self._channel.start(address_of(*name[:2]), address_of(*peer[:2]))
            self._queue(self._channel.take())

    def _unseal(self, channel: ProofChannel, data: bytes) -> bytes:
        """Return the plain bytes in `data`, and send the proof's own output. Raise OSError, StreamError."""
        plain = unseal(channel, data)
        if channel.is_plain:
            self._channel = None
        self._queue(channel.take())
        if self._unsent:
            self._send()
        return plain

    def _queue(self, data: bytes) -> None:
        self._unsent = bytes(self._unsent) + data if self._unsent else data

    def _send(self) -> None:
        try:
            count = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        # The socket takes a part only if its buffer is full. `wait` sends the rest.
        self._unsent = memoryview(self._unsent)[count:] if count < len(self._unsent) else b""

    def is_quiet(self) -> bool:
        """See `Poolable.is_quiet`."""
        return looks_alive(self._socket)

    def wait(self, wait_ms: int) -> bool:
        """Wait up to `wait_ms` for an event. Return True if one has come."""
        if self._must_write():
            poll = select.poll()
            poll.register(self._socket, self.events())
            return bool(poll.poll(wait_ms))
        return bool(self._readable.poll(wait_ms))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Exchange:
    """The messages of one call. `close` ends the requests without a reply."""

    def __init__(self, pool: Pool[NonblockingConnection], cluster: str) -> None:
        self._pool = pool
        self._cluster = cluster
        self._lines: dict[int, tuple[Any, Address, NonblockingConnection, Any]] = {}
        self._failed: list[Received] = []

    def start(self, key: Any, address: Address, message: msgspec.Struct, replies: Any) -> None:
        """Start `message`; `wait` returns its result under `key`. `replies`: type or union of the replies."""
        line = None
        try:
            line = self._pool.take(address) or NonblockingConnection(address)
            line.begin(message, self._cluster)
        except (OSError, RpcError) as error:
            if line is not None:
                line.close()
            self._failed.append(Received(key, None, _as_rpc_error(error, address, line)))
            return
        self._lines[line.fileno()] = (key, address, line, replies)

    def wait(self, timeout_s: float) -> list[Received]:
        """Return the results that have arrived; wait for one up to `timeout_s`."""
        arrived, self._failed = self._failed, []
        # Poll rounds down to milliseconds; a wait that is too short would make the caller spin.
        wait_ms = 0 if arrived else max(0, int(timeout_s * 1000) + 1)
        for descriptor in self._ready(wait_ms):
            arrival = self._advance(descriptor)
            if arrival is not None:
                arrived.append(arrival)
        return arrived

    def _ready(self, wait_ms: int) -> list[int]:
        """Wait. Return the descriptors of the connections that can go on."""
        if len(self._lines) == 1:
            [(descriptor, (_, _, line, _))] = self._lines.items()
            return [descriptor] if line.wait(wait_ms) else []
        poll = select.poll()
        for descriptor, (_, _, line, _) in self._lines.items():
            poll.register(descriptor, line.events())
        return [descriptor for descriptor, _ in poll.poll(wait_ms)]

    def close(self) -> None:
        """Close the connections whose requests have no reply."""
        for _, _, line, _ in self._lines.values():
            line.close()
        self._lines.clear()

    def _advance(self, descriptor: int) -> Received | None:
        key, address, line, replies = self._lines[descriptor]
        try:
            payload = line.advance()
        except (OSError, StreamError) as error:
            del self._lines[descriptor]
            line.close()
            self._pool.drop(address)
            return Received(key, None, _as_rpc_error(error, address, line))
        if payload is None:
            return None
        del self._lines[descriptor]
        self._pool.keep(address, line)
        try:
            return Received(key, reply_in_thread(payload, replies), None)
        except RpcError as error:
            return Received(key, None, error)


def _as_rpc_error(error: Exception, address: Address, line: NonblockingConnection | None) -> RpcError:
    """Return the error of a message; UNREACHABLE means that no byte of the request was sent."""
    where = f"{address[0]}:{address[1]}"
    if isinstance(error, RpcError):
        return error
    if isinstance(error, StreamError):
        return RpcError(error.code, f"{where}: {error}")
    reason = getattr(error, "strerror", None) or error
    if line is None or not line.has_sent:
        return RpcError(Code.UNREACHABLE, f"{where} does not answer: {reason}")
    return RpcError(Code.CONNECTION_LOST, f"{where} closed the connection: {reason}")
