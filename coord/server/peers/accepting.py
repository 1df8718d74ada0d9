"""The incoming side of links: accept connections, check their hello, pass frames to the node.

An accepted connection is *unidentified* until its hello is accepted. A hello must have our version or the previous one,
name our cluster and this node, and come from a member. Its certificate and feature levels must fit. An unidentified
connection may also ask for the cluster (WHO). A node that is no longer a member gets REMOVED.

A node outside of this node's configuration may be a member of a newer one. Its hello has the index of its newest
configuration, and its address.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

from twisted.logger import Logger

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.accepting import AcceptedPeer, PeerListener
from coord.peers.stream import Address
from coord.security.principal import NODE
from coord.server.peers import codec
from coord.server.peers.hello_frames import Hello, decode_hello, encode_hello, encode_removed, is_who
from coord.server.peers.link_context import LinkContext
from coord.tls.context import Engine

log = Logger(__name__)

#: Limit of links to nodes outside of this node's configuration. In practice a store gains fewer nodes than this while
#: one of its nodes is down.
PROVISIONAL_MAX: Final = 8
#: Rejections that are logged until a hello is accepted: each hello could cause a new reason.
LOGGED_REFUSALS_MAX: Final = 64


class LinkTable(Protocol):
    """The outgoing links, as accepting a hello uses them."""

    def address_of(self, peer: int) -> Address | None:
        """Return the address at which this node dials `peer`, or None without a link."""
        ...

    def provisional_count(self) -> int:
        """Return the number of links to nodes outside of this node's configuration."""
        ...

    def open_provisional(self, hello: Hello) -> None:
        """Dial a node outside of this node's configuration at the address in its hello."""
        ...


class AcceptedStream(AcceptedPeer):
    """A connection to this node's peer port."""

    def __init__(self, acceptor: Acceptor, sock: socket.socket) -> None:
        context = acceptor.context
        super().__init__(acceptor.listener, sock, context.guard, codec.FRAME_BYTES_MAX)
        self._acceptor = acceptor
        self._context = context
        #: The node at the other end, 0 while the connection is unidentified.
        self.peer = 0
        self.incarnation = 0
        self.supported = 0

    def take(self, frames: list[tuple[int, bytes, int, int]]) -> None:
        node = self._context.node
        if self._context.loses_incoming:
            return
        for kind, block, at, end in frames:
            node.peer_frame(self.peer, self.incarnation, kind, block, at, end)

    def complain(self, reason: str) -> None:
        more = "" if self.is_identified else self.listener.lines.more()
        if more is not None:
            log.warn("closing the connection from {who}: {error}{more}", who=self._who(), error=reason, more=more)

    def first_frame(self, kind: int, body: bytes) -> None:
        members = self._context.members
        if kind == codec.WHO and members is not None and is_who(body):
            self.dismiss(members.describe())
        elif kind == framing.HELLO:
            hello = decode_hello(body)
            self.check_source(str(hello.src))
            self._introduce(hello)
        else:
            raise RemoteProtocolError(f"the first frame is of kind {kind} instead of a hello")

    def _introduce(self, hello: Hello) -> None:
        context = self._context
        if context.is_cut:
            return
        acceptor = self._acceptor
        why = acceptor.refuse(hello, self.tls)
        if why:
            since = acceptor.removed_since(hello)
            self.dismiss(encode_removed(since) if since else framing.frame(framing.REFUSED, why.encode()))
            return
        self.peer = hello.src
        self.is_identified = True
        self.incarnation = hello.incarnation
        self.supported = hello.supported
        acceptor.introduced(self, hello)
        self.output.append(encode_hello(context.hello(hello.src, hello.version)))
        context.node.peer_introduced(hello.src, hello.has_log)
        self.flush()

    def lost(self, reason: str) -> None:
        if self.peer == 0 and reason.startswith("TLS"):
            more = self.listener.lines.more()
            if more is not None:
                log.warn("rejected a connection to the peer port: {reason}{more}", reason=reason, more=more)
        self._acceptor.lost(self)

    def _who(self) -> str:
        return f"node {self.peer}" if self.peer else "an unidentified peer"


