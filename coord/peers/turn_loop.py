"""The hot part of the turn reactor: one poll, and a call of the function of each descriptor with an event.

Separate from `TurnReactor`, because a subclass of a Twisted class cannot be compiled. `TurnReactor` explains what a
turn is.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.metrics.turns import TurnTimes

log = Logger(__name__)

#: Events taken from the kernel in one poll: at most, and at least after long turns.
EVENTS_MAX: Final = 1024
EVENTS_MIN: Final = 8
#: After a longer turn the next poll takes half as many events, after a shorter one twice as many. The kernel keeps the
#: other events, and returns first those that it has not returned before.
SHORTER_FROM_S: Final = 0.02
LONGER_BELOW_S: Final = 0.005

Watcher = Callable[[int], None]
Events = list[tuple[int, int]]


class TurnLoop:
    """The watched descriptors of one reactor, and the functions that are called around a turn."""

    def __init__(self, poll: Callable[[float, int], Events], unwatch: Callable[[int], None], times: TurnTimes) -> None:
        """`poll(timeout, most)` returns events, or raises OSError. `unwatch(fd)` ends a watcher that failed."""
        self.functions: dict[int, Watcher] = {}
        #: Descriptors that are served first.
        self.preferred: set[int] = set()
        #: True if this turn brought at most one event: other work is unlikely at the moment.
        self.is_calm = True
        #: Events that the next poll takes.
        self.events_max: int = EVENTS_MAX
        self._served = 0
        self.turn_end: Callable[[], bool] = _no_work
        self.on_fault: Callable[[Exception], None] = _ignore_fault
        self.peers_served: Callable[[], None] = _do_nothing
        #: Returns events of preferred descriptors alone; arguments as for `poll`.
        self.poll_preferred: Callable[[float, int], Events] = _no_events
        self._poll = poll
        self._unwatch = unwatch
        self._times = times

    def turn(self, timeout: float) -> Events | None:
        """Poll and serve the events. Return the events of descriptors without a watcher; None if a signal interrupted
        the poll."""
        times = self._times
        began = times.busy_since
        if began:
            took_s = time.monotonic() - began
            times.add(took_s)
            times.busy_since = 0.0
            if took_s > SHORTER_FROM_S or self.events_max < EVENTS_MAX:
                self._adapt(took_s)
        try:
            ready = self._poll(timeout, self.events_max)
        except OSError as error:
            if error.errno == errno.EINTR:
                return None
            raise
        times.busy_since = time.monotonic()
        self._served = len(ready)
        self.is_calm = self._served <= 1
        if len(ready) > 1 and self.preferred:
            if self._served == self.events_max < EVENTS_MAX:
                ready = self._with_preferred(ready)
            preferred = [one for one in ready if one[0] in self.preferred]
            if preferred and len(preferred) < len(ready):
                ready = [one for one in ready if one[0] not in self.preferred]
                self._serve(preferred)
                self.peers_served()
        return self._serve(ready)

    def _adapt(self, took_s: float) -> None:
        """Choose how many events the next turn serves: a thousand connections with work would make it last a second."""
        if took_s > SHORTER_FROM_S and self._served > 1:
            self.events_max = max(EVENTS_MIN, min(self.events_max, self._served) // 2)
        elif took_s < LONGER_BELOW_S:
            self.events_max = min(EVENTS_MAX, 2 * self.events_max)

    def _with_preferred(self, ready: Events) -> Events:
        """Return these events and those of all preferred descriptors. Some may be behind hundreds of others in the
        kernel's order, while the ticks go on that count how long a peer is silent."""
        known = {one[0] for one in ready}
        return ready + [one for one in self.poll_preferred(0, EVENTS_MAX) if one[0] not in known]

    def _serve(self, ready: Events) -> Events:
        """Call the watchers of these events; return the events of descriptors without a watcher."""
        foreign: Events = []
        for one in ready:
            function = self.functions.get(one[0])
            if function is None:
                foreign.append(one)
                continue
            try:
                function(one[1])
            except Exception as error:  # boundary: without it Twisted's loop would log the exception and continue
                log.failure("exception while serving descriptor {fd}", fd=one[0])
                self._unwatch(one[0])
                self.on_fault(error)
        return foreign


def _no_work() -> bool:
    """Return False: the default of `turn_end`."""
    return False


def _no_events(timeout: float, most: int) -> Events:  # noqa: ARG001
    """Return no event: the default of `poll_preferred`."""
    return []


def _do_nothing() -> None:
    """Do nothing: the default of `peers_served`."""


def _ignore_fault(error: Exception) -> None:
    """Do nothing: the default of `on_fault`."""
