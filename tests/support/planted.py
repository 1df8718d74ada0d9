"""Bugs that are planted on purpose: how they are planted for the time of a run, and how they are looked for.

A simulation that finds nothing proves nothing. Each simulation has a list of bugs that systems like ours have had; each
bug must be found within a number of seeds. This module imports nothing of the product, so every simulation can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

Patch = AbstractContextManager[Any]

#: Exceptions that a patch raises when it no longer fits the code it stands in for. Such a run has found nothing.
MISFITS = ("AttributeError", "NameError", "TypeError", "ImportError")


def instead(owner: Any, name: str, function: Any) -> Patch:
    """Return a patch by which `function` stands for `owner.name`."""
    return mock.patch.object(owner, name, function)


class PlantedBug:
    """A bug; this one is none. Subclasses say in their docstring what goes wrong."""

    #: Its place in the list of famous bugs (docs/simulation.md), 0: it is ours alone; and where it was seen.
    number = 0
    known = ""
    #: Names of the faults among which it shows soonest; empty: any.
    favours: tuple[str, ...] = ()

    def patches(self) -> list[Patch]:
        """Return what stands in for the real code during a run."""
        return []

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug for the time of a run."""
        with ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


class Found(NamedTuple):
    """The first seed on which a bug was found, and what was violated."""

    seed: int
    violation: str


def hunt(attempt: Callable[[int], str], seeds: Iterable[int]) -> Found | None:
    """Return the first of the seeds on which `attempt` returns a violation; None if it returns "" on all.

    Raise AssertionError for a violation that is a fault of the planted bug itself.
    """
    for seed in seeds:
        violation = attempt(seed)
        if violation:
            assert not any(name in violation for name in MISFITS), f"the planted bug does not fit: {violation}"
            return Found(seed, violation)
    return None


def first_lately(lately: int, within: int) -> Iterator[int]:
    """Return the seeds up to `within`, after the one on which the bug was found lately (0: none), to save time."""
    if lately:
        yield lately
    yield from (seed for seed in range(1, within + 1) if seed != lately)


def hunt_at_sizes(run: Callable[[int, int], object], sizes: Iterable[int], seeds: Iterable[int]) -> Found | None:
    """Return the first seed on which `run(seed, size)` is stopped at one of the sizes; see `hunt`."""

    def attempt(seed: int) -> str:
        tries = (violation_of(partial(run, seed, size)) for size in sizes)
        return next(filter(None, tries), "")

    return hunt(attempt, seeds)


def violation_of(run: Callable[[], object]) -> str:
    """Return the assertion that stops a run, with its type unless it is a bare one; "" if the run ends well."""
    try:
        run()
    except AssertionError as found:
        return str(found) or type(found).__name__
    return ""
