"""Runs two threads in any planned order, one line of the code under test at a time.

`Interleaving` runs a function as the *loop*, and the thread that the code under test starts as its *helper*. Only one
of them runs at any time. Each line of the watched file is a step. At the steps in `switches` the other thread
continues. If a thread blocks (on a held lock, an empty descriptor, a join), the other one must continue. Doubles of
`os` and `threading` replace the blocking calls: pass them to the code under test.

    for switches in plans(steps, 2): Interleaving(writer.__file__, switches).run(scenario)

So `switches` alone determines a run, which can be repeated. A few switches find nearly all bugs that many find
(Musuvathi and Qadeer, Iterative context bounding).
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any, Final

LOOP: Final = 0
HELPER: Final = 1
#: A run with more steps counts as endless.
STEPS_MAX: Final = 100_000


class Stuck(AssertionError):  # noqa: N818 - it names what happened
    """Raised when neither thread can continue."""


def plans(steps: int, most: int) -> Iterator[tuple[int, ...]]:
    """Return all ways to switch at most `most` times in `steps` steps."""
    for count in range(most + 1):
        yield from itertools.combinations(range(steps), count)


class Interleaving:
    """One run. `steps` is the number of its steps."""

    def __init__(self, file: str, switches: tuple[int, ...], step: str = "line") -> None:
        """`step`: "line", or "opcode" for every instruction."""
        self.file = file
        self._step = step
        self.switches = frozenset(switches)
        self.steps = 0
        self._running = LOOP
        self._may = [threading.Semaphore(0), threading.Semaphore(0)]
        self._is_there = [True, False]
        self._failure: BaseException | None = None
        self._helper: threading.Thread | None = None
        self.os = self._os_double()
        self.threading = self._threading_double()

    def run(self, scenario: Callable[[], None]) -> None:
        """Perform `scenario` as the loop. The helper must have ended when it returns."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            scenario()
        finally:
            sys.settrace(before)
        if self._failure is not None:
            raise self._failure
        assert not self._is_there[HELPER], "the helper was left behind"

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so` returns True. Raise Stuck if that cannot happen."""
        while not is_so():
            self.give_way()

    def give_way(self) -> None:
        """Let the other thread run until it blocks or reaches a switch."""
        self._count()
        other = 1 - self._running
        if not self._is_there[other]:
            raise Stuck(f"{('the loop', 'the helper')[self._running]} waits for ever; switches {sorted(self.switches)}")
        self._switch()

    def _count(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"no end after {STEPS_MAX} steps; switches {sorted(self.switches)}")

    def _switch(self) -> None:
        own = self._running
        self._running = 1 - own
        self._may[1 - own].release()
        self._may[own].acquire()
        if own == LOOP and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        if event == "call" and self._step == "opcode":
            frame.f_trace_opcodes = True
        if event == self._step:
            at = self.steps
            self._count()
            if at in self.switches and self._is_there[1 - self._running]:
                self._switch()
        return self._trace

    # --- the helper ---------------------------------------------------------------------------------------------------

    def _begin(self, target: Callable[[], None]) -> None:
        def body() -> None:
            self._may[HELPER].acquire()
            sys.settrace(self._trace)
            try:
                target()
            except BaseException as error:  # the loop raises it
                self._failure = error
            finally:
                sys.settrace(None)
                self._is_there[HELPER] = False
                self._running = LOOP
                self._may[LOOP].release()

        assert self._helper is None, "one helper only"
        self._is_there[HELPER] = True
        self._helper = threading.Thread(target=body, daemon=True)
        self._helper.start()

    # --- doubles of what blocks ---------------------------------------------------------------------------------------

    def _threading_double(self) -> SimpleNamespace:
        turns = self

        class Lock:
            def __init__(self) -> None:
                self.is_held = False

            def acquire(self, blocking: bool = True) -> bool:
                if not blocking and self.is_held:
                    return False
                turns.wait(lambda: not self.is_held)
                self.is_held = True
                return True

            def release(self) -> None:
                assert self.is_held
                self.is_held = False

            def __enter__(self) -> bool:
                return self.acquire()

            def __exit__(self, *exception: object) -> None:
                self.release()

        class Event:
            def __init__(self) -> None:
                self._is_set = False

            def set(self) -> None:
                self._is_set = True

            def wait(self, timeout: float) -> bool:
                # Time passes while the other thread runs.
                if not self._is_set and turns._is_there[1 - turns._running]:
                    turns.give_way()
                return self._is_set

        class Thread:
            def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
                self.ident: int | None = None
                self._target = target

            def start(self) -> None:
                self.ident = 1
                turns._begin(self._target)

            def join(self) -> None:
                turns.wait(lambda: not turns._is_there[HELPER])

        return SimpleNamespace(Lock=Lock, Event=Event, Thread=Thread)

    def _os_double(self) -> SimpleNamespace:
        counters: dict[int, int] = {}
        blocking: dict[int, bool] = {}

        def eventfd(first: int, flags: int) -> int:
            fd = 1000 + len(counters)
            counters[fd] = first
            blocking[fd] = not flags & 1
            return fd

        def eventfd_read(fd: int) -> int:
            if not blocking[fd] and not counters[fd]:
                raise BlockingIOError
            self.wait(lambda: counters[fd] > 0)
            found, counters[fd] = counters[fd], 0
            return found

        def eventfd_write(fd: int, value: int) -> None:
            counters[fd] += value

        def close(fd: int) -> None:
            del counters[fd]

        return SimpleNamespace(
            EFD_CLOEXEC=2,
            EFD_NONBLOCK=1,
            eventfd=eventfd,
            eventfd_read=eventfd_read,
            eventfd_write=eventfd_write,
            close=close,
            is_readable=lambda fd: counters[fd] > 0,
        )
