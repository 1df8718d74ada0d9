"""One end of an RPC connection, for `coord.rpc.server` and `coord.rpc.client`: frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IConnector, IDelayedCall, ITransport
from twisted.internet.protocol import ClientFactory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger

from coord.daemon import ListeningReactor
from coord.rpc.wire import PREAMBLE, Code, Payload, RpcError, RpcFrameReader, StreamError

__all__ = ["REQUESTS_MAX", "Frames", "RpcReactor", "peer_name"]

log = Logger()

#: Bound of requests in progress per connection of the server, and of pending calls per client.
REQUESTS_MAX: Final = 4096


class RpcReactor(ListeningReactor, Protocol):
    """The part of a reactor that RPC uses: time and TCP."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> IDelayedCall: ...
    def seconds(self) -> float: ...
    def connectTCP(self, host: str, port: int, factory: ClientFactory, timeout: float = ...) -> IConnector: ...


class Frames(TwistedProtocol):
    """One end of a connection: receives frames, and sends all queued frames in one write per turn."""

    transport: Any

    def __init__(self, reactor: RpcReactor) -> None:
        self._reactor = reactor
        self._reader = RpcFrameReader()
        self._outbox: list[bytes] = []
        self._is_reading = False
        self.is_open = False

    def connectionMade(self) -> None:
        """Send the preamble."""
        self.is_open = True
        for option in ("setTcpNoDelay", "setTcpKeepAlive"):
            getattr(self.transport, option, lambda _on: None)(True)
        self.send(PREAMBLE)

    def send(self, frame: bytes) -> None:
        """Queue one frame for the end of this turn, or for the end of `dataReceived`."""
        if not self._outbox and not self._is_reading:
            self._reactor.callLater(0, self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        data = b"".join(self._outbox)
        self._outbox.clear()
        if data and self.is_open:
            self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        """Pass on each complete payload; drop a peer that violates the protocol.

        Frames sent while payloads are processed are written at the end of this method: an additional reactor turn
        between request and reply would take longer than most replies.
        """
        self._is_reading = is_first = not self._outbox
        try:
            self.bytes_received(data)
        except StreamError as error:
            log.warn("connection with {peer} dropped: {error}", peer=peer_name(self.transport), error=error)
            self.drop(RpcError(Code.PROTOCOL, str(error)))
        finally:
            self._is_reading = False
            if is_first:
                self._flush()

    def bytes_received(self, data: bytes) -> None:
        """Pass on each payload that `data` completes."""
        for payload in self._reader.feed(data):
            self.payload_received(payload)

    def payload_received(self, payload: Payload) -> None:
        """Handle one complete payload."""
        raise NotImplementedError

    def drop(self, error: RpcError) -> None:  # noqa: ARG002
        """Close at once; `error` is the failure of the calls that wait on this connection."""
        self.transport.abortConnection()


def peer_name(transport: ITransport) -> str:
    """Return "host:port" of the other end."""
    peer = transport.getPeer()
    return f"{getattr(peer, 'host', peer)}:{getattr(peer, 'port', '')}"
