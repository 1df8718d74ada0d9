"""The network: byte streams between machines with the guarantees of TCP and no others.

The bytes of one direction arrive in order, after delays with a heavy tail, or not at all because the connection breaks.
A cut from A to B holds back the bytes that A sends. If the cut ends before A gives up, everything arrives late. A
connection that one end has closed still delivers the bytes in flight, perhaps after a new connection has begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.python.failure import Failure

from simulation.engine.process import TURN_US, Process
from simulation.engine.timeline import SECOND, Timeline

#: A machine retransmits for this long without an answer before it gives a connection up.
GIVE_UP_US: Final = 4 * SECOND
SYN_AGAIN_US: Final = 300_000


class End:
    """One end of a connection.

    The owner sets `receive` and `lost`; `run` calls them in the owner's turns.
    """

    def __init__(self, network: Network, host: str, owner: Process | None) -> None:
        self.network = network
        self.host = host
        self.owner = owner
        self.peer: End
        self.receive: Callable[[bytes], object] = _ignore
        self.lost: Callable[[str], object] = _ignore
        self.is_closed = False
        #: The owner has closed the connection; incoming bytes are dropped.
        self.is_read_closed = False
        #: Bytes that a cut holds back, and since when.
        self.held: deque[bytes | None] = deque()
        self._held_since = 0
        self._free_at = 0

    def send(self, data: bytes) -> None:
        """Send bytes to the other end."""
        if not self.is_closed:
            self.network.transmit(self, data)

    def close(self) -> None:
        """Close this end. The other end is informed after everything that was sent."""
        self.is_read_closed = True
        if not self.is_closed:
            self.is_closed = True
            self.network.transmit(self, None)

    def drop_silently(self) -> None:
        """Drop this end without informing the other end."""
        self.is_closed = self.is_read_closed = True
        self.held.clear()

    def run(self, what: Callable[..., object], *arguments: Any) -> None:
        """Call a function in a turn of the owner."""
        if self.owner is None:
            what(*arguments)
        else:
            self.owner.turn(what, *arguments)

    def broken(self, reason: str) -> None:
        """Report the loss of the connection to this end's owner."""
        if not self.is_closed:
            self.is_closed = True
            self.held.clear()
            self.run(self.lost, reason)


def _ignore(_: object) -> None:
    pass


class Network:
    """The connections of all machines."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._chance = timeline.chance
        #: One-way cuts: (from host, to host).
        self.cuts: set[tuple[str, str]] = set()
        #: Part of the messages that are late, by tens to thousands of milliseconds.
        self.heavy = 0.0
        self.base_us = 200
        self.spread_us = 800
        #: Open ends in the order of their creation, and some closed ends.
        self.ends: list[End] = []
        self._prune_at = 64
        self._listening: dict[tuple[str, int], tuple[Process | None, Callable[[End], None]]] = {}

    # --- listening and connecting -------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, owner: Process | None, accept: Callable[[End], None]) -> None:
        """Call `accept` with the local end of every new connection to host:port."""
        self._listening[host, port] = (owner, accept)

    def unlisten(self, host: str, port: int) -> None:
        """Reject connections from now on."""
        self._listening.pop((host, port), None)

    def connect(
        self,
        owner: Process | None,
        from_host: str,
        host: str,
        port: int,
        connected: Callable[[End], None],
        failed: Callable[[bool], None],
    ) -> End:
        """Connect. Call `failed(True)` if the other machine rejects the connection, or `failed(False)` without an
        answer."""
        end = End(self, from_host, owner)
        other = End(self, host, None)
        end.peer, other.peer = other, end
        self.ends += (end, other)
        if len(self.ends) > self._prune_at:
            self.ends = [one for one in self.ends if one.held or not one.is_closed]
            self._prune_at = 2 * len(self.ends) + 64
        self._syn(end, port, connected, failed)
        return end

    def _syn(self, end: End, port: int, connected: Callable[[End], None], failed: Callable[[bool], None]) -> None:
        if end.is_closed:
            return
        if {(end.host, end.peer.host), (end.peer.host, end.host)} & self.cuts:
            span = SYN_AGAIN_US + self._chance.below(700_000)
            self.timeline.later(span, self._syn, end, port, connected, failed)
            return
        self.timeline.later(self._delay(), self._reaches, end, port, connected, failed)

    def _reaches(self, end: End, port: int, connected: Callable[[End], None], failed: Callable[[bool], None]) -> None:
        other = end.peer
        if end.is_closed:
            return
        found = self._listening.get((other.host, port))
        if found is None:
            self.timeline.later(self._delay(), end.run, failed, True)
            return
        owner, accept = found
        other.owner = owner
        # The other side's first bytes must arrive after this side has learned that the connection exists.
        other._free_at = self.timeline.now + self._delay()
        self.timeline.at(other._free_at, end.run, connected, end)
        other.run(accept, other)

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _delay(self) -> int:
        delay = self.base_us + self._chance.below(self.spread_us)
        if self.heavy and self._chance.happens(self.heavy):
            delay = int(delay * 30 / (0.01 + self._chance.unit()))
        return delay

    def transmit(self, end: End, data: bytes | None) -> None:
        """Send `data` from `end`; None ends the stream."""
        if end.held or (self.cuts and (end.host, end.peer.host) in self.cuts):
            if not end.held:
                end._held_since = self.timeline.now
                self.timeline.later(GIVE_UP_US, self._give_up, end, end._held_since)
            end.held.append(data)
            return
        self._put(end, data)

    def _put(self, end: End, data: bytes | None) -> None:
        arrival = max(self.timeline.now + self._delay(), end._free_at)
        end._free_at = arrival
        self.timeline.at(arrival, self._arrive, end, data)

    def _arrive(self, end: End, data: bytes | None) -> None:
        other = end.peer
        if other.is_closed:
            if not end.is_closed:
                self.timeline.later(self._delay(), end.broken, "connection reset by the peer")
            return
        if data is None:
            other.broken("connection closed by the peer")
        else:
            other.run(self._read, other, data)

    @staticmethod
    def _read(end: End, data: bytes) -> None:
        """Pass bytes to the owner. A frozen owner may have closed the connection before it reads."""
        if not end.is_read_closed:
            end.receive(data)

    def _give_up(self, end: End, since: int) -> None:
        if end.held and end._held_since == since:
            end.held.clear()
            end.broken("connection timed out")

    def heal(self) -> None:
        """End all cuts and send the bytes that were held back."""
        self.cuts.clear()
        self._release()

    def uncut(self, cuts: set[tuple[str, str]]) -> None:
        """End these cuts."""
        self.cuts -= cuts
        self._release()

    def _release(self) -> None:
        for end in list(self.ends):
            if end.held and (end.host, end.peer.host) not in self.cuts:
                held, end.held = end.held, deque()
                for data in held:
                    self._put(end, data)

    def break_connection(self, end: End) -> None:
        """Break a connection. One end notices at once, the other perhaps later."""
        late = self._chance.pick((0, 2_000, 500_000, 2_000_000))
        other = end.peer
        end.broken("connection reset")
        self.timeline.at(max(self.timeline.now + late, end._free_at), other.broken, "connection reset")

    def process_gone(self, process: Process, *, silent: bool) -> None:
        """Close the connections of a dead process. If `silent`, its machine is gone, too, and the other ends time
        out."""
        for address, (owner, _) in list(self._listening.items()):
            if owner is process:
                del self._listening[address]
        for end in list(self.ends):
            if end.owner is process and not end.is_closed:
                if silent:
                    end.drop_silently()
                    self.timeline.later(GIVE_UP_US, end.peer.broken, "connection timed out")
                else:
                    end.close()

    # --- for Twisted --------------------------------------------------------------------------------------------------

    def connect_twisted(self, process: Process, host: str, port: int, factory: Any, timeout: float) -> Connector:
        """Implement `connectTCP`."""
        return Connector(self, process, (host, port), factory, timeout)

    def listen_twisted(self, process: Process, port: int, factory: Any) -> Port:
        """Implement `listenTCP`."""

        def accept(end: End) -> None:
            protocol = factory.buildProtocol(Address(end.peer.host, 0))
            SimulatedTransport(process, end, protocol)

        self.listen(process.host, port, process, accept)
        return Port(self, process.host, port)


def _failure(error: Exception) -> Failure:
    return Failure(error)  # type: ignore[no-untyped-call]


def _timed_out() -> Exception:
    return ConnectTimeout()  # type: ignore[no-untyped-call]


def _refusal(why: str) -> Exception:
    return ConnectError(string=why)  # type: ignore[no-untyped-call]


class Address:
    """Host and port, like Twisted's IPv4Address."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


