"""What keeps a master from its work, for `/health`: a supervisor that reads 503 there may start the process again.

A short loss of the store, or an election that has to be repeated, is no illness: each reason counts only after it has
lasted for a while. A master that waits for region servers after a start of the whole cluster is well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: A session that is away for this long, or twice its timeout if that is more, does not come back by itself.
SESSION_AWAY_MS: Final = 5_000
#: An election that goes on failing for so long.
ELECTION_MS: Final = 5_000
#: A master that was elected and has not become active after so long; a hundred thousand regions take some seconds.
ACTIVATING_MS: Final = 120_000


class MasterHealth:
    """The reasons, with the times since when they hold. Times are `now_ms()`."""

    def __init__(self, now_ms: Callable[[], int], session_timeout_ms: int) -> None:
        self._now_ms = now_ms
        self._away_ms = max(SESSION_AWAY_MS, 2 * session_timeout_ms)
        self._away_since_ms: int | None = now_ms()
        self._election_since_ms: int | None = None
        self._election = ""

    def session(self, is_connected: bool) -> None:
        """Note that the session with the store is there, or away."""
        if is_connected:
            self._away_since_ms = None
        elif self._away_since_ms is None:
            self._away_since_ms = self._now_ms()

    def election_failed(self, why: str) -> None:
        """Note that this master could not stand for election."""
        if self._election_since_ms is None:
            self._election_since_ms = self._now_ms()
        self._election = why

    def stands(self) -> None:
        """Note that this master stands for election, or has won."""
        self._election_since_ms = None

    def reasons(self, store_trouble: str, activating_since_ms: int | None, phase: str) -> list[str]:
        """Return what is wrong, in words; nothing: this master is well.

        `store_trouble` is what the store's client met last. `activating_since_ms`: since when this master has been
        elected without being active, None if that is not so; `phase` is what it does meanwhile.
        """
        found: list[str] = []
        away_ms = self._for(self._away_since_ms)
        if away_ms >= self._away_ms:
            found.append(f"no session with the store for {away_ms // 1000} s: {store_trouble or 'no node answers'}")
        failing_ms = self._for(self._election_since_ms)
        if failing_ms >= ELECTION_MS:
            found.append(f"cannot stand for election for {failing_ms // 1000} s: {self._election}")
        activating_ms = self._for(activating_since_ms)
        if activating_ms >= ACTIVATING_MS and phase != "servers":
            found.append(f"elected {activating_ms // 1000} s ago and not active yet, in phase {phase or 'unknown'}")
        return found

    def _for(self, since_ms: int | None) -> int:
        return 0 if since_ms is None else self._now_ms() - since_ms
