"""`make test` names the tests that passed only in a second run; its exit status does not depend on that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import COMPILED_TESTS, COMPUTING, PROCESSES
from tests.repeated import closing_line
from tests.support.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
NONE = "== repeated: none, no test needed a second run to pass"

#: Stands for the environment's Python: pytest ends with the status that the file of its part has (9: status 1 without
#: a failed test, as when workers collect different tests). It writes the plugin's files: the failed tests, and in the
#: second run one test that passes.
STUB = """#!/bin/sh
part=$(basename "$RK_REPEATED")
if test -n "$RK_AGAIN"; then
    for failed; do part=$(basename "$failed" .failed); done
    status=$(cat {folder}/$part-again); rm {folder}/$part-again
    test "$status" -ne 0 || echo "test_${{RK_PURE:-0}}" >> "$RK_REPEATED"
    exit $status
fi
echo "$part runs"
status=$(cat {folder}/$part); rm {folder}/$part
case $status in 1) echo test > "$RK_REPEATED.failed";; *) : > "$RK_REPEATED.failed";; esac
test "$status" -ne 9 || exit 1
exit $status
"""


def all_parts(folder: Path, statuses: dict[str, int]) -> tuple[int, list[str], list[str]]:
    """Return exit status and output of all parts, and the runs of pytest that did not take place."""
    (folder / "bin").mkdir()
    made = {**dict.fromkeys((one.name for one in (*COMPUTING, *PROCESSES)), 0), **statuses}
    for name, status in made.items():
        (folder / "bin" / f"repeated-{name}").write_text(str(status))
    stub = folder / "python"
    stub.write_text(STUB.format(folder=folder / "bin"))
    stub.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RK_")}
    words = [sys.executable, "-m", "tests.parts", "--python", str(stub), str(folder)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), [one.name for one in (folder / "bin").iterdir()]


@pytest.mark.parametrize(
    ("statuses", "status", "closing"),
    [
        ({}, 0, NONE),
        (
            {"interpreted": 1, "interpreted-again": 0},
            0,
            "== repeated: 1 test passed only when run once more: test_1",
        ),
        (
            {"computing": 1, "computing-again": 0, "processes": 1, "processes-again": 0},
            0,
            "== repeated: 2 tests passed only when run once more: test_0, test_0",
        ),
        (
            {"computing": 1, "computing-again": 0, "browser": 1, "browser-again": 1},
            1,
            "== repeated: 1 test passed only when run once more: test_0",
        ),
        ({"computing": 2}, 1, NONE),
        ({"processes": 9}, 1, NONE),
        ({"browser": 5}, 1, NONE),
    ],
)
def test_all_parts_count(tmp_path: Path, statuses: dict[str, int], status: int, closing: str) -> None:
    """A test that fails twice, or cannot run, fails the whole. The other parts run all the same, and their output is
    shown."""
    found, lines, left = all_parts(tmp_path, statuses)
    assert (found, lines[-1], left) == (status, closing, [])
    assert {one for one in lines if one.endswith(" runs")} == {
        f"repeated-{one.name} runs" for one in (*COMPUTING, *PROCESSES)
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_runs_ends_with_the_whole(tmp_path: Path, number: signal.Signals) -> None:
    """The runs of pytest are interrupted, so that tests stop their clusters, and have ended before the whole does.

    Tried: SIGTERM in `Runs.end`; no wait in `Runs.end`.
    """
    (tmp_path / "pids").mkdir()
    (tmp_path / "stopped").mkdir()
    stub = tmp_path / "python"
    stub.write_text(
        f"#!/bin/sh\ntrap 'sleep 0.5; touch {tmp_path}/stopped/$$; exit 2' INT\ntouch {tmp_path}/pids/$$\n"
        "while :; do sleep 0.1; done\n"
    )
    stub.chmod(0o755)
    words = [sys.executable, "-m", "tests.parts", "--python", str(stub), str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        eventually(lambda: len(list((tmp_path / "pids").iterdir())) == 2, 30, "both rows run")
        one.send_signal(number)
    pids = {path.name for path in (tmp_path / "pids").iterdir()}
    assert {path.name for path in (tmp_path / "stopped").iterdir()} == pids
    assert one.returncode == 1
    assert not any(Path("/proc", pid).exists() for pid in pids)


def test_every_path_exists() -> None:
    """pytest would complain only when `make test` has run for minutes."""
    words = [word for part in (*COMPUTING, *PROCESSES) for word in part.words if word.startswith("tests/")]
    assert [word for word in words if not (ROOT / word).exists()] == []


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
    """The plugin notes neither failed nor skipped tests, nor tests of the first run. The second run has only the failed
    tests."""
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


def test_what_is_skipped_in_compiled_form_runs_interpreted() -> None:
    """Tried: without `tests/sim/cluster/test_history.py` in COMPILED_TESTS the test names that file."""
    marks = ("not is_interpreted()", "@needs_interpreted")
    others = set((ROOT / "tests").rglob("test_*.py")) - {Path(__file__).resolve()}
    patching = [one for one in others if any(mark in one.read_text() for mark in marks)]
    interpreted = [ROOT / one for one in COMPILED_TESTS]
    assert patching
    assert not [one for one in patching if not any(one.is_relative_to(path) for path in interpreted)]


def test_no_program_takes_the_line_for_one_of_pytests() -> None:
    """Pytest prints "3 passed in 2 s"; this line never begins like that."""
    assert closing_line([]) == NONE
    assert closing_line(["a", "b"]).startswith("== repeated: 2 tests passed only when")
