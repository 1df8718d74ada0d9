"""The tests that `make test` runs once more, and those that passed only then.

As a plugin of pytest (`-p tests.repeated`) this module writes the tests that failed to the file
`<RK_REPEATED>.failed`, one node id a line: arguments of the second run (`pytest @<file>`). The file stays empty if
anything else went wrong, for instance a module that cannot be imported, or workers that did not collect the same
tests: a second run of single tests would prove nothing. In the second run (RK_AGAIN is set) the plugin adds each test
that passes to the file that RK_REPEATED names. `tests/parts.py` decides what runs, and prints the closing line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coord.compiled import PURE_VARIABLE, is_switched_on

FILE = "RK_REPEATED"
AGAIN = "RK_AGAIN"


class FirstRun:
    """Collects the failed tests. `sound` is False once anything other than a test has failed."""

    def __init__(self, repeated: Path) -> None:
        self._path = repeated.with_name(repeated.name + ".failed")
        self._path.write_text("", encoding="utf-8")
        self._failed: dict[str, None] = {}
        self._sound = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has failed in setup, call or teardown. The death of a worker is reported as its test."""
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tests that were not collected cannot be repeated."""
        if report.failed:
            self._sound = False

    def pytest_sessionfinish(self) -> None:
        """Write the arguments of the second run."""
        names = self._failed if self._sound else {}
        self._path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


class SecondRun:
    """Notes each test that passes: it failed in the first run."""

    def __init__(self, repeated: Path) -> None:
        self._path = repeated

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one test to the file."""
        if report.when == "call" and report.passed:
            name = f"{report.nodeid} (interpreted)" if is_switched_on(PURE_VARIABLE) else report.nodeid
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Take part in this run. Workers of pytest-xdist report to the process that started them, and take no part."""
    path = os.environ.get(FILE)
    if path and not hasattr(config, "workerinput"):
        run = SecondRun(Path(path)) if is_switched_on(AGAIN) else FirstRun(Path(path))
        config.pluginmanager.register(run, "regionkeeper-repeated")


def closing_line(names: list[str]) -> str:
    """Return how many tests were repeated, with their names.

    Programs look for pytest's own closing lines, "N passed" and "N failed"; this line has other words.
    """
    if not names:
        return "== repeated: none, no test needed a second run to pass"
    tests = "1 test" if len(names) == 1 else f"{len(names)} tests"
    return f"== repeated: {tests} passed only when run once more: {', '.join(names)}"
