"""Simulated time: one queue of all events of a run, and one source of random numbers.

Events happen in the order of (time, number). The number counts scheduled events. So the seed and the code alone
decide a run. The simulations of Raft groups, of store nodes and of whole clusters use this timeline.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from typing import Any, Final

from simulation.engine.chance import SeededRandom

SECOND: Final = 1_000_000
#: How often `run_until` evaluates its condition.
POLL_US: Final = SECOND // 4

Callback = Callable[..., object]


class ScheduledEvent:
    """An event that will happen unless it is canceled."""

    __slots__ = ("arguments", "what")

    def __init__(self, what: Callback, arguments: tuple[Any, ...]) -> None:
        self.what: Callback | None = what
        self.arguments = arguments

    def cancel(self) -> None:
        """Cancel the event."""
        self.what = None
        self.arguments = ()


class Timeline:
    """The event queue, the current time, the random numbers of the run, and the digest of all noted lines."""

    def __init__(self, chance: SeededRandom) -> None:
        #: Microseconds since the beginning of the run.
        self.now = 0
        self.chance = chance
        self.events = 0
        #: Called with every noted line, for `--trace`.
        self.trace: Callable[[str], None] | None = None
        #: Called after every event.
        self.after: Callable[[], None] | None = None
        #: The process whose turn it is, in the simulation's own type; None between turns.
        self.current: Any = None
        self._queue: list[tuple[int, int, ScheduledEvent]] = []
        self._number = 0
        self._digest = hashlib.blake2b(digest_size=12)

    def at(self, when: int, what: Callback, *arguments: Any) -> ScheduledEvent:
        """Schedule `what(*arguments)` at `when` (microseconds), after all events that are scheduled for that time."""
        self._number += 1
        event = ScheduledEvent(what, arguments)
        heapq.heappush(self._queue, (max(when, self.now), self._number, event))
        return event

    def later(self, span_us: float, what: Callback, *arguments: Any) -> ScheduledEvent:
        """Schedule `what(*arguments)` after `span_us` microseconds."""
        return self.at(self.now + int(span_us), what, *arguments)

    def note(self, line: str) -> None:
        """Add a line to the digest and pass it to the trace."""
        self._digest.update(b"%d %s\n" % (self.now, line.encode()))
        if self.trace is not None:
            self.trace(f"{self.now / SECOND:12.6f}  {line}")

    @property
    def digest(self) -> str:
        """Return a digest that is equal for runs with the same lines at the same times."""
        return self._digest.hexdigest()

    def run_until(self, when: int, done: Callable[[], bool] | None = None, poll_us: int = POLL_US) -> bool:
        """Run events up to and including `when`, or until `done` holds; return True if `done` held.

        `done` is evaluated every `poll_us` before the next event. The event stays in the queue if `done` holds.
        """
        queue = self._queue
        next_poll = self.now
        while queue and queue[0][0] <= when:
            if done is not None and queue[0][0] >= next_poll:
                next_poll = queue[0][0] + poll_us
                if done():
                    return True
            at, _, event = heapq.heappop(queue)
            what = event.what
            if what is None:
                continue
            self.now = at
            self.events += 1
            what(*event.arguments)
            if self.after is not None:
                self.after()
        self.now = when
        return False
