"""Twisted's epoll reactor, extended by a table of plain functions for its hot descriptors.

Client and peer sockets are watched here: `watch(fd, function)` costs one dict lookup per event instead of Twisted's
chain of readers and loggers, which takes half the CPU time of a small request. Timers, listening ports, the admin port
and signals stay ordinary Twisted.

One *turn* is one poll and the handling of all events that it returned. `at_turn_end` is called once per turn, after the
last event and before the next poll. There a store node makes one log write, one message per peer and one send per
client out of all inputs of the turn.

Descriptors of peers are served before the others of a turn (`prefer`), and `at_peers_served` is called in between: if a
client's read and the commit of a write arrive in one turn, the read sees the write.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any, Final

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor
from twisted.logger import Logger

from coord.metrics.turns import TurnTimes, sample

log = Logger()

READABLE: Final = EPOLLIN | EPOLLERR | EPOLLHUP
WRITABLE: Final = EPOLLOUT
#: Events taken from the kernel in one poll.
EVENTS_MAX: Final = 1024

Watcher = Callable[[int], None]


def install() -> TurnReactor:
    """Install a turn reactor as this process's reactor and return it. Call this before Twisted imports another one.

    Its timers follow the monotonic clock; those of Twisted follow the wall clock by default. Ticks, elections and
    sessions must continue when the wall clock is set back. Long turns are sampled, to name their culprits.
    """
    reactor = TurnReactor()
    reactor.seconds = time.monotonic
    sample(reactor)
    installReactor(reactor)  # type: ignore[no-untyped-call]
    return reactor


class TurnReactor(EPollReactor):
    """See the module docstring."""

    def __init__(self) -> None:
        self._functions: dict[int, Watcher] = {}
        #: Times that this thread was busy between two polls, counted.
        self.turns = TurnTimes()
        #: True if this turn brought at most one event: other work is unlikely at the moment.
        self.is_calm = True
        self._turn_end: Callable[[], bool] = _no_work
        self._on_fault: Callable[[Exception], None] = _ignore_fault
        #: Descriptors that are served first.
        self._preferred: set[int] = set()
        self._peers_served: Callable[[], None] = _do_nothing
        super().__init__()  # type: ignore[no-untyped-call]
        poller: Any = self._poller
        self._poll = poller.poll
        self._register = poller.register
        self._modify = poller.modify
        self._unregister = poller.unregister

    def at_turn_end(self, function: Callable[[], bool]) -> None:
        """Call `function` at the end of every turn. There is one such function, and it must not raise.

        It returns True if work is left; the next poll then does not wait.
        """
        self._turn_end = function

    def at_fault(self, function: Callable[[Exception], None]) -> None:
        """Call `function` with an exception that escaped from a watcher. Such an exception is a bug: the node must
        stop."""
        self._on_fault = function

    def at_peers_served(self, function: Callable[[], None]) -> None:
        """Call `function` between preferred and other descriptors of a turn that has both. It must not raise."""
        self._peers_served = function

    def prefer(self, fd: int) -> None:
        """Serve the watched descriptor `fd` before others of the same turn, until `unwatch`."""
        self._preferred.add(fd)

    def watch(self, fd: int, function: Watcher, *, writable: bool = False) -> None:
        """Call `function(events)` whenever `fd` is readable (and with `writable`, writable)."""
        self._functions[fd] = function
        self._register(fd, EPOLLIN | (EPOLLOUT if writable else 0))

    def rewatch(self, fd: int, *, readable: bool, writable: bool) -> None:
        """Change the awaited events. Errors and hang-ups are always reported."""
        self._modify(fd, (EPOLLIN if readable else 0) | (EPOLLOUT if writable else 0))

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Call this before closing it."""
        self._preferred.discard(fd)
        if self._functions.pop(fd, None) is not None:
            self._unregister(fd)

    def doPoll(self, timeout: float | None) -> None:
        """Run turns until Twisted has work: a timer, a call from another thread, an event of its own, or the stop.

        Returning to Twisted after each turn would take a tenth of the time of a small turn.
        """
        while not self._turn(timeout):
            if self._newTimedCalls or self.threadCallQueue or self._justStopped or not self._started:
                return
            pending = self._pendingTimedCalls
            if pending:
                timeout = pending[0].time - self.seconds()
                if timeout <= 0:
                    return

    def _turn(self, timeout: float | None) -> bool:
        """Poll and serve the events; return True if Twisted had events or a signal interrupted the poll."""
        # The end of a turn may plan calls that are due before `timeout` has passed: the sending of replies, for one.
        if self._turn_end() or self._newTimedCalls:
            timeout = 0
        turns = self.turns
        if turns.busy_since:
            turns.add(time.monotonic() - turns.busy_since)
            turns.busy_since = 0.0
        try:
            ready = self._poll(-1 if timeout is None else timeout, EVENTS_MAX)
        except OSError as error:
            if error.errno == errno.EINTR:
                return True
            raise
        turns.busy_since = time.monotonic()
        self.is_calm = len(ready) <= 1
        if len(ready) > 1 and self._preferred:
            preferred = [one for one in ready if one[0] in self._preferred]
            if preferred and len(preferred) < len(ready):
                ready = [one for one in ready if one[0] not in self._preferred]
                self._serve(preferred)
                self._peers_served()
        foreign = self._serve(ready)
        for fd, events in foreign:
            selectable = self._selectables.get(fd)
            if selectable is not None:
                self._doReadOrWrite(selectable, fd, events)  # type: ignore[no-untyped-call]
        return bool(foreign)

    def _serve(self, ready: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Call the watchers of these events; return the events of descriptors without a watcher."""
        functions = self._functions
        foreign: list[tuple[int, int]] = []
        for fd, events in ready:
            function = functions.get(fd)
            if function is not None:
                try:
                    function(events)
                except Exception as error:  # boundary: without it Twisted's loop would log the exception and continue
                    log.failure("exception while serving descriptor {fd}", fd=fd)
                    self.unwatch(fd)
                    self._on_fault(error)
            else:
                foreign.append((fd, events))
        return foreign

    doIteration = doPoll


def _no_work() -> bool:
    """Return False: the default of `at_turn_end`."""
    return False


def _do_nothing() -> None:
    """Do nothing: the default of `at_peers_served`."""


def _ignore_fault(error: Exception) -> None:
    """Do nothing: the default of `at_fault`."""
