"""TLS between a `StoreConnection` and its socket, on the same library as the servers' side: no other package is
needed."""

from __future__ import annotations

import ssl
from typing import Any

from twisted.internet import protocol
from twisted.internet.interfaces import ITCPTransport
from twisted.python.failure import Failure

from coord.client.connection import StoreConnection
from coord.tls.context import Engine, TlsError


class Secured(protocol.Protocol):
    """Carries one connection, and is its transport."""

    def __init__(self, inner: StoreConnection, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._engine = Engine(context, is_server=False, host=host)
        self._is_parting = False

    # --- the socket's side --------------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Twisted: TCP is connected. The hello waits in the engine until TLS is there."""
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self._inner.makeConnection(self)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Twisted: sealed bytes came."""
        try:
            plain = self._engine.unseal(data)
        except TlsError as error:
            self._part()
            self._inner.drop(f"TLS: {error}")
            return
        self._send(self._engine.take())
        if plain:
            self._inner.dataReceived(plain)
        if self._engine.is_ended:
            self._inner.drop("the server ended TLS")

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """Twisted: the socket is gone."""
        if self._engine.is_established:
            self._inner.connectionLost(reason)
        else:
            self._inner.drop("TLS: the server closed the connection in the handshake")

    # --- the connection's side ----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send these, sealed."""
        try:
            self._send(self._engine.seal([data]))
        except TlsError as error:
            self._inner.drop(f"TLS: {error}")

    def abortConnection(self) -> None:
        """Close at once, whatever still waits to be sent."""
        transport: Any = self.transport
        if transport is not None and not self._is_parting:
            transport.abortConnection()

    def _part(self) -> None:
        """Close behind the alert that tells the other side why."""
        transport: Any = self.transport
        self._is_parting = True
        self._send(self._engine.take())
        transport.loseConnection()

    def _send(self, sealed: bytes) -> None:
        if sealed and self.transport is not None:
            self.transport.write(sealed)
