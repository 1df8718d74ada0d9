"""One non-blocking TCP socket on the turn reactor: read once per turn, sent once per turn, bounded."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from coord.server.net.reactor import READABLE, WRITABLE, TurnReactor
from coord.tls.context import Engine, TlsError

#: Read at once. Larger buffers make malloc map and unmap memory at every call.
READ_BYTES: Final = 64 << 10


class Stream:
    """A connected socket. Whoever subclasses says what `received` bytes and a `lost` peer mean.

    `output` is what should leave; `flush` sends it with one call and keeps what the kernel did not take.
    """

    #: Most bytes that may wait for a peer that does not read.
    backlog_max = 64 << 20
    #: Seal every item of `output` as TLS records of its own; a peer that always reads all it can needs no such care.
    seals_each = False

    def __init__(self, reactor: TurnReactor, sock: socket.socket) -> None:
        self.reactor = reactor
        self.sock = sock
        self.fd = sock.fileno()
        self.output: list[bytes] = []
        #: Bytes in `output` are not counted; these are what the kernel refused so far.
        self._rest = memoryview(b"")
        #: How many those are.
        self._rest_bytes = 0
        #: Set while the kernel takes nothing more, to find peers that never read.
        self.is_stalled = False
        self._is_reading = True
        self._ends_when_sent = False
        self.is_closed = False
        #: Set before the first byte: everything goes through it.
        self.tls: Engine | None = None
        sock.setblocking(False)
        reactor.watch(self.fd, self.on_events)

    def received(self, data: bytes) -> None:
        """Bytes arrived."""
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """The peer closed or the connection failed; the socket is closed already."""
        raise NotImplementedError

    def on_events(self, events: int) -> None:
        """The reactor's call."""
        if events & WRITABLE and not self.is_closed:
            self._send_rest()
        if events & READABLE and not self.is_closed:
            try:
                data = self.sock.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(error.strerror or str(error))
                return
            if not data:
                self.fail("closed by the peer")
            elif self.tls is not None:
                self._received_sealed(self.tls, data)
            elif not self._ends_when_sent:
                self.received(data)

    def flush(self) -> None:
        """Send `output` in one call. May find the connection lost."""
        output = self.output
        if not output or self.is_closed:
            return
        data = output[0] if len(output) == 1 else b"".join(output)
        if self.tls is not None:
            try:
                data = self.tls.seal(output if self.seals_each else [data])
            except TlsError as error:
                self.fail(f"TLS: {error}")
                return
        output.clear()
        if data:
            self._send(data)

    def _received_sealed(self, tls: Engine, data: bytes) -> None:
        """Bytes of TLS arrived: perhaps a step of the handshake, perhaps data."""
        why = ""
        try:
            data = tls.unseal(data)
        except TlsError as error:
            why, data = f"TLS: {error}", b""
        answer = tls.take()
        if answer:
            self._send(answer)
        if data and not self._ends_when_sent and not self.is_closed:
            self.received(data)
        if why:
            self.fail(why)
        elif tls.is_ended:
            self.fail("closed by the peer")

    def _send(self, data: bytes) -> None:
        """Give bytes to the kernel, behind those it did not take before."""
        if self._rest_bytes:
            if self._rest_bytes + len(data) > self.backlog_max:
                self.fail("does not read what it asked for")
                return
            self._keep(memoryview(b"".join((self._rest, data))))
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.fail(error.strerror or str(error))
            return
        if sent < len(data):
            self._keep(memoryview(data)[sent:])
            self._rewatch()
        elif self._ends_when_sent and not self.output:
            self.close()

    def _keep(self, rest: memoryview) -> None:
        self._rest = rest
        self._rest_bytes = len(rest)

    def backlog(self) -> int:
        """Bytes that wait for the kernel."""
        return self._rest_bytes

    def set_reading(self, is_reading: bool) -> None:
        """Stop or resume reading."""
        if is_reading != self._is_reading and not self.is_closed:
            self._is_reading = is_reading
            self._rewatch()

    def close(self) -> None:
        """Close now; what was not sent is dropped. `lost` is not called."""
        if not self.is_closed:
            self.is_closed = True
            if self.tls is not None and not self._rest_bytes:
                with contextlib.suppress(OSError):
                    self.sock.send(self.tls.farewell())
            self.reactor.unwatch(self.fd)
            self.sock.close()
            self.output.clear()
            self._keep(memoryview(b""))

    def close_when_sent(self) -> None:
        """Close once everything in `output` has left; nothing more is read."""
        if self._rest_bytes or self.output:
            self._ends_when_sent = True
        else:
            self.close()

    def fail(self, reason: str) -> None:
        """Close and tell the owner why."""
        if not self.is_closed:
            self.close()
            self.lost(reason)

    def _send_rest(self) -> None:
        try:
            sent = self.sock.send(self._rest)
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(error.strerror or str(error))
            return
        self._keep(self._rest[sent:])
        self.is_stalled = False
        if not self._rest_bytes:
            self._rest = memoryview(b"")
            if self._ends_when_sent and not self.output:
                self.close()
            else:
                self._rewatch()

    def _rewatch(self) -> None:
        self.reactor.rewatch(self.fd, readable=self._is_reading, writable=self._rest_bytes > 0)


def listening_socket(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A non-blocking listening socket. Raises OSError when the address is taken or not this machine's."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket, *, give_up_ms: int) -> None:
    """Small messages leave at once; a peer that is gone without a word is noticed after `give_up_ms`."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_ms)


def is_numeric(host: str) -> bool:
    """Return True if `host` is an IP address and no name to be resolved."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):  # ValueError: a NUL, or characters that are not ASCII
            continue
        return True
    return False


def family_of(host: str) -> int:
    """Return the address family of a numeric host."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
