"""A bounded pool of threads for work that may block, made for thousands of short jobs.

A job's result goes back to the reactor's thread. Results that are ready together are delivered in one turn of the
reactor, followed by one call of `delivered`: so a thousand regions opened in that turn become a few multis and not a
thousand.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from twisted.python.failure import Failure

T = TypeVar("T")


class ThreadReactor(Protocol):
    """The part of a reactor that Workers uses."""

    def callFromThread(self, f: Callable[..., object], *args: object) -> None: ...


class WorkerPool(Protocol):
    """What runs the opener's methods: `Workers`, or whatever stands for them."""

    pending: int

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None: ...
    def stop(self, timeout_s: float) -> bool: ...


#: Makes a pool: reactor, threads, delivered, fatal.
Pool = Callable[[Any, int, Callable[[], None], Callable[[Failure], object]], WorkerPool]


class Workers:
    """The pool. Everything but `callFromThread` is called on the reactor's thread."""

    def __init__(
        self,
        reactor: ThreadReactor,
        threads: int,
        delivered: Callable[[], None],
        fatal: Callable[[Failure], object],
    ) -> None:
        """`fatal` gets what `done` and `delivered` raise."""
        self._reactor = reactor
        self._delivered = delivered
        self._fatal = fatal
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_delivery_due = threading.Lock()
        self.pending = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"region-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` on a thread; `done` gets its result, or the exception that it raised."""
        self.pending += 1
        self._jobs.put((work, done))

    def stop(self, timeout_s: float) -> bool:
        """Let the threads end after the jobs that are queued; False if some job still runs after `timeout_s`.

        Threads that are stuck are daemons: they end with the process.
        """
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            result: Any
            try:
                result = work()
            except Exception as error:  # the boundary of foreign code: its owner gets the error as the job's result
                result = error
            self._results.append((done, result))
            if self._is_delivery_due.acquire(blocking=False):
                self._reactor.callFromThread(self._deliver)

    def _deliver(self) -> None:
        # Released first: a result appended from here on calls for another delivery, at worst an empty one.
        self._is_delivery_due.release()
        results = self._results
        try:
            for _ in range(len(results)):
                done, result = results.popleft()
                self.pending -= 1
                done(result)
            self._delivered()
        except Exception:  # the boundary to the reactor, which would log it and go on: `fatal` stops the process
            self._fatal(Failure())  # type: ignore[no-untyped-call]
