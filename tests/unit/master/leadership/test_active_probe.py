"""What a closed port proves about the active master, and what it does not prove."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.error import TimeoutError as Late
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from coord.rpc.wire import PREAMBLE, Reply, RpcFrameReader, decode_request, encode_body, encode_frame
from master.leadership.active_probe import REFUSED_PAUSE_S, RETRY_S, ActiveProbe
from regions.messages.cluster import Accepted, Ping


def accepted(reactor: Any, *, replies: bool = True) -> Any:
    """Accept the latest connection attempt, and answer its request. Return the dialing end."""
    protocol = reactor.tcpClients[-1][2].buildProtocol(None)
    protocol.makeConnection(StringTransport())
    reactor.advance(0)
    if replies:
        [request] = RpcFrameReader().feed(protocol.transport.value())
        protocol.dataReceived(PREAMBLE + encode_frame(Reply(request.id, encode_body(Accepted()))))
    return protocol


class Port:
    """A reactor; the test answers its connection attempts."""

    def __init__(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.gone = 0
        self.active_probe = ActiveProbe(self.reactor, "h", 1, self._gone)
        self.active_probe.start()

    def _gone(self) -> None:
        self.gone += 1

    @property
    def attempts(self) -> int:
        return len(self.reactor.tcpClients)

    def accept(self, *, replies: bool = True) -> Any:
        return accepted(self.reactor, replies=replies)

    def refuse(self, error: Exception) -> None:
        self.reactor.tcpClients[-1][2].clientConnectionFailed(None, Failure(error))

    def wait(self, seconds: float) -> None:
        self.reactor.advance(seconds)


def test_a_lost_connection_and_two_refusals_prove_the_process_dead() -> None:
    port = Port()
    port.accept().connectionLost()
    port.wait(0)
    port.refuse(Refused())
    assert port.gone == 0
    port.wait(REFUSED_PAUSE_S)
    port.refuse(Refused())
    port.wait(10)
    assert (port.gone, port.attempts) == (1, 3)


# Fails if the probe only connects: the server then closes the connection after FIRST_REQUEST_S_MAX, again and again.
def test_the_connection_carries_a_request_so_that_the_active_master_keeps_it() -> None:
    port = Port()
    protocol = port.accept(replies=False)
    [request] = RpcFrameReader().feed(protocol.transport.value())
    assert decode_request(request, Ping) == Ping()


# Fails if every lost connection is dialed again at once: a process that is at its bound closes each of them.
def test_a_connection_that_was_never_kept_is_dialed_again_after_a_pause() -> None:
    port = Port()
    port.accept(replies=False).connectionLost()
    port.wait(RETRY_S / 2)
    assert port.attempts == 1
    port.wait(RETRY_S / 2)
    assert port.attempts == 2


# Fails if the attempt after a reset one waits for RETRY_S: a failover then takes a second longer.
def test_a_port_that_is_closed_after_the_connections_is_dialed_again_at_once() -> None:
    port = Port()
    port.accept().connectionLost()
    port.wait(0)
    port.accept(replies=False).connectionLost()  # the kernel has not closed the port yet
    for _ in range(2):
        port.wait(REFUSED_PAUSE_S)
        port.refuse(Refused())
    assert (port.gone, port.attempts) == (1, 4)


# Fails if the pauses stay short: a process that is at its bound closes each connection.
def test_connections_that_are_reset_again_and_again_are_dialed_more_and_more_rarely() -> None:
    port = Port()
    port.accept().connectionLost()
    port.wait(0)
    for _ in range(6):
        port.accept(replies=False).connectionLost()
        port.wait(RETRY_S)
    port.accept(replies=False).connectionLost()
    before = port.attempts
    port.wait(RETRY_S / 2)
    assert port.attempts == before


def test_an_address_that_never_answered_proves_nothing() -> None:
    """The address may be wrong, or the process not yet listening: then only the end of its session counts."""
    port = Port()
    for _ in range(5):
        port.refuse(Refused())
        port.wait(RETRY_S)
    assert port.gone == 0


def test_silence_proves_nothing() -> None:
    """The link may be cut, or the process frozen."""
    port = Port()
    port.accept().connectionLost()
    port.wait(0)
    port.refuse(Refused())
    port.wait(REFUSED_PAUSE_S)
    for _ in range(5):
        port.refuse(Late())
        port.wait(RETRY_S)
    port.refuse(Refused())
    assert port.gone == 0


def test_a_connection_between_two_refusals_resets_the_probe() -> None:
    """The process was restarted, or slow to accept."""
    port = Port()
    port.accept().connectionLost()
    port.wait(0)
    port.refuse(Refused())
    port.wait(REFUSED_PAUSE_S)
    port.accept().connectionLost()
    port.wait(0)
    port.refuse(Refused())
    assert port.gone == 0


def test_a_closed_probe_dials_no_more() -> None:
    port = Port()
    protocol = port.accept()
    port.active_probe.close()
    protocol.connectionLost()
    port.wait(10)
    assert (port.gone, port.attempts) == (0, 1)
