"""A bounded pool of threads for work that may block, designed for thousands of short jobs.

A job's result is delivered on the reactor's thread. Results that are ready together are delivered in one turn, followed
by one call of `delivered`. So a thousand regions opened in one turn need a few multis, not a thousand.

A thread that is awake takes one job after the other. To wake a thread takes longer than most jobs, so at most one wake
is queued: a thread that takes a job while others wait queues the next one. Short jobs are done before a second thread
is awake, and jobs that block soon have all threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from coord.env_os import run_in_slices

T = TypeVar("T")

#: Slices in which the kernel runs threads that requests wait for (the default in a region server), and threads of long
#: work.
FOREGROUND_SLICE_S: Final = 0.0001
BACKGROUND_SLICE_S: Final = 0.02


class ThreadReactor(Protocol):
    """The part of a reactor that Workers uses."""

    def callFromThread(self, f: Callable[..., object], *args: object) -> None: ...


class WorkerPool(Protocol):
    """Runs the opener's methods: `Workers`, or a replacement in tests and simulations."""

    pending: int

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None: ...
    def stop(self, timeout_s: float) -> bool: ...


#: Runs work on a thread, and calls back with its result or exception: `WorkerPool.submit`.
Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]

#: Makes a pool: reactor, threads, delivered, fatal.
Pool = Callable[[Any, int, Callable[[], None], Callable[[Failure], object]], WorkerPool]


class Workers:
    """The pool. Every method without a note is called on the reactor's thread."""

    def __init__(
        self,
        reactor: ThreadReactor,
        threads: int,
        delivered: Callable[[], None],
        fatal: Callable[[Failure], object],
        *,
        is_background: bool = False,
    ) -> None:
        """`fatal` is called with exceptions of `done` and `delivered`. No request waits for work in the background."""
        self._is_background = is_background
        self._reactor = reactor
        self._delivered = delivered
        self._fatal = fatal
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        #: Wakes threads to look for jobs: True to wait for the next wake afterwards, False to end. While a job waits, a
        #: wake is queued, or a thread is awake that will look for jobs once more.
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_delivery_due = threading.Lock()
        self.pending = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"region-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` on a thread; call `done` with its result, or with the exception that it raised."""
        self.pending += 1
        self._jobs.append((work, done))
        self._wake_one()

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` on a thread, and report nothing but its exceptions. May be called on any thread."""
        self._jobs.append((work, None))
        self._wake_one()

    def _wake_one(self) -> None:
        """Have a thread look for jobs, unless a queued wake will. Called on any thread."""
        if self._wakes.empty():
            self._wakes.put(True)

    def stop(self, timeout_s: float) -> bool:
        """Stop the threads after the queued jobs; return False if a job still runs after `timeout_s`.

        Blocked threads are daemons: they end with the process.
        """
        for _ in self._threads:
            self._wakes.put(False)
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        if self._is_background:
            run_in_slices(BACKGROUND_SLICE_S)
        stays = True
        while stays:
            stays = self._wakes.get()
            while self._jobs:
                try:
                    work, done = self._jobs.popleft()
                except IndexError:
                    break  # another thread was faster
                if self._jobs:
                    self._wake_one()
                self._run(work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        result: Any
        try:
            result = work()
        except Exception as error:  # foreign code may raise anything; the submitter gets the exception as the result
            result = error
        if done is None:
            if isinstance(result, Exception):
                self._reactor.callFromThread(self._fatal, Failure(result))  # type: ignore[no-untyped-call]
            return
        self._results.append((done, result))
        if self._is_delivery_due.acquire(blocking=False):
            self._reactor.callFromThread(self._deliver)

    def _deliver(self) -> None:
        # Released first: a result appended from here on causes another delivery, at worst an empty one.
        self._is_delivery_due.release()
        results = self._results
        try:
            for _ in range(len(results)):
                done, result = results.popleft()
                self.pending -= 1
                done(result)
            self._delivered()
        except Exception:  # the reactor would log the exception and continue; `fatal` stops the process
            self._fatal(Failure())  # type: ignore[no-untyped-call]


def outcome_of(submit: Submit, work: Callable[[], Any]) -> Deferred[Any]:
    """Run `work` on a thread. The Deferred fires with the result, or with the exception as a value; it never fails."""
    done: Deferred[Any] = Deferred()
    submit(work, done.callback)  # `callback` takes an exception as a value, since it is not a Failure
    return done
