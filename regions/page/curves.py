"""Curves of the last half hour: one value per second and series, in ring buffers of fixed size.

Missing values are NaN. A gap of several seconds (the process was stopped) is filled with missing values.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

#: Seconds that are kept: 30 minutes.
SECONDS: Final = 1_800
#: The series, in the order of `Curves.add`.
SERIES: Final = (
    "open",
    "moving",
    "unavailable",
    "parked",
    "servers",
    "silent",
    "requests",
    "steps",
    "opened",
    "heard",
    "turn",
    "listeners",
    "sync",
    "term",
)


class Curves:
    """All series with their common times."""

    def __init__(self, seconds: int = SECONDS) -> None:
        self._seconds = seconds
        self._values = [array("d", [math.nan] * seconds) for _ in SERIES]
        #: Second of the latest values; 0 before the first.
        self.latest_s = 0
        self._count = 0

    def add(self, second: int, values: Sequence[float]) -> None:
        """Set the values of a second, which must be later than the latest one; an earlier one is ignored."""
        assert len(values) == len(SERIES), f"{len(values)} values for {len(SERIES)} series"
        if second <= self.latest_s:
            return
        gap = min(second - self.latest_s, self._seconds) if self.latest_s else 1
        for missing in range(second - gap + 1, second):
            self._put(missing, [math.nan] * len(SERIES))
        self._put(second, values)
        self.latest_s = second
        self._count = min(self._seconds, self._count + gap)

    def _put(self, second: int, values: Sequence[float]) -> None:
        at = second % self._seconds
        for series, value in zip(self._values, values, strict=True):
            series[at] = value

    def read(self, most: int = SECONDS) -> tuple[int, list[list[float | None]]]:
        """Return the first second, and each series with its values from then on; None for a missing value."""
        count = min(most, self._count)
        first = self.latest_s - count + 1 if count else 0
        places = [(first + at) % self._seconds for at in range(count)]
        return first, [[_shown(series[at]) for at in places] for series in self._values]


def _shown(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
