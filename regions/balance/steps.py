"""Work in steps, so that its caller can do one in each turn of the reactor. Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    """Run through all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
