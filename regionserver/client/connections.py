"""Requests to region servers over pooled connections: one call at a time on each connection; thread-safe."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import defaultdict
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from coord.rpc.blocking import prove, reply_in_thread, unseal
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

T = TypeVar("T", bound=msgspec.Struct)
Address = tuple[str, int]

#: Idle connections that are kept per server.
IDLE_MAX: Final = 32
_READ_BYTES: Final = 256 * 1024


class _Connection:
    """A connection that carries one call after the other."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise RpcError(Code.UNREACHABLE, f"{where} does not answer: {error.strerror or error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = RpcFrameReader()
        self._ids = itertools.count(1)
        self._greeting = PREAMBLE
        try:
            self._channel = prove(self._socket, time.monotonic() + timeout_s, address[0])
        except StreamError as error:
            self._socket.close()
            raise RpcError(error.code, f"{address[0]}:{address[1]}: {error}") from error
        except OSError as error:
            self._socket.close()
            where = f"{address[0]}:{address[1]}"
            raise RpcError(Code.UNREACHABLE, f"{where} does not answer: {error.strerror or error}") from error

    def call(self, message: msgspec.Struct, expect: type[T], deadline_s: float) -> T:
        """Send a request and return the reply. Raise RpcError, OSError or StreamError.

        After an OSError or StreamError the connection must be closed.
        """
        number = next(self._ids)
        frame = encode_frame(Request(number, encode_body(message)))
        greeting, self._greeting = self._greeting, b""
        self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
        data = greeting + frame
        self._socket.sendall(data if self._channel is None else self._channel.send(data))
        payload = self._receive(number, deadline_s)
        reply: T = reply_in_thread(payload, expect)
        return reply

    def _receive(self, number: int, deadline_s: float) -> Payload:
        while True:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("end of stream before the reply")
            for payload in self._reader.feed(unseal(self._channel, data)):
                if payload.id == number:
                    return payload

    def is_quiet(self) -> bool:
        """See `Poolable.is_quiet`."""
        return is_quiet(self._socket)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def is_quiet(idle: socket.socket) -> bool:
    """Return True if an idle connection looks alive: the server has neither closed it nor sent unexpected bytes.

    The socket does not block from now on.
    """
    idle.setblocking(False)
    return looks_alive(idle)


def looks_alive(idle: socket.socket) -> bool:
    """As `is_quiet`, for a socket that does not block."""
    try:
        idle.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class Poolable(Protocol):
    """A connection that can be kept between two requests."""

    def is_quiet(self) -> bool:
        """Return True if the connection looks alive."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


C = TypeVar("C", bound=Poolable)


class Pool(Generic[C]):
    """Idle connections by address, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: defaultdict[Address, list[C]] = defaultdict(list)
        self._is_closed = False

    def take(self, address: Address) -> C | None:
        """Return an idle connection that is still good, or None.

        A connection that its server has closed long ago must not make the outcome of a call unknown.
        """
        while True:
            with self._lock:
                kept = self._idle[address]
                connection = kept.pop() if kept else None
            if connection is None or connection.is_quiet():
                return connection
            connection.close()

    def keep(self, address: Address, connection: C) -> None:
        """Keep a connection without a request for the next call."""
        with self._lock:
            if not self._is_closed and len(self._idle[address]) < IDLE_MAX:
                self._idle[address].append(connection)
                return
        connection.close()

    def drop(self, address: Address) -> None:
        """Close the idle connections to a server that has just broken a connection: they are broken, too."""
        with self._lock:
            left = self._idle.pop(address, [])
        for connection in left:
            connection.close()

    def close(self) -> None:
        """Close idle connections. Calls in progress close theirs when they end."""
        with self._lock:
            self._is_closed = True
            left = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in left:
            connection.close()


class Connections:
    """Pooled connections by address, for any thread."""

    def __init__(self) -> None:
        self._pool: Pool[_Connection] = Pool()

    def call(self, address: Address, message: msgspec.Struct, expect: type[T], timeout_s: float) -> T:
        """Send one request to the server at `address`. Raise RpcError; UNREACHABLE means that nothing was sent."""
        deadline_s = time.monotonic() + timeout_s
        connection = self._pool.take(address) or _Connection(address, timeout_s)
        where = f"{address[0]}:{address[1]}"
        try:
            reply = connection.call(message, expect, deadline_s)
        except RpcError:
            # The server rejected the request; the connection is still good.
            self._pool.keep(address, connection)
            raise
        except TimeoutError as error:
            connection.close()
            raise RpcError(Code.TIMEOUT, f"{where} did not reply within {timeout_s:.1f} s") from error
        except StreamError as error:
            connection.close()
            raise RpcError(error.code, f"{where}: {error}") from error
        except OSError as error:
            connection.close()
            self._pool.drop(address)
            raise RpcError(Code.CONNECTION_LOST, f"{where} closed the connection: {error.strerror or error}") from error
        self._pool.keep(address, connection)
        return reply

    def close(self) -> None:
        """Close idle connections. Calls in progress close theirs when they end."""
        self._pool.close()
