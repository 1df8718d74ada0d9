"""Links between region servers: every server dials the others, and sends over the connection that it dialed.

    dialer                                   listener
    connect, authenticate, hello  -------->  check version, cluster, addressee, start code
                                  <--------  hello, or REFUSED with the reason
    TURN and BEAT frames          -------->  to the host, in the checked server's name

**Processes.** `peer_introduced` is reported when a hello shows a new process, `peer_lost` as soon as a connection with
that process breaks, in either direction. The death of a process breaks both at once, so its tablets elect without
waiting for a timeout. Another start code is another process: the former one is reported lost, and its connections are
closed before anything is read from the new one. A hello of an earlier start is rejected.

**A silent link** is closed after SILENT_LOOKS looks, although the connection exists. If messages are lost in only one
direction, the peer still gets ours, and would follow a leader here that gets no acknowledgment. The end of the
connection shows the peer that its messages do not arrive, so its tablets elect at once. Looks are counted, not time,
because a process that was stopped reads its sockets before it looks again.

**Addresses of servers.** Addresses come from `learn`, and from hellos. A server that restarted elsewhere dials its
peers; they close their connections to its former address and dial the one in its hello. Every attempt names the uuid of
the wanted server, so an address that another server has taken over is harmless.

A link's queue is bounded. A peer that is too slow loses the link and the queued frames; Raft resends the messages that
are still needed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection
from typing import Any, Final

from twisted.logger import Logger

from coord.env import Rng
from coord.peers.accepting import AcceptedPeer, PeerListener
from coord.peers.dialing import DialedPeer, FrameQueue
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor
from coord.peers.stream import Address
from coord.security.principal import SERVER
from coord.security.revocation import watch
from coord.tls.context import Engine
from regionserver.tablets.links import hello as hellos
from regionserver.tablets.links.accepting import IncomingLink
from regionserver.tablets.links.channel import Channel, dial_copy
from regionserver.tablets.links.dialing import ServerLink
from regionserver.tablets.links.interfaces import LinkEvents
from regionserver.tablets.links.own_server import CopyConnection, OwnServer

log = Logger()

#: Limit of servers that are known only from their own hellos: usually servers with a tablet whose configuration this
#: server has not read yet.
STRANGERS_MAX: Final = 256
#: Interval of the checks of quiet connections, and number of checks without a frame. A server sends a BEAT every 100 ms
#: while it shares a tablet with this one. The host counts a server as gone after 700 ms; the link ends a little later,
#: so a slow process has been replaced as leader before it must connect again.
LOOK_S: Final = 0.1
SILENT_LOOKS: Final = 8


class TabletLinks:
    """All links of one region server. All calls come on the reactor's thread."""

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
        """`address` is the address of this server for other servers; `guard` authenticates them (None: no
        authentication).

        Raise ValueError if the names do not fit into a hello.
        """
        assert cluster, "links before the server has a cluster"
        self._own = OwnServer(
            reactor, cluster=cluster, server=server, start_code=start_code, address=address, rng=rng, guard=guard
        )
        self._own.hello(server)  # raises for names that are too long: all uuids have the same length
        self._listener = PeerListener(reactor, self._make)
        self._links: dict[str, ServerLink] = {}
        self._accepted: dict[str, IncomingLink] = {}
        self._queue = FrameQueue()
        self._is_stopped = False
        self._looking: Any = None
        #: Connections for copies that threads of this server have dialed.
        self._dialed: list[Channel] = []
        self._dialed_lock = threading.Lock()
        watch(self)

    def start(self, events: LinkEvents, listening: socket.socket) -> None:
        """Report to `events` from now on: accept connections on `listening` and dial every known server."""
        assert not self._own.has_started, "started twice"
        self._own.events = events
        self._own.has_started = True
        self._listener.start(listening)
        for link in list(self._links.values()):
            link.dial()
        self._looking = self._own.reactor.callLater(LOOK_S, self._look)

    def stop(self) -> None:
        """Send queued frames as far as the kernel accepts them, and close all connections without a report to the
        host."""
        self._is_stopped = True
        if self._looking is not None and self._looking.active():
            self._looking.cancel()
        for link in self._links.values():
            link.stop()
        self._listener.stop()
        for stream in list(self._accepted.values()):
            stream.close()

    def _look(self) -> None:
        """Close accepted connections that have carried frames, but none recently."""
        self._looking = self._own.reactor.callLater(LOOK_S, self._look)
        for stream in list(self._accepted.values()):
            if stream.quiet_looks is not None:
                stream.quiet_looks += 1
                if stream.quiet_looks >= SILENT_LOOKS:
                    stream.fail("nothing has come from the server lately, although the connection stands")

    def revocations_changed(self) -> None:
        """Close the links and copies with servers whose certificates are revoked, and those without the proof of the
        secret that is required now."""
        for channel in self._dialed:
            channel.end_if_revoked()
        found: list[DialedPeer | AcceptedPeer] = [
            link.stream for link in self._links.values() if link.stream is not None
        ]
        for stream in [*found, *self._accepted.values()]:
            why = stream.objection()
            if why:
                stream.fail(why)

    # --- addresses ----------------------------------------------------------------------------------------------------

    def learn(self, server: str, address: Address) -> None:
        """Add an address of `server`, from a configuration, an order or the store.

        A link that is up stays as it is; otherwise the address is dialed next. This server's own uuid is ignored.
        """
        if server == self._own.server:
            return
        link = self._links.get(server)
        if link is None:
            link = self._links[server] = ServerLink(self._own, self, server)
        link.is_stranger = False
        link.learn(address)

    def listed(self, registered: Collection[str], members: Collection[str]) -> None:
        """Handle the list of servers that are registered in the store, and of servers with members of tablets here.

        A server that is not registered is dialed rarely: it dials this server when it starts. If it has no member
        either and cannot be reached, it has been retired, and is forgotten.
        """
        for link in list(self._links.values()):
            is_registered = link.server in registered
            link.set_registered(is_registered)
            is_there = link.is_up() or link.server in self._accepted
            if not is_registered and not is_there and link.server not in members:
                self.give_up(link)

    def give_up(self, link: ServerLink) -> None:
        """Forget a server that cannot be reached: one known from its own hello alone, or a retired one."""
        link.stop()
        if self._links.get(link.server) is not link:
            return
        del self._links[link.server]
        accepted = self._accepted.pop(link.server, None)
        if accepted is not None:
            accepted.close()
        self.process_lost(link, link.start_code)

    # --- frames -------------------------------------------------------------------------------------------------------

    def send(self, server: str, frame: bytes) -> bool:
        """Queue an encoded TURN or BEAT frame. Return False without a link, or if the full queue has closed it."""
        link = self._links.get(server)
        if link is None or not link.is_up():
            return False
        if self._own.loses_outgoing:
            return True
        return self._queue.put(link, frame, hellos.payload_head(len(frame)))

    def knows_full(self, server: str) -> bool:
        """Return True if the build of a server can read BEATs that report a full disk."""
        return self._has(server, hellos.FULL_BEATS)

    def knows_quiet(self, server: str) -> bool:
        """Return True if the build of a server reads the words by which tablets become quiet."""
        return self._has(server, hellos.QUIET_TABLETS)

    def _has(self, server: str, feature: int) -> bool:
        link = self._links.get(server)
        return link is not None and link.features & feature != 0

    def flush(self) -> None:
        """Send the queued frames, one system call per server."""
        self._queue.flush()

    def is_connected(self, server: str) -> bool:
        """Return True if frames can be sent to `server`."""
        link = self._links.get(server)
        return link is not None and link.is_up()

    # --- copies -------------------------------------------------------------------------------------------------------

    def serve_copies(self, serve: Callable[[CopyConnection], None]) -> None:
        """Let `serve` have the connections for copies that other servers dial."""
        self._own.serve_copy = serve

    @property
    def address(self) -> Address:
        """Address at which other servers reach this one."""
        return self._own.address

    def dial_copy(self, server: str, address: Address) -> Channel:
        """Open a connection for a copy. Blocks; may be called on any thread. Raise ChannelLost."""
        channel = dial_copy(self._own, server, address)
        with self._dialed_lock:
            self._dialed = [*(one for one in self._dialed if not one.is_closed), channel]
        channel.end_if_revoked()  # the list may have changed meanwhile
        return channel

    # --- hellos -------------------------------------------------------------------------------------------------------

    def objection(self, hello: hellos.ServerHello, tls: Engine | None) -> str:
        """Return why a hello is rejected, or "" if it is accepted."""
        if hello.version != hellos.VERSION:
            return f"speaks version {hello.version}, this server {hellos.VERSION}"
        if hello.cluster != self._own.cluster:
            return "belongs to another cluster"
        if hello.dst != self._own.server:
            return f"looks for server {hello.dst}, this is server {self._own.server}"
        if hello.src == self._own.server:
            return "claims to be this server; is a copy of its data directory in use?"
        revoked = self._own.guard.revoked(tls) if self._own.guard is not None else ""
        if revoked:
            return revoked
        if tls is not None and self._own.guard is not None and self._own.guard.verifies_host:
            host = hello.address[0]
            if not tls.names_host(host):
                return f"shows a certificate that is not for {host}, the host in its hello"
            misnamed = self._own.guard.misnamed(tls, SERVER)
            if misnamed:
                return misnamed
        link = self._links.get(hello.src)
        if link is None:
            strangers = sum(each.is_stranger for each in self._links.values())
            return f"{strangers} servers of no known tablet have links already" if strangers >= STRANGERS_MAX else ""
        if hello.start_code < link.start_code:
            return f"has start code {hello.start_code}; a later start of that server, {link.start_code}, is known"
        return ""

    def accepted(self, stream: IncomingLink, hello: hellos.ServerHello) -> None:
        """Make an accepted connection that of its server. Close the server's older connection."""
        self._listener.identified(stream)
        older = self._accepted.get(stream.server)
        self._accepted[stream.server] = stream
        if older is not None:
            older.close()
        link = self._links.get(stream.server)
        if link is None:
            link = self._links[stream.server] = ServerLink(self._own, self, stream.server)
        link.features = hello.features
        self._process_seen(link, hello.start_code)
        if self._links.get(link.server) is link:
            link.heard(hello.address, hello.start_code)

    def outgoing_up(self, link: ServerLink, start_code: int) -> None:
        """Handle the other server's answer to our hello."""
        if self._own.complaints.is_new(f"up {link.server} {start_code}"):
            log.info(
                "link to server {server} is up, start code {start_code}", server=link.server, start_code=start_code
            )
        accepted = self._accepted.get(link.server)
        if accepted is not None and accepted.start_code < start_code:
            del self._accepted[link.server]
            accepted.close()
        self._process_seen(link, start_code)

    def _process_seen(self, link: ServerLink, start_code: int) -> None:
        """Report the process; if it replaces another process, report the other one's end first."""
        if start_code > link.start_code:
            self.process_lost(link, link.start_code)
            link.start_code = start_code
        if not link.is_introduced and not self._is_stopped:
            link.is_introduced = True
            self._own.events.peer_introduced(link.server, start_code)

    def incoming_lost(self, stream: IncomingLink) -> None:
        """Handle the end of an accepted connection."""
        self._listener.forget(stream)
        if stream.server and self._accepted.get(stream.server) is stream:
            del self._accepted[stream.server]
            link = self._links.get(stream.server)
            if link is not None:
                self.process_lost(link, stream.start_code)

    def process_lost(self, link: ServerLink, start_code: int) -> None:
        """Report the end of a process, once, unless another process of its server is known."""
        if link.is_introduced and link.start_code == start_code and not self._is_stopped:
            link.is_introduced = False
            self._own.events.peer_lost(link.server, start_code)

    def _make(self, sock: socket.socket) -> AcceptedPeer:
        return IncomingLink(self._own, self, self._listener, sock)

    # --- fault injection (LosingLinks of coord.peers.partition) -------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """True while a drill cuts this server off. No connection can be established then."""
        return self._own.is_cut

    def lose(self, *, is_incoming: bool, is_outgoing: bool) -> None:
        """See `coord.peers.partition.LosingLinks`."""
        self._own.loses_incoming = is_incoming
        self._own.loses_outgoing = is_outgoing

    def break_all(self, reason: str) -> None:
        """Close every connection; links dial again."""
        for link in list(self._links.values()):
            if link.stream is not None:
                link.stream.fail(reason)
        for stream in [*self._accepted.values(), *self._listener.unidentified]:
            stream.fail(reason)
