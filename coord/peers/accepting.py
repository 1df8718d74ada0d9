"""The accepting side of links: no input of a connection is used before its other end is authenticated and identified.

An accepted connection is *unidentified* until the owner of the links accepts its hello. Before that, the connection is
read one short frame at a time and has HELLO_TIMEOUT_S. At UNIDENTIFIED_MAX such connections the oldest is closed for a
new one, because a peer sends its hello at once. Unidentified connections share a part of the port's time
(`coord.newcomers`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr
from twisted.logger import Logger

from coord.errors import RemoteProtocolError
from coord.newcomers import ACCEPTS_PER_TURN, HANDSHAKE_S, PLAIN_S, NewcomerBudget, SummedLines, accept
from coord.peers import framing
from coord.peers.framing import HELLO_TIMEOUT_S
from coord.peers.guard import NO_SECRET, Handshake, PeerGuard
from coord.peers.reactor import TurnReactor
from coord.peers.stream import GIVE_UP_MS, Stream, tune

log = Logger(__name__)

#: Limit of accepted connections without an accepted hello. Beyond it the oldest one is closed.
UNIDENTIFIED_MAX: Final = 64
#: Shortest time between two looks for unidentified connections whose time is over.
SWEEP_S: Final = 0.1


@mypyc_attr(allow_interpreted_subclasses=True)
class AcceptedPeer(Stream):
    """A connection to this process's peer port. Subclasses implement `first_frame`, `take` and `lost`."""

    def __init__(
        self, listener: PeerListener, sock: socket.socket, guard: PeerGuard | None, frame_bytes_max: int
    ) -> None:
        """`frame_bytes_max` is the longest frame after the hello."""
        super().__init__(listener.reactor, sock)
        self.listener = listener
        #: True after the hello has been accepted. Set by `first_frame`.
        self.is_identified = False
        self._frames = framing.PeerFrames()
        self._frame_bytes_max = frame_bytes_max
        self.tls = guard.engine(is_server=True) if guard is not None else None
        self._guard = guard
        self._handshake = guard.accepting() if guard is not None else None

    def check_source(self, source: str) -> None:
        """Raise RemoteProtocolError if the hello names another peer than the dialer has proved to be."""
        why = self._handshake.objection(source) if self._handshake is not None else ""
        if why:
            raise RemoteProtocolError(why)

    def objection(self) -> str:
        """Return why this connection may not stand any more, because of a revoked certificate or a missing proof of
        the secret; "" if it may."""
        guard = self._guard
        return "" if guard is None else guard.revoked(self.tls) or guard.unproven(self._handshake)

    def first_frame(self, kind: int, body: bytes) -> None:
        """Handle the first frame of an authenticated connection. Raise RemoteProtocolError to close it."""
        raise NotImplementedError

    def take(self, frames: list[tuple[int, bytes, int, int]]) -> None:
        """Handle (kind, block, at, end) of each frame after the hello. Raise RemoteProtocolError to close."""
        raise NotImplementedError

    def complain(self, reason: str) -> None:
        """Log why this connection is closed because of its bytes."""
        raise NotImplementedError

    def cost_s(self) -> float:
        """Return the processor time that this connection costs before its hello."""
        return PLAIN_S if self.tls is None else HANDSHAKE_S

    def received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
            if not self.is_identified:
                frames = self._begin(frames)
            if frames:
                self.take(frames)
        except RemoteProtocolError as error:
            self.complain(str(error))
            self.fail(str(error))
        except Exception as error:
            if self.is_identified:
                raise
            # Bytes before the hello have not changed this process, so the exception may be contained here.
            log.failure("exception while reading a connection to the peer port, before its hello")
            self.fail(f"malformed: {error!r}")

    def _begin(self, frames: list[tuple[int, bytes, int, int]]) -> list[tuple[int, bytes, int, int]]:
        """Handle frames up to the hello. Return the frames that follow it. Raise RemoteProtocolError."""
        while frames and self._handshake is not None and not self._handshake.is_done:
            kind, block, at, end = frames[0]
            if kind != framing.CHALLENGE and not self._handshake.has_begun and self._admits_open():
                self._handshake = None
                break
            self._check_proof(self._handshake, kind, block[at:end])
            frames = self._frames.feed(b"") if not self.is_closed else []
        if not frames:
            return frames
        kind, block, at, end = frames[0]
        if kind == framing.CHALLENGE:
            self.dismiss(framing.frame(framing.REFUSED, NO_SECRET.encode()))
        else:
            self.first_frame(kind, block[at:end])
        if not self.is_identified:
            return []
        self._frames.limit = self._frame_bytes_max
        return self._frames.feed(b"")

    def _admits_open(self) -> bool:
        return self._guard is not None and self._guard.admits_open()

    def _check_proof(self, handshake: Handshake, kind: int, body: bytes) -> None:
        """Perform a step of the authentication by the shared secret. Raise RemoteProtocolError."""
        try:
            answer = handshake.counter(kind, body)
        except RemoteProtocolError as error:
            self.output.append(framing.frame(framing.REFUSED, str(error).encode()))
            self.flush()
            raise
        if answer:
            self.output.append(answer)
            self.flush()

    def dismiss(self, frame: bytes) -> None:
        """Send an unidentified connection its only reply, then close it."""
        self.output.append(frame)
        self.flush()
        self.close_when_sent()
        self.listener.forget(self)


