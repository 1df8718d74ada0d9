"""The incoming side of a link between region servers: a connection that another server dialed."""

from __future__ import annotations

import socket
from functools import partial
from typing import Protocol

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.accepting import AcceptedPeer, PeerListener
from coord.tls.context import Engine
from regionserver.tablets.host.envelope import FRAME_BYTES_MAX, BeatFrame, TurnFrame, decode_frame
from regionserver.tablets.links import hello as hellos
from regionserver.tablets.links.own_server import CopyConnection, OwnServer


class IncomingOwner(Protocol):
    """All links of this server, as an accepted connection uses them."""

    def objection(self, hello: hellos.ServerHello, tls: Engine | None) -> str:
        """Return why a hello is rejected, or "" if it is accepted."""
        ...

    def accepted(self, stream: IncomingLink, hello: hellos.ServerHello) -> None:
        """Make an accepted connection that of its server. Close the server's older connection."""
        ...

    def incoming_lost(self, stream: IncomingLink) -> None:
        """Handle the end of an accepted connection."""
        ...


class IncomingLink(AcceptedPeer):
    """A connection to this server's peer port. It carries the other server's frames, and our hello back."""

    def __init__(self, own: OwnServer, owner: IncomingOwner, listener: PeerListener, sock: socket.socket) -> None:
        # + 1: the kind of the frame that carries it.
        super().__init__(listener, sock, own.guard, FRAME_BYTES_MAX + 1)
        self._own = own
        self._owner = owner
        #: The server at the other end and its start; "" while the connection is unidentified.
        self.server = ""
        self.start_code = 0
        #: Number of looks of `TabletLinks` since the last frame; None before the first frame.
        self.quiet_looks: int | None = None

    def first_frame(self, kind: int, body: bytes) -> None:
        if kind not in (framing.HELLO, hellos.COPY):
            raise RemoteProtocolError(f"the first frame is of kind {kind} instead of a hello")
        hello = hellos.decode_hello(body)
        self.check_source(hello.src)
        own = self._own
        if own.is_cut:
            return
        why = self._owner.objection(hello, self.tls)
        if why:
            own.complain(f"rejected a connection from a process that claims to be server {hello.src}: {why}")
            self.dismiss(framing.frame(framing.REFUSED, why.encode()))
            return
        if kind == hellos.COPY:
            self._serve_copy(hello)
            return
        self.server = hello.src
        self.start_code = hello.start_code
        self.is_identified = True
        self.output.append(own.hello(hello.src))
        self.flush()
        if not self.is_closed:
            self._owner.accepted(self, hello)

    def _serve_copy(self, hello: hellos.ServerHello) -> None:
        """Pass the socket on to the thread of a copy. This stream has ended."""
        serve = self._own.serve_copy
        if serve is None:
            self.dismiss(framing.frame(framing.REFUSED, b"this server serves no copies"))
            return
        self.reactor.unwatch(self.fd)
        self.is_closed = True
        self.listener.served(self)
        guard = self._own.guard
        unproven = str if guard is None else partial(guard.unproven, self._handshake)
        serve(CopyConnection(self.sock, self.tls, hello.src, self._own.hello(hello.src), unproven))

    def take(self, frames: list[tuple[int, bytes, int, int]]) -> None:
        own = self._own
        for kind, block, at, end in frames:
            if own.loses_incoming or self.is_closed:
                return
            if kind != hellos.PAYLOAD:
                raise RemoteProtocolError(f"a frame of kind {kind} between region servers")
            frame: TurnFrame | BeatFrame = framing.readable(_decode, block, at, end)
            header = frame.header
            if (header.cluster, header.sender, header.start_code, header.recipient) != (
                own.cluster,
                self.server,
                self.start_code,
                own.server,
            ):
                raise RemoteProtocolError(
                    f"a frame in the name of server {header.sender}, start code {header.start_code}, to"
                    f" {header.recipient}"
                )
            self.quiet_looks = 0
            own.events.peer_frame(self.server, frame)

    def complain(self, reason: str) -> None:
        who = f"server {self.server}" if self.server else "an unidentified peer"
        self._own.complain(f"closing the connection from {who}: {reason}")

    def lost(self, reason: str) -> None:
        if not self.server and reason.startswith("TLS"):
            self._own.complain(f"rejected a connection to the peer port: {reason}")
        self._owner.incoming_lost(self)


def _decode(data: bytes, at: int, end: int) -> TurnFrame | BeatFrame:
    return decode_frame(data[at:end])
