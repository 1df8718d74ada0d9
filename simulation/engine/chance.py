"""Seeded random numbers: everything random in a simulation draws from a `SeededRandom`, in one order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """A stream of random numbers; also the `Rng` and the `Entropy` of simulated processes."""

    def __init__(self, seed: int | str) -> None:
        """Seed the stream. Streams of different seeds are independent."""
        self._random = random.Random(seed)
        self.unit = self._random.random

    def below(self, n: int) -> int:
        """Return a number in [0, n)."""
        return int(self.unit() * n)

    def between(self, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self.unit()

    def happens(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.unit() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[int(self.unit() * len(choices))]

    def some(self, choices: Sequence[T]) -> list[T]:
        """Return a random subset of the choices in their order; the subset may be empty or complete."""
        return [choice for choice in choices if self.unit() < 0.5]

    def token(self, size: int) -> bytes:
        """Return `size` random bytes."""
        return self._random.randbytes(size)