class PeerListener:
    """A listening socket and its unidentified connections."""

    def __init__(self, reactor: TurnReactor, make: Callable[[socket.socket], AcceptedPeer]) -> None:
        """`make` returns the stream of an accepted socket."""
        self.reactor = reactor
        #: With the times at which they are closed. Oldest first.
        self.unidentified: dict[AcceptedPeer, float] = {}
        self._is_sweep_planned = False
        self.newcomers = NewcomerBudget(reactor, self._set_accepting)
        #: Lines about connections that were rejected before their hello.
        self.lines = SummedLines(reactor.seconds)
        self._make = make
        self._listening: socket.socket | None = None

    def start(self, listening: socket.socket) -> None:
        """Accept connections on `listening`."""
        assert self._listening is None, "started twice"
        self._listening = listening
        self.reactor.watch(listening.fileno(), self._accept)

    def stop(self) -> None:
        """Close the listening socket and the unidentified connections."""
        if self._listening is not None:
            self.reactor.unwatch(self._listening.fileno())
            self._listening.close()
            self._listening = None
        for stream in list(self.unidentified):
            stream.close()

    def identified(self, stream: AcceptedPeer) -> None:
        """Handle an accepted hello: the connection is served before those of clients."""
        self.served(stream)
        self.reactor.prefer(stream.fd)

    def served(self, stream: AcceptedPeer) -> None:
        """Handle an accepted hello: the connection is no newcomer any more."""
        if stream in self.unidentified:
            self.forget(stream)
            self.newcomers.give_back(stream.cost_s())

    def forget(self, stream: AcceptedPeer) -> None:
        """Handle the end of an unidentified connection. Further calls change nothing."""
        self.unidentified.pop(stream, None)

    def _set_accepting(self, is_accepting: bool) -> None:
        if self._listening is not None:
            self.reactor.rewatch(self._listening.fileno(), readable=is_accepting, writable=False)

    def _accept(self, events: int) -> None:  # noqa: ARG002
        assert self._listening is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = accept(self._listening.accept, self.newcomers)
            except OSError:
                return
            if len(self.unidentified) >= UNIDENTIFIED_MAX:
                self._drop_unidentified(next(iter(self.unidentified)))
            tune(sock, give_up_ms=GIVE_UP_MS)
            stream = self._make(sock)
            self.unidentified[stream] = self.reactor.seconds() + HELLO_TIMEOUT_S
            self.newcomers.charge(stream.cost_s())
            self._plan_sweep(HELLO_TIMEOUT_S)

    def _plan_sweep(self, delay_s: float) -> None:
        # One timer for all connections: a timer per connection would keep closed connections in memory.
        if not self._is_sweep_planned:
            self._is_sweep_planned = True
            self.reactor.callLater(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._is_sweep_planned = False
        now = self.reactor.seconds()
        while self.unidentified:
            stream, due = next(iter(self.unidentified.items()))
            if due > now:
                self._plan_sweep(max(due - now, SWEEP_S))
                return
            self._drop_unidentified(stream)

    def _drop_unidentified(self, stream: AcceptedPeer) -> None:
        if stream in self.unidentified:
            self.forget(stream)
            stream.close()
