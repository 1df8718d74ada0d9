"""TLS below any Twisted factory that listens, on the `ssl` module: needs no other package."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import Any

from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

from coord.tls.context import Engine, TlsError


class TlsConnection(ProtocolWrapper):
    """One accepted connection, and the transport of the protocol above."""

    def __init__(self, factory: WrappingFactory, wrapped: Any, context: ssl.SSLContext) -> None:
        super().__init__(factory, wrapped)  # type: ignore[arg-type]
        self.engine = Engine(context, is_server=True)

    def dataReceived(self, data: bytes) -> None:
        """Pass on the plain bytes; end a connection that breaks the rules of TLS."""
        transport: Any = self.transport
        try:
            plain = self.engine.unseal(data)
        except TlsError:
            transport.write(self.engine.take())
            transport.loseConnection()
            return
        transport.write(self.engine.take())
        if plain:
            super().dataReceived(plain)  # type: ignore[no-untyped-call]
        if self.engine.is_ended:
            transport.loseConnection()

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        transport: Any = self.transport
        try:
            transport.write(self.engine.seal([data]))
        except TlsError:
            transport.abortConnection()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Encrypt and send."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Send the end of the TLS session, and close when everything is sent."""
        transport: Any = self.transport
        transport.write(self.engine.close_notify())
        super().loseConnection()  # type: ignore[no-untyped-call]


class TlsFactory(WrappingFactory):
    """A factory whose connections speak TLS. `context` returns that of a connection which is accepted now."""

    noisy = False

    def __init__(self, wrapped: Any, context: Callable[[], ssl.SSLContext]) -> None:
        super().__init__(wrapped)  # type: ignore[no-untyped-call]
        self._context = context

    def buildProtocol(self, addr: Any) -> Any:
        """Return the protocol of a new connection, None if the factory above accepts no more connections."""
        made = self.wrappedFactory.buildProtocol(addr)
        return None if made is None else TlsConnection(self, made, self._context())
