"""`make test`: all tests, in two rows of parts that run at once.

The tests of real processes mostly wait, for elections, sessions and timeouts. Meanwhile the tests that only compute use
the processors, with a low priority: the processes go first. The output of the computing row is shown when it is
complete; until then it is in computing.log of .venv.

Ctrl-C and SIGTERM interrupt both rows, and wait for them.

A failed test is run once more by itself, when nothing else runs, and both runs are shown: the machine may have stood
still for seconds, while a fault of ours seldom spares a test that has the machine to itself. A test that fails twice
has failed. The closing line names the tests that passed only when they were run once more (tests/repeated.py).
What is not a test, for instance a module that cannot be imported, is not run once more: it has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from coord.compiled import PURE_VARIABLE
from tests.repeated import AGAIN, FILE, closing_line

ROOT: Final = Path(__file__).resolve().parents[1]
#: pytest's exit status when tests have failed, and nothing else.
FAILED: Final = 1
#: Lower than that of everything else on the machine.
NICENESS: Final = "10"
#: How long interrupted tests may take to stop their clusters.
_END_S: Final = 30.0
_TOGETHER: Final = ("-n", "2", "--dist", "worksteal")
#: Files whose tests start processes of their own stay whole, four at a time, the longest first.
_BY_FILE: Final = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "40")
_CLUSTERS: Final = (
    *("test_planted_bugs.py", "test_ddl_stress.py", "test_hazards.py"),
    *("test_history.py", "test_replica_invariants.py"),
)
#: Files of unit tests that patch what setup.py compiles.
_PATCHING: Final = (
    *(f"tests/unit/coord/{name}" for name in ("raft/test_schedules.py", "server/peers/test_accepting.py")),
    *(f"tests/unit/coord/storage/{name}" for name in ("shared/test_log.py", "test_wal.py")),
    *("tests/unit/coord/server/test_amnesia.py", "tests/unit/regionserver/tablets/host/test_turn_refusals.py"),
    *("tests/unit/regionserver/replica/test_host.py", "tests/unit/test_recorded_calls.py"),
)
#: Tests of what setup.py compiles, for the part in which nothing is: the simulations and transcripts, which reach all
#: of it, and what can be tested in no other form. `RK_PURE=1 make test` runs everything interpreted.
COMPILED_TESTS: Final = (
    *(f"tests/sim/{name}" for name in ("store", "raft", "tablets")),
    *(f"tests/sim/cluster/{name}" for name in _CLUSTERS),
    *("tests/datadriven", *_PATCHING),
)


class Part(NamedTuple):
    """One run of pytest."""

    name: str
    words: tuple[str, ...]
    is_interpreted: bool = False


COMPUTING: Final = (
    Part("computing", (*_TOGETHER, "tests/sim", "tests/datadriven", "tests/unit")),
    Part("interpreted", (*_TOGETHER, *COMPILED_TESTS), is_interpreted=True),
)
PROCESSES: Final = (
    Part("processes", (*_BY_FILE, "tests/e2e", "tests/security")),
    Part("browser", ("tests/browser",)),
)


class Runs:
    """The runs of pytest, and the files in which they note failed tests."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._is_ended = False
        #: Held while a run is started, so that none starts after the end.
        self._starting = threading.Lock()
        self.status: dict[Part, int] = {}
        #: Where the second runs note tests that pass.
        self.repeated = folder / "repeated"
        for path in folder.glob("repeated*"):
            path.unlink()

    def row(self, parts: Sequence[Part], out: IO[Any] | None = None, niceness: str = "0") -> None:
        """Run parts one after the other. Each runs, whatever became of those before it."""
        for part in parts:
            words = ("nice", "-n", niceness, *self._pytest(*part.words))
            self.status[part] = self._run(words, part, {FILE: str(self._noted(part))}, out)

    def again(self, part: Part) -> None:
        """Run the failed tests of a part once more."""
        failed = self._failed(part)
        if self.status[part] != FAILED or not failed.exists() or not failed.read_text(encoding="utf-8"):
            return
        sys.stdout.write("== once more, by itself: what failed above\n")
        words = self._pytest("--maxfail", "1", f"@{failed}")
        self.status[part] = self._run(words, part, {FILE: str(self.repeated), AGAIN: "1"}, None)

    def end(self) -> None:
        """Interrupt what still runs, wait for it, and begin nothing more.

        Interrupted tests stop their clusters; a run killed by SIGTERM would leave them behind.
        """
        with self._starting:
            self._is_ended = True
        left = [one for one in self._started if one.poll() is None]
        try:
            for one in left:
                _signal(one, signal.SIGINT)
            for one in left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(_END_S)
        finally:
            for one in left:
                _signal(one, signal.SIGKILL)

    def _pytest(self, *words: str) -> tuple[str, ...]:
        return (self._python, "-m", "pytest", "-p", "tests.repeated", *words)

    def _noted(self, part: Part) -> Path:
        return self._folder / f"repeated-{part.name}"

    def _failed(self, part: Part) -> Path:
        return self._noted(part).with_name(f"{self._noted(part).name}.failed")

    def _run(self, words: Sequence[str], part: Part, more: dict[str, str], out: IO[Any] | None) -> int:
        title = f"== {part.name}: {' '.join(words[words.index('pytest') :])}\n"
        environment = {**os.environ, **more, **({PURE_VARIABLE: "1"} if part.is_interpreted else {})}
        with self._starting:
            if self._is_ended:
                return -signal.SIGINT
            (out or sys.stdout).write(title)
            (out or sys.stdout).flush()
            # In a group of its own, so that Ctrl-C reaches it once: `end` passes it on.
            one = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=out, stderr=out and subprocess.STDOUT, process_group=0
            )
            self._started.append(one)
        return one.wait()


def _signal(one: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a run of pytest and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(one.pid, number)


def _ended_by(number: int, _frame: object) -> None:
    sys.exit(f"ended by {signal.Signals(number).name}")


def main(python: str, folder: Path) -> int:
    """Run everything. Return the exit status."""
    runs = Runs(python, folder)
    log = folder / "computing.log"
    # A shell lets background jobs ignore SIGINT, and they would hand that on to pytest.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended_by)
    try:
        with log.open("w", encoding="utf-8") as out:
            beside = threading.Thread(target=runs.row, args=(COMPUTING, out, NICENESS), daemon=True)
            beside.start()
            runs.row(PROCESSES)
            beside.join()
        with log.open(encoding="utf-8") as lines:
            shutil.copyfileobj(lines, sys.stdout)
        for part in (*COMPUTING, *PROCESSES):
            runs.again(part)
    except KeyboardInterrupt:
        _ended_by(signal.SIGINT, None)
    finally:
        runs.end()
    names = runs.repeated.read_text(encoding="utf-8").splitlines() if runs.repeated.exists() else []
    sys.stdout.write(closing_line(names) + "\n")
    return 0 if not any(runs.status.values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run all tests")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs pytest")
    parser.add_argument("folder", type=Path, help="a directory for notes and logs")
    given = parser.parse_args()
    sys.exit(main(given.python, given.folder.resolve()))
