"""Links between the nodes of a cluster: every node dials every other, and speaks over what it dialled.

    dialler                                  listener
    connect, hello  ----------------------->  same version, same cluster, meant for me, a member, not myself?
                    <-----------------------  hello in the same version, or refused with the reason
    frames          ----------------------->  to the node, with the identity that was checked

So there is one ordered stream from A to B, and when A dials again B drops the older connection before it reads from the
new one: nothing of an old connection is ever handled after something of its successor.

Whom there is a link to follows the membership in force (`follow`). Somebody who is not a member here may be one in a
newer configuration than this node has heard of: its hello says how new, and where to dial it. A node that is no member
any more is told so. Whoever knows nothing yet may ask which cluster this is (`WHO`): a new node learns its members so.

A hello announces the highest feature level of the node's build, and the level that its log requires
(`coord.server.membership.levels`): nodes whose levels do not fit have no link.

A link's queue is bounded; a peer that does not keep up loses the link, and what was queued with it. The core and
`Proposals` are made for that.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.env import Rng
from coord.errors import RemoteProtocolError
from coord.server.config.addresses import parse_host_port
from coord.server.net.interfaces import MembersView, PeerEvents
from coord.server.net.reactor import TurnReactor
from coord.server.net.stream import Stream, family_of, is_numeric, tune
from coord.server.peers import codec, hello_frames
from coord.server.peers.guard import Handshake, PeerGuard
from coord.tls.context import Engine

log = Logger(__name__)

#: Pause before dialling again: doubled from the first to the second, with jitter of as much again.
REDIAL_MIN_MS: Final = 50
REDIAL_MAX_MS: Final = 500
#: A dialled or accepted connection that has not got through its hello by then is dropped.
HELLO_TIMEOUT_S: Final = 3.0
#: Unacknowledged data for so long, and the kernel gives a link up.
GIVE_UP_MS: Final = 5000
#: Queue of one link. One append window of Raft (8 MiB) and a snapshot's window fit many times.
QUEUE_BYTES_MAX: Final = 64 << 20
#: Connections that have not said hello yet.
STRANGERS_MAX: Final = 64
#: A link to a node that this node's configuration does not know: the node said where it is, and nobody else did. There
#: are so many at a time: one for each node that a store can have gained while this node was away, in practice.
PROVISIONAL_MAX: Final = 8
#: Such a link is dialled so often before it is given up, with longer pauses than others: an address that a stranger
#: made up gets 5 connections in about 20 s.
PROVISIONAL_TRIES: Final = 5
PROVISIONAL_MIN_MS: Final = 1000
PROVISIONAL_MAX_MS: Final = 8000

#: Refusals that are logged until a hello is accepted: a stranger can invent a reason of its own for each hello.
TOLD_MAX: Final = 64

Address = tuple[str, int]


class _Dialled(Stream):
    """The connection this node opened to a peer: frames go out, nothing but the answer to the hello comes back."""

    backlog_max = QUEUE_BYTES_MAX

    def __init__(self, link: _Link, sock: socket.socket) -> None:
        super().__init__(link.owner.reactor, sock)
        self._link = link
        self._frames = codec.PeerFrames()
        self.is_up = False
        guard = link.owner.guard
        self.tls = guard.engine(is_server=False, host=link.address[0]) if guard is not None else None
        self._handshake = guard.handshake() if guard is not None else None

    def begin(self) -> None:
        """Say who we are, or first that we know the secret."""
        if self._handshake is None:
            self._say_hello()
        else:
            self.output.append(self._handshake.challenge())
            self.flush()

    def _say_hello(self) -> None:
        self.output.append(hello_frames.encode_hello(self._link.owner.hello(self._link.peer, self._link.version)))
        self.flush()

    def received(self, data: bytes) -> None:
        try:
            for kind, block, at, end in self._frames.feed(data):
                if kind == codec.REFUSED:
                    reason = block[at:end].decode(errors="replace")
                    self._link.refused(reason)
                    self.fail("refused: " + reason)
                    return
                if self._handshake is not None and not self._handshake.is_done:
                    self.output.append(self._handshake.prove(kind, block[at:end]))
                    self._say_hello()
                    return
                if kind == codec.REMOVED:
                    owner = self._link.owner
                    if owner.members is not None:
                        owner.members.removed(self._link.peer, hello_frames.decode_removed(block[at:end]))
                    self.fail("refused: this node is not a member")
                    return
                if kind != codec.HELLO or self.is_up:
                    raise RemoteProtocolError(f"unexpected frame of kind {kind}")
                self._link.check_answer(hello_frames.decode_hello(block[at:end]))
                self.is_up = True
                self._link.up()
        except RemoteProtocolError as error:
            self.fail(str(error))
        except Exception as error:
            if self.is_up:
                raise
            # Whoever listens there has not been heard yet, so nothing of this node can have changed.
            log.failure("fault while the answer of node {peer} was read", peer=self._link.peer)
            self.fail(f"unreadable answer: {error!r}")

    def lost(self, reason: str) -> None:
        self._link.down(self, reason)


class _Link:
    """The outgoing side to one peer: dial, hello, frames, dial again."""

    def __init__(self, owner: PeerLinks, peer: int, address: Address, *, is_provisional: bool = False) -> None:
        """`is_provisional`: only the peer itself has said that the peer is there."""
        self.owner = owner
        self.peer = peer
        self.address = address
        self.stream: _Dialled | None = None
        self.is_provisional = is_provisional
        self._tries = 0
        self._pause_ms = self._pause_min_ms()
        self._last_reason = ""
        #: The version of the next hello, see `refused`.
        self.version = codec.VERSION
        self._is_older = False
        #: What the peer announced last.
        self.supported = 0
        self.is_stopped = False
        self.queued = 0

    def _pause_min_ms(self) -> int:
        return PROVISIONAL_MIN_MS if self.is_provisional else REDIAL_MIN_MS

    def is_up(self) -> bool:
        return self.stream is not None and self.stream.is_up

    def dial(self) -> None:
        """Connect; the name may have another address than last time."""
        if self.is_stopped:
            return
        if self.owner.is_cut:
            self._dial_again("no answer to the hello")
            return
        host, port = self.address
        if is_numeric(host):
            self._connect([(family_of(host), (host, port))])
            return
        reactor: Any = self.owner.reactor  # Twisted states its interfaces by zope, which the compiler does not read
        found = deferToThreadPool(
            reactor, reactor.getThreadPool(), socket.getaddrinfo, host, port, type=socket.SOCK_STREAM
        )
        found.addCallbacks(
            lambda infos: self._connect([(info[0], info[4]) for info in infos]),
            lambda failure: self._dial_again(_reason(failure)),
        )

    def _connect(self, targets: list[tuple[int, tuple[object, ...]]]) -> None:
        if self.is_stopped:
            return
        family, address = targets[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._dial_again(error.strerror or str(error))
            return
        sock.setblocking(False)
        tune(sock, give_up_ms=GIVE_UP_MS)
        try:
            code = sock.connect_ex(address)
        except (OSError, ValueError, OverflowError) as error:  # an address that cannot be one
            sock.close()
            self._dial_again(str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._dial_again(errno.errorcode.get(code, str(code)))
            return
        stream = self.stream = _Dialled(self, sock)
        stream.begin()
        self.owner.reactor.callLater(HELLO_TIMEOUT_S, self._hello_timeout, stream)

    def _hello_timeout(self, stream: _Dialled) -> None:
        if not stream.is_up:
            stream.fail("no answer to the hello")

    def refused(self, reason: str) -> None:
        """The listener refused the hello. If it is of an older build, the next hello is in that build's version.

        Only the next one: when the link breaks, the peer may come back with a newer build.
        """
        if self.version == codec.VERSION and hello_frames.refused_version(reason) == codec.VERSION_BEFORE:
            self._is_older = True

    def check_answer(self, hello: hello_frames.Hello) -> None:
        owner = self.owner
        if hello.version != self.version:
            raise RemoteProtocolError(f"answers in version {hello.version}, was asked in {self.version}")
        if hello.cluster != owner.cluster or hello.src != self.peer or hello.dst != owner.node_id:
            raise RemoteProtocolError(f"answered by node {hello.src} of another place")
        levels = owner.node.levels
        why = levels.objection(self.peer, hello.supported, hello.required)
        if why:
            raise RemoteProtocolError(why)
        self.supported = hello.supported
        levels.peer_announced(self.peer, hello.supported, hello.required)
        owner.node.peer_introduced(self.peer, hello.has_log)

    def up(self) -> None:
        log.info("link to node {peer} is up", peer=self.peer)
        self._pause_ms = self._pause_min_ms()
        self._tries = 0
        self._last_reason = ""
        self.owner.node.peer_connected(self.peer)

    def down(self, stream: _Dialled, reason: str) -> None:
        self.stream = None
        self.queued = 0
        self.version = codec.VERSION
        if self._is_older:
            self._is_older = False
            self.version = codec.VERSION_BEFORE
            self.owner.reactor.callLater(0, self.dial)
            return
        self._dial_again(reason)
        if stream.is_up:
            self.owner.node.peer_lost(self.peer)

    def _dial_again(self, reason: str) -> None:
        if self.is_stopped:
            return
        if reason != self._last_reason:
            # Once per reason: a peer that is down for hours is one line.
            log.warn(
                "no link to node {peer} at {address}: {reason}", peer=self.peer, address=self.address, reason=reason
            )
            self._last_reason = reason
        self._tries += 1
        if self.is_provisional and self._tries >= PROVISIONAL_TRIES:
            self.owner.give_up(self)
            return
        pause_ms = self._pause_ms + self.owner.rng.below(self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, PROVISIONAL_MAX_MS if self.is_provisional else REDIAL_MAX_MS)
        self.owner.reactor.callLater(pause_ms / 1000, self.dial)

    def stop(self) -> None:
        self.is_stopped = True
        if self.stream is not None:
            self.stream.flush()
            self.stream.close()
            self.stream = None


class _Accepted(Stream):
    """A connection that somebody opened to this node: first a stranger, after its hello a peer."""

    def __init__(self, owner: PeerLinks, sock: socket.socket) -> None:
        super().__init__(owner.reactor, sock)
        self._owner = owner
        self._frames = codec.PeerFrames()
        self.peer = 0
        self.incarnation = 0
        self.supported = 0
        self.tls = owner.guard.engine(is_server=True) if owner.guard is not None else None
        self._handshake = owner.guard.handshake() if owner.guard is not None else None

    def received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
            while frames and self._handshake is not None and not self._handshake.is_done:
                kind, block, at, end = frames[0]
                self._hear_proof(self._handshake, kind, block[at:end])
                frames = self._frames.feed(b"") if not self.is_closed else []
            if self.peer == 0 and frames:
                kind, block, at, end = frames[0]
                if kind == codec.CHALLENGE:
                    self._dismiss(codec.frame(codec.REFUSED, b"this node knows of no secret of the peers"))
                    return
                if kind == codec.WHO and self._owner.members is not None and hello_frames.is_who(block[at:end]):
                    self._dismiss(self._owner.members.describe())
                    return
                if kind != codec.HELLO:
                    raise RemoteProtocolError("spoke before its hello")
                self._introduce(hello_frames.decode_hello(block[at:end]))
                if self.peer == 0:
                    return
                self._frames.limit = codec.FRAME_BYTES_MAX
                frames = self._frames.feed(b"")
            node = self._owner.node
            if self._owner.loses_incoming:
                return
            for kind, block, at, end in frames:
                node.peer_frame(self.peer, self.incarnation, kind, block, at, end)
        except RemoteProtocolError as error:
            log.warn("connection from {who} broken: {error}", who=self._who(), error=str(error))
            self.fail(str(error))
        except Exception as error:
            if self.peer:
                raise
            # What a stranger sends changes nothing of this node before the hello is accepted.
            log.failure("fault while a stranger at the peer port was heard")
            self.fail(f"unreadable: {error!r}")

    def _hear_proof(self, handshake: Handshake, kind: int, body: bytes) -> None:
        """Before anything else is listened to."""
        try:
            answer = handshake.counter(kind, body)
        except RemoteProtocolError as error:
            self.output.append(codec.frame(codec.REFUSED, str(error).encode()))
            self.flush()
            raise
        if answer:
            self.output.append(answer)
            self.flush()

    def _introduce(self, hello: hello_frames.Hello) -> None:
        owner = self._owner
        if owner.is_cut:
            return
        why = owner.mismatch(hello) or owner.objection(hello) or owner.doubt(hello, self.tls)
        if why:
            since = owner.removed_since(hello)
            if why not in owner.told and len(owner.told) < TOLD_MAX:
                # Once: a node that waits to be added, or has been removed, dials again and again.
                owner.told[why] = None
                log.warn("refused a connection that says it is node {src}: {why}", src=hello.src, why=why)
            self._dismiss(hello_frames.encode_removed(since) if since else codec.frame(codec.REFUSED, why.encode()))
            return
        owner.told.clear()
        owner.meet(hello)
        owner.node.levels.peer_announced(hello.src, hello.supported, hello.required)
        self.peer = hello.src
        self.incarnation = hello.incarnation
        self.supported = hello.supported
        owner.introduced(self)
        self.output.append(hello_frames.encode_hello(owner.hello(hello.src, hello.version)))
        owner.node.peer_introduced(hello.src, hello.has_log)
        self.flush()

    def _dismiss(self, frame: bytes) -> None:
        """Answer a stranger once and for all."""
        self.output.append(frame)
        self.flush()
        self.close_when_sent()
        self._owner.strangers.discard(self)

    def lost(self, reason: str) -> None:
        if self.peer == 0 and reason.startswith("TLS"):
            log.warn("refused a connection to the peer port: {reason}", reason=reason)
        self._owner.accepted_lost(self)

    def _who(self) -> str:
        return f"node {self.peer}" if self.peer else "a stranger"


class PeerLinks:
    """All links of one node (a `PeerDoor`)."""

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
        """`addresses` of the other nodes; `cluster` 16 bytes; `guard`: what peers have to prove."""
        self.guard = guard
        self.reactor = reactor
        self.node_id = node_id
        self.cluster = cluster
        self.incarnation = incarnation
        self.rng = rng
        self.node: PeerEvents
        #: None: the members never change.
        self.members: MembersView | None = None
        #: Reasons for refusals that are in the log already.
        self.told: dict[str, None] = {}
        self.strangers: set[_Accepted] = set()
        self._links = {peer: _Link(self, peer, address) for peer, address in sorted(addresses.items())}
        self._accepted: dict[int, _Accepted] = {}
        self._listening: socket.socket | None = None
        self._dirty: list[_Link] = []
        self._has_started = False
        #: A drill cuts this node off (`coord.server.peers.partition`): what goes that way is lost, and nobody is told.
        self.loses_incoming = False
        self.loses_outgoing = False

    def start(self, node: PeerEvents, listening: socket.socket | None) -> None:
        """Accept on `listening` and dial everybody."""
        self.node = node
        self._has_started = True
        if listening is not None:
            self._listening = listening
            self.reactor.watch(listening.fileno(), self._accept)
        for link in self._links.values():
            link.dial()

    def stop(self) -> None:
        """Send what is queued as far as the kernel takes it, and close everything."""
        if self._listening is not None:
            self.reactor.unwatch(self._listening.fileno())
            self._listening.close()
            self._listening = None
        for link in self._links.values():
            link.stop()
        for stream in [*self._accepted.values(), *self.strangers]:
            stream.close()

    @property
    def is_cut(self) -> bool:
        """Whether a drill has cut this node off: no connection comes about then."""
        return self.loses_incoming or self.loses_outgoing

    def lose(self, *, is_incoming: bool, is_outgoing: bool) -> None:
        """Whether what peers send, and what is sent to them, is lost from now on."""
        self.loses_incoming = is_incoming
        self.loses_outgoing = is_outgoing

    def break_all(self, reason: str) -> None:
        """Break every connection with a peer; links dial again."""
        for link in list(self._links.values()):
            if link.stream is not None:
                link.stream.fail(reason)
        for stream in [*self._accepted.values(), *self.strangers]:
            stream.fail(reason)

    def recheck(self) -> None:
        """The node requires a higher feature level: break the links with peers that are below."""
        levels = self.node.levels
        for peer, link in list(self._links.items()):
            if link.is_up() and link.stream is not None:
                why = levels.objection(peer, link.supported, 0)
                if why:
                    link.stream.fail(why)
        for peer, accepted in list(self._accepted.items()):
            why = levels.objection(peer, accepted.supported, 0)
            if why:
                accepted.fail(why)

    def follow(self, addresses: dict[int, Address]) -> None:
        """The members are others now: `addresses` of all but this node. Closes and opens links as needed."""
        for peer in sorted(self._links):
            if addresses.get(peer) != self._links[peer].address:
                link = self._links.pop(peer)
                was_up = link.is_up()
                link.stop()
                accepted = self._accepted.pop(peer, None) if peer not in addresses else None
                if accepted is not None:
                    accepted.close()
                if self._has_started and (was_up or accepted is not None):
                    self.node.peer_lost(peer)
            else:
                self._links[peer].is_provisional = False
        for peer in sorted(addresses):
            if peer not in self._links:
                self._open(peer, addresses[peer])

    def _open(self, peer: int, address: Address, *, is_provisional: bool = False) -> None:
        link = self._links[peer] = _Link(self, peer, address, is_provisional=is_provisional)
        if self._has_started:
            link.dial()

    def meet(self, hello: hello_frames.Hello) -> None:
        """Answer a node that only newer configurations know at the address that it gives itself.

        That lasts until the configuration here says where the node is, or the node cannot be reached there.
        """
        if hello.src not in self._links and hello.address:
            self._open(hello.src, parse_host_port(hello.address), is_provisional=True)

    def give_up(self, link: _Link) -> None:
        """A provisional link never comes up: drop the link, and what its node has opened here."""
        if self._links.get(link.peer) is not link:
            return
        log.warn("gave up node {peer} at {address}: not a member here", peer=link.peer, address=link.address)
        del self._links[link.peer]
        link.stop()
        accepted = self._accepted.pop(link.peer, None)
        if accepted is not None:
            accepted.close()
            self.node.peer_lost(link.peer)

    def _provisional(self) -> int:
        """Return how many links there are to nodes that the configuration here does not know."""
        return sum(link.is_provisional for link in self._links.values())

    # --- the node's door ----------------------------------------------------------------------------------------------

    def send(self, peer: int, frame: bytes) -> bool:
        """See `PeerDoor.send`."""
        link = self._links.get(peer)
        if link is None or not link.is_up():
            return False
        stream = link.stream
        assert stream is not None
        if self.loses_outgoing:
            return True
        if not stream.output:
            self._dirty.append(link)
        stream.output.append(frame)
        link.queued += len(frame)
        if link.queued + stream.backlog() > QUEUE_BYTES_MAX:
            stream.fail("its queue is full")
            return False
        return True

    def is_connected(self, peer: int) -> bool:
        """See `PeerDoor.is_connected`."""
        link = self._links.get(peer)
        return link is not None and link.is_up()

    def connected(self) -> list[int]:
        """Peers this node has a link to."""
        return [peer for peer, link in self._links.items() if link.is_up()]

    def conversing(self) -> list[int]:
        """Peers that this node has a link to, and that have one to it: what is asked is answered."""
        return [peer for peer in self.connected() if peer in self._accepted]

    def backlog(self, peer: int) -> int:
        """See `PeerDoor.backlog`."""
        link = self._links.get(peer)
        return link.queued + link.stream.backlog() if link is not None and link.stream is not None else 0

    def flush(self) -> None:
        """See `PeerDoor.flush`."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for link in dirty:
                if link.stream is not None:
                    link.queued = 0
                    link.stream.flush()

    # --- accepting ----------------------------------------------------------------------------------------------------

    def _accept(self, events: int) -> None:  # noqa: ARG002
        assert self._listening is not None
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            if len(self.strangers) >= STRANGERS_MAX:
                sock.close()
                continue
            tune(sock, give_up_ms=GIVE_UP_MS)
            stream = _Accepted(self, sock)
            self.strangers.add(stream)
            self.reactor.callLater(HELLO_TIMEOUT_S, self._drop_stranger, stream)

    def _drop_stranger(self, stream: _Accepted) -> None:
        if stream in self.strangers:
            self.strangers.discard(stream)
            stream.close()

    def hello(self, peer: int, version: int = codec.VERSION) -> hello_frames.Hello:
        """What this node says of itself."""
        hello = hello_frames.Hello(self.cluster, self.node_id, peer, self.incarnation, self.node.has_log(), version)
        hello.supported = self.node.levels.supported
        hello.required = self.node.levels.required()
        if self.members is not None:
            hello.config = self.members.config_index()
            hello.address = self.members.own_address()
        return hello

    def objection(self, hello: hello_frames.Hello) -> str:
        """Why this hello is refused, "" if it is not."""
        if hello.version not in (codec.VERSION_BEFORE, codec.VERSION):
            return f"speaks version {hello.version}, this node {codec.VERSION}"
        if hello.cluster != self.cluster:
            return "belongs to another cluster"
        if hello.dst != self.node_id:
            return f"looks for node {hello.dst}, this is node {self.node_id}"
        if hello.src == self.node_id or hello.src <= 0:
            return "says that it is this node"
        if hello.src not in self._links and not self._is_newer(hello) and not self._may_return(hello):
            return f"node {hello.src} is not a member"
        if hello.src not in self._links and self._provisional() >= PROVISIONAL_MAX:
            return f"{PROVISIONAL_MAX} nodes that are not members here are being met already"
        return ""

    def mismatch(self, hello: hello_frames.Hello) -> str:
        """Return why the feature levels of this node and of a node of this cluster do not fit, "" if they do."""
        if hello.cluster != self.cluster or hello.dst != self.node_id or hello.src == self.node_id:
            return ""
        return self.node.levels.objection(hello.src, hello.supported, hello.required)

    def doubt(self, hello: hello_frames.Hello, tls: Engine | None) -> str:
        """Why this connection is not that node's, as its certificate says, "" if it may be."""
        if self.guard is None or not self.guard.verifies_host or tls is None:
            return ""
        link = self._links.get(hello.src)
        host = link.address[0] if link is not None else hello.address.rpartition(":")[0].strip("[]")
        return "" if tls.names_host(host) else f"shows a certificate that is not for {host}, where node {hello.src} is"

    def _is_newer(self, hello: hello_frames.Hello) -> bool:
        """Whether a stranger has a configuration that this node has not heard of, and an address in it."""
        return self.members is not None and hello.config > self.members.config_index() and hello.address != ""

    def _may_return(self, hello: hello_frames.Hello) -> bool:
        """Whether the configuration here that is without a stranger may be none: the stranger may lead by then."""
        return self.members is not None and hello.address != "" and self.members.may_return(hello.src)

    def removed_since(self, hello: hello_frames.Hello) -> int:
        """For a refused node of this cluster: the index of the configuration that is without it, else 0."""
        if self.members is None or hello.cluster != self.cluster or hello.dst != self.node_id:
            return 0
        return self.members.removed_since(hello.src)

    def introduced(self, stream: _Accepted) -> None:
        """A stranger has become a peer: its older connection goes before anything of this one is read."""
        self.strangers.discard(stream)
        self.reactor.prefer(stream.fd)
        older = self._accepted.get(stream.peer)
        self._accepted[stream.peer] = stream
        if older is not None:
            older.close()

    def accepted_lost(self, stream: _Accepted) -> None:
        """A connection from a peer, or from a stranger, broke."""
        self.strangers.discard(stream)
        if stream.peer and self._accepted.get(stream.peer) is stream:
            del self._accepted[stream.peer]
            self.node.peer_lost(stream.peer)


def _reason(failure: Failure) -> str:
    return failure.getErrorMessage()
