"""Simulated time: one queue of events for everything that happens in a run, and one source of chance.

Events happen in the order of (time, number); the number counts what was planned. So a run is decided by its seed and by
the code alone. Simulations of Raft groups, of whole store nodes and of whole clusters use this one timeline.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from typing import Any, Final

from simulation.engine.chance import SeededRandom

SECOND: Final = 1_000_000
#: How often `run_until` asks whether what it waits for has come.
LOOK_US: Final = SECOND // 4

Callback = Callable[..., object]


class ScheduledEvent:
    """Something that will happen, unless it is called off."""

    __slots__ = ("arguments", "what")

    def __init__(self, what: Callback, arguments: tuple[Any, ...]) -> None:
        self.what: Callback | None = what
        self.arguments = arguments

    def call_off(self) -> None:
        """Do not let it happen."""
        self.what = None
        self.arguments = ()


class Timeline:
    """The queue of events, the present, the run's chance, and the digest of everything that was noted down."""

    def __init__(self, chance: SeededRandom) -> None:
        #: Microseconds since the beginning.
        self.now = 0
        self.chance = chance
        self.events = 0
        #: Called with every line that is noted, for `--trace`.
        self.tell: Callable[[str], None] | None = None
        #: Called after every event.
        self.after: Callable[[], None] | None = None
        #: The process whose turn it is, of whatever kind the simulation has; None between turns.
        self.current: Any = None
        self._queue: list[tuple[int, int, ScheduledEvent]] = []
        self._number = 0
        self._digest = hashlib.blake2b(digest_size=12)

    def at(self, when: int, what: Callback, *arguments: Any) -> ScheduledEvent:
        """Have `what(*arguments)` happen at `when` (microseconds), after all that was planned for that moment."""
        self._number += 1
        event = ScheduledEvent(what, arguments)
        heapq.heappush(self._queue, (max(when, self.now), self._number, event))
        return event

    def later(self, span_us: float, what: Callback, *arguments: Any) -> ScheduledEvent:
        """Do as `at`, counted from now."""
        return self.at(self.now + int(span_us), what, *arguments)

    def note(self, line: str) -> None:
        """Add a line to what has happened: it becomes part of the digest."""
        self._digest.update(b"%d %s\n" % (self.now, line.encode()))
        if self.tell is not None:
            self.tell(f"{self.now / SECOND:12.6f}  {line}")

    @property
    def digest(self) -> str:
        """Equal for runs in which the same things happened at the same times."""
        return self._digest.hexdigest()

    def run_until(self, when: int, done: Callable[[], bool] | None = None, look_us: int = LOOK_US) -> bool:
        """Let everything happen up to and including `when`, or until `done` holds; return whether it held.

        `done` is asked every `look_us`, before the next event, which stays in the queue if it holds.
        """
        queue = self._queue
        next_look = self.now
        while queue and queue[0][0] <= when:
            if done is not None and queue[0][0] >= next_look:
                next_look = queue[0][0] + look_us
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
