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

import time
from collections.abc import Callable
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll
from typing import Any, Final

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor

from coord.metrics.turns import TurnTimes, sample
from coord.peers.turn_loop import TurnLoop, Watcher

READABLE: Final = EPOLLIN | EPOLLERR | EPOLLHUP
WRITABLE: Final = EPOLLOUT


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
        #: Times that this thread was busy between two polls, counted.
        self.turns = TurnTimes()
        super().__init__()  # type: ignore[no-untyped-call]
        poller: Any = self._poller
        self._loop = TurnLoop(poller.poll, self.unwatch, self.turns)
        self._register = poller.register
        self._modify = poller.modify
        self._unregister = poller.unregister
        #: Has the preferred descriptors, too: see `TurnLoop.poll_preferred`.
        self._preferred_poller = epoll()
        self._loop.poll_preferred = self._preferred_poller.poll

    @property
    def is_calm(self) -> bool:
        """True if this turn brought at most one event: other work is unlikely at the moment."""
        return self._loop.is_calm

    def at_turn_end(self, function: Callable[[], bool]) -> None:
        """Call `function` at the end of every turn. There is one such function, and it must not raise.

        It returns True if work is left; the next poll then does not wait.
        """
        self._loop.turn_end = function

    def at_fault(self, function: Callable[[Exception], None]) -> None:
        """Call `function` with an exception that escaped from a watcher. Such an exception is a bug: the node must
        stop."""
        self._loop.on_fault = function

    def at_peers_served(self, function: Callable[[], None]) -> None:
        """Call `function` between preferred and other descriptors of a turn that has both. It must not raise."""
        self._loop.peers_served = function

    def prefer(self, fd: int) -> None:
        """Serve the watched descriptor `fd` before others of the same turn, until `unwatch`."""
        if fd not in self._loop.preferred:
            self._loop.preferred.add(fd)
            self._preferred_poller.register(fd, EPOLLIN)

    def watch(self, fd: int, function: Watcher, *, writable: bool = False) -> None:
        """Call `function(events)` whenever `fd` is readable (and with `writable`, writable)."""
        self._loop.functions[fd] = function
        self._register(fd, EPOLLIN | (EPOLLOUT if writable else 0))

    def rewatch(self, fd: int, *, readable: bool, writable: bool) -> None:
        """Change the awaited events. Errors and hang-ups are always reported."""
        self._modify(fd, (EPOLLIN if readable else 0) | (EPOLLOUT if writable else 0))
        if fd in self._loop.preferred:
            self._preferred_poller.modify(fd, EPOLLIN if readable else 0)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Call this before closing it."""
        if fd in self._loop.preferred:
            self._loop.preferred.remove(fd)
            self._preferred_poller.unregister(fd)
        if self._loop.functions.pop(fd, None) is not None:
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
        loop = self._loop
        # The end of a turn may plan calls that are due before `timeout` has passed: the sending of replies, for one.
        if loop.turn_end() or self._newTimedCalls:
            timeout = 0
        foreign = loop.turn(-1 if timeout is None else timeout)
        if foreign is None:
            return True
        for fd, events in foreign:
            selectable = self._selectables.get(fd)
            if selectable is not None:
                self._doReadOrWrite(selectable, fd, events)  # type: ignore[no-untyped-call]
        return bool(foreign)

    doIteration = doPoll
