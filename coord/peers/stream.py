"""One non-blocking TCP socket on the turn reactor: read once per turn, sent once per turn, bounded."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from mypy_extensions import mypyc_attr

from coord.peers.reactor import READABLE, WRITABLE, TurnReactor
from coord.tls.context import Engine, TlsError

#: Bytes read at once. Larger buffers make malloc map and unmap memory at every call.
READ_BYTES: Final = 64 << 10
#: The kernel closes a link whose data stays unacknowledged for this long.
GIVE_UP_MS: Final = 5000

Address = tuple[str, int]


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream:
    """A connected socket. Subclasses implement `received` and `lost`.

    `output` has the bytes to send. `flush` sends them with one call, and keeps the bytes that the kernel did not
    accept.
    """

    #: Limit of unsent bytes for a peer that does not read.
    backlog_max = 64 << 20
    #: Encrypt every item of `output` as TLS records of its own, for clients that read one frame at a time.
    seals_each = False

    def __init__(self, reactor: TurnReactor, sock: socket.socket) -> None:
        self.reactor = reactor
        self.sock = sock
        # Bound once, because a look-up at each call is a noticeable part of the cost of an event.
        self._recv_some = sock.recv
        self._send_some = sock.send
        self.fd = sock.fileno()
        self.output: list[bytes] = []
        #: Bytes that the kernel did not accept yet; `output` is not included.
        self._rest = memoryview(b"")
        #: Length of `_rest`.
        self._rest_bytes = 0
        #: True while the kernel accepts no more bytes; used to find peers that never read.
        self.is_stalled = False
        self._is_reading = True
        self._ends_when_sent = False
        self.is_closed = False
        #: Set before the first byte arrives; all bytes then pass through it.
        self.tls: Engine | None = None
        sock.setblocking(False)
        reactor.watch(self.fd, self.on_events)

    def received(self, data: bytes) -> None:
        """Handle received bytes."""
        raise NotImplementedError

    def lost(self, reason: str) -> None:
        """Handle the end of the connection: the peer closed it or it failed. The socket is already closed."""
        raise NotImplementedError

    def on_events(self, events: int) -> None:
        """Handle the events of one turn."""
        if events & WRITABLE and not self.is_closed:
            self._send_rest()
        if events & READABLE and not self.is_closed:
            try:
                data = self._recv_some(READ_BYTES)
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
        """Send `output` in one call. The connection may turn out to be lost."""
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
        """Handle encrypted bytes: a step of the handshake, or data."""
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
        """Pass bytes to the kernel, after the bytes that it did not accept before."""
        if self._rest_bytes:
            if self._rest_bytes + len(data) > self.backlog_max:
                self.fail("does not read its replies")
                return
            self._keep(memoryview(b"".join((self._rest, data))))
            return
        try:
            sent = self._send_some(data)
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
        """Return the number of bytes that the kernel has not accepted yet."""
        return self._rest_bytes

    def set_reading(self, is_reading: bool) -> None:
        """Stop or resume reading."""
        if is_reading != self._is_reading and not self.is_closed:
            self._is_reading = is_reading
            self._rewatch()

    def close(self) -> None:
        """Close now and discard unsent bytes. `lost` is not called."""
        if not self.is_closed:
            self.is_closed = True
            if self.tls is not None and not self._rest_bytes:
                with contextlib.suppress(OSError):
                    self.sock.send(self.tls.close_notify())
            self.reactor.unwatch(self.fd)
            self.sock.close()
            self.output.clear()
            self._keep(memoryview(b""))

    def close_when_sent(self) -> None:
        """Close after everything in `output` has been sent. Received bytes are ignored from now on."""
        if self._rest_bytes or self.output:
            self._ends_when_sent = True
        else:
            self.close()

    def fail(self, reason: str) -> None:
        """Close and report the reason to `lost`."""
        if not self.is_closed:
            self.close()
            self.lost(reason)

    def _send_rest(self) -> None:
        try:
            sent = self._send_some(self._rest)
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
    """Return a non-blocking listening socket. Raise OSError if the address is in use or not of this machine."""
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
    """Send small messages at once; detect a peer that vanished after `give_up_ms`."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, give_up_ms)


def is_numeric(host: str) -> bool:
    """Return True if `host` is an IP address, not a name."""
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
