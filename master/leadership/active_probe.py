"""A standby's eye on the process of the active master: dead is known at once where its host says so.

A session ends seconds after its owner died. A process that is killed closes its connections at that instant, and its
host refuses new ones. Whoever had a connection, lost it, and is refused twice, knows that nobody listens there any
more: then the place can be taken over without waiting. Silence proves nothing (a frozen process, a cut link): only the
session's end does. A wrong conclusion is harmless, for the successor's epoch fences the one that was thought dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.python.failure import Failure

#: So many refusals in a row, so far apart, after a connection that was lost.
REFUSALS: Final = 2
REFUSED_PAUSE_S: Final = 0.03
#: Pause after anything else that keeps a connection from being made.
RETRY_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 2.0


class ActiveProbe:
    """Watches one process by an idle connection to its port; calls `gone` at most once."""

    def __init__(self, reactor: Any, host: str, port: int, gone: Callable[[], None]) -> None:
        self._reactor = reactor
        self._host = host
        self._port = port
        self._gone = gone
        self._was_connected = False
        self._refused = 0
        self._over = False
        self._connector: Any = None
        self._retry: IDelayedCall | None = None

    def start(self) -> None:
        """Connect, and again whenever the connection is lost."""
        self._retry = None
        self._connector = self._reactor.connectTCP(self._host, self._port, _Factory(self), timeout=CONNECT_TIMEOUT_S)

    def close(self) -> None:
        """Look away."""
        self._over = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        if self._connector is not None:
            self._connector.disconnect()

    def connected(self) -> None:
        """Somebody listens."""
        self._was_connected = True
        self._refused = 0

    def lost(self) -> None:
        """The connection was closed: look whether anybody is still there."""
        self._reconnect(0)

    def failed(self, reason: Failure) -> None:
        """No connection."""
        if not isinstance(reason.value, Refused):
            self._refused = 0
            self._reconnect(RETRY_S)
            return
        self._refused += 1
        if not self._was_connected or self._refused < REFUSALS:
            self._reconnect(REFUSED_PAUSE_S if self._was_connected else RETRY_S)
        elif not self._over:
            self._over = True
            self._gone()

    def _reconnect(self, pause_s: float) -> None:
        if not self._over:
            self._retry = self._reactor.callLater(pause_s, self.start)


class _Idle(Protocol):
    """Says nothing; whatever is said to it is ignored."""

    def __init__(self, active_probe: ActiveProbe) -> None:
        self._active_probe = active_probe

    def connectionMade(self) -> None:
        self._active_probe.connected()

    def connectionLost(self, reason: Failure | None = None) -> None:  # noqa: ARG002
        self._active_probe.lost()


class _Factory(ClientFactory):
    noisy = False

    def __init__(self, active_probe: ActiveProbe) -> None:
        self._active_probe = active_probe

    def buildProtocol(self, addr: Any) -> _Idle:  # noqa: ARG002
        return _Idle(self._active_probe)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:  # noqa: ARG002
        self._active_probe.failed(reason)
