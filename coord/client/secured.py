"""TLS between a `StoreConnection` and its socket, on the `ssl` module as on the server side: needs no other package."""

from __future__ import annotations

import ssl
from typing import Any

from twisted.internet import protocol
from twisted.internet.interfaces import ITCPTransport
from twisted.python.failure import Failure

from coord.client.connection import StoreConnection
from coord.tls.context import Engine, TlsError


class Secured(protocol.Protocol):
    """Runs TLS for one connection and serves as its transport."""

    def __init__(self, inner: StoreConnection, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._engine = Engine(context, is_server=False, host=host)
        self._is_closing = False

    # --- the socket's side --------------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Twisted: TCP is connected. The engine holds the connect request until the TLS handshake ends."""
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self._inner.makeConnection(self)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Twisted: receive encrypted bytes."""
        try:
            plain = self._engine.unseal(data)
        except TlsError as error:
            self._close_after_alert()
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
        """Encrypt and send."""
        try:
            self._send(self._engine.seal([data]))
        except TlsError as error:
            self._inner.drop(f"TLS: {error}")

    def abortConnection(self) -> None:
        """Close at once and discard unsent bytes."""
        transport: Any = self.transport
        if transport is not None and not self._is_closing:
            transport.abortConnection()

    def _close_after_alert(self) -> None:
        """Send the TLS alert with the reason, then close."""
        transport: Any = self.transport
        self._is_closing = True
        self._send(self._engine.take())
        transport.loseConnection()

    def _send(self, sealed: bytes) -> None:
        if sealed and self.transport is not None:
            self.transport.write(sealed)
