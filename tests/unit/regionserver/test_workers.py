"""The pool of threads: each job runs, and idle threads help, though a submission does not always wake a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue

import pytest
from twisted.python.failure import Failure

from regionserver.workers import Workers

THREADS = 2
#: A deadline, reached only by a failing test.
LIMIT_S = 20.0


class Calls:
    """Stands for the reactor: the test takes the calls one by one."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def callFromThread(self, f: Callable[..., object], *args: object) -> None:
        self.waiting.put(lambda: f(*args))


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def workers(calls: Calls) -> Iterator[Workers]:
    found = Workers(calls, THREADS, lambda: None, lambda failure: failure)
    yield found
    found.stop(LIMIT_S)


def test_jobs_of_one_turn_run_at_once_on_all_threads(workers: Workers, calls: Calls) -> None:
    """Each job of a pair waits for the other one.

    Edit that makes this fail: `_work` queues no wake for the jobs that it leaves.
    """
    for _ in range(100):
        pair = threading.Barrier(THREADS)
        results: list[object] = []
        for _ in range(THREADS):
            workers.submit(partial(pair.wait, LIMIT_S), results.append)
        while len(results) < THREADS:
            calls.waiting.get(timeout=LIMIT_S)()
        assert sorted(results, key=str) == [0, 1]


def test_jobs_that_wait_run_before_the_threads_stop(workers: Workers) -> None:
    """Edit that makes this fail: `_work` takes one job for each wake (`if self._jobs`, not `while`)."""
    gate = threading.Event()
    ran: list[int] = []
    for _ in range(THREADS):
        workers.submit(partial(gate.wait, LIMIT_S), lambda _: None)
    for number in range(100):
        workers.submit(partial(ran.append, number), lambda _: None)
    gate.set()
    assert workers.stop(LIMIT_S)
    assert sorted(ran) == list(range(100))


def test_posted_jobs_run_without_the_reactors_thread(calls: Calls) -> None:
    """Threads of copies post steps. Only an exception, which is a bug, takes a turn of the reactor."""
    failures: list[Failure] = []
    workers = Workers(calls, THREADS, lambda: None, failures.append)
    posters = threading.Barrier(THREADS)
    ran: list[int] = []

    def post(first: int) -> None:
        posters.wait(LIMIT_S)
        for number in range(first, first + 100):
            workers.post(partial(ran.append, number))

    threads = [threading.Thread(target=post, args=(100 * number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    workers.post(partial(int, "no number"))
    assert workers.stop(LIMIT_S)
    assert sorted(ran) == list(range(100 * THREADS))
    calls.waiting.get(timeout=LIMIT_S)()
    assert calls.waiting.empty()
    assert [failure.type for failure in failures] == [ValueError]
