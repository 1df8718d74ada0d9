"""The clock of a thread's waits counts sleep and no computing, also where processors are busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.env_os import waited_s

WORK_S = 0.1


@pytest.fixture
def busy_processor() -> Iterator[None]:
    """Put this thread and two busy processes on one processor."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
        os.sched_setaffinity(0, allowed)


def test_sleep_counts() -> None:
    before = waited_s()
    time.sleep(WORK_S)
    assert waited_s() - before > WORK_S * 0.9


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="no statistics of threads")
@pytest.mark.usefixtures("busy_processor")
def test_the_queue_for_a_processor_does_not_count() -> None:
    waited, began_s, cpu_s = waited_s(), time.monotonic(), time.thread_time()
    while time.thread_time() < cpu_s + WORK_S or time.monotonic() < began_s + 2 * WORK_S:
        pass
    assert waited_s() - waited < WORK_S / 10
