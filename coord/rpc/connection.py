"""One end of an RPC connection, for `coord.rpc.server` and `coord.rpc.client`: frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IConnector, IDelayedCall, ITransport
from twisted.internet.protocol import ClientFactory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import Logger

from coord.daemon import ListeningReactor
from coord.rpc.wire import PREAMBLE, Code, Payload, RpcError, RpcFrameReader, StreamError, rejection
from coord.security import process
from coord.security.channel import IS_SECURED, ProofChannel, Unproven, address_of
from coord.security.principal import NOBODY, Principal
from coord.security.revocation import ShownCredential, known

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

    def __init__(self, reactor: RpcReactor, channel: ProofChannel | None = None) -> None:
        """`channel`: the proof that begins this connection, None for an open one."""
        self._reactor = reactor
        #: None once the handshake is done and bytes pass through unchanged.
        self._channel = channel
        #: The identity of the other end, once proved.
        self.peer: Principal = NOBODY
        #: By which credential, if it can be revoked.
        self.shown: ShownCredential | None = None
        #: True if the ends have proved nothing to each other, although this process has credentials: the cluster is
        #: being secured.
        self.is_unproven = False
        #: True if the listener is found to run without credentials.
        self.meets_open = False
        self._reader = RpcFrameReader()
        self._outbox: list[bytes] = []
        self._is_reading = False
        self.is_open = False

    def connectionMade(self) -> None:
        """Begin the proof, if there is one, and send the preamble."""
        self.is_open = True
        for option in ("setTcpNoDelay", "setTcpKeepAlive"):
            getattr(self.transport, option, lambda _on: None)(True)
        if self._channel is not None:
            self._channel.start(_socket_address(self.transport.getHost()), _socket_address(self.transport.getPeer()))
            self.transport.write(self._channel.take())
        self.send(PREAMBLE)

    def send(self, frame: bytes) -> None:
        """Queue one frame for the end of this turn, or for the end of `dataReceived`."""
        if not self._outbox and not self._is_reading:
            self._reactor.callLater(0, self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        data = b"".join(self._outbox)
        self._outbox.clear()
        if self._channel is not None and data:
            data = self._channel.send(data)
        if data and self.is_open:
            self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        """Pass on each complete payload; drop a peer that violates the protocol.

        Frames sent while payloads are processed are written at the end of this method: an additional reactor turn
        between request and reply would take longer than most replies.
        """
        self._is_reading = is_first = not self._outbox
        try:
            if self._channel is not None:
                data = self._unseal(self._channel, data)
            self.bytes_received(data)
        except StreamError as error:
            self.complain(error)
            self.drop(RpcError(error.code, str(error)))
        finally:
            self._is_reading = False
            if is_first:
                self._flush()

    def bytes_received(self, data: bytes) -> None:
        """Pass on each payload that `data` completes."""
        for payload in self._reader.feed(data):
            self.payload_received(payload)

    def _unseal(self, channel: ProofChannel, data: bytes) -> bytes:
        """Return the plain bytes in `data`, and write the handshake's own output. Raise StreamError."""
        try:
            plain = channel.receive(data)
        except Unproven as error:
            rejected = StreamError(str(error), Code.UNAUTHENTICATED)
            self.meets_open = error.is_open_daemon
            end = rejection(rejected) if error.is_open_caller else b""
            if error.is_revoked:
                end = channel.send(rejection(rejected))
            self.transport.write(channel.take() + end)
            raise rejected from error
        self.transport.write(channel.take())
        if channel.is_done and self.peer is NOBODY:
            self.peer, self.shown, self.is_unproven = channel.peer, channel.shown, channel.is_unproven
            self.proved()
        if channel.is_plain:
            self._channel = None
        return plain

    def revoked(self) -> str:
        """Return why the peer's credential is worth nothing any more, "" if it is valid."""
        if self.is_unproven:
            return "" if process.is_securing() else IS_SECURED
        return "" if self.shown is None else known().objection(self.shown)

    def complain(self, error: StreamError, more: str = "") -> None:
        """Log that the peer has violated the protocol or proved nothing; `more` ends the line."""
        who = peer_name(self.transport)
        log.warn("connection with {peer} dropped: {error}{more}", peer=who, error=error, more=more)

    def proved(self) -> None:
        """Handle the end of the handshake: `peer` is known."""

    def payload_received(self, payload: Payload) -> None:
        """Handle one complete payload."""
        raise NotImplementedError

    def drop(self, error: RpcError) -> None:  # noqa: ARG002
        """Close at once; `error` is the failure of the calls that wait on this connection."""
        self.transport.abortConnection()


def _socket_address(address: Any) -> str:
    return address_of(getattr(address, "host", address), getattr(address, "port", ""))


def peer_name(transport: ITransport) -> str:
    """Return "host:port" of the other end."""
    peer = transport.getPeer()
    return f"{getattr(peer, 'host', peer)}:{getattr(peer, 'port', '')}"
