"""The client port: sockets on one side, `Pipeline` on the other.

This module limits what clients may use. Each limit is a setting: connections per address and in total, the time until
the first request, the unsent bytes for one client, and the time for which a client may read nothing.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from twisted.logger import Logger

from coord.env import Clock
from coord.newcomers import (
    ACCEPTS_PER_TURN,
    HANDSHAKE_S,
    PLAIN_S,
    REFUSAL_S,
    SESSION_S,
    NewcomerBudget,
    SummedLines,
    accept,
)
from coord.peers.reactor import TurnReactor
from coord.peers.stream import Stream, tune
from coord.security import process, revocation
from coord.security.tls_channel import revoked_peer
from coord.server.clients.connection import ClientTransport, Connection
from coord.server.clients.pipeline import Pipeline
from coord.tls.context import Engine
from coord.tls.reloading import TlsContexts
from coord.wire.client_conn import PHASE_CLOSED, PHASE_OPEN, PHASE_WORD, ClientConnection

log = Logger(__name__)

#: Interval between searches for half-open and stalled connections.
SWEEP_S = 1.0
#: When there are too many connections, the oldest one without a session and proof is closed for a new one after this
#: time. Otherwise a stranger who holds all connections of an address would keep out the daemons and users at this
#: address.
MAKES_WAY_AFTER_MS = 500


class ClientLimits:
    """Limits of the client port; 0 connections mean no limit."""

    def __init__(
        self,
        *,
        connections_per_address_max: int = 60,
        connections_max: int = 0,
        frame_bytes_max: int = 0xFFFFF,
        connect_timeout_ms: int = 10_000,
        stall_ms: int = 15_000,
        send_queue_bytes_max: int = 64 << 20,
        pause_bytes: int = 1 << 20,
        sends_per_turn: int = 1000,
    ) -> None:
        assert pause_bytes < send_queue_bytes_max, (pause_bytes, send_queue_bytes_max)
        assert sends_per_turn > 0, sends_per_turn
        self.connections_per_address_max = connections_per_address_max
        self.connections_max = connections_max
        #: jute.maxbuffer.
        self.frame_bytes_max = frame_bytes_max
        #: Time after which a connection without a connect request or four-letter word is closed.
        self.connect_timeout_ms = connect_timeout_ms
        #: Time after which a client that reads none of its output is disconnected.
        self.stall_ms = stall_ms
        #: Limit of unsent bytes for one client.
        self.send_queue_bytes_max = send_queue_bytes_max
        #: While more output than this is unsent, the client's requests are not read.
        self.pause_bytes = pause_bytes
        #: Number of connections that a turn sends to; in addition the turn sends to as many connections left over by
        #: earlier turns. A change watched by thousands of clients costs a system call per client; other clients must
        #: not wait for all of them.
        self.sends_per_turn = sends_per_turn


#: Length field of a frame, which ZooKeeper does not count as part of a response.
LENGTH_BYTES: Final = 4


class ClientStream(Stream, ClientTransport):
    """One client's socket."""

    #: Each item of the output is one whole reply or event (see `Engine.seal`).
    seals_each = True

    def __init__(
        self, listener: ClientListener, sock: socket.socket, address: tuple[str, int], tls: Engine | None
    ) -> None:
        super().__init__(listener.reactor, sock)
        self.tls = tls
        self.backlog_max = listener.limits.send_queue_bytes_max
        self._listener = listener
        self._wire = ClientConnection(listener.limits.frame_bytes_max)
        self.address = address[0]
        now_ms = listener.clock.monotonic_ms()
        self.connection: Connection = listener.pipeline.clients.connect(self, address[0], address[1], now_ms)
        self.connection.is_secure = tls is not None
        self.output = self.connection.output
        self.is_dirty = False
        self._has_begun = False
        self._will_drain = False
        self.since_ms = now_ms
        self.stalled_ms = 0
        self._wants_reading = True
        #: Budget that the connection uses until its client has proved what is required; the newcomers' budget pays it.
        self._cost_s = HANDSHAKE_S if tls is not None else PLAIN_S
        listener.newcomers.charge(self._cost_s)

    def received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        wire = self._wire
        connection = self.connection
        pipeline = self._listener.pipeline
        try:
            frames = wire.receive_data(data)
            if not self._has_begun:
                self._begin()
            if frames:
                pipeline.receive(connection, wire.take_block(), frames)
        except Exception:  # boundary: an error may only cost the client's own connection
            log.failure("exception while serving {address}; closing its connection", address=self.address)
            pipeline.clients.close(connection)
            return
        if wire.phase == PHASE_CLOSED and not self.is_closed:
            log.debug("{address} violated the protocol: {why}", address=self.address, why=wire.violation)
            pipeline.clients.close(connection, flush=True)

    def _begin(self) -> None:
        """Begin a session or answer a four-letter word, depending on the first bytes."""
        wire = self._wire
        listener = self._listener
        pipeline = listener.pipeline
        why = revoked_peer(self.tls) if self.tls is not None else ""
        if why:
            self.fail(f"TLS: {why}")
            return
        if wire.phase == PHASE_WORD:
            self._has_begun = True
            answer = listener.answer_word(wire.word)
            if answer:
                self.output.append(answer)
                self.wake()
            pipeline.clients.close(self.connection, flush=True)
        elif wire.phase in (PHASE_OPEN, PHASE_CLOSED):
            self._has_begun = True
            request = wire.take_connect()
            if self.tls is not None:
                self.connection.certificate = self.tls.peer_subject().encode()
            if request is not None:
                self._cost_s += listener.charge_session()
                pipeline.handshake.open_session(self.connection, request)

    def lost(self, reason: str) -> None:
        """Remove the connection: the client has closed it, or it broke."""
        if reason.startswith("TLS"):
            more = self._listener.lines.more()
            if more is not None:
                log.info("{address}: {reason}{more}", address=self.address, reason=reason, more=more)
        self._listener.forget(self)
        self._listener.pipeline.clients.connection_lost(self.connection)

    # --- called by the pipeline ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        """See `ClientTransport.wake`."""
        if not self.is_dirty:
            self.is_dirty = True
            self._listener.dirty.append(self)

    def set_reading(self, is_reading: bool) -> None:
        """See `ClientTransport.set_reading`."""
        self._wants_reading = is_reading
        super().set_reading(is_reading and self.backlog() <= self._listener.limits.pause_bytes)

    def resume_later(self) -> None:
        """See `ClientTransport.resume_later`."""
        self._listener.reactor.callLater(0, self._listener.pipeline.resume, self.connection)

    def close(self, *, flush: bool = False) -> None:
        """See `ClientTransport.close`."""
        if flush and not self.is_closed:
            self.wake()
            self.close_when_sent()
        if not flush or self.is_closed:
            super().close()
        self._listener.forget(self)

    def needs_contact(self) -> bool:
        """Return True if output on this connection depends on the lease from the leader."""
        connection = self.connection
        return connection.session is not None and not connection.is_read_only and not self.is_closed

    def send(self) -> None:
        """Send this turn's output; stop reading from a client that does not read its output."""
        if self.output:
            self._listener.pipeline.clients.last_response_bytes = len(self.output[-1]) - LENGTH_BYTES
            if self._cost_s and self.connection.session is not None and self.connection.is_admitted:
                self._listener.proved(self, self._cost_s)
                self._cost_s = 0.0
        self.flush()
        self._account()
        if self._rest_bytes and self._rest_bytes > self._listener.limits.pause_bytes:
            super().set_reading(False)

    def _send_rest(self) -> None:
        super()._send_rest()
        self.stalled_ms = 0
        self._account()
        if not self.is_closed and self._wants_reading and self.backlog() <= self._listener.limits.pause_bytes:
            super().set_reading(True)

    def _account(self) -> None:
        """Update the number of unsent bytes; resume a choked connection in the next turn if few are unsent."""
        connection = self.connection
        waiting = connection.output_bytes = self._rest_bytes
        if connection.is_choked and waiting <= self._listener.limits.pause_bytes and not self._will_drain:
            self._will_drain = True
            self._listener.reactor.callLater(0, self._drained)

    def _drained(self) -> None:
        self._will_drain = False
        self._listener.pipeline.drained(self.connection)

    def revoked(self) -> str:
        """Return why a credential that the client has shown is worth nothing any more, "" if all are valid."""
        if self.tls is not None and (why := revoked_peer(self.tls)):
            return why
        if self.connection.is_unproven and self.connection.is_admitted and not process.is_securing():
            return "it has proved no identity, and the cluster is secured now"
        known = revocation.known()
        return next((why for one in self.connection.shown if (why := known.objection(one))), "")

    def sweep(self, now_ms: int) -> None:
        """Close the connection if it is half-open or stalled."""
        limits = self._listener.limits
        if not self._has_begun and now_ms - self.since_ms > limits.connect_timeout_ms:
            self.fail("sent no connect request")
        elif self.backlog() == 0:
            self.stalled_ms = 0
        elif self.stalled_ms == 0:
            self.stalled_ms = now_ms
        elif now_ms - self.stalled_ms > limits.stall_ms:
            self.fail("does not read its replies")


