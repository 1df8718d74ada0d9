"""Seeded chance. Everything random in a simulation draws from one of these, in one order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """A stream of random numbers; also the `Rng` of the cores."""

    def __init__(self, seed: int) -> None:
        self.unit = random.Random(seed).random

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
        """A random part of the choices, in their order; may be empty or all."""
        return [choice for choice in choices if self.unit() < 0.5]
