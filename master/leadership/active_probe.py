"""Probes the active master's process from a standby, to notice its death before its store session expires.

A session expires seconds after its process has died. The host of a killed process closes its connections at once and
refuses new ones. So a probe that had a connection, lost it, and is then refused twice, concludes that the process is
dead, and the standby starts an election without waiting.

A timeout proves nothing: the process may be frozen, or the network may be down. In that case only the expiry of the
session ends the tenure. A wrong conclusion is harmless, because the successor's epoch fences the former active master.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.python.failure import Failure

#: Number of refused connections in a row, after a lost connection, that prove the death of the process.
REFUSALS: Final = 2
#: Pause between these attempts.
REFUSED_PAUSE_S: Final = 0.03
#: Pause after any other failed attempt.
RETRY_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 2.0


class ActiveProbe:
    """Probe of one process by an idle connection to its port. Calls `gone` at most once."""

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
        """Connect. The probe reconnects whenever the connection is lost."""
        self._retry = None
        self._connector = self._reactor.connectTCP(self._host, self._port, _Factory(self), timeout=CONNECT_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection and stop probing."""
        self._over = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        if self._connector is not None:
            self._connector.disconnect()

    def connected(self) -> None:
        """Record that the process accepts connections."""
        self._was_connected = True
        self._refused = 0

    def lost(self) -> None:
        """Reconnect at once after a lost connection."""
        self._reconnect(0)

    def failed(self, reason: Failure) -> None:
        """Count a refused connection, or retry after any other failure."""
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
    """Protocol that sends nothing and ignores what it receives."""

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
