"""CPU time of the layers of a program, on all threads. The time of a layer excludes the layers that it calls."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any


class Layers:
    """Times functions by the layer to which they belong."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._all: list[dict[str, list[int]]] = []

    def watch(self, layer: str, owner: Any, *names: str) -> None:
        """Count the CPU time of functions of a class or a module for `layer`, until the process ends."""
        for name in names:
            setattr(owner, name, self.timed(layer, getattr(owner, name)))

    def timed(self, layer: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of the function that measures its time."""

        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            # Time of the callees of each call in progress on this thread.
            try:
                callees, totals = self._here.callees, self._here.totals
            except AttributeError:
                callees, totals = self._begin_thread()
            callees.append(0)
            began = time.thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                whole = time.thread_time_ns() - began
                inner = callees.pop()
                if callees:
                    callees[-1] += whole
                total = totals.setdefault(layer, [0, 0])
                total[0] += whole - inner
                total[1] += 1

        return run

    def _begin_thread(self) -> tuple[list[int], dict[str, list[int]]]:
        self._here.callees = []
        self._here.totals = {}
        self._all.append(self._here.totals)
        return self._here.callees, self._here.totals

    def clear(self) -> None:
        """Reset all times."""
        for totals in self._all:
            totals.clear()

    def spent(self) -> dict[str, tuple[int, int]]:
        """Return CPU nanoseconds and calls of each layer."""
        sums: dict[str, tuple[int, int]] = {}
        for totals in self._all:
            for layer, (spent, calls) in list(totals.items()):
                before = sums.get(layer, (0, 0))
                sums[layer] = before[0] + spent, before[1] + calls
        return sums
