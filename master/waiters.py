"""Those who wait until something holds in the picture: an answer that is to come when all regions are open, say."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred


class Waiters:
    """Conditions that are looked at after every step."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], Deferred[None]]] = []

    def when(self, holds: Callable[[], bool]) -> Deferred[None]:
        """Fires with the first `wake` at which `holds()`."""
        waiter: Deferred[None] = Deferred()
        self._waiting.append((holds, waiter))
        return waiter

    def wake(self) -> None:
        """Something has changed."""
        waiting, self._waiting = self._waiting, []
        for holds, waiter in waiting:
            if waiter.called:
                continue
            if holds():
                waiter.callback(None)
            else:
                self._waiting.append((holds, waiter))

    def fail(self, error: Exception) -> None:
        """Nothing will change any more."""
        waiting, self._waiting = self._waiting, []
        for _, waiter in waiting:
            if not waiter.called:
                waiter.errback(error)
