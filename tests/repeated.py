"""Which tests passed only when `make test` ran them once more.

As a plugin of pytest (`-p tests.repeated`, in the second run alone) this module adds each test that passes to the file
that RK_REPEATED names. As a program it prints the closing line of `make test` from that file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FILE = "RK_REPEATED"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that passes now: it is here because it failed before."""
    path = os.environ.get(FILE)
    if path and report.when == "call" and report.passed:
        name = f"{report.nodeid} (interpreted)" if os.environ.get("RK_PURE") else report.nodeid
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def closing_line(names: list[str]) -> str:
    """Return how many tests were repeated, with their names.

    Programs look for pytest's own closing lines, "N passed" and "N failed"; this line has other words.
    """
    if not names:
        return "== repeated: none, no test needed a second run to pass"
    tests = "1 test" if len(names) == 1 else f"{len(names)} tests"
    return f"== repeated: {tests} passed only when run once more: {', '.join(names)}"


def main(path: Path) -> None:
    """Print the closing line."""
    names = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    sys.stdout.write(closing_line(names) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
