"""A coroutine that acts for an origin and is never resumed: a killed process, or a request that a shutdown leaves."""

from __future__ import annotations

from collections.abc import Generator
from contextvars import copy_context
from types import coroutine

from master.causes import acting, acting_for
from regions.records.model import WorkOrigin


@coroutine
def _wait() -> Generator[None, None, None]:
    yield


def test_a_coroutine_closed_in_another_context_raises_nothing() -> None:
    origin = WorkOrigin("e1-1", "a request")
    seen: list[WorkOrigin | None] = []

    async def request() -> None:
        with acting_for(origin):
            seen.append(acting())
            await _wait()

    suspended = request()
    copy_context().run(suspended.send, None)
    assert seen == [origin]
    suspended.close()
    assert acting() is None
