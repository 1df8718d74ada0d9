"""Answers about all regions in transition, for callers that may ask in a loop.

A status of 100,000 regions in transition takes the master a tenth of a second in which it assigns nothing. The loop of
an operator or a dashboard must not slow the assignment down, so an answer that took long is given again for some time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: An answer is given again for this many times as long as it took: walks take at most a tenth of the master's time.
REPEATED_FOR: Final = 9
#: A walk that took less is never spared: answers about small clusters are always new.
SPARED_S: Final = 0.01


class Paced(Generic[T]):
    """The last answer of a walk, and until when it is given again."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        """`clock_s` returns seconds."""
        self._clock_s = clock_s
        self._subject: object = None
        self._answer: T | None = None
        self._until_s = 0.0

    def get(self, subject: object, walk: Callable[[], T]) -> T:
        """Return the answer about `subject`; call `walk` if the last one is about another, or too old."""
        began_s = self._clock_s()
        if self._answer is None or subject != self._subject or began_s >= self._until_s:
            self._answer, self._subject = walk(), subject
            ended_s = self._clock_s()
            took_s = ended_s - began_s
            self._until_s = ended_s + (REPEATED_FOR * took_s if took_s >= SPARED_S else 0.0)
        return self._answer
