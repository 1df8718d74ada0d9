"""Calls between the threads of copies and the other threads of the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from coord.env_os import run_in_slices
from coord.errors import StorageError
from regionserver.tablets.process.interfaces import ThreadedReactor
from regionserver.workers import BACKGROUND_SLICE_S

T = TypeVar("T")

#: Interval at which a waiting thread checks whether the server ends.
_LOOK_S: Final = 0.2


class HostEnds(StorageError):  # noqa: N818 - says what has happened
    """The server ends: a copy's thread gets no answers any more."""


class ReactorCalls:
    """Lets threads of copies run functions on the reactor's thread, and wait for the results."""

    def __init__(self, reactor: ThreadedReactor) -> None:
        self._reactor = reactor
        self.has_ended = False

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the reactor's thread. Return its result, or raise its exception or HostEnds."""
        ended = threading.Event()
        results: list[T | Exception] = []

        def run() -> None:
            results.append(_result(function))
            ended.set()

        self._reactor.callFromThread(run)
        while not ended.wait(_LOOK_S):
            if self.has_ended:
                raise HostEnds("the server ends")
        [result] = results
        if isinstance(result, Exception):
            raise result
        return result

    def spawn(self, name: str, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` on a thread of its own, and then `done` with the result on the reactor's thread."""

        def run() -> None:
            run_in_slices(BACKGROUND_SLICE_S)
            result = _result(work)
            if not self.has_ended:
                self._reactor.callFromThread(done, result)

        threading.Thread(target=run, name=name, daemon=True).start()


def _result(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:  # the caller on the other thread gets the exception
        return error
