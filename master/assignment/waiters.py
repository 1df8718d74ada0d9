"""Requests that wait for a condition on the cluster state, such as all regions of a table being open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from regions.messages import TIMED_OUT

#: Longest wait of one request.
WAIT_MS_MAX: Final = 3_600_000


class Waiters:
    """Conditions that are evaluated after every step."""

    def __init__(self) -> None:
        #: The conditions with their results.
        self.waiting: list[tuple[Callable[[], bool], Deferred[None]]] = []

    def when(self, holds: Callable[[], bool]) -> Deferred[None]:
        """Return a Deferred that fires at the first `wake` at which `holds()`."""
        waiter: Deferred[None] = Deferred()
        self.waiting.append((holds, waiter))
        return waiter

    def wake(self) -> None:
        """Evaluate all conditions after a change of the cluster state. A condition that raises fails only its own
        request."""
        waiting, self.waiting = self.waiting, []
        for holds, waiter in waiting:
            if waiter.called:
                continue
            try:
                is_met = holds()
            except Exception:  # handed to the request that waits
                waiter.errback(Failure())  # type: ignore[no-untyped-call]
                continue
            if is_met:
                waiter.callback(None)
            else:
                self.waiting.append((holds, waiter))

    def fail(self, error: Exception) -> None:
        """Fail all waiting requests with `error`."""
        waiting, self.waiting = self.waiting, []
        for _, waiter in waiting:
            if not waiter.called:
                waiter.errback(error)


async def wait_within(waiter: Deferred[None], reactor: Any, wait_ms: int, so_far: Callable[[], str]) -> None:
    """Wait for `waiter`. Raise RpcError(TIMED_OUT) with the text of `so_far()` after `wait_ms`."""

    def too_late() -> None:
        if not waiter.called:
            waiter.errback(RpcError(TIMED_OUT, f"{so_far()}; the operation continues"))

    timer = reactor.callLater(min(wait_ms, WAIT_MS_MAX) / 1000, too_late)
    try:
        await waiter
    finally:
        if timer.active():
            timer.cancel()
