"""The sum of a value over the replicas of each server: bytes or load. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from regions.cluster.entities import Replica

Floats = npt.NDArray[np.float64]


class Metric:
    """A sum over a server's replicas: bytes or load."""

    def __init__(self, part: Floats, of: Callable[[Replica], float]) -> None:
        """`part` is each server's part of the whole that it should have; `of` returns a replica's value."""
        self.held: Floats = np.zeros(len(part))
        self.part = part
        self.of = of

    def add(self, replica: Replica, number: int) -> None:
        """Add a replica to the server with that number."""
        self.held[number] += self.of(replica)

    def take(self, replica: Replica, number: int) -> None:
        """Take a replica from the server with that number."""
        self.held[number] -= self.of(replica)

    def due(self) -> Floats:
        """Return each server's share."""
        due: Floats = self.held.sum() * self.part
        return due

    def over(self) -> Floats:
        """Return each server's amount beyond its share."""
        return self.held - self.due()

    def ratio(self) -> float:
        """Return the highest amount of a server relative to its share; 0 without amounts."""
        due = self.due()
        return round(float((self.held / due).max()), 3) if len(due) and due.min() > 0 else 0.0

    def extremes(self, tolerance: float, leave: Collection[int]) -> tuple[int, list[int]] | None:
        """Return the server furthest above its share, and the servers below it in order of need.

        Return None if all servers are within the tolerance. Servers in `leave` are not returned as the first.
        """
        due, over = self.due(), self.over()
        if len(due) < 2 or due.min() <= 0:
            return None
        far = over / due
        order = np.argsort(far, kind="stable").tolist()
        givers = [number for number in reversed(order) if number not in leave]
        if not givers:
            return None
        source = givers[0]
        low = [number for number in order if number != source and over[number] < over[source]]
        if far[source] <= tolerance and (not low or -far[low[0]] <= tolerance or far[source] <= 0):
            return None
        return int(source), [int(number) for number in low]
