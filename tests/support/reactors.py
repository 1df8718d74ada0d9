"""Running coroutines on a reactor of their own: one per test, never the global one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from tests.support.helpers import PATIENCE_S, POLL_S

T = TypeVar("T")


def in_reactor(
    main: Callable[[Any], Coroutine[Any, Any, T]],
    timeout_s: float = 2 * PATIENCE_S,
    make: Callable[[], Any] = EPollReactor,
) -> T:
    """Run `main(reactor)` to its end and return what it returns, or raise what it raises.

    After `timeout_s` the coroutine is cancelled where it stands, so that the traceback shows what it waited for.
    """
    reactor: Any = make()
    outcome: list[Any] = []

    def ended(result: Any) -> None:
        outcome.append(result)
        reactor.callLater(0, reactor.stop)

    def start() -> None:
        running = ensureDeferred(main(reactor))
        running.addTimeout(timeout_s, reactor)
        running.addBoth(ended)

    reactor.callWhenRunning(start)
    reactor.run(installSignalHandlers=False)
    result = outcome[0]
    if isinstance(result, Failure):
        result.raiseException()
    answer: T = result
    return answer


async def until(reactor: Any, check: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait, without stopping the reactor, until `check` answers something truthy, and return that."""
    for _ in range(int(timeout_s / POLL_S)):
        answer = check()
        if answer:
            return answer
        await deferLater(reactor, POLL_S)
    raise AssertionError(f"{what} not met within {timeout_s} s")


async def refusal(request: Awaitable[object] | Deferred[Any], kind: type[BaseException]) -> Any:
    """The error of `kind` that a request must end in."""
    try:
        answer = await request
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")
