"""The kernel runs threads of long work in longer slices than threads that requests wait for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from coord.env_os import run_in_slices
from regionserver.tablets.copying.reactor_calls import ReactorCalls
from regionserver.workers import BACKGROUND_SLICE_S, FOREGROUND_SLICE_S, Workers
from tests.support.reactors import PATIENCE_S
from tests.support.slices import on_a_thread, sets_slices, slice_s

pytestmark = pytest.mark.skipif(not sets_slices(), reason="this kernel has no slices of threads (Linux 6.12 has)")


class Reactor:
    """Runs calls from threads at once."""

    def callFromThread(self, function: Callable[..., object], *args: object) -> None:
        function(*args)


def test_the_length_of_a_slice_changes_nothing_else() -> None:
    def policies() -> tuple[int, int, int, int]:
        before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        run_in_slices(FOREGROUND_SLICE_S)
        return *before, os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)

    policy, nice, *after = on_a_thread(policies)
    assert after == [policy, nice]


def test_threads_that_requests_wait_for_have_the_slices_of_their_process() -> None:
    def served() -> float:
        run_in_slices(FOREGROUND_SLICE_S)
        return _slice_in(Workers(Reactor(), 1, lambda: None, lambda _: None))

    assert on_a_thread(served) == FOREGROUND_SLICE_S


def test_threads_of_long_work_have_long_slices() -> None:
    """Otherwise the reactor's thread queues behind them, and a put waits in the queues of three servers."""

    def copied() -> list[float]:
        run_in_slices(FOREGROUND_SLICE_S)
        found = [_slice_in(Workers(Reactor(), 1, lambda: None, lambda _: None, is_background=True))]
        ended = threading.Event()

        def done(result: float | Exception) -> None:
            assert not isinstance(result, Exception)
            found.append(result)
            ended.set()

        reactor: Any = Reactor()
        ReactorCalls(reactor).spawn("copy-in", slice_s, done)
        assert ended.wait(PATIENCE_S)
        return found

    assert on_a_thread(copied) == [BACKGROUND_SLICE_S, BACKGROUND_SLICE_S]


def _slice_in(workers: Workers) -> float:
    """Return the slice of a pool's thread, and stop the pool."""
    found: list[float] = []
    workers.submit(slice_s, lambda result: found.append(result) if isinstance(result, float) else None)
    workers.stop(PATIENCE_S)
    return found[0]
