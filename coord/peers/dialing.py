"""The dialing side of links: connect to one peer, authenticate, send the hello, reconnect.

    DOWN  -- dial -->  CONNECTING  -- hello accepted -->  UP
     ^                     |                              |
     +---- back-off -------+--------- connection lost ----+

Frames go out over this connection; only the replies of authentication and hello come back.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from mypy_extensions import mypyc_attr
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.env import Rng
from coord.errors import RemoteProtocolError
from coord.peers import framing
from coord.peers.framing import HELLO_TIMEOUT_S
from coord.peers.guard import Handshake, PeerGuard, PeerNames
from coord.peers.reactor import TurnReactor
from coord.peers.stream import GIVE_UP_MS, Address, Stream, family_of, is_numeric, tune

log = Logger(__name__)

#: Pause before the first and later attempts: doubled each time up to the maximum, plus as much again at random.
REDIAL_MIN_MS: Final = 50
REDIAL_MAX_MS: Final = 500
#: Limit of one link's queue. An append window of Raft (8 MiB) and the window of a snapshot fit many times.
QUEUE_BYTES_MAX: Final = 64 << 20
_HELLO_TIMEOUT: Final = "no reply to the hello"


@mypyc_attr(allow_interpreted_subclasses=True)
class DialedPeer(Stream):
    """The connection that this process opened to a peer. Subclasses implement `hello`, `answered` and `lost`."""

    backlog_max = QUEUE_BYTES_MAX

    def __init__(self, reactor: TurnReactor, sock: socket.socket, guard: PeerGuard | None, host: str) -> None:
        """`host` is the dialed host."""
        super().__init__(reactor, sock)
        #: True after the peer has accepted the hello. Set by `answered`.
        self.is_up = False
        self._frames = framing.PeerFrames()
        self.tls = guard.engine(is_server=False, host=host) if guard is not None else None
        self._guard = guard
        self._handshake: Handshake | None = None

    def names(self) -> PeerNames:
        """Return who dials whom, for the proof."""
        raise NotImplementedError

    def hello(self) -> bytes:
        """Return this process's hello as a frame."""
        raise NotImplementedError

    def answered(self, kind: int, body: bytes) -> None:
        """Handle the reply to the hello, which is not a rejection. Raise RemoteProtocolError to close."""
        raise NotImplementedError

    def refused(self, reason: str) -> None:
        """Handle a rejection; the connection is closed afterwards."""

    def objection(self) -> str:
        """Return why this connection may not stand any more, because of a revoked certificate or a missing proof of
        the secret; "" if it may. The proof is not due before the hello is accepted."""
        guard = self._guard
        if guard is None:
            return ""
        return guard.revoked(self.tls) or (guard.unproven(self._handshake) if self.is_up else "")

    def begin(self) -> None:
        """Send the hello, or first the challenge if there is a shared secret."""
        self._handshake = self._guard.dialing(self.names()) if self._guard is not None else None
        if self._handshake is None:
            self._send_hello()
        else:
            self.output.append(self._handshake.challenge())
            self.flush()

    def _send_hello(self) -> None:
        self.output.append(self.hello())
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
            # The hello is not accepted yet, so the bytes have not changed this process.
            log.failure("exception while reading the reply of a peer")
            self.fail(f"malformed reply: {error!r}")

    def _take(self, kind: int, body: bytes) -> bool:
        """Handle one frame of the reply. Return False if later frames must wait. Raise RemoteProtocolError."""
        if kind == framing.REFUSED:
            reason = body.decode(errors="replace")
            if self._guard is not None and self._handshake is not None:
                self._guard.refused(self.names(), reason)
            self.refused(reason)
            self.fail("refused: " + reason)
            return False
        if self._handshake is not None and not self._handshake.is_done:
            self.output.append(self._handshake.prove(kind, body))
            self._send_hello()
            return False
        if self.is_up:
            raise RemoteProtocolError(f"unexpected frame of kind {kind}")
        self.answered(kind, body)
        return not self.is_closed


