"""`make test` names what passed only when it was run once more; its exit status does not depend on that."""

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

#: Stands for the environment's Python: pytest ends with the next status of a list, and a second run that passes notes
#: one test, as the plugin does.
STUB = """#!/bin/sh
test "$2" = pytest || exec {python} "$@"
status=$(head -n 1 {folder}/statuses)
sed -i 1d {folder}/statuses
case "$*" in *tests.repeated*) test "$status" -ne 0 || echo "test_${{RK_PURE:-0}}" >> "$RK_REPEATED";; esac
exit $status
"""


def make_test(folder: Path, statuses: list[int]) -> tuple[int, list[str], str]:
    """Return exit status and last lines of `make test`, and the statuses of pytest runs that did not happen."""
    (folder / "bin").mkdir()
    (folder / "statuses").write_text("".join(f"{one}\n" for one in statuses))
    stub = folder / "bin" / "python"
    stub.write_text(STUB.format(python=sys.executable, folder=folder))
    stub.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "RK_"))}
    words = ["make", "-s", "-o", "lint", "-o", f"{folder}/compiled", "test", f"VENV={folder}", f"BIN={folder}/bin"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), (folder / "statuses").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("statuses", "status", "closing"),
    [
        ([0, 0, 0], 0, NONE),
        ([0, 1, 0, 0], 0, "== repeated: 1 test passed only when run once more: test_1"),
        ([1, 0, 0, 1, 0], 0, "== repeated: 2 tests passed only when run once more: test_0, test_0"),
        ([1, 0, 0, 1, 1], 2, "== repeated: 1 test passed only when run once more: test_0"),
        ([2], 2, NONE),
    ],
)
def test_the_closing_line(tmp_path: Path, statuses: list[int], status: int, closing: str) -> None:
    """All three runs count; one that fails twice, or cannot run, ends the whole, and the line is there all the same."""
    found, lines, left = make_test(tmp_path, statuses)
    assert (found, lines[-1], left) == (status, closing, "")


def test_the_plugin_notes_what_passes_in_the_second_run(tmp_path: Path) -> None:
    """Not what fails or is skipped, and nothing of the first run."""
    (tmp_path / "test_some.py").write_text(
        "import pathlib, pytest\n"
        "def test_sound(): pass\n"
        "def test_first_time_bad():\n"
        "    mark = pathlib.Path('mark'); met = mark.exists(); mark.touch(); assert met\n"
        "def test_bad(): assert False\n"
        "def test_skipped(): pytest.skip()\n"
    )
    names = tmp_path / "repeated"
    environment = {**os.environ, "RK_REPEATED": str(names), "PYTHONPATH": str(ROOT)}
    environment.pop("RK_PURE", None)
    run = [sys.executable, "-m", "pytest", "-q", "test_some.py"]
    again = ["--last-failed", "--last-failed-no-failures", "none", "-p", "tests.repeated"]
    for words, status in ((run, 1), ([*run, *again], 1)):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout
    assert names.read_text() == "test_some.py::test_first_time_bad\n"


def test_no_program_takes_the_line_for_one_of_pytests() -> None:
    """Pytest says "3 passed in 2 s", this line never begins so."""
    assert closing_line([]) == NONE
    assert closing_line(["a", "b"]).startswith("== repeated: 2 tests passed only when")
