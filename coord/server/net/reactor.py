"""Twisted's epoll reactor with a table of plain functions beside its own descriptors.

Client and peer sockets are watched here: `watch(fd, function)` costs one dict lookup per event instead of Twisted's
chain of readers and loggers (half the CPU of a small request). Everything else, that is timers,
listening ports, the admin port, signals, stays ordinary Twisted.

One *turn* is one poll and the handling of all it returned. `at_turn_end` is called once per turn, after the last
function and before the next poll: that is where a store node makes one log write, one message per peer and one send per
client out of everything the turn brought.

Descriptors of peers are served before the others of a turn (`prefer`), and `at_peers_served` is called between the two:
a client whose read arrives together with the news that a write is committed sees the write.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from typing import Any, Final

from twisted.internet.epollreactor import EPollReactor
from twisted.logger import Logger

log = Logger()

READABLE: Final = EPOLLIN | EPOLLERR | EPOLLHUP
WRITABLE: Final = EPOLLOUT
#: Events taken from the kernel in one poll.
EVENTS_MAX: Final = 1024

Watcher = Callable[[int], None]


class TurnReactor(EPollReactor):
    """See the module docstring."""

    def __init__(self) -> None:
        self._functions: dict[int, Watcher] = {}
        #: Whether this turn brought one event at most: nobody is likely to want anything else at the moment.
        self.is_calm = True
        self._turn_end: Callable[[], bool] = _nothing
        self._on_fault: Callable[[Exception], None] = _shrug
        #: Descriptors that are served first.
        self._preferred: set[int] = set()
        self._peers_served: Callable[[], None] = _nobody_waits
        super().__init__()  # type: ignore[no-untyped-call]
        poller: Any = self._poller
        self._poll = poller.poll
        self._register = poller.register
        self._modify = poller.modify
        self._unregister = poller.unregister

    def at_turn_end(self, function: Callable[[], bool]) -> None:
        """Call `function` at the end of every turn; there is one, it does not raise.

        It returns True when it has left something to do: then the next poll does not wait.
        """
        self._turn_end = function

    def at_fault(self, function: Callable[[Exception], None]) -> None:
        """Tell `function` of an exception that escaped from a watcher: a bug, and the node's owner stops it."""
        self._on_fault = function

    def at_peers_served(self, function: Callable[[], None]) -> None:
        """Call `function` when a turn has served preferred descriptors and has others to serve; it does not raise."""
        self._peers_served = function

    def prefer(self, fd: int) -> None:
        """Serve `fd`, which is watched, before others of the same turn until it is forgotten."""
        self._preferred.add(fd)

    def watch(self, fd: int, function: Watcher, *, writable: bool = False) -> None:
        """Call `function(events)` whenever `fd` is readable (and, if asked, writable)."""
        self._functions[fd] = function
        self._register(fd, EPOLLIN | (EPOLLOUT if writable else 0))

    def rewatch(self, fd: int, *, readable: bool, writable: bool) -> None:
        """Change what is waited for. Errors and hang-ups are always reported."""
        self._modify(fd, (EPOLLIN if readable else 0) | (EPOLLOUT if writable else 0))

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; call before closing it."""
        self._preferred.discard(fd)
        if self._functions.pop(fd, None) is not None:
            self._unregister(fd)

    def doPoll(self, timeout: float | None) -> None:
        """Turns, until Twisted has something to do: a timer, a call from another thread, a descriptor of its own, the
        end. What its timers left to do ends with the first turn.

        Asking Twisted after each turn would cost a tenth of a small one.
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
        """Poll and serve what is ready; True when some of it was Twisted's, or a signal came in between."""
        if self._turn_end():
            timeout = 0
        try:
            ready = self._poll(-1 if timeout is None else timeout, EVENTS_MAX)
        except OSError as error:
            if error.errno == errno.EINTR:
                return True
            raise
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
        """Call the watchers of these events; return the events of descriptors that have none here."""
        functions = self._functions
        foreign: list[tuple[int, int]] = []
        for fd, events in ready:
            function = functions.get(fd)
            if function is not None:
                try:
                    function(events)
                except Exception as error:  # the named boundary: without it Twisted's loop would log and go on
                    log.failure("fault while serving descriptor {fd}", fd=fd)
                    self.unwatch(fd)
                    self._on_fault(error)
            else:
                foreign.append((fd, events))
        return foreign

    doIteration = doPoll


def _nothing() -> bool:
    """The default end of a turn."""
    return False


def _nobody_waits() -> None:
    """The default between peers and the others."""


def _shrug(error: Exception) -> None:
    """The default for faults."""
