"""Health of a master for `/health`. A supervisor may restart a process that returns 503.

A short loss of the store connection, or a repeated election, is normal: a reason counts only after it has lasted for
some time. A master that waits for region servers after a start of the whole cluster is healthy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: A session that is lost for this long, or for twice its timeout if longer, does not recover by itself.
SESSION_AWAY_MS: Final = 5_000
#: The master is unhealthy if it has failed to enter the election for this long.
ELECTION_MS: Final = 5_000
#: Time after the election after which a master that is not active yet counts as unhealthy. 100,000 regions take some
#: seconds.
ACTIVATING_MS: Final = 120_000


class MasterHealth:
    """Reasons why a master is unhealthy, each with the time since when it holds. Times are `now_ms()`."""

    def __init__(self, now_ms: Callable[[], int], session_timeout_ms: int) -> None:
        self._now_ms = now_ms
        self._away_ms = max(SESSION_AWAY_MS, 2 * session_timeout_ms)
        self._away_since_ms: int | None = now_ms()
        self._election_since_ms: int | None = None
        self._election = ""

    def session(self, is_connected: bool) -> None:
        """Record whether the store session is connected."""
        if is_connected:
            self._away_since_ms = None
        elif self._away_since_ms is None:
            self._away_since_ms = self._now_ms()

    def election_failed(self, why: str) -> None:
        """Record that this master could not enter the election."""
        if self._election_since_ms is None:
            self._election_since_ms = self._now_ms()
        self._election = why

    def election_entered(self) -> None:
        """Record that this master has entered the election."""
        self._election_since_ms = None

    def reasons(self, store_trouble: str, activating_since_ms: int | None, phase: str) -> list[str]:
        """Return the reasons why this master is unhealthy; empty for a healthy one.

        `store_trouble` is the last error of the store client. `activating_since_ms` is the time of the election that
        this master has won, None unless the master is still activating; `phase` is its current phase.
        """
        found: list[str] = []
        away_ms = self._for(self._away_since_ms)
        if away_ms >= self._away_ms:
            found.append(f"no session with the store for {away_ms // 1000} s: {store_trouble or 'no node answers'}")
        failing_ms = self._for(self._election_since_ms)
        if failing_ms >= ELECTION_MS:
            found.append(f"cannot enter the election for {failing_ms // 1000} s: {self._election}")
        activating_ms = self._for(activating_since_ms)
        if activating_ms >= ACTIVATING_MS and phase != "servers":
            found.append(f"elected {activating_ms // 1000} s ago and not active yet, in phase {phase or 'unknown'}")
        return found

    def _for(self, since_ms: int | None) -> int:
        return 0 if since_ms is None else self._now_ms() - since_ms
