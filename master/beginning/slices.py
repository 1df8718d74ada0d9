"""Long work of a new active master, a part in each turn of the reactor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.task import deferLater

from coord.daemon import keep_new_objects


async def in_slices(reactor: Any, steps: Iterable[object]) -> None:
    """Run through `steps`, one in each turn: heartbeats, the session and other masters are served in between.

    The steps load or index what stays, which the garbage collector need not visit.
    """
    for _ in steps:
        keep_new_objects()
        await deferLater(reactor, 0, lambda: None)
