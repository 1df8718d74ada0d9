"""Links between the nodes of a cluster: every node dials every other, and sends over the connection that it dialed.

    dialer (`dialing`)                       listener (`accepting`)
    connect, hello  ----------------------->  check version, cluster, addressee, membership
                    <-----------------------  hello in the same version, or REFUSED with the reason
    frames          ----------------------->  to the node, with the checked identity

So there is one ordered stream from A to B. When A dials again, B closes the older connection before it reads from the
new one: B never handles a frame of an old connection after a frame of the new one.

`follow` opens and closes links as the configuration in force changes. A hello announces the highest feature level of
the node's build, and the level that its log requires (`coord.server.membership.levels`). Nodes whose levels do not fit
have no link.

A link's queue is bounded. A peer that does not keep up loses the link and the queued frames; Raft and `Proposals` send
again what must not be lost.
"""

from __future__ import annotations

import socket

from twisted.logger import Logger

from coord.env import Rng
from coord.peers.dialing import FrameQueue
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor
from coord.peers.stream import Address
from coord.server.config.addresses import parse_host_port
from coord.server.interfaces import MembersView, PeerEvents
from coord.server.peers.accepting import Acceptor
from coord.server.peers.dialing import Link
from coord.server.peers.hello_frames import Hello
from coord.server.peers.link_context import LinkContext

log = Logger(__name__)


class PeerLinks:
    """All links of one node (a `PeerTransport`)."""

    def __init__(
        self,
        reactor: TurnReactor,
        *,
        node_id: int,
        cluster: bytes,
        incarnation: int,
        addresses: dict[int, Address],
        rng: Rng,
        guard: PeerGuard | None = None,
    ) -> None:
        """`addresses` of the other nodes; `cluster` has 16 bytes; `guard` authenticates peers."""
        self._context = LinkContext(
            reactor, node_id=node_id, cluster=cluster, incarnation=incarnation, rng=rng, guard=guard
        )
        self.acceptor = Acceptor(self._context, self)
        self._links: dict[int, Link] = {}
        self._queue = FrameQueue()
        self.has_queued = False
        self._has_started = False
        self.follow(addresses)

    @property
    def members(self) -> MembersView | None:
        """The membership, or None if the members never change."""
        return self._context.members

    @members.setter
    def members(self, members: MembersView) -> None:
        self._context.members = members

    def start(self, node: PeerEvents, listening: socket.socket | None) -> None:
        """Report to `node` from now on: accept connections on `listening` and dial every peer."""
        assert not self._has_started, "started twice"
        self._context.node = node
        self._has_started = True
        if listening is not None:
            self.acceptor.listener.start(listening)
        for link in self._links.values():
            link.dial()

    def stop(self) -> None:
        """Send queued frames as far as the kernel accepts them, and close all connections."""
        for link in self._links.values():
            link.stop()
        self.acceptor.stop()

    # --- fault injection ----------------------------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """True while a drill cuts this node off. No connection can be established then."""
        return self._context.is_cut

    def lose(self, *, is_incoming: bool, is_outgoing: bool) -> None:
        """Drop frames from peers (`is_incoming`) and to peers (`is_outgoing`) from now on."""
        self._context.loses_incoming = is_incoming
        self._context.loses_outgoing = is_outgoing

    def break_all(self, reason: str) -> None:
        """Close every connection with a peer; links dial again."""
        for link in list(self._links.values()):
            if link.stream is not None:
                link.stream.fail(reason)
        self.acceptor.break_all(reason)

    # --- the set of links ---------------------------------------------------------------------------------------------

    def recheck(self) -> None:
        """Close the links with peers below the feature level that the node requires now."""
        levels = self._context.node.levels
        for peer, link in list(self._links.items()):
            if link.is_up() and link.stream is not None:
                why = levels.objection(peer, link.supported, 0)
                if why:
                    link.stream.fail(why)
        self.acceptor.recheck()

    def close_revoked(self) -> None:
        """Close the links to peers with a revoked certificate, or without the proof that is required by now."""
        for link in list(self._links.values()):
            stream = link.stream
            if stream is not None and (why := stream.objection()):
                stream.fail(why)
        self.acceptor.close_revoked()

    def follow(self, addresses: dict[int, Address]) -> None:
        """Open links to the peers in `addresses`, and close the others.

        A removed node whose link was accepted before its removal was committed dials again. The answer to its hello
        reports the removal.
        """
        for peer in sorted(self._links):
            if addresses.get(peer) != self._links[peer].address:
                link = self._links.pop(peer)
                was_up = link.is_up()
                link.stop()
                was_accepted = peer not in addresses and self.acceptor.drop(peer)
                if self._has_started and (was_up or was_accepted):
                    self._context.node.peer_lost(peer)
            else:
                self._links[peer].is_provisional = False
        for peer in sorted(addresses):
            if peer not in self._links:
                self._open(peer, addresses[peer])

    def _open(self, peer: int, address: Address, *, is_provisional: bool = False) -> None:
        link = self._links[peer] = Link(self._context, peer, address, self.give_up, is_provisional=is_provisional)
        if self._has_started:
            link.dial()

    def open_provisional(self, hello: Hello) -> None:
        """Dial a node of a newer configuration at the address in its hello.

        The link stays until this node's configuration has the node's address, or the node cannot be reached.
        """
        if hello.src not in self._links and hello.address:
            self._open(hello.src, parse_host_port(hello.address), is_provisional=True)

    def give_up(self, link: Link) -> None:
        """Drop a provisional link that never came up, and the connection of its node to this one."""
        if self._links.get(link.peer) is not link:
            return
        log.warn(
            "gave up dialing node {peer} at {address}: it cannot be reached and is not a member here",
            peer=link.peer,
            address=link.address,
        )
        del self._links[link.peer]
        link.stop()
        if self.acceptor.drop(link.peer):
            self._context.node.peer_lost(link.peer)

    def address_of(self, peer: int) -> Address | None:
        """Return the address at which this node dials `peer`, or None without a link."""
        link = self._links.get(peer)
        return link.address if link is not None else None

    def provisional_count(self) -> int:
        """Return the number of links to nodes outside of this node's configuration."""
        return sum(link.is_provisional for link in self._links.values())

    # --- frames -------------------------------------------------------------------------------------------------------

    def send(self, peer: int, frame: bytes) -> bool:
        """See `PeerTransport.send`."""
        link = self._links.get(peer)
        if link is None or not link.is_up():
            return False
        if self._context.loses_outgoing:
            return True
        self.has_queued = True
        return self._queue.put(link, frame)

    def is_connected(self, peer: int) -> bool:
        """See `PeerTransport.is_connected`."""
        link = self._links.get(peer)
        return link is not None and link.is_up()

    def connected(self) -> list[int]:
        """Return the peers to which this node has a link."""
        return [peer for peer, link in self._links.items() if link.is_up()]

    def connected_both_ways(self) -> list[int]:
        """Return the peers with a link in both directions, which can answer requests."""
        return [peer for peer in self.connected() if self.acceptor.has(peer)]

    def backlog(self, peer: int) -> int:
        """See `PeerTransport.backlog`."""
        link = self._links.get(peer)
        return link.queued + link.stream.backlog() if link is not None and link.stream is not None else 0

    def flush(self) -> None:
        """See `PeerTransport.flush`."""
        self.has_queued = False
        self._queue.flush()
