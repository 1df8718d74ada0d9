"""Run coroutines on a separate reactor for each test, never on the global one."""

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
    """Run `main(reactor)` to its end. Return its result or raise its error.

    After `timeout_s` the coroutine is canceled, so that the traceback shows what it waited for.
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
    """Wait, with the reactor running, until `check` returns a truthy value, and return that value."""
    for _ in range(int(timeout_s / POLL_S)):
        answer = check()
        if answer:
            return answer
        await deferLater(reactor, POLL_S)
    raise AssertionError(f"{what} not met within {timeout_s} s")


async def refusal(request: Awaitable[object] | Deferred[Any], kind: type[BaseException]) -> Any:
    """Return the error of `kind` with which a request must end."""
    try:
        answer = await request
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")
