"""A connection between two region servers that a thread reads and writes: for copies, which must not use the reactor.

It begins like a link: on the peer port, with the same authentication and a hello of its own kind (`hello.COPY`). The
listener's reactor accepts the hello and then passes the socket on; the dialer's thread does everything itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.logger import Logger

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.framing import HEAD, HELLO_BYTES_MAX, HELLO_TIMEOUT_S
from coord.peers.guard import Handshake
from coord.peers.stream import Address, tune
from coord.security.principal import SERVER
from coord.security.revocation import ShownCredential, known
from coord.security.tls_channel import shown_by_peer
from coord.tls.context import Engine, TlsError
from regionserver.tablets.host.envelope import FRAME_BYTES_MAX
from regionserver.tablets.links import hello as hellos
from regionserver.tablets.links.own_server import OwnServer

log: Final = Logger()

#: A connection on which the other end sends and takes nothing for this long is closed.
IDLE_S: Final = 60.0
#: Buffers of the kernel: a thread that waits for the disk does not stop the other end at once.
_SOCKET_BYTES: Final = 4 << 20
_READ_BYTES: Final = 256 << 10
#: A time limit as the kernel takes it: seconds and microseconds.
_TIMEVAL: Final = struct.Struct("@ll")


class ChannelLost(RemoteProtocolError):  # noqa: N818 - says what has happened
    """The connection has ended, or the other end rejects it. The copy is not usable."""


class Channel:
    """Frames over a blocking socket. One thread sends and receives; `abort` may be called on any thread."""

    def __init__(self, sock: socket.socket, tls: Engine | None, peer: str) -> None:
        """`peer` names the other end in errors."""
        self._sock = sock
        self._tls = tls
        self._peer = peer
        self._shown: ShownCredential | None = None
        #: Returns why the connection may not stand any more because a proof of the peers' secret is missing, or "".
        self.unproven: Callable[[], str] = str
        self._is_closed = False
        self._limit = HELLO_BYTES_MAX
        self._plain = bytearray()
        # A source receives short requests alone. The buffer grows with the first long frame.
        self._buffer = bytearray(HELLO_BYTES_MAX)
        tune(sock, give_up_ms=int(IDLE_S * 1000))

    def established(self) -> None:
        """Allow long frames and long silences: both ends have accepted the hello."""
        self._shown = None if self._tls is None else shown_by_peer(self._tls)
        self._limit = FRAME_BYTES_MAX
        # The kernel enforces the time limit, so that one call receives or sends a whole frame. With a time limit of
        # Python's, each part of a frame would take two calls, and the interpreter's lock after each.
        self._sock.settimeout(None)
        limit = _TIMEVAL.pack(int(IDLE_S), int(IDLE_S % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, limit)
        self.end_if_revoked()

    def send(self, kind: int, *parts: bytes | memoryview) -> None:
        """Send one frame. Raise ChannelLost."""
        length = sum(len(part) for part in parts)
        try:
            if self._tls is not None:
                self._sock.sendall(self._tls.seal([HEAD.pack(length + 1, kind) + b"".join(parts)]))
                return
            head = [HEAD.pack(length + 1, kind), *parts]
            sent = self._sock.sendmsg(head)
            if sent < HEAD.size + length:
                self._sock.sendall(memoryview(b"".join(head))[sent:])
        except (OSError, TlsError) as error:
            raise self._lost(error) from error

    def receive(self) -> tuple[int, memoryview]:
        """Return kind and body of the next frame. The body is valid until the next call. Raise ChannelLost."""
        length, kind = HEAD.unpack(self._read(HEAD.size))
        if not 1 <= length <= self._limit:
            raise ChannelLost(f"{self._peer}: a frame of {length} bytes; allowed are 1 to {self._limit}")
        return kind, self._read(length - 1)

    def _read(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        try:
            if self._tls is not None:
                self._read_sealed(self._tls, view)
                return view
            at = 0
            while at < size:
                got = self._sock.recv_into(view[at:], flags=socket.MSG_WAITALL)
                if not got:
                    raise ChannelLost(f"{self._peer} has closed the connection")
                at += got
        except (OSError, TlsError) as error:
            raise self._lost(error) from error
        return view

    def _lost(self, error: Exception) -> ChannelLost:
        """Return the failure of a send or a receive."""
        what = f"nothing was sent or taken for {IDLE_S:g} s" if isinstance(error, BlockingIOError) else str(error)
        return ChannelLost(f"{self._peer}: {what}")

    def _read_sealed(self, tls: Engine, view: memoryview) -> None:
        while len(self._plain) < len(view):
            if tls.is_ended:
                raise ChannelLost(f"{self._peer} has closed the connection")
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise ChannelLost(f"{self._peer} has closed the connection")
            try:
                self._plain += tls.unseal(data)
            finally:
                answer = tls.take()
                if answer:
                    self._sock.sendall(answer)
        view[:] = self._plain[: len(view)]
        del self._plain[: len(view)]

    def end_if_revoked(self) -> None:
        """Abort if the peer's certificate is revoked, or if a missing proof is due now. May be called on any thread."""
        why = self.unproven() or ("" if self._shown is None else known().objection(self._shown))
        if why and not self._is_closed:
            log.warn("ending the copy with {peer}: {why}", peer=self._peer, why=why)
            self.abort()

    @property
    def is_closed(self) -> bool:
        """Return True after `close`."""
        return self._is_closed

    def abort(self) -> None:
        """Make the thread that waits for this connection raise ChannelLost."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._sock.close()


def dial_copy(own: OwnServer, server: str, address: Address) -> Channel:
    """Connect to the peer port of `server`, authenticate both ends, and send the hello of a copy. Blocks.

    Raise ChannelLost if the server cannot be reached, is another one, or rejects the hello.
    """
    if own.is_cut:
        raise ChannelLost("a drill cuts this server off")
    peer = f"server {server}"
    try:
        sock = socket.create_connection(address, HELLO_TIMEOUT_S)
    except OSError as error:
        raise ChannelLost(f"{peer} at {address[0]}:{address[1]}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        tls = own.guard.engine(is_server=False, host=address[0]) if own.guard is not None else None
        channel = Channel(sock, tls, peer)
        handshake = _introduce(channel, own, server)
        if own.guard is not None:
            channel.unproven = partial(own.guard.unproven, handshake)
        misnamed = own.guard.misnamed(tls, SERVER) if own.guard is not None else ""
        if misnamed:
            raise ChannelLost(f"server {server} {misnamed}")
    except BaseException:
        sock.close()
        raise
    channel.established()
    return channel


def _introduce(channel: Channel, own: OwnServer, server: str) -> Handshake | None:
    """Authenticate and send the hello. Return the proof of the secret, None without a secret."""
    handshake = own.guard.dialing(own.names(server)) if own.guard is not None else None
    if handshake is not None:
        channel.send(framing.CHALLENGE, handshake.challenge()[HEAD.size :])
        kind, body = channel.receive()
        if kind == framing.REFUSED and own.guard is not None:
            own.guard.refused(own.names(server), bytes(body).decode(errors="replace"))
        _check_accepted(kind, body)
        channel.send(framing.PROOF, handshake.prove(kind, bytes(body))[HEAD.size :])
    channel.send(hellos.COPY, own.hello(server)[HEAD.size :])
    kind, body = channel.receive()
    _check_accepted(kind, body)
    if kind != framing.HELLO:
        raise RemoteProtocolError(f"replies with a frame of kind {kind} to a hello")
    hello = hellos.decode_hello(bytes(body))
    objection = hellos.objection_to_answer(hello, own.cluster, server, own.server)
    if objection:
        raise ChannelLost(f"server {server} {objection}")
    return handshake


def _check_accepted(kind: int, body: memoryview) -> None:
    if kind == framing.REFUSED:
        raise ChannelLost(f"the hello was rejected: {bytes(body).decode(errors='replace')}")