@mypyc_attr(allow_interpreted_subclasses=True)
class PeerDialer:
    """The connection to one peer, dialed again whenever it ends. Subclasses implement the methods that raise."""

    def __init__(self, reactor: TurnReactor, rng: Rng) -> None:
        self.reactor = reactor
        self.rng = rng
        self.stream: DialedPeer | None = None
        #: Bytes in the stream's output since it was last flushed.
        self.queued = 0
        self.is_stopped = False
        #: Pause before the next attempt, without its random part; 0 is the shortest pause.
        self.pause_ms = 0
        #: The timer of the next attempt.
        self._again: Any = None
        self._is_resolving = False

    def address_now(self) -> Address | None:
        """Return where to dial now, or None if no attempt can succeed at the moment."""
        raise NotImplementedError

    def make_stream(self, sock: socket.socket) -> DialedPeer:
        """Return the stream of a socket that connects to `address_now`."""
        raise NotImplementedError

    def may_dial_again(self, reason: str) -> bool:
        """Handle the end of a connection or attempt. Return False to give the peer up."""
        raise NotImplementedError

    def pause_min_ms(self) -> int:
        """Return the pause before the first attempt after a link was up."""
        return REDIAL_MIN_MS

    def pause_max_ms(self) -> int:
        """Return the longest pause."""
        return REDIAL_MAX_MS

    def is_up(self) -> bool:
        """Return True while frames can be sent."""
        return self.stream is not None and self.stream.is_up

    def dial(self) -> None:
        """Connect. Resolve a host name each time: its address may have changed."""
        if self.is_stopped:
            return
        assert self.stream is None, "the link has a connection already"
        address = self.address_now()
        if address is None:
            self.dial_again(_HELLO_TIMEOUT)
            return
        host, port = address
        if is_numeric(host):
            self._connect([(family_of(host), (host, port))])
            return
        self._is_resolving = True
        reactor: Any = self.reactor  # Twisted declares its interfaces by zope, which the type checker ignores
        found = deferToThreadPool(
            reactor, reactor.getThreadPool(), socket.getaddrinfo, host, port, type=socket.SOCK_STREAM
        )
        found.addCallbacks(
            lambda infos: self._connect([(info[0], info[4]) for info in infos]),
            lambda failure: self._not_resolved(_reason(failure)),
        )

    def _not_resolved(self, reason: str) -> None:
        self._is_resolving = False
        self.dial_again(reason)

    def _connect(self, targets: list[tuple[int, tuple[object, ...]]]) -> None:
        self._is_resolving = False
        if self.is_stopped:
            return
        family, address = targets[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self.dial_again(error.strerror or str(error))
            return
        sock.setblocking(False)
        tune(sock, give_up_ms=GIVE_UP_MS)
        try:
            code = sock.connect_ex(address)
        except (OSError, ValueError, OverflowError) as error:  # the text is not an address
            sock.close()
            self.dial_again(str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self.dial_again(errno.errorcode.get(code, str(code)))
            return
        stream = self.stream = self.make_stream(sock)
        stream.begin()
        self.reactor.callLater(HELLO_TIMEOUT_S, self._hello_timeout, stream)

    def _hello_timeout(self, stream: DialedPeer) -> None:
        if not stream.is_up:
            stream.fail(_HELLO_TIMEOUT)

    def dial_again(self, reason: str) -> None:
        """Handle the end of a connection or attempt: dial after a pause."""
        if self.is_stopped or not self.may_dial_again(reason):
            return
        pause_ms = self.pause_ms or self.pause_min_ms()
        self.pause_ms = min(2 * pause_ms, self.pause_max_ms())
        self._again = self.reactor.callLater((pause_ms + self.rng.below(pause_ms)) / 1000, self.dial)

    def dial_now(self) -> None:
        """Dial without the rest of the pause, unless there is an attempt or a connection already."""
        if self.stream is None and not self._is_resolving:
            if self._again is not None and self._again.active():
                self._again.cancel()
            self.dial()

    def stop(self) -> None:
        """Send queued frames as far as the kernel accepts them, close the connection and dial no more."""
        self.is_stopped = True
        stream = self.stream
        if stream is not None:
            # A connection that turns out to be lost ends in `lost`, and self.stream is None then.
            stream.flush()
            stream.close()
            self.stream = None


class FrameQueue:
    """The frames that one process has for its peers, sent once per turn with one system call per peer."""

    def __init__(self) -> None:
        #: Limit of one link's queue, including data that the kernel has not accepted yet.
        self.limit = QUEUE_BYTES_MAX
        #: Links with unflushed output.
        self._dirty: list[PeerDialer] = []

    def put(self, link: PeerDialer, frame: bytes, head: bytes = b"") -> bool:
        """Queue `head` and `frame` for a link that is up. Return False if the full queue has closed the link.

        Only `frame` counts for the limit.
        """
        stream = link.stream
        assert stream is not None, "a frame for a link without a connection"
        output = stream.output
        if not output:
            self._dirty.append(link)
        if head:
            output.append(head)
        output.append(frame)
        link.queued += len(frame)
        if link.queued + stream.backlog() > self.limit:
            stream.fail("its queue is full")
            return False
        return True

    def flush(self) -> None:
        """Send the queued frames."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for link in dirty:
                if link.stream is not None:
                    link.queued = 0
                    link.stream.flush()


def _reason(failure: Failure) -> str:
    return failure.getErrorMessage()
