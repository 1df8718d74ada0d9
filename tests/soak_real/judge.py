"""Says which figures still grow after everything has reached its retention. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

#: Fewer samples say nothing.
SAMPLES_MIN: Final = 9
#: A figure grows if the median rises from each third of its samples to the next one, by more than this altogether.
SHARE: Final = 0.10
#: Rises that are not growth, by the unit in which the figure is measured: garbage, files that wait for a snapshot.
SLACK: Final = {"bytes": 8 << 20, "descriptors": 8, "znodes": 30}

#: A figure's name and its unit.
Name = tuple[str, str]


class Sample(NamedTuple):
    """A figure at a time."""

    at_s: float
    value: float


class Growth(NamedTuple):
    """A figure that grows, by the medians of the first and the last third."""

    name: str
    unit: str
    before: float
    after: float

    def __str__(self) -> str:
        """Say it for people."""
        return f"{self.name}: {self.unit} rose from {self.before:,.0f} to {self.after:,.0f}"


def growth(name: Name, samples: Sequence[Sample], settled_s: float) -> Growth | None:
    """Return how a figure grows after `settled_s`, None if it is flat or has too few samples."""
    values = [one.value for one in samples if one.at_s >= settled_s]
    if len(values) < SAMPLES_MIN:
        return None
    third = len(values) // 3
    first, middle, last = (median(part) for part in (values[:third], values[third:-third], values[-third:]))
    is_growing = first < middle < last and last - first > max(SHARE * first, SLACK[name[1]])
    return Growth(*name, first, last) if is_growing else None


def judge(series: Mapping[Name, Sequence[Sample]], settle_s: float) -> tuple[list[Growth], int]:
    """Return the figures that grow, and how many had enough samples to be judged.

    The figures of a process that was started later settle later: each figure settles `settle_s` after its first sample.
    """
    judged = {
        name: samples
        for name, samples in series.items()
        if samples and sum(one.at_s >= samples[0].at_s + settle_s for one in samples) >= SAMPLES_MIN
    }
    found = [growth(name, samples, samples[0].at_s + settle_s) for name, samples in judged.items()]
    return [one for one in found if one is not None], len(judged)
