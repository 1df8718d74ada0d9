"""The table of planted bugs of tablets in docs/simulation.md: `python -m tests.sim.tablets.table`."""

from __future__ import annotations

import sys

from tests.sim.tablets.test_planted_bugs import LATELY, WITHIN


def table() -> str:
    """Return the rows of the table."""
    lines = []
    for bug, within in sorted(WITHIN.items(), key=lambda each: each[0].__name__):
        what = " ".join((bug.__doc__ or "").split()).rstrip(".")
        lines.append(f"| {what} | {bug.known} | {LATELY.get(bug, 1)} | {within} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
