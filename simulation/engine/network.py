"""The network: streams of bytes between machines, as TCP gives them, with everything that TCP does not hide.

Bytes of one direction arrive in order, after delays with a heavy tail, or not at all because the connection broke. A
cut from A to B holds back what A sends; when it ends before A gives up, all of it arrives late. A connection that one
end has given up still delivers what was on its way, perhaps after its successor has begun.
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

#: How long a machine sends again without an answer before it gives a connection up.
GIVE_UP_US: Final = 4 * SECOND
SYN_AGAIN_US: Final = 300_000


class End:
    """One end of a connection. The owner sets `receive` and `lost`, which run by `run`, the owner's turns."""

    def __init__(self, network: Network, host: str, owner: Process | None) -> None:
        self.network = network
        self.host = host
        self.owner = owner
        self.peer: End
        self.receive: Callable[[bytes], object] = _ignore
        self.lost: Callable[[str], object] = _ignore
        self.is_closed = False
        #: The owner has let go of it: nothing is read any more.
        self.is_deaf = False
        #: What a cut holds back, and since when.
        self.held: deque[bytes | None] = deque()
        self._held_since = 0
        self._free_at = 0

    def send(self, data: bytes) -> None:
        """Send bytes to the other end."""
        if not self.is_closed:
            self.network.transmit(self, data)

    def close(self) -> None:
        """No more from this side; the other end hears of it behind everything that was sent."""
        self.is_deaf = True
        if not self.is_closed:
            self.is_closed = True
            self.network.transmit(self, None)

    def vanish(self) -> None:
        """This end is gone, and the other one is not told."""
        self.is_closed = self.is_deaf = True
        self.held.clear()

    def run(self, what: Callable[..., object], *arguments: Any) -> None:
        """Have the owner do something."""
        if self.owner is None:
            what(*arguments)
        else:
            self.owner.turn(what, *arguments)

    def broken(self, reason: str) -> None:
        """This end learns that the connection is gone."""
        if not self.is_closed:
            self.is_closed = True
            self.held.clear()
            self.run(self.lost, reason)


def _ignore(_: object) -> None:
    pass


class Network:
    """All machines' connections."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._chance = timeline.chance
        #: One-way cuts: (from host, to host).
        self.cuts: set[tuple[str, str]] = set()
        #: Part of the messages that are late by tens to thousands of milliseconds.
        self.heavy = 0.0
        self.base_us = 200
        self.spread_us = 800
        #: Open ends, in order of creation, and some that are not open any more.
        self.ends: list[End] = []
        self._prune_at = 64
        self._listening: dict[tuple[str, int], tuple[Process | None, Callable[[End], None]]] = {}

    # --- listening and connecting -------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, owner: Process | None, accept: Callable[[End], None]) -> None:
        """Have `accept` called with the own end of every new connection to host:port."""
        self._listening[host, port] = (owner, accept)

    def unlisten(self, host: str, port: int) -> None:
        """Refuse connections from now on."""
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
        """Connect; `failed(refused)` when the other machine says no, or (False) nothing."""
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
        # Whatever the other side says first arrives behind the news that there is a connection.
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
        """`data`, or None for the end of the stream, leaves `end`."""
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
        """The owner's turn to read; a frozen one may have let go of the connection by then."""
        if not end.is_deaf:
            end.receive(data)

    def _give_up(self, end: End, since: int) -> None:
        if end.held and end._held_since == since:
            end.held.clear()
            end.broken("connection timed out")

    def heal(self) -> None:
        """All cuts end; what they held back is on its way again."""
        self.cuts.clear()
        self._release()

    def uncut(self, cuts: set[tuple[str, str]]) -> None:
        """These cuts end."""
        self.cuts -= cuts
        self._release()

    def _release(self) -> None:
        for end in list(self.ends):
            if end.held and (end.host, end.peer.host) not in self.cuts:
                held, end.held = end.held, deque()
                for data in held:
                    self._put(end, data)

    def break_connection(self, end: End) -> None:
        """One end learns at once that the connection is gone, the other perhaps later."""
        late = self._chance.pick((0, 2_000, 500_000, 2_000_000))
        other = end.peer
        end.broken("connection reset")
        self.timeline.at(max(self.timeline.now + late, end._free_at), other.broken, "connection reset")

    def process_gone(self, process: Process, *, silent: bool) -> None:
        """A process ended: its machine tells the other ends, unless it went away as well."""
        for address, (owner, _) in list(self._listening.items()):
            if owner is process:
                del self._listening[address]
        for end in list(self.ends):
            if end.owner is process and not end.is_closed:
                if silent:
                    end.vanish()
                    self.timeline.later(GIVE_UP_US, end.peer.broken, "connection timed out")
                else:
                    end.close()

    # --- for Twisted --------------------------------------------------------------------------------------------------

    def connect_twisted(self, process: Process, host: str, port: int, factory: Any, timeout: float) -> Connector:
        """connectTCP."""
        return Connector(self, process, (host, port), factory, timeout)

    def listen_twisted(self, process: Process, port: int, factory: Any) -> Port:
        """listenTCP."""

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
    """Host and port, as Twisted's IPv4Address."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


class Port:
    """A listening port."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self._address = Address(host, port)

    def getHost(self) -> Address:
        """Where it listens."""
        return self._address

    def stopListening(self) -> None:
        """Refuse connections from now on."""
        self._network.unlisten(self._address.host, self._address.port)


class SimulatedTransport:
    """An end, as Twisted protocols see it."""

    def __init__(self, process: Process, end: End, protocol: Any) -> None:
        self._process = process
        self._end = end
        self._protocol = protocol
        self._is_over = False
        end.receive = protocol.dataReceived
        end.lost = self._lost
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        """Send."""
        if not self._is_over and self._process.may_send():
            self._end.send(data)

    def loseConnection(self) -> None:
        """Close behind what was written."""
        self._close(ConnectionDone())

    def abortConnection(self) -> None:
        """Close at once."""
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
        """The other end."""
        return Address(self._end.peer.host, 0)

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Nobody is ever told to pause: the network takes everything."""


class Connector:
    """What connectTCP returns, and the attempt itself."""

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
        """Give the attempt up, or close the connection."""
        if self._transport is not None:
            self._transport.loseConnection()
        elif not self._is_decided:
            self._process.reactor.callLater(0, self._fail, _refusal("given up"))
