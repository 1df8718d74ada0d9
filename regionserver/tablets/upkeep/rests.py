"""Pauses of the threads that copy rows, so that requests find a processor.

A put needs threads of three servers, one after the other. If copies keep all processors busy, each of these threads
waits in the queue for a processor, and the put takes several times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from coord.env_os import queued_s

#: Seconds for which the reactor's thread may wait in the queue for a processor, per second in which it runs. Above this
#: limit copies rest longer.
WAITING_MAX: Final = 1.0
#: Longest rest for each second for which a copy has had a processor.
REST_MAX: Final = 16.0
#: Interval at which the rests are adapted to the load.
REST_LOOK_S: Final = 0.25
#: Requests and entries of one such interval from which on the server counts as asked. Members that come and go write a
#: few entries without any client.
ASKED_MIN: Final = 4
#: A rest that is shorter is put off: a thread cannot sleep so precisely.
REST_MIN_S: Final = 0.002
#: The longest rest. The check of a long file uses more processor time than a chunk does.
REST_MAX_S: Final = 1.0


class CopyRests:
    """Decides how long copies rest. Pure; the caller passes the times of the reactor's thread."""

    def __init__(self) -> None:
        #: Seconds of rest for each second for which a copy has had a processor.
        self.factor = 0.0
        self._used_s = 0.0
        self._queued_s = 0.0
        self._handled = 0

    def begin(self, used_s: float, queued_s: float, handled: int) -> None:
        """Copies begin after a time without any.

        The thread has used a processor and waited for one for so long, and the server has handled so many requests and
        entries.
        """
        self.factor = 0.0
        self._used_s, self._queued_s, self._handled = used_s, queued_s, handled

    def look(self, used_s: float, queued_s: float, handled: int) -> None:
        """Adapt the rests to the time since the last call.

        Without requests, no request has waited. A thread with little to do waits longer than it runs if a copy alone
        keeps the processors busy.
        """
        used, queued = used_s - self._used_s, queued_s - self._queued_s
        is_asked = handled - self._handled >= ASKED_MIN
        self._used_s, self._queued_s, self._handled = used_s, queued_s, handled
        if is_asked and queued > WAITING_MAX * used:
            self.factor = min(REST_MAX, 1.5 * self.factor + 1)
        else:
            self.factor = max(0.0, self.factor / 1.5 - 1)


class AdaptedRests:
    """Rests that follow the load of the reactor's thread as long as copies run. Methods run on that thread."""

    def __init__(self, reactor: Any, handled: Callable[[], int], are_there_copies: Callable[[], bool]) -> None:
        """`handled` returns how many requests and entries of tablets the server has handled so far."""
        self._reactor = reactor
        self._handled = handled
        self._are_there_copies = are_there_copies
        self._rests = CopyRests()
        self._is_adapted = False

    def factor(self) -> float:
        """Return the seconds of rest for each second for which a copy has had a processor. Any thread may call it."""
        return self._rests.factor

    def begin(self) -> None:
        """A copy begins, or has begun."""
        if not self._is_adapted:
            self._is_adapted = True
            self._rests.begin(time.thread_time(), queued_s(), self._handled())
            self._reactor.callLater(REST_LOOK_S, self._adapt)

    def _adapt(self) -> None:
        self._is_adapted = self._are_there_copies()
        if self._is_adapted:
            self._rests.look(time.thread_time(), queued_s(), self._handled())
            self._reactor.callLater(REST_LOOK_S, self._adapt)


class ThreadRests:
    """The rests of one thread that copies rows. `factor` returns the seconds of rest for each second of work."""

    def __init__(self, factor: Callable[[], float]) -> None:
        self._factor = factor
        #: Processor time of the thread at the end of its last rest.
        self._rested_s = 0.0

    def begin(self) -> None:
        """Begin to count the work of the calling thread."""
        self._rested_s = time.thread_time()

    def rest(self) -> None:
        """Leave the processors to requests for a while."""
        used_s = time.thread_time()
        pause_s = (used_s - self._rested_s) * self._factor()
        if 0 < pause_s < REST_MIN_S:
            return
        if pause_s:
            time.sleep(min(pause_s, REST_MAX_S))
        self._rested_s = used_s
