"""Run a planning process and watch it: its progress lines, its seconds, the memory of it and all its children."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

#: How often memory is looked at.
LOOK_S: Final = 0.1
#: A process is given up after so long.
PATIENCE_S: Final = 3600


class Run:
    """What became of one process. `stages` are seconds since its start, by stage."""

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


class _Peak:
    """The most memory of a process and its descendants together; pages that they share count once."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more looks."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        dear_until = 0.0
        while True:
            family = list(_family(self._pid))
            # What one process ever had is cheap to ask; the sum is dear: at most a fiftieth of the time goes into it.
            self.bytes = max([self.bytes, *(_most_ever(pid) for pid in family)])
            began = time.monotonic()
            if len(family) > 1 and began > dear_until:
                self.bytes = max(self.bytes, sum(_memory(pid) for pid in family))
                dear_until = began + 50 * (time.monotonic() - began)
            if self._end.wait(LOOK_S):
                return


def _family(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _memory(pid: int) -> int:
    """Bytes in memory that are the process's part (PSS); 0 when it is gone."""
    return _from_proc(f"/proc/{pid}/smaps_rollup", "Pss:")


def _most_ever(pid: int) -> int:
    """The most memory that the process alone ever had."""
    return _from_proc(f"/proc/{pid}/status", "VmHWM:")


def _from_proc(path: str, name: str) -> int:
    """A number of kilobytes, in bytes; 0 when the process is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def machine() -> dict[str, Any]:
    """What else the machine does: cores and load, for the record."""
    return {"cores": os.cpu_count() or 1, "load": round(os.getloadavg()[0], 1)}