class Acceptor:
    """The accepted connections of one node: at most one per peer, and some unidentified ones."""

    def __init__(self, context: LinkContext, links: LinkTable) -> None:
        self.context = context
        self.listener = PeerListener(context.reactor, self._make)
        self._links = links
        self._accepted: dict[int, AcceptedStream] = {}
        #: Reasons of rejections that were logged since the last accepted hello.
        self._logged: dict[str, None] = {}

    def stop(self) -> None:
        """Close the listening socket and every connection."""
        self.listener.stop()
        for stream in list(self._accepted.values()):
            stream.close()

    def _make(self, sock: socket.socket) -> AcceptedPeer:
        return AcceptedStream(self, sock)

    def has(self, peer: int) -> bool:
        """Return True if `peer` has a link to this node."""
        return peer in self._accepted

    def drop(self, peer: int) -> bool:
        """Close the connection of `peer`. Return False if there is none."""
        accepted = self._accepted.pop(peer, None)
        if accepted is None:
            return False
        accepted.close()
        return True

    def break_all(self, reason: str) -> None:
        """Close every connection; peers dial again."""
        for stream in [*self._accepted.values(), *self.listener.unidentified]:
            stream.fail(reason)

    def close_revoked(self) -> None:
        """Close the connections of peers with a revoked certificate, or without the proof that is required by now."""
        for accepted in list(self._accepted.values()):
            why = accepted.objection()
            if why:
                log.warn("closing the connection from node {peer}: {why}", peer=accepted.peer, why=why)
                accepted.fail(why)

    def recheck(self) -> None:
        """Close the connections of peers below the feature level that the node requires now."""
        for peer, accepted in list(self._accepted.items()):
            why = self.context.node.levels.objection(peer, accepted.supported, 0)
            if why:
                accepted.fail(why)

    # --- hellos -------------------------------------------------------------------------------------------------------

    def refuse(self, hello: Hello, tls: Engine | None) -> str:
        """Return why a hello is rejected, and log a new reason; return "" if the hello is accepted."""
        why = self.level_mismatch(hello) or self.objection(hello) or self.certificate_mismatch(hello, tls)
        if why and why not in self._logged and len(self._logged) < LOGGED_REFUSALS_MAX:
            # Log this only once: a node that waits to be added, or has been removed, dials repeatedly.
            self._logged[why] = None
            log.warn("rejected a connection from a node that claims to be node {src}: {why}", src=hello.src, why=why)
        return why

    def objection(self, hello: Hello) -> str:
        """Return why this hello is rejected, or "" if it is acceptable. Do not check its levels and certificate.

        The sentence about versions is part of the protocol (`hello_frames.refused_version`).
        """
        node_id = self.context.node_id
        if hello.version not in (codec.VERSION_BEFORE, codec.VERSION):
            return f"speaks version {hello.version}, this node {codec.VERSION}"
        if hello.cluster != self.context.cluster:
            return "belongs to another cluster"
        if hello.dst != node_id:
            return f"looks for node {hello.dst}, this is node {node_id}"
        if hello.src == node_id or hello.src <= 0:
            return "claims to be this node"
        if self._links.address_of(hello.src) is not None:
            return ""
        if not self._is_newer(hello) and not self._may_return(hello):
            return f"node {hello.src} is not a member"
        if self._links.provisional_count() >= PROVISIONAL_MAX:
            return f"{PROVISIONAL_MAX} nodes outside of this node's configuration have links already"
        return ""

    def level_mismatch(self, hello: Hello) -> str:
        """Return why the feature levels of this node and of a node of this cluster do not fit, or "" if they do."""
        context = self.context
        if hello.cluster != context.cluster or hello.dst != context.node_id or hello.src == context.node_id:
            return ""
        return context.node.levels.objection(hello.src, hello.supported, hello.required)

    def certificate_mismatch(self, hello: Hello, tls: Engine | None) -> str:
        """Return why the certificate of a connection does not match the node in the hello, or "" if it does."""
        guard = self.context.guard
        if guard is None or not guard.verifies_host or tls is None:
            return "" if guard is None else guard.revoked(tls)
        address = self._links.address_of(hello.src)
        host = address[0] if address is not None else hello.address.rpartition(":")[0].strip("[]")
        if not tls.names_host(host):
            return f"shows a certificate that is not for {host}, host of node {hello.src}"
        return guard.misnamed(tls, NODE, str(hello.src))

    def _is_newer(self, hello: Hello) -> bool:
        """Return True if the hello comes from a newer configuration and has an address."""
        members = self.context.members
        return members is not None and hello.config > members.config_index() and hello.address != ""

    def _may_return(self, hello: Hello) -> bool:
        """Return True if the configuration without the node is not committed: then the node may still become the
        leader."""
        members = self.context.members
        return members is not None and hello.address != "" and members.may_return(hello.src)

    def removed_since(self, hello: Hello) -> int:
        """Return the index of the configuration that removed a node of this cluster, else 0."""
        context = self.context
        if context.members is None or hello.cluster != context.cluster or hello.dst != context.node_id:
            return 0
        return context.members.removed_since(hello.src)

    def introduced(self, stream: AcceptedStream, hello: Hello) -> None:
        """Make the connection that of its peer. Close the peer's older connection before this one is read."""
        self._logged.clear()
        self._links.open_provisional(hello)
        self.context.node.levels.peer_announced(hello.src, hello.supported, hello.required)
        self.listener.identified(stream)
        older = self._accepted.get(stream.peer)
        self._accepted[stream.peer] = stream
        if older is not None:
            older.close()

    def lost(self, stream: AcceptedStream) -> None:
        """Handle the end of a connection."""
        self.listener.forget(stream)
        if stream.peer and self._accepted.get(stream.peer) is stream:
            del self._accepted[stream.peer]
            self.context.node.peer_lost(stream.peer)