class ClientListener:
    """All client connections of one node."""

    def __init__(
        self,
        reactor: TurnReactor,
        pipeline: Pipeline,
        clock: Clock,
        limits: ClientLimits,
        answer_word: Callable[[bytes], bytes],
        *,
        may_answer: Callable[[], bool],
    ) -> None:
        """`answer_word` returns the answer to a four-letter word, or b"" for none.

        `may_answer` returns True while replies to sessions may leave (`coord.server.sessions.liveness`).
        """
        self.reactor = reactor
        self.pipeline = pipeline
        self.clock = clock
        self.limits = limits
        self.answer_word = answer_word
        self._may_answer = may_answer
        #: Connections with output, in order; `_late` has those left over by earlier turns.
        self.dirty: list[ClientStream] = []
        #: Budget of clients before they have a session, and a proof where one is required.
        self.newcomers = NewcomerBudget(reactor, self._set_accepting)
        #: Lines about connections that ended in TLS.
        self.lines = SummedLines(reactor.seconds)
        self._late: deque[ClientStream] = deque()
        #: Connections whose output waits for contact with the leader.
        self._held: list[ClientStream] = []
        self.streams: dict[ClientStream, None] = {}
        self._per_address: dict[str, int] = {}
        #: Connections by address that have no session yet, or lack the required proof. Oldest first.
        self._unproven: dict[str, dict[ClientStream, None]] = {}
        #: Listening socket -> its TLS contexts, None for plain TCP.
        self._listening: dict[socket.socket, TlsContexts | None] = {}
        #: Connections rejected at one of the limits, since the start.
        self.refused = 0

    def start(self, listening: Mapping[socket.socket, TlsContexts | None]) -> None:
        """Accept clients on these sockets; a socket with TLS contexts accepts TLS only."""
        self._listening = dict(listening)
        for listener, contexts in self._listening.items():
            self.reactor.watch(listener.fileno(), partial(self._accept, listener, contexts))
        self.reactor.callLater(SWEEP_S, self._sweep)

    def stop(self) -> None:
        """Stop accepting and close every connection; the sessions can move to other nodes."""
        for listener in self._listening:
            self.reactor.unwatch(listener.fileno())
            listener.close()
        self._listening = {}
        while self.send_all():
            pass
        self.pipeline.clients.close_all()
        for stream in list(self.streams):
            stream.close()

    def send_all(self) -> bool:
        """Send every connection's output of this turn, one call each; return True if some must wait for the next turn.

        While this node lacks contact with the leader, the output of sessions waits (`coord.server.sessions.contact`).

        Output of this turn is sent before output left over by earlier turns, so that a request does not wait for
        thousands of watchers. Both kinds get the same number of calls, so both make progress. The order within one
        connection's output does not change.
        """
        late = self._late
        if not self.dirty and not late and not self._held:
            return False
        dirty, self.dirty = self.dirty, []
        if not self._may_answer():
            dirty = self._hold([*late, *dirty])
            late.clear()
        elif self._held:
            dirty, self._held = self._held + dirty, []
        most = self.limits.sends_per_turn
        waiting = [late.popleft() for _ in range(min(most, len(late)))]
        if len(dirty) > most:
            late.extend(dirty[most:])
            del dirty[most:]
        for stream in dirty:
            stream.is_dirty = False
            stream.send()
        for stream in waiting:
            stream.is_dirty = False
            stream.send()
        return len(late) > 0

    def _hold(self, dirty: list[ClientStream]) -> list[ClientStream]:
        """Hold back the connections that need contact with the leader; return the others."""
        self._held = [stream for stream in [*self._held, *dirty] if stream.needs_contact()]
        return [stream for stream in dirty if not stream.needs_contact()]

    def forget(self, stream: ClientStream) -> None:
        """Remove a connection that is closed, or closes after its last bytes have been sent."""
        if stream in self.streams:
            del self.streams[stream]
            left = self._per_address[stream.address] - 1
            if left:
                self._per_address[stream.address] = left
            else:
                del self._per_address[stream.address]
            self._forget_unproven(stream)

    def charge_session(self) -> float:
        """Charge the newcomers for a session that a client wants, and return the cost.

        Without a leader no session is written. Clients that try again and again during an outage would otherwise keep
        the port shut for seconds after it.
        """
        if not self._may_answer():
            return 0.0
        self.newcomers.charge(SESSION_S)
        return SESSION_S

    def proved(self, stream: ClientStream, cost_s: float) -> None:
        """Record that a client has a session and the required proof, and is not a newcomer any more."""
        self.newcomers.give_back(cost_s)
        self._forget_unproven(stream)

    def _forget_unproven(self, stream: ClientStream) -> None:
        unproven = self._unproven.get(stream.address)
        if unproven is not None and stream in unproven:
            del unproven[stream]
            if not unproven:
                del self._unproven[stream.address]

    def close_revoked(self) -> None:
        """Close the connections whose credentials are revoked now."""
        for stream in list(self.streams):
            why = stream.revoked()
            if why:
                log.info("closing the connection of {address}: {why}", address=stream.address, why=why)
                self.pipeline.clients.close(stream.connection)

    def _accept(self, listener: socket.socket, contexts: TlsContexts | None, events: int) -> None:  # noqa: ARG002
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = accept(listener.accept, self.newcomers)
            except BlockingIOError:
                return
            except OSError as error:
                # Usually out of descriptors: the client stays in the kernel's queue, and the loop must not spin on it.
                log.warn("cannot accept clients: {error}", error=error.strerror)
                self.reactor.rewatch(listener.fileno(), readable=False, writable=False)
                self.reactor.callLater(SWEEP_S, self._accept_again, listener)
                return
            host = _plain(address[0])
            if self._is_too_many(host):
                self.refused += 1
                self.newcomers.charge(REFUSAL_S)
                sock.close()
                continue
            tune(sock, give_up_ms=self.limits.stall_ms)
            tls = None if contexts is None else Engine(contexts.server(), is_server=True)
            stream = ClientStream(self, sock, (host, address[1]), tls)
            self.streams[stream] = None
            self._per_address[stream.address] = self._per_address.get(stream.address, 0) + 1
            self._unproven.setdefault(stream.address, {})[stream] = None

    def _set_accepting(self, is_accepting: bool) -> None:
        for listener in self._listening:
            self.reactor.rewatch(listener.fileno(), readable=is_accepting, writable=False)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listening:
            self.reactor.rewatch(listener.fileno(), readable=not self.newcomers.is_used_up, writable=False)

    def _is_too_many(self, address: str) -> bool:
        limits = self.limits
        per_address = limits.connections_per_address_max
        if per_address and self._per_address.get(address, 0) >= per_address:
            if self._make_way(self._unproven.get(address)):
                return False
            if self.refused % 1000 == 0:
                log.warn("{address} has {count} connections, rejecting more", address=address, count=per_address)
            return True
        if limits.connections_max > 0 and len(self.streams) >= limits.connections_max:
            return not self._make_way(next(iter(self._unproven.values()), None))
        return False

    def _make_way(self, unproven: dict[ClientStream, None] | None) -> bool:
        """Close the oldest of these connections, unless it is young; return True if there is one."""
        oldest = next(iter(unproven), None) if unproven is not None else None
        if oldest is None or self.clock.monotonic_ms() - oldest.since_ms < MAKES_WAY_AFTER_MS:
            return False
        oldest.fail("gives way to a newcomer")
        return True

    def _sweep(self) -> None:
        now_ms = self.clock.monotonic_ms()
        for stream in list(self.streams):
            stream.sweep(now_ms)
        if self._listening:
            self.reactor.callLater(SWEEP_S, self._sweep)


def _plain(host: str) -> str:
    """Return a client's address. A dual-stack socket reports IPv4 as ::ffff:a.b.c.d; access lists use plain IPv4."""
    return host.removeprefix("::ffff:") if "." in host else host
