"""A scripted server at the other end of a client's session, in memory: no sockets, no real time."""

from __future__ import annotations

import struct
from typing import Any

from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from coord.client import SessionState, ZkClient
from coord.client.connection import StoreConnection
from coord.wire import records as r
from coord.wire.client_conn import FrameReader

TIMEOUT_MS = 6000


class TestClock:
    """A monotonic clock that moves together with the reactor's timers."""

    __test__ = False

    def __init__(self, reactor: MemoryReactorClock) -> None:
        self._reactor = reactor

    def monotonic_ms(self) -> int:
        """Return a time that begins far from 0, as in life."""
        return 1_000_000 + round(self._reactor.seconds() * 1000)

    def wall_ms(self) -> int:
        """Fail: the client does not use the wall clock."""
        raise AssertionError("the client asks for no wall time")


class LowestRng:
    """Keeps the order of hosts (every swap is with itself) and picks the longest pauses."""

    def below(self, n: int) -> int:
        """Return the highest number."""
        return n - 1


class CountingTransport(StringTransport):
    """Counts writes."""

    writes = 0

    def write(self, data: bytes) -> None:
        """Count the write and pass it on."""
        self.writes += 1
        super().write(data)


class Server:
    """The server at the other end of the client's newest connection; the test scripts its replies."""

    def __init__(self, hosts: str = "a:1,b:2,c:3", timeout_ms: int = TIMEOUT_MS) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.clock = TestClock(self.reactor)
        self.client = ZkClient(self.reactor, hosts, timeout_ms, clock=self.clock, rng=LowestRng())
        self.states: list[SessionState] = []
        self.client.on_state(self.states.append)
        self.connection: StoreConnection
        self.transport: CountingTransport
        self._seen = 0
        self._reader = FrameReader(1 << 20, 1)

    def addresses(self) -> list[str]:
        """Return every address tried so far."""
        return [f"{host}:{port}" for host, port, *_ in self.reactor.tcpClients]

    def accept(self) -> r.ConnectRequest:
        """Take the newest TCP connection and read its connect request."""
        factory = self.reactor.tcpClients[-1][2]
        self.connection = factory.buildProtocol(None)
        self.transport = CountingTransport()
        self._seen = 0
        self._reader = FrameReader(1 << 20, 1)
        self.connection.makeConnection(self.transport)
        (hello,) = self.frames()
        return r.decode_connect_request(hello, 0, len(hello))

    def refuse(self) -> None:
        """Refuse the newest TCP connection."""
        self.reactor.tcpClients[-1][2].clientConnectionFailed(None, Failure(ConnectError()))

    def welcome(self, session_id: int = 77, timeout_ms: int = TIMEOUT_MS) -> None:
        """Accept the session."""
        self.reply_raw(r.encode_connect_response(r.ConnectResponse(timeout_ms, session_id, b"p" * 16)))

    def begin(self) -> None:
        """Connect the client, from the first dial to CONNECTED."""
        self.client.connect().addErrback(lambda reason: None)
        self.accept()
        self.welcome()
        self.turn()

    def turn(self, seconds: float = 0) -> None:
        """Run the reactor's due timers, `seconds` later."""
        self.reactor.advance(seconds)

    def frames(self) -> list[bytes]:
        """Return the frames that the client has written since the last call."""
        value = self.transport.value()
        frames = self._reader.feed(value[self._seen :])
        self._seen = len(value)
        block = self._reader.take_block()
        return [block[at:end] for at, end in frames]

    def requests(self) -> list[tuple[int, int, bytes]]:
        """Return (xid, opcode, body) of the requests written since the last call."""
        return [(*struct.unpack_from("!ii", frame), frame[8:]) for frame in self.frames()]

    def reply_raw(self, payload: bytes) -> None:
        """Send a frame."""
        self.connection.dataReceived(struct.pack("!i", len(payload)) + payload)

    def reply(self, xid: int, body: bytes = b"", *, err: int = 0, zxid: int = 5) -> None:
        """Answer a request."""
        self.connection.dataReceived(r.encode_reply_frame(xid, zxid, err, body))

    def event(self, event_type: int, path: bytes, zxid: int = 9) -> None:
        """Fire a watch."""
        self.connection.dataReceived(r.encode_event_frame(event_type, r.STATE_CONNECTED, path, zxid))

    def cut(self) -> None:
        """Drop the connection, as the network does."""
        self.connection.connectionLost(Failure(ConnectionDone()))


def result_of(deferred: Any) -> Any:
    """Return the result of a Deferred that has fired; raise its failure."""
    got: list[Any] = []
    deferred.addBoth(got.append)
    assert got, "not fired"
    if isinstance(got[0], Failure):
        got[0].raiseException()
    return got[0]


def pending(deferred: Any) -> bool:
    """Return True if a Deferred has not fired."""
    return not deferred.called
