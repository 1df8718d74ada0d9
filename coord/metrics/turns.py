"""The turns of a daemon's main loop: a histogram of all, and the names of those that took too long.

While a turn runs, the process answers nobody: a store node misses the elections' ticks, a master orders nothing, a
server's lease may end. So no turn may take longer than LIMIT_S, however many regions there are.

The loop itself only reads the clock once more per turn. The culprit of a long turn comes from samples: after each
SAMPLE_S of processor time the kernel sends SIGPROF, and its handler notes where the main thread is. An idle process
gets no signal. A turn that waited in the kernel, for a disk or for a processor, has no sample and so no culprit.

A sample also reads the processor time of the thread. So a long turn that worked differs from one that waited, with an
error of SAMPLE_S. Only a turn that worked is too long by itself; one that waited shows a busy machine or disk.

`sample` starts the samples. Turns are counted without samples, too.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

from twisted.logger import Logger

from coord.metrics.spans import Spans

log = Logger()

#: Longest turn that is not worth a line.
LIMIT_S: Final = 0.02
#: Processor time between two samples, and the age from which a turn is sampled. So every long turn has a sample.
SAMPLE_S: Final = 0.01
#: At most one line of the log in this time.
LOG_EVERY_S: Final = 10.0
#: Number of culprits that are counted by name; all others count as OTHER.
CULPRITS_MAX: Final = 50
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
#: Calls in a line of the log, the innermost ones.
CALLS_MAX: Final = 8
_OLDEST_GENERATION: Final = 2
#: Functions of the loop itself, and those above it in every stack.
_LOOP: Final = ("twisted.", "coord.peers.reactor", "coord.metrics.turns", "click.", "cli.", "runpy", "__main__")


class TurnTimes:
    """The counted turns of one loop. The loop sets `busy_since` when a turn begins, and calls `add` when it ends."""

    __slots__ = (
        "_calls",
        "_gc_began_s",
        "_lines",
        "_now",
        "_processor",
        "_processor_before_s",
        "_processor_s",
        "_processor_turn",
        "_sampled_turn",
        "busy_since",
        "culprits",
        "longest_s",
        "longest_work_s",
        "spans",
    )

    def __init__(
        self, now: Callable[[], float] = time.monotonic, processor: Callable[[], float] = time.thread_time
    ) -> None:
        """`processor`: returns the processor time of the loop's thread."""
        self.spans = Spans()
        #: When the present turn began, in seconds of the clock; 0 while the loop waits for events.
        self.busy_since = 0.0
        #: Turns over the limit, by the function that ran.
        self.culprits: dict[str, int] = {}
        self.longest_s = 0.0
        #: The most processor time of a turn over the limit.
        self.longest_work_s = 0.0
        self._now = now
        self._processor = processor
        #: Processor time at the last sample.
        self._processor_s = processor()
        #: Begin of the last turn with a sample, and the processor time at the last sample before that turn.
        self._processor_turn = 0.0
        self._processor_before_s = 0.0
        #: Begin of the last sampled turn, and the calls in its samples, the outermost first.
        self._sampled_turn = 0.0
        self._calls: list[str] = []
        self._gc_began_s = 0.0
        self._lines = _Lines()

    def add(self, seconds: float) -> None:
        """Count a turn that ends now."""
        self.spans.add(seconds)
        if seconds > LIMIT_S:
            self._too_long(seconds)

    def sampled(self, _signal: int, frame: FrameType | None) -> None:
        """Note the calls of the running turn if it has lasted for some time. A handler of signals."""
        began, before_s, self._processor_s = self.busy_since, self._processor_s, self._processor()
        if began and self._processor_turn != began:
            self._processor_turn, self._processor_before_s = began, before_s
        if began and self._sampled_turn != began and self._now() - began >= SAMPLE_S:
            self._sampled_turn = began
            self._calls = list(calls_of(frame))

    def collected(self, phase: str, details: dict[str, int]) -> None:
        """Note a long collection of garbage. A callback of `gc`."""
        if details["generation"] < _OLDEST_GENERATION:
            return
        if phase == "start":
            self._gc_began_s = self._now()
        elif self.busy_since and self._now() - self._gc_began_s >= SAMPLE_S:
            self._sampled_turn = self.busy_since
            self._calls = ["garbage collection"]

    def _too_long(self, seconds: float) -> None:
        calls = self._calls if self._sampled_turn == self.busy_since else []
        culprit = calls[-1] if calls else UNKNOWN
        if culprit not in self.culprits and len(self.culprits) >= CULPRITS_MAX:
            culprit = OTHER
        self.culprits[culprit] = self.culprits.get(culprit, 0) + 1
        turn = _Turn(seconds, self._worked_s(seconds), calls)
        self.longest_s = max(self.longest_s, seconds)
        self.longest_work_s = max(self.longest_work_s, turn.worked_s)
        self._lines.long_turn(self._now(), turn)

    def _worked_s(self, seconds: float) -> float:
        """Return the processor time of the turn that ends now; 0 without a sample, which means less than SAMPLE_S."""
        if self._processor_turn != self.busy_since:
            return 0.0
        return min(seconds, self._processor() - self._processor_before_s)


class _Turn(NamedTuple):
    """A long turn: its duration, its processor time, and the calls in its samples, the outermost first."""

    seconds: float
    worked_s: float
    calls: list[str]

    def __str__(self) -> str:
        unknown = "an unknown function (it waited, or the turn was sampled too late)"
        calls = " > ".join(self.calls[-CALLS_MAX:]) or unknown
        return f"{self.seconds * 1000:.0f} ms ({self.worked_s * 1000:.0f} ms on the processor) in {calls}"


class _Lines:
    """The lines of the log about long turns, bounded in time."""

    def __init__(self) -> None:
        self._next_s = 0.0
        #: Turns since the last line, and the one of them that worked longest.
        self._unsaid = 0
        self._longest = _Turn(0.0, 0.0, [])

    def long_turn(self, now_s: float, turn: _Turn) -> None:
        if now_s < self._next_s:
            self._unsaid += 1
            self._longest = max(self._longest, turn, key=lambda one: (one.worked_s, one.seconds))
            return
        log.warn(
            "the main loop was busy in one turn for {turn}{unsaid}",
            turn=turn,
            unsaid=f"; {self._unsaid} more such turns since the last line, the longest for {self._longest}"
            if self._unsaid
            else "",
        )
        self._next_s = now_s + LOG_EVERY_S
        self._unsaid, self._longest = 0, _Turn(0.0, 0.0, [])


def calls_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the calls of this project's modules that led to `frame`, the outermost first, without the loop itself."""
    found: list[str] = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_LOOP) and module.partition(".")[0] not in sys.stdlib_module_names:
            found.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return reversed(found)


def sample(reactor: Any) -> None:
    """Sample the turns of a `TurnReactor` from the time when it runs, in the main thread, to the end of the process."""
    turns: TurnTimes = reactor.turns

    def start() -> None:
        signal.signal(signal.SIGPROF, turns.sampled)
        turns.sampled(signal.SIGPROF, None)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
        gc.callbacks.append(turns.collected)
        # The interpreter removes the handlers when it ends; one more signal would then kill the process.
        atexit.register(signal.setitimer, signal.ITIMER_PROF, 0.0)

    reactor.callWhenRunning(start)
