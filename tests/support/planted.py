"""Bugs that are planted on purpose: plants one for the time of a run, and searches for it.

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

#: Exceptions that a patch raises when it no longer fits the patched code. Such a run has found nothing.
MISFITS = ("AttributeError", "NameError", "TypeError", "ImportError")


def instead(owner: Any, name: str, function: Any) -> Patch:
    """Return a patch that replaces `owner.name` by `function`."""
    return mock.patch.object(owner, name, function)


class PlantedBug:
    """A planted bug; this base class plants none. The docstring of a subclass describes the bug."""

    #: Its number in the list of famous bugs (docs/simulation.md), or 0 for a bug of ours; and the place where the bug
    #: occurred.
    number = 0
    known = ""
    #: Names of the faults that reveal the bug soonest; empty for any.
    favours: tuple[str, ...] = ()

    def patches(self) -> list[Patch]:
        """Return the patches of the real code during a run."""
        return []

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug for the time of a run."""
        with ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


class Found(NamedTuple):
    """The first seed on which a bug was found, and the violation."""

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
    """Return the seeds up to `within`, from the one on which the bug was last found (0: none), to save time."""
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
    """Return the assertion that stops a run, with its type unless it is a bare one; "" if the run succeeds."""
    try:
        run()
    except AssertionError as found:
        return str(found) or type(found).__name__
    return ""
