"""Waiting for several Deferreds at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults

T = TypeVar("T")


async def gather(waiting: Iterable[Deferred[T]]) -> list[T]:
    """All results in order; raises the first failure's own exception, the other failures are dropped."""
    try:
        return list(await gatherResults(list(waiting), consumeErrors=True))
    except FirstError as error:
        if error.subFailure.value is None:
            raise
        raise error.subFailure.value from None
