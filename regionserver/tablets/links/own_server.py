"""Shared state of both sides of all links: this server's identity, its guard, and a drill's partition."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from twisted.logger import Logger

from coord.env import Rng
from coord.peers.guard import PeerGuard, PeerNames
from coord.peers.reactor import TurnReactor
from coord.peers.stream import Address
from coord.tls.context import Engine
from regionserver.tablets.links.complaints import Complaints
from regionserver.tablets.links.hello import KNOWN, ServerHello, encode_hello
from regionserver.tablets.links.interfaces import LinkEvents

log = Logger()


class CopyConnection(NamedTuple):
    """A connection for a copy that another server has dialed. Its hello was accepted; `answer` is the reply to send."""

    sock: socket.socket
    tls: Engine | None
    #: Uuid of the server that dialed.
    server: str
    answer: bytes
    #: `Channel.unproven`.
    unproven: Callable[[], str] = str


class OwnServer:
    """This server, for its links. All links share one object."""

    def __init__(
        self,
        reactor: TurnReactor,
        *,
        cluster: str,
        server: str,
        start_code: int,
        address: Address,
        rng: Rng,
        guard: PeerGuard | None,
    ) -> None:
        self.reactor = reactor
        self.cluster = cluster
        self.server = server
        self.start_code = start_code
        self.address = address
        self.rng = rng
        self.guard = guard
        if guard is not None:
            guard.introduce(cluster, server)
        #: Set by the start of the links.
        self.events: LinkEvents
        self.has_started = False
        #: Directions in which a drill silently drops all frames.
        self.loses_incoming = False
        self.loses_outgoing = False
        self.complaints = Complaints(reactor.seconds)
        #: Serves an accepted connection for a copy; None if this server serves no copies.
        self.serve_copy: Callable[[CopyConnection], None] | None = None

    @property
    def is_cut(self) -> bool:
        """True while a drill cuts this server off. No connection can be established then."""
        return self.loses_incoming or self.loses_outgoing

    def names(self, server: str) -> PeerNames:
        """Return who dials whom, for the proof of the peers' secret."""
        return PeerNames(self.cluster, self.server, server)

    def hello(self, server: str) -> bytes:
        """Return this server's hello to `server` as a frame. Raise ValueError if the names are too long."""
        return encode_hello(
            ServerHello(self.cluster, self.server, server, self.start_code, self.address, features=KNOWN)
        )

    def complain(self, text: str) -> None:
        """Log a warning about a peer; log each text once."""
        if self.complaints.is_new(text):
            log.warn("{text}", text=text)
