"""Run a planning process and watch it: progress lines, seconds, and the memory of the process and its children."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.background import Background

#: Interval between two reads of the memory.
LOOK_S: Final = 0.1
#: Time limit of a process.
PATIENCE_S: Final = 3600


class Run:
    """Result of one process. `stages` has the seconds since its start, by stage."""

    def __init__(self, stages: dict[str, float], peak_bytes: int, error: str) -> None:
        self.stages = stages
        self.peak_bytes = peak_bytes
        self.error = error


def run(module: str, *arguments: str) -> Run:
    """Run `python -m module`, which prints progress lines, to its end."""
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=root,
    )
    peak = _Peak(process.pid)
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    finally:
        peak.stop()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    stages = {line["stage"]: float(line["seconds"]) for line in lines}
    error = ""
    if process.returncode:
        said = next((line["message"] for line in lines if line["stage"] == "failed"), "")
        error = said or (err.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return Run(stages, peak.bytes, error)


class _Peak(Background):
    """The highest memory of a process and its descendants together. Shared pages count once."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.bytes = 0
        self._pid = pid
        self.start()

    def _run(self) -> None:
        dear_until = 0.0
        while True:
            family = list(_family(self._pid))
            # The peak of a single process is cheap to read, the sum is expensive: it may take at most a fiftieth of the
            # time.
            self.bytes = max([self.bytes, *(_most_ever(pid) for pid in family)])
            began = time.monotonic()
            if len(family) > 1 and began > dear_until:
                self.bytes = max(self.bytes, sum(_memory(pid) for pid in family))
                dear_until = began + 50 * (time.monotonic() - began)
            if self._is_over.wait(LOOK_S):
                return


def _family(pid: int) -> Iterator[int]:
    """Yield the process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _memory(pid: int) -> int:
    """Return the memory of a process with its part of shared pages (PSS), in bytes; 0 if the process has ended."""
    return _from_proc(f"/proc/{pid}/smaps_rollup", "Pss:")


def _most_ever(pid: int) -> int:
    """Return the peak memory of the process itself, in bytes."""
    return _from_proc(f"/proc/{pid}/status", "VmHWM:")


def _from_proc(path: str, name: str) -> int:
    """Return a value in kilobytes as bytes; 0 if the process has ended."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def machine() -> dict[str, Any]:
    """Return cores and load of the machine, for the record."""
    return {"cores": os.cpu_count() or 1, "load": round(os.getloadavg()[0], 1)}
