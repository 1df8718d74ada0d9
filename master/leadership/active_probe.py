"""Probes the active master's process from a standby, to notice its death before its store session expires.

A session expires seconds after its process has died. The host of a killed process closes its connections at once and
refuses new ones. So a probe that had a connection, lost it, and is then refused twice, concludes that the process is
dead, and the standby starts an election without waiting.

The probe sends one request: the active master keeps a connection from then on, and closes one without a request after a
while (`coord.rpc.budgets`).

The kernel closes a killed process's connections and its port one after the other. So an attempt in between is accepted
and then reset, which proves nothing; the next one follows at once. Later attempts that fail in this way wait longer and
longer, because a process that is at its bound of connections looks the same.

A timeout proves nothing: the process may be frozen, or the network may be down. In that case only the expiry of the
session ends the tenure. A wrong conclusion is harmless, because the successor's epoch fences the former active master.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from coord.rpc.client import RpcClient
from regions.messages.cluster import Accepted, Ping

#: Number of refused connections in a row, after a lost connection, that prove the death of the process.
REFUSALS: Final = 2
#: Pause between these attempts.
REFUSED_PAUSE_S: Final = 0.03
#: Longest pause after any other failed attempt. After the loss of a connection that the process had kept, the pauses
#: begin with REFUSED_PAUSE_S and double.
RETRY_S: Final = 1.0


class ActiveProbe:
    """Probe of one process by an idle connection to its port. Calls `gone` at most once."""

    def __init__(self, reactor: Any, host: str, port: int, gone: Callable[[], None]) -> None:
        self._reactor = reactor
        self._client = RpcClient(reactor, host, port, lost=self._lost)
        self._gone = gone
        #: True while the process keeps the connection.
        self._is_kept = False
        self._has_answered = False
        self._refused = 0
        self._pause_s = RETRY_S
        self._over = False
        self._retry: IDelayedCall | None = None

    def start(self) -> None:
        """Connect. The probe reconnects whenever the connection is lost."""
        self._retry = None
        self._client.call(Ping(), expect=Accepted).addCallbacks(self._answered, self._failed)

    def close(self) -> None:
        """Close the connection and stop probing."""
        self._over = True
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._client.close()

    def _answered(self, _reply: Accepted) -> None:
        self._is_kept = self._has_answered = True
        self._refused = 0

    def _lost(self) -> None:
        """Reconnect at once after a lost connection."""
        if self._is_kept:
            self._is_kept = False
            self._pause_s = REFUSED_PAUSE_S
            self._reconnect(0)

    def _failed(self, failure: Failure) -> None:
        """Count a refused connection, or retry after any other failure."""
        error = failure.value
        if error is None or not isinstance(error.__cause__, Refused):
            self._refused = 0
            self._reconnect(self._pause_s)
            self._pause_s = min(2 * self._pause_s, RETRY_S)
            return
        self._refused += 1
        if not self._has_answered or self._refused < REFUSALS:
            self._reconnect(REFUSED_PAUSE_S if self._has_answered else RETRY_S)
        elif not self._over:
            self._over = True
            self._gone()

    def _reconnect(self, pause_s: float) -> None:
        if not self._over:
            self._retry = self._reactor.callLater(pause_s, self.start)
