"""The outgoing side of a link: connect to one peer, send the hello, send frames, reconnect.

    DOWN  -- dial -->  CONNECTING  -- hello accepted -->  UP
     ^                     |                              |
     +---- back-off -------+--------- connection lost ----+

Frames go out over this connection; only the reply to the hello comes back. A link to a member is dialed forever. A
*provisional* link leads to a node outside of this node's configuration; it is given up after some attempts.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.stream import GIVE_UP_MS, Address, Stream, family_of, is_numeric, tune
from coord.server.peers import codec, hello_frames
from coord.server.peers.link_context import HELLO_TIMEOUT_S, LinkContext

log = Logger(__name__)

#: Pause before the first and later attempts: doubled each time up to the maximum, plus as much again at random.
REDIAL_MIN_MS: Final = 50
REDIAL_MAX_MS: Final = 500
#: Limit of one link's queue. An append window of Raft (8 MiB) and the window of a snapshot fit many times.
QUEUE_BYTES_MAX: Final = 64 << 20
#: Attempts to dial a provisional link, with longer pauses than other links. A made-up address costs 5 connections in
#: about 20 s.
PROVISIONAL_TRIES: Final = 5
PROVISIONAL_MIN_MS: Final = 1000
PROVISIONAL_MAX_MS: Final = 8000
_HELLO_TIMEOUT: Final = "no reply to the hello"


class DialedStream(Stream):
    """The connection that this node opened to a peer."""

    backlog_max = QUEUE_BYTES_MAX

    def __init__(self, link: Link, sock: socket.socket) -> None:
        context = link.context
        super().__init__(context.reactor, sock)
        self._link = link
        self._frames = framing.PeerFrames()
        self.is_up = False
        guard = context.guard
        self.tls = guard.engine(is_server=False, host=link.address[0]) if guard is not None else None
        self._handshake = guard.handshake() if guard is not None else None

    def begin(self) -> None:
        """Send the hello, or first the challenge if there is a shared secret."""
        if self._handshake is None:
            self._send_hello()
        else:
            self.output.append(self._handshake.challenge())
            self.flush()

    def _send_hello(self) -> None:
        hello = self._link.context.hello(self._link.peer, self._link.version)
        self.output.append(hello_frames.encode_hello(hello))
        self.flush()

    def received(self, data: bytes) -> None:
        try:
            for kind, block, at, end in self._frames.feed(data):
                if not self._take(kind, block[at:end]):
                    return
        except RemoteProtocolError as error:
            self.fail(str(error))
        except Exception as error:
            if self.is_up:
                raise
            # The hello is not accepted yet, so the bytes have not changed this node.
            log.failure("exception while reading the reply of node {peer}", peer=self._link.peer)
            self.fail(f"malformed reply: {error!r}")

    def _take(self, kind: int, body: bytes) -> bool:
        """Handle one frame of the reply. Return False if later frames must wait. Raise RemoteProtocolError."""
        if kind == framing.REFUSED:
            reason = body.decode(errors="replace")
            self._link.refused(reason)
            self.fail("refused: " + reason)
            return False
        if self._handshake is not None and not self._handshake.is_done:
            self.output.append(self._handshake.prove(kind, body))
            self._send_hello()
            return False
        if kind == codec.REMOVED:
            members = self._link.context.members
            if members is not None:
                members.removed(self._link.peer, hello_frames.decode_removed(body))
            self.fail("refused: this node is not a member")
            return False
        if kind != framing.HELLO or self.is_up:
            raise RemoteProtocolError(f"unexpected frame of kind {kind}")
        self._link.check_answer(hello_frames.decode_hello(body))
        self.is_up = True
        self._link.up()
        return True

    def lost(self, reason: str) -> None:
        self._link.down(self, reason)


class Link:
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
        self.context = context
        self.peer = peer
        self.address = address
        self.stream: DialedStream | None = None
        self.is_provisional = is_provisional
        self._give_up = give_up
        #: Attempts since the link was last up.
        self._tries = 0
        self._pause_ms = self._pause_min_ms()
        #: Why the last attempt failed, as logged.
        self._last_reason = ""
        #: Version of the next hello, see `refused`.
        self.version = codec.VERSION
        self._is_older = False
        #: Highest feature level in the peer's last hello.
        self.supported = 0
        self.is_stopped = False
        #: Bytes in the stream's output since it was last flushed.
        self.queued = 0

    def _pause_min_ms(self) -> int:
        return PROVISIONAL_MIN_MS if self.is_provisional else REDIAL_MIN_MS

    def is_up(self) -> bool:
        """Return True while frames can be sent."""
        return self.stream is not None and self.stream.is_up

    def dial(self) -> None:
        """Connect. Resolve a host name each time: its address may have changed."""
        if self.is_stopped:
            return
        assert self.stream is None, "the link has a connection already"
        if self.context.is_cut:
            self._dial_again(_HELLO_TIMEOUT)
            return
        host, port = self.address
        if is_numeric(host):
            self._connect([(family_of(host), (host, port))])
            return
        reactor: Any = self.context.reactor  # Twisted declares its interfaces by zope, which the type checker ignores
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
        except (OSError, ValueError, OverflowError) as error:  # the text is not an address
            sock.close()
            self._dial_again(str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._dial_again(errno.errorcode.get(code, str(code)))
            return
        stream = self.stream = DialedStream(self, sock)
        stream.begin()
        self.context.reactor.callLater(HELLO_TIMEOUT_S, self._hello_timeout, stream)

    def _hello_timeout(self, stream: DialedStream) -> None:
        if not stream.is_up:
            stream.fail(_HELLO_TIMEOUT)

    def refused(self, reason: str) -> None:
        """Handle a rejected hello. If the listener is an older build, dial once with its version.

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
        self._pause_ms = self._pause_min_ms()
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
        self._dial_again(reason)
        if stream.is_up:
            self.context.node.peer_lost(self.peer)

    def _dial_again(self, reason: str) -> None:
        if self.is_stopped:
            return
        if reason != self._last_reason:
            # Log each reason once: a peer that is down for hours costs one line.
            log.warn(
                "no link to node {peer} at {address}: {reason}", peer=self.peer, address=self.address, reason=reason
            )
            self._last_reason = reason
        self._tries += 1
        if self.is_provisional and self._tries >= PROVISIONAL_TRIES:
            self._give_up(self)
            return
        pause_ms = self._pause_ms + self.context.rng.below(self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, PROVISIONAL_MAX_MS if self.is_provisional else REDIAL_MAX_MS)
        self.context.reactor.callLater(pause_ms / 1000, self.dial)

    def stop(self) -> None:
        """Send queued frames as far as the kernel accepts them, close the connection and dial no more."""
        self.is_stopped = True
        if self.stream is not None:
            self.stream.flush()
            self.stream.close()
            self.stream = None


def _reason(failure: Failure) -> str:
    return failure.getErrorMessage()
