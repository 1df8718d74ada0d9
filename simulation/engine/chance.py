"""Seeded chance: whatever is random in a simulation draws from a stream of this kind, in one order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """A stream of random numbers; also the `Rng` and the `Entropy` of what is simulated."""

    def __init__(self, seed: int | str) -> None:
        """Streams of different seeds have nothing to do with each other."""
        self._random = random.Random(seed)
        self.unit = self._random.random

    def below(self, n: int) -> int:
        """A number in [0, n)."""
        return int(self.unit() * n)

    def between(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.unit()

    def happens(self, probability: float) -> bool:
        """True with that probability."""
        return self.unit() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[int(self.unit() * len(choices))]

    def some(self, choices: Sequence[T]) -> list[T]:
        """Return a random part of the choices, in their order; may be empty or all."""
        return [choice for choice in choices if self.unit() < 0.5]

    def token(self, size: int) -> bytes:
        """`size` bytes that nobody can guess who does not know the seed."""
        return self._random.randbytes(size)
