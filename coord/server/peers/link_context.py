"""Shared by both sides of all links: the identity of this node, its guard, and the limits of a connection."""

from __future__ import annotations

from coord.env import Rng
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor
from coord.server.interfaces import MembersView, PeerEvents
from coord.server.peers.codec import VERSION
from coord.server.peers.hello_frames import Hello


class LinkContext:
    """The node as its links use it. All links of one node share one context."""

    def __init__(
        self,
        reactor: TurnReactor,
        *,
        node_id: int,
        cluster: bytes,
        incarnation: int,
        rng: Rng,
        guard: PeerGuard | None = None,
    ) -> None:
        """`cluster` has 16 bytes; `guard` authenticates peers; None: no authentication."""
        self.reactor = reactor
        self.node_id = node_id
        self.cluster = cluster
        self.incarnation = incarnation
        self.rng = rng
        self.guard = guard
        if guard is not None:
            guard.introduce(cluster.hex(), str(node_id))
        #: Set when the links are started.
        self.node: PeerEvents
        #: None if the members never change.
        self.members: MembersView | None = None
        #: Directions in which a drill silently drops all frames (`coord.peers.partition`).
        self.loses_incoming = False
        self.loses_outgoing = False

    @property
    def is_cut(self) -> bool:
        """True while a drill cuts this node off. No connection can be established then."""
        return self.loses_incoming or self.loses_outgoing

    def hello(self, peer: int, version: int = VERSION) -> Hello:
        """Return this node's hello to `peer`."""
        hello = Hello(self.cluster, self.node_id, peer, self.incarnation, self.node.has_log(), version)
        hello.supported = self.node.levels.supported
        hello.required = self.node.levels.required()
        if self.members is not None:
            hello.config = self.members.config_index()
            hello.address = self.members.own_address()
        return hello
