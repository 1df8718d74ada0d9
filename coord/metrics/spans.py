"""Durations counted in buckets: what a histogram of Prometheus needs, at the cost of two additions and a bisection.

`prometheus_client.Histogram` takes two locks and visits every bucket, which takes ten times as long. A `Spans` is
written by one thread; a reader may see a count before its sum, which the next scrape corrects. Compiled, as each step
passes here. `coord.metrics.definitions` makes the metric.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper bounds of the buckets in seconds, from a fast disk's sync to a failover that takes too long.
BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: Bounds for durations of up to minutes: transitions, phases of a failover.
LONG_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Spans:
    """Counted durations in seconds."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S) -> None:
        self.bounds = bounds
        #: Durations by bucket; the last one is for those beyond the bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds


class SpansByName:
    """Counted durations by a name: a kind of request, a phase, a cause. The caller bounds the number of names."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S) -> None:
        self._bounds = bounds
        self.by_name: dict[str, Spans] = {}

    def add(self, name: str, seconds: float) -> None:
        """Count a duration of this name."""
        spans = self.by_name.get(name)
        if spans is None:
            spans = self.by_name[name] = Spans(self._bounds)
        spans.add(seconds)