class Port:
    """A listening port."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self._address = Address(host, port)

    def getHost(self) -> Address:
        """Return the listening address."""
        return self._address

    def stopListening(self) -> None:
        """Reject connections from now on."""
        self._network.unlisten(self._address.host, self._address.port)


class SimulatedTransport:
    """An end of a connection as a Twisted transport."""

    def __init__(self, process: Process, end: End, protocol: Any) -> None:
        self._process = process
        self._end = end
        self._protocol = protocol
        self._is_over = False
        end.receive = protocol.dataReceived
        end.lost = self._lost
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        """Send data."""
        if not self._is_over and self._process.may_send():
            self._end.send(data)

    def loseConnection(self) -> None:
        """Close the connection after the written data."""
        self._close(ConnectionDone())

    def abortConnection(self) -> None:
        """Close the connection at once."""
        self._close(ConnectionLost())

    def _close(self, reason: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            if self._end.is_closed or self._process.may_send():
                self._end.close()
            self._process.timeline.later(TURN_US, self._process.turn, self._protocol.connectionLost, _failure(reason))

    def _lost(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._protocol.connectionLost(_failure(ConnectionLost(reason)))

    def getPeer(self) -> Address:
        """Return the address of the other end."""
        return Address(self._end.peer.host, 0)

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Do nothing, because the network accepts all bytes and never pauses a producer."""


class Connector:
    """The connection attempt, which connectTCP returns."""

    def __init__(
        self, network: Network, process: Process, address: tuple[str, int], factory: Any, timeout: float
    ) -> None:
        self._process = process
        self._factory = factory
        self._transport: SimulatedTransport | None = None
        self._is_decided = False
        self._timer = process.reactor.callLater(timeout, self._fail, _timed_out())
        self._end = network.connect(process, process.host, *address, self._connected, self._refused)

    def _connected(self, end: End) -> None:
        if self._is_decided:
            return
        self._decide()
        protocol = self._factory.buildProtocol(Address(end.peer.host, 0))
        self._transport = SimulatedTransport(self._process, end, protocol)
        if end.is_closed:
            self._transport._lost("closed at once")

    def _refused(self, _is_refused: bool) -> None:
        self._fail(_refusal("connection refused"))

    def _decide(self) -> None:
        self._is_decided = True
        if self._timer.active():
            self._timer.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._is_decided:
            self._decide()
            self._end.close()
            self._factory.clientConnectionFailed(self, _failure(error))

    def disconnect(self) -> None:
        """Cancel the attempt, or close the connection."""
        if self._transport is not None:
            self._transport.loseConnection()
        elif not self._is_decided:
            self._process.reactor.callLater(0, self._fail, _refusal("given up"))
