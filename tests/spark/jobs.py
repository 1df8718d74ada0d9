"""Planning jobs as processes: their progress lines, and their results."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regions.plan.artifact.files import read_plan

ROOT = Path(__file__).resolve().parents[2]
#: Time limit of a job: two busy cores need ten times as long as idle ones.
JOB_S = 400.0


class Job:
    """One job; `stages` are the stages that it has reported so far."""

    def __init__(self, words: list[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self.lines: list[dict[str, Any]] = []
        self.errors = ""
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._readers = [threading.Thread(target=one, daemon=True) for one in (self._read, self._listen)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._news.put(json.loads(line))
        self._news.put(None)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def follow(self, heard: Callable[[str], None] = lambda _: None) -> int:
        """Wait until it ends. Call `heard` with each stage that it has finished. Return its exit status."""
        while (line := self._news.get(timeout=JOB_S)) is not None:
            self.lines.append(line)
            heard(str(line["stage"]))
        status = self.process.wait(JOB_S)
        for reader in self._readers:
            reader.join(JOB_S)
        return status

    def end(self) -> None:
        """Kill it and the processes that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    @property
    def last(self) -> dict[str, Any]:
        """Return its last line."""
        return self.lines[-1] if self.lines else {}


def job_command(source: Path, output: Path, master: str, conf: list[str], *more: str) -> list[str]:
    """Return the command line of `python -m regions.plan.spark_job` with these arguments."""
    words = [sys.executable, "-m", "regions.plan.spark_job", "--input", str(source), "--output", str(output)]
    words += ["--master", master, *more]
    for setting in conf:
        words += ["--conf", setting]
    return words


def run_job(words: list[str], env: dict[str, str] | None = None, heard: Callable[[str], None] = lambda _: None) -> Job:
    """Run a job from start to end."""
    job = Job(words, env)
    try:
        job.follow(heard)
    finally:
        job.end()
    return job


def digest_of(job: Job, output: Path) -> str:
    """Return the digest of a job's plan, or the job's output if there is no plan."""
    assert job.process.returncode == 0, (job.lines, job.errors[-3000:])
    made, _ = read_plan(output)
    assert job.last["digest"] == made.digest
    return made.digest
