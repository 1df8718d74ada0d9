"""`make test` names the tests that passed only in a second run; its exit status does not depend on that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repeated import closing_line

ROOT = Path(__file__).resolve().parents[2]
NONE = "== repeated: none, no test needed a second run to pass"

#: Stands for the environment's Python: pytest ends with the next status of a list (9: status 1 without a failed test,
#: as when workers collect different tests). It writes the plugin's files: the failed tests, and in the second run one
#: test that passes.
STUB = """#!/bin/sh
test "$2" = pytest || exec {python} "$@"
status=$(head -n 1 {folder}/statuses)
sed -i 1d {folder}/statuses
if test -n "$RK_AGAIN"; then test "$status" -ne 0 || echo "test_${{RK_PURE:-0}}" >> "$RK_REPEATED"; exit $status; fi
test "$status" -ne 1 || echo test > "$RK_REPEATED.failed"
test "$status" -ne 9 || {{ : > "$RK_REPEATED.failed"; exit 1; }}
exit $status
"""


def make_test(folder: Path, statuses: list[int]) -> tuple[int, list[str], str]:
    """Return exit status and last lines of `make test`, and the statuses of pytest runs that did not take place."""
    (folder / "bin").mkdir()
    (folder / "statuses").write_text("".join(f"{one}\n" for one in statuses))
    stub = folder / "bin" / "python"
    stub.write_text(STUB.format(python=sys.executable, folder=folder))
    stub.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "RK_"))}
    words = ["make", "-s", "-o", "ready", "test", f"VENV={folder}", f"BIN={folder}/bin"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), (folder / "statuses").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("statuses", "status", "closing"),
    [
        ([0, 0, 0, 0], 0, NONE),
        ([0, 1, 0, 0, 0], 0, "== repeated: 1 test passed only when run once more: test_1"),
        ([1, 0, 0, 1, 0, 0], 0, "== repeated: 2 tests passed only when run once more: test_0, test_0"),
        ([1, 0, 0, 1, 1], 2, "== repeated: 1 test passed only when run once more: test_0"),
        ([2], 2, NONE),
        ([9], 2, NONE),
        ([0, 1, 0, 9], 2, "== repeated: 1 test passed only when run once more: test_1"),
    ],
)
def test_the_closing_line(tmp_path: Path, statuses: list[int], status: int, closing: str) -> None:
    """All four runs count; a test that fails twice, or cannot run, ends the whole, and the line is printed all the
    same."""
    found, lines, left = make_test(tmp_path, statuses)
    assert (found, lines[-1], left) == (status, closing, "")


def run_pytest(folder: Path, *words: str, again: bool = False) -> tuple[int, list[str]]:
    """Return the exit status of a run of pytest with the plugin, and the tests that would be repeated."""
    names = folder / "repeated"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RK_", "PYTEST_"))}
    environment |= {"RK_REPEATED": str(names), "PYTHONPATH": str(ROOT)} | ({"RK_AGAIN": "1"} if again else {})
    run = [sys.executable, "-m", "pytest", "-q", "-p", "tests.repeated", *words]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, (folder / "repeated.failed").read_text().splitlines()


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_the_plugin_notes_what_passes_in_the_second_run(tmp_path: Path, workers: list[str]) -> None:
    """Not failed or skipped tests, and nothing of the first run. The second run has only the failed tests."""
    (tmp_path / "test_some.py").write_text(
        "import pathlib, pytest\n"
        "def test_sound(): pass\n"
        "@pytest.mark.parametrize('name', ['of two words'])\n"
        "def test_first_time_bad(name):\n"
        "    mark = pathlib.Path('mark'); met = mark.exists(); mark.touch(); assert met\n"
        "def test_bad(): assert False\n"
        "def test_skipped(): pytest.skip()\n"
    )
    failed = ["test_some.py::test_bad", "test_some.py::test_first_time_bad[of two words]"]
    status, found = run_pytest(tmp_path, *workers, "test_some.py")
    assert (status, sorted(found)) == (1, failed)
    assert not (tmp_path / "repeated").exists()
    status, found = run_pytest(tmp_path, f"@{tmp_path}/repeated.failed", again=True)
    assert (status, sorted(found)) == (1, failed)
    assert (tmp_path / "repeated").read_text() == f"{failed[1]}\n"


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("import nosuch\n", []),
        ("import nosuch\n", ["-n", "2"]),
        ("import os, pytest\n@pytest.mark.parametrize('n', [os.getpid()])\ndef test_other(n): pass\n", ["-n", "2"]),
    ],
)
def test_what_is_no_test_is_not_run_once_more(tmp_path: Path, text: str, workers: list[str]) -> None:
    """A module that cannot be imported; workers that collect different tests. It is unknown which test to repeat."""
    (tmp_path / "test_bad.py").write_text("def test_bad(): assert False\n")
    (tmp_path / "test_other.py").write_text(text)
    status, found = run_pytest(tmp_path, "--continue-on-collection-errors", *workers)
    assert (status, found) == (1, [])


def test_no_program_takes_the_line_for_one_of_pytests() -> None:
    """Pytest prints "3 passed in 2 s"; this line never begins like that."""
    assert closing_line([]) == NONE
    assert closing_line(["a", "b"]).startswith("== repeated: 2 tests passed only when")
