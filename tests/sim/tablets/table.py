"""The tables of planted bugs of tablets in docs/simulation.md: `python -m tests.sim.tablets.table`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tests.sim.tablets import test_merges, test_planted_bugs, test_splits
from tests.sim.tablets.bug import Bug


def table(within: Mapping[type[Bug], int], lately: Mapping[type[Bug], int]) -> str:
    """Return the rows of a table: bugs with the seed that found each lately, and the last one that must."""
    lines = []
    for bug, last in sorted(within.items(), key=lambda each: each[0].__name__):
        what = " ".join((bug.__doc__ or "").split()).rstrip(".")
        lines.append(f"| {what} | {bug.known} | {lately.get(bug, 1)} | {last} |")
    return "\n".join(lines) + "\n"


def tables() -> list[str]:
    """Return the rows of all tables: of hosts, of splits, and of merges."""
    return [table(one.WITHIN, one.LATELY) for one in (test_planted_bugs, test_splits, test_merges)]


if __name__ == "__main__":
    sys.stdout.write("\n".join(tables()))
