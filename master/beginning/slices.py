"""Long work of a new active master, a part in each turn of the reactor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.task import deferLater


async def in_slices(reactor: Any, steps: Iterable[object]) -> None:
    """Run through `steps`, one in each turn: heartbeats, the session and other masters are served in between."""
    for _ in steps:
        await deferLater(reactor, 0, lambda: None)
