"""What region servers call and do not bring along: the opener of regions, and the threads that run it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from twisted.python.failure import Failure

from regions.records.model import Incarnation, RegionRecord
from regionserver.opener import Opening, OwnerHeld, RegionError, RegionOpener
from simulation.engine.process import TURN_US, Process
from simulation.engine.timeline import SECOND

T = TypeVar("T")
Key = tuple[str, int]

#: Kind of the simulated service. Masters take it to copy rows between replicas, so a table may have several.
SIMULATED: Final = "simulated/1"
#: A slow open reports its progress so often; one that hangs does not.
PROGRESS_US: Final = 1 * SECOND
#: What hangs ends so soon after the faults have stopped.
RELEASED_US: Final = 2 * SECOND


class Work(msgspec.Struct):
    """How regions open and close, as probabilities; the same for all servers of a run. Changed when faults stop."""

    slow_open: float = 0.0
    hanging_open: float = 0.0
    failing_open: float = 0.0
    slow_close: float = 0.0
    hanging_close: float = 0.0
    failing_close: float = 0.0
    #: Regions whose open always fails.
    poisoned: list[str] = []
    #: Regions whose open ends its process.
    deadly: list[str] = []
    #: How many processes each of them has ended.
    deaths: dict[str, int] = {}
    #: Microseconds at which the faults stop.
    until: int = 0
    #: Regions are locked while open, as by the built-in opener.
    locks: bool = True


class Holds:
    """Who has which replica open, over all servers: the shared disk with its locks, and what the observer looks at."""

    def __init__(self) -> None:
        self.locks: dict[Key, tuple[Incarnation, Opener]] = {}
        #: Openers that have a replica open.
        self.open: dict[Key, list[Opener]] = {}
        #: Replicas that more than one opener has open, dead or alive, with a lease or without.
        self.contended: dict[Key, None] = {}

    def opened(self, key: Key, opener: Opener) -> None:
        """An opener has a replica open."""
        holders = self.open.setdefault(key, [])
        holders.append(opener)
        if len(holders) > 1:
            self.contended[key] = None

    def closed(self, key: Key, opener: Opener) -> None:
        """An opener has it open no more."""
        holders = self.open.get(key, [])
        if opener in holders:
            holders.remove(opener)
            if len(holders) < 2:
                self.contended.pop(key, None)

    def process_gone(self, opener: Opener) -> None:
        """A process ended; its system gives its locks back."""
        for key in [key for key, holders in self.open.items() if opener in holders]:
            self.closed(key, opener)
        for key in [key for key, (_, holder) in self.locks.items() if holder is opener]:
            del self.locks[key]


class Opener(RegionOpener):
    """Opens and closes regions in simulated time. One per process."""

    kind = SIMULATED

    def __init__(self, process: Process, holds: Holds, work: Work, rows_removed: Callable[[str], None]) -> None:
        """`rows_removed` is told of each table whose rows are removed."""
        self.process = process
        self._rows_removed = rows_removed
        self.is_serving = False
        #: Ends of opens that were cut short because a replica is given up: none is ever forgotten.
        self._holds = holds
        self._work = work
        self._span_us = 0
        process.on_death.append(lambda: holds.process_gone(self))

    def purge(self, table_id: str) -> int:
        """Remove a table's rows, unless the lock of a region says that a server has it open."""
        if self.process.is_dead:
            return 0
        if any(key[0].startswith(f"{table_id}.") and openers for key, openers in self._holds.open.items()):
            raise RegionError(f"regions of {table_id} are open")
        self._takes(0.0, 0.0)
        self._rows_removed(table_id)
        return 1

    def take_span(self) -> int:
        """How long the call that was made last takes, in microseconds."""
        span, self._span_us = self._span_us, 0
        return span

    def _takes(self, slow: float, hanging: float) -> bool:
        """Draw how long the call takes; return whether it hangs."""
        chance, work = self.process.chance, self._work
        left = work.until - self.process.timeline.now
        if left > 0 and chance.happens(hanging):
            self._span_us = left + chance.below(RELEASED_US)
            return True
        if left > 0 and chance.happens(slow):
            self._span_us = min(int(chance.between(0.2, 15) * SECOND), left + chance.below(RELEASED_US))
        else:
            self._span_us = 500 + chance.below(20_000)
        return False

    def open(self, opening: Opening) -> None:
        """Begin to open; raises RegionError, OwnerHeld."""
        key = (opening.region.region_id, opening.replica)
        process, work = self.process, self._work
        if process.is_dead:
            return
        hangs = self._takes(work.slow_open, work.hanging_open)
        if work.locks:
            holder = self._holds.locks.get(key)
            if holder is not None and holder[0] != opening.evict:
                raise OwnerHeld(holder[0])
            self._holds.locks[key] = (opening.server, self)
        is_faulty = process.timeline.now < work.until
        if is_faulty and (key[0] in work.poisoned or process.chance.happens(work.failing_open)):
            self._unlock(key)
            raise RegionError("the simulation lets this open fail")
        if is_faulty and key[0] in work.deadly:
            process.timeline.later(self._span_us // 2, self._die_of, key[0])
        for at in () if hangs else range(PROGRESS_US, self._span_us, PROGRESS_US):
            process.timeline.later(at, process.turn, opening.progress)
        process.timeline.later(self._span_us, self._has_opened, key)

    def _die_of(self, region_id: str) -> None:
        """The open ends its process, as a page that leads out of the map would."""
        if not self.process.is_dead:
            self._work.deaths[region_id] = self._work.deaths.get(region_id, 0) + 1
            self.process.kill()

    def _has_opened(self, key: Key) -> None:
        """The call returns now: from here on the region could be served."""
        if not self.process.is_dead:
            self._holds.opened(key, self)

    def close(self, region: RegionRecord, replica: int) -> None:
        """Begin to close; raises RegionError."""
        key = (region.region_id, replica)
        work = self._work
        if self.process.is_dead:
            return
        self._takes(work.slow_close, work.hanging_close)
        if self.process.timeline.now < work.until and self.process.chance.happens(work.failing_close):
            raise RegionError("the simulation lets this close fail")
        self._holds.closed(key, self)
        self.process.timeline.later(max(0, self._span_us - 1), self._unlock, key)

    def _unlock(self, key: Key) -> None:
        holder = self._holds.locks.get(key)
        if holder is not None and holder[1] is self:
            del self._holds.locks[key]

    def serving_changed(self, is_serving: bool) -> None:
        """The lease began or ended."""
        self.is_serving = is_serving


class Threads:
    """`regionserver.workers.Workers` in simulated time."""

    def __init__(
        self,
        process: Process,
        opener: Opener,
        threads: int,
        delivered: Callable[[], None],
        fatal: Callable[[Failure], object],
    ) -> None:
        self._process = process
        self._opener = opener
        self._idle = threads
        self._delivered = delivered
        self._fatal = fatal
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.pending = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` on a thread; `done` gets its result, or the exception that it raised."""
        self.pending += 1
        self._jobs.append((work, done))
        self._begin()

    def stop(self, timeout_s: float) -> bool:  # noqa: ARG002
        """The process ends anyway."""
        return self.pending == 0

    def _begin(self) -> None:
        while self._idle and self._jobs:
            self._idle -= 1
            work, done = self._jobs.popleft()
            process = self._process
            process.timeline.later(TURN_US + process.chance.below(200), process.turn, self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result: Any
        try:
            result = work()
        except Exception as error:  # the boundary of foreign code, as in the real pool
            result = error
        span = self._opener.take_span()
        self._process.timeline.later(span, self._process.turn, self._ended, done, result)

    def _ended(self, done: Callable[[Any], None], result: Any) -> None:
        self._idle += 1
        self._results.append((done, result))
        if len(self._results) == 1:
            self._process.reactor.callFromThread(self._deliver)
        self._begin()

    def _deliver(self) -> None:
        results = self._results
        try:
            while results:
                done, result = results.popleft()
                self.pending -= 1
                done(result)
            self._delivered()
        except Exception:
            self._fatal(Failure())  # type: ignore[no-untyped-call]
