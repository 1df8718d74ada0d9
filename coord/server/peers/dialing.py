"""The outgoing side of a link of a store node: connect to one peer, send the hello, send frames, reconnect.

A link to a member is dialed forever. A *provisional* link leads to a node outside of this node's configuration; it is
given up after some attempts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.dialing import REDIAL_MAX_MS, REDIAL_MIN_MS, DialedPeer, PeerDialer
from coord.peers.guard import PeerNames
from coord.peers.stream import Address
from coord.security.principal import NODE
from coord.server.peers import codec, hello_frames
from coord.server.peers.link_context import LinkContext

log = Logger(__name__)

#: Attempts to dial a provisional link, with longer pauses than other links. A made-up address costs 5 connections in
#: about 20 s.
PROVISIONAL_TRIES: Final = 5
PROVISIONAL_MIN_MS: Final = 1000
PROVISIONAL_MAX_MS: Final = 8000


class DialedStream(DialedPeer):
    """The connection that this node opened to a peer."""

    def __init__(self, link: Link, sock: socket.socket) -> None:
        context = link.context
        super().__init__(context.reactor, sock, context.guard, link.address[0])
        self._link = link

    def names(self) -> PeerNames:
        context = self._link.context
        return PeerNames(context.cluster.hex(), str(context.node_id), str(self._link.peer))

    def hello(self) -> bytes:
        return hello_frames.encode_hello(self._link.context.hello(self._link.peer, self._link.version))

    def refused(self, reason: str) -> None:
        self._link.refused(reason)

    def answered(self, kind: int, body: bytes) -> None:
        if kind == codec.REMOVED:
            members = self._link.context.members
            if members is not None:
                members.removed(self._link.peer, hello_frames.decode_removed(body))
            self.fail("refused: this node is not a member")
            return
        if kind != framing.HELLO:
            raise RemoteProtocolError(f"unexpected frame of kind {kind}")
        why = self._guard.misnamed(self.tls, NODE, str(self._link.peer)) if self._guard is not None else ""
        if why:
            raise RemoteProtocolError(why)
        self._link.check_answer(hello_frames.decode_hello(body))
        self.is_up = True
        self._link.up()

    def lost(self, reason: str) -> None:
        self._link.down(self, reason)


class Link(PeerDialer):
    """The outgoing side of the link to one peer."""

    def __init__(
        self,
        context: LinkContext,
        peer: int,
        address: Address,
        give_up: Callable[[Link], None],
        *,
        is_provisional: bool = False,
    ) -> None:
        """`is_provisional`: only the peer itself gave the address; `give_up` is called if it cannot be reached."""
        super().__init__(context.reactor, context.rng)
        self.context = context
        self.peer = peer
        self.address = address
        self.is_provisional = is_provisional
        self._give_up = give_up
        #: Attempts since the link was last up.
        self._tries = 0
        #: Why the last attempt failed, as logged.
        self._last_reason = ""
        #: Version of the next hello, see `refused`.
        self.version = codec.VERSION
        self._is_older = False
        #: Highest feature level in the peer's last hello.
        self.supported = 0

    def pause_min_ms(self) -> int:
        return PROVISIONAL_MIN_MS if self.is_provisional else REDIAL_MIN_MS

    def pause_max_ms(self) -> int:
        return PROVISIONAL_MAX_MS if self.is_provisional else REDIAL_MAX_MS

    def address_now(self) -> Address | None:
        return None if self.context.is_cut else self.address

    def make_stream(self, sock: socket.socket) -> DialedPeer:
        return DialedStream(self, sock)

    def refused(self, reason: str) -> None:
        """Handle a rejected hello. If the listener is an older build, dial once with the listener's version.

        Only once: after the link breaks, the peer may be a newer build.
        """
        if self.version == codec.VERSION and hello_frames.refused_version(reason) == codec.VERSION_BEFORE:
            self._is_older = True

    def check_answer(self, hello: hello_frames.Hello) -> None:
        """Accept the peer's hello and report it to the node. Raise RemoteProtocolError for one that does not fit."""
        context = self.context
        if hello.version != self.version:
            raise RemoteProtocolError(f"replies to a hello of version {self.version} with version {hello.version}")
        if hello.cluster != context.cluster:
            raise RemoteProtocolError(f"replies as node {hello.src} of another cluster")
        if hello.src != self.peer or hello.dst != context.node_id:
            raise RemoteProtocolError(f"replies as node {hello.src} to node {hello.dst}")
        levels = context.node.levels
        why = levels.objection(self.peer, hello.supported, hello.required)
        if why:
            raise RemoteProtocolError(why)
        self.supported = hello.supported
        levels.peer_announced(self.peer, hello.supported, hello.required)
        context.node.peer_introduced(self.peer, hello.has_log)

    def up(self) -> None:
        """Record that frames can be sent from now on."""
        log.info("link to node {peer} is up", peer=self.peer)
        self.pause_ms = 0
        self._tries = 0
        self._last_reason = ""
        self.context.node.peer_connected(self.peer)

    def down(self, stream: DialedStream, reason: str) -> None:
        """Handle the end of the connection, with which all queued frames are lost, and dial again."""
        self.stream = None
        self.queued = 0
        self.version = codec.VERSION
        if self._is_older:
            self._is_older = False
            self.version = codec.VERSION_BEFORE
            self.context.reactor.callLater(0, self.dial)
            return
        self.dial_again(reason)
        if stream.is_up:
            self.context.node.peer_lost(self.peer)

    def may_dial_again(self, reason: str) -> bool:
        if reason != self._last_reason:
            # Log each reason once: a peer that is down for hours costs one line.
            log.warn(
                "no link to node {peer} at {address}: {reason}", peer=self.peer, address=self.address, reason=reason
            )
            self._last_reason = reason
        self._tries += 1
        if self.is_provisional and self._tries >= PROVISIONAL_TRIES:
            self._give_up(self)
            return False
        return True
