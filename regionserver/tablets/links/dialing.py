"""The outgoing side of a link between region servers: where the other server is, and the connection to it."""

from __future__ import annotations

import socket
from typing import Final, Protocol

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.dialing import DialedPeer, PeerDialer
from coord.peers.guard import PeerNames
from coord.peers.stream import Address
from coord.security.principal import SERVER
from coord.server.config.addresses import shown
from regionserver.tablets.links import hello as hellos
from regionserver.tablets.links.own_server import OwnServer

#: Addresses kept per server. A server has one at a time; older ones are tried because any source may be out of date.
ADDRESSES_MAX: Final = 4
#: Attempts to dial a server that is known only from its own hello, whose address may be false.
STRANGER_TRIES: Final = 5
#: Pause in milliseconds before a server that is not registered in the store is dialed again, plus a random part of at
#: most the same length. Such a server dials its members itself when it starts; this server dials in case only the link
#: between the two is cut.
UNREGISTERED_MAX_MS: Final = 15_000
#: Shortest life of a link that resets the pause. So a peer that closes each connection is dialed slowly.
SETTLED_S: Final = 1.0


class OutgoingOwner(Protocol):
    """All links of this server, as an outgoing link uses them."""

    def outgoing_up(self, link: ServerLink, start_code: int) -> None:
        """Handle the other server's answer to our hello."""
        ...

    def process_lost(self, link: ServerLink, start_code: int) -> None:
        """Report the end of a process, once, unless another process of its server is known."""
        ...

    def give_up(self, link: ServerLink) -> None:
        """Remove a server that is known only from its own hello and cannot be reached."""
        ...


class OutgoingLink(DialedPeer):
    """A connection that this server opened. It carries our frames, and the other server's hello back."""

    def __init__(self, link: ServerLink, sock: socket.socket, address: Address) -> None:
        super().__init__(link.own.reactor, sock, link.own.guard, address[0])
        self._link = link
        self.address = address
        #: Start of the process at the other end; 0 until it has answered.
        self.start_code = 0

    def names(self) -> PeerNames:
        return self._link.own.names(self._link.server)

    def hello(self) -> bytes:
        return self._link.own.hello(self._link.server)

    def answered(self, kind: int, body: bytes) -> None:
        if kind != framing.HELLO:
            raise RemoteProtocolError(f"unexpected frame of kind {kind}")
        hello = hellos.decode_hello(body)
        why = self._guard.misnamed(self.tls, SERVER) if self._guard is not None else ""
        if why:
            raise RemoteProtocolError(why)
        self._link.check_answer(hello)
        self.start_code = hello.start_code
        self.is_up = True
        self._link.up(self)

    def lost(self, reason: str) -> None:
        self._link.down(self, reason)


class ServerLink(PeerDialer):
    """The outgoing side of the link to one server."""

    def __init__(self, own: OwnServer, owner: OutgoingOwner, server: str) -> None:
        super().__init__(own.reactor, own.rng)
        self.own = own
        self._owner = owner
        self.server = server
        #: True while the server is known only from its own hello.
        self.is_stranger = True
        #: Highest start code seen of the server; 0 before its first hello.
        self.start_code = 0
        #: True while the host counts this process as connected.
        self.is_introduced = False
        #: Features of the build at the other end, by its latest hello.
        self.features = 0
        #: False while the store, as last read, does not list the server.
        self._is_registered = True
        #: The address to dial next is the first.
        self._addresses: list[Address] = []
        self._dialed: Address = ("", 0)
        #: Attempts since the link was last up.
        self._tries = 0
        self._up_since = 0.0
        self._was_up = False

    # --- addresses ----------------------------------------------------------------------------------------------------

    def learn(self, address: Address) -> None:
        """Dial `address` next, unless the address is known already."""
        if address not in self._addresses:
            self._prefer(address)
            if self.own.has_started:
                self.dial_now()

    def heard(self, address: Address, start_code: int) -> None:
        """Take the server's present address from a hello that the server has sent."""
        self._prefer(address)
        stream = self.stream
        if isinstance(stream, OutgoingLink) and (
            stream.start_code < start_code if stream.is_up else stream.address != address
        ):
            # The connection leads to the former process or the former address.
            stream.close()
            self._no_stream()
        self.dial_now()

    def _prefer(self, address: Address) -> None:
        if address in self._addresses:
            self._addresses.remove(address)
        self._addresses = [address, *self._addresses][:ADDRESSES_MAX]

    def set_registered(self, is_registered: bool) -> None:
        """Note whether the store lists the server. Dial a server that has come back at once."""
        has_come = is_registered and not self._is_registered
        self._is_registered = is_registered
        if has_come and self.own.has_started:
            self.pause_ms = 0
            self.dial_now()

    def pause_max_ms(self) -> int:
        return super().pause_max_ms() if self._is_registered else UNREGISTERED_MAX_MS

    # --- dialing ------------------------------------------------------------------------------------------------------

    def address_now(self) -> Address | None:
        self._dialed = self._addresses[0]
        return None if self.own.is_cut else self._dialed

    def make_stream(self, sock: socket.socket) -> DialedPeer:
        return OutgoingLink(self, sock, self._dialed)

    def check_answer(self, hello: hellos.ServerHello) -> None:
        """Raise RemoteProtocolError if the reply comes from another process than the dialed one."""
        objection = hellos.objection_to_answer(hello, self.own.cluster, self.server, self.own.server)
        if objection:
            raise RemoteProtocolError(objection)
        if hello.start_code < self.start_code:
            raise RemoteProtocolError(
                f"replies with start code {hello.start_code}; a later start of that server, {self.start_code}, is known"
            )
        self.features = hello.features

    def up(self, stream: OutgoingLink) -> None:
        """Record that frames can be sent from now on."""
        self._tries = 0
        self._up_since = self.own.reactor.seconds()
        self._owner.outgoing_up(self, stream.start_code)

    def down(self, stream: OutgoingLink, reason: str) -> None:
        """Handle the end of the connection, with which all queued frames are lost, and dial again."""
        self._no_stream()
        if stream.is_up and self.own.reactor.seconds() - self._up_since >= SETTLED_S:
            self.pause_ms = 0
        self._was_up = stream.is_up
        self.dial_again(reason)
        if stream.is_up:
            self._owner.process_lost(self, stream.start_code)

    def may_dial_again(self, reason: str) -> bool:
        where = ", ".join(shown(address) for address in sorted(self._addresses))
        self.own.complain(f"no link to server {self.server} at {where}: {reason}")
        if not self._was_up:
            self._addresses.append(self._addresses.pop(0))
        self._was_up = False
        self._tries += 1
        if self.is_stranger and self._tries >= STRANGER_TRIES:
            self._owner.give_up(self)
            return False
        return True

    def _no_stream(self) -> None:
        self.stream = None
        self.queued = 0
