"""Work that region servers call but do not contain: the opener of regions, and the threads that run the opener."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from twisted.python.failure import Failure

from regions.records.model import Incarnation, RegionRecord
from regionserver.opener import Opening, OwnerHeld, RegionError, RegionOpener
from simulation.engine.process import TURN_US, Process
from simulation.engine.timeline import SECOND

T = TypeVar("T")
Key = tuple[str, int]

#: Kind of the simulated service. The masters assume that its rows are shared, so a table may have several replicas.
SIMULATED: Final = "simulated/1"
#: Interval of a slow open's progress reports. A hanging open sends none.
PROGRESS_US: Final = 1 * SECOND
#: Hanging calls end within this time after the faults have stopped.
RELEASED_US: Final = 2 * SECOND


class Work(msgspec.Struct):
    """Probabilities of the ways to open and close regions; shared by all servers of a run. Faults end at `until`."""

    slow_open: float = 0.0
    hanging_open: float = 0.0
    failing_open: float = 0.0
    slow_close: float = 0.0
    hanging_close: float = 0.0
    failing_close: float = 0.0
    #: Regions whose open always fails.
    poisoned: list[str] = []
    #: Regions whose open kills the process.
    deadly: list[str] = []
    #: Processes that each of these regions has killed.
    deaths: dict[str, int] = {}
    #: Time in microseconds at which the faults stop.
    until: int = 0
    #: Regions are locked while they are open, as the built-in opener does.
    locks: bool = True


class OpenReplicas:
    """The open replicas of all openers on all servers: the shared disk with its locks, read by the observer."""

    def __init__(self) -> None:
        self.locks: dict[Key, tuple[Incarnation, Opener]] = {}
        #: Openers that have a replica open.
        self.open: dict[Key, list[Opener]] = {}
        #: Replicas that more than one opener has open, whether their processes live or hold leases.
        self.contended: dict[Key, None] = {}

    def opened(self, key: Key, opener: Opener) -> None:
        """Record that an opener has opened a replica."""
        holders = self.open.setdefault(key, [])
        holders.append(opener)
        if len(holders) > 1:
            self.contended[key] = None

    def closed(self, key: Key, opener: Opener) -> None:
        """Record that an opener has closed a replica."""
        holders = self.open.get(key, [])
        if opener in holders:
            holders.remove(opener)
            if len(holders) < 2:
                self.contended.pop(key, None)

    def process_gone(self, opener: Opener) -> None:
        """Release the locks of a process that has ended, as an operating system does."""
        for key in [key for key, holders in self.open.items() if opener in holders]:
            self.closed(key, opener)
        for key in [key for key, (_, holder) in self.locks.items() if holder is opener]:
            del self.locks[key]


class Opener(RegionOpener):
    """Opens and closes regions in simulated time. One per process."""

    kind = SIMULATED

    def __init__(
        self,
        process: Process,
        open_replicas: OpenReplicas,
        work: Work,
        rows_removed: Callable[[str], None],
        regions_removed: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """Call `rows_removed` with each table, and `regions_removed` with each region whose rows are removed."""
        self.process = process
        self._rows_removed = rows_removed
        self._regions_removed = regions_removed
        self.is_serving = False
        self._open_replicas = open_replicas
        self._work = work
        self._span_us = 0
        process.on_death.append(lambda: open_replicas.process_gone(self))

    def purge(self, table_id: str) -> int:
        """Remove a table's rows. Raise RegionError if the lock of a region shows that the region is open."""
        if self.process.is_dead:
            return 0
        if any(key[0].startswith(f"{table_id}.") and openers for key, openers in self._open_replicas.open.items()):
            raise RegionError(f"regions of {table_id} are open")
        self._takes(0.0, 0.0)
        self._rows_removed(table_id)
        return 1

    def split_key(self, region: RegionRecord) -> str:
        """Return a key in the middle of a region's bounds."""
        self._takes(0.0, 0.0)
        return f"{region.start_key}m"

    def prepare_daughters(self, parents: Sequence[RegionRecord], daughters: Sequence[RegionRecord]) -> None:
        """Do nothing, because simulated regions have no rows."""
        del parents, daughters
        self._takes(self._work.slow_open, self._work.hanging_open)

    def remove_regions(self, table_id: str, region_ids: Sequence[str]) -> int:
        """Check that a server removes only files of regions that are replaced."""
        if self.process.is_dead:
            return 0
        if any(self._open_replicas.open.get((one, 0)) for one in region_ids):
            raise RegionError(f"regions of {table_id} are open")
        self._takes(0.0, 0.0)
        self._regions_removed(region_ids)
        return len(region_ids)

    def take_span(self) -> int:
        """Return the duration of the latest call in microseconds."""
        span, self._span_us = self._span_us, 0
        return span

    def _takes(self, slow: float, hanging: float) -> bool:
        """Draw the duration of a call; return True if the call hangs."""
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
        """Begin to open a replica. Raise RegionError or OwnerHeld."""
        key = (opening.region.region_id, opening.replica)
        process, work = self.process, self._work
        if process.is_dead:
            return
        hangs = self._takes(work.slow_open, work.hanging_open)
        if work.locks:
            holder = self._open_replicas.locks.get(key)
            if holder is not None and holder[0] != opening.evict:
                raise OwnerHeld(holder[0])
            self._open_replicas.locks[key] = (opening.server, self)
        is_faulty = process.timeline.now < work.until
        if is_faulty and (key[0] in work.poisoned or process.chance.happens(work.failing_open)):
            self._unlock(key)
            raise RegionError("injected failure of an open")
        if is_faulty and key[0] in work.deadly:
            process.timeline.later(self._span_us // 2, self._die_of, key[0])
        for at in () if hangs else range(PROGRESS_US, self._span_us, PROGRESS_US):
            process.timeline.later(at, process.turn, opening.progress)
        process.timeline.later(self._span_us, self._has_opened, key)

    def _die_of(self, region_id: str) -> None:
        """Kill the process in the middle of an open, as a crash in native code would."""
        if not self.process.is_dead:
            self._work.deaths[region_id] = self._work.deaths.get(region_id, 0) + 1
            self.process.kill()

    def _has_opened(self, key: Key) -> None:
        """Record the replica as open; the call returns now."""
        if not self.process.is_dead:
            self._open_replicas.opened(key, self)

    def close(self, region: RegionRecord, replica: int) -> None:
        """Begin to close a replica. Raise RegionError."""
        key = (region.region_id, replica)
        work = self._work
        if self.process.is_dead:
            return
        self._takes(work.slow_close, work.hanging_close)
        if self.process.timeline.now < work.until and self.process.chance.happens(work.failing_close):
            raise RegionError("injected failure of a close")
        self._open_replicas.closed(key, self)
        self.process.timeline.later(max(0, self._span_us - 1), self._unlock, key)

    def _unlock(self, key: Key) -> None:
        holder = self._open_replicas.locks.get(key)
        if holder is not None and holder[1] is self:
            del self._open_replicas.locks[key]

    def serving_changed(self, is_serving: bool) -> None:
        """Store whether the server's lease open_replicas."""
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
        """Run `work` on a thread; call `done` with its result, or with the exception that it raised."""
        self.pending += 1
        self._jobs.append((work, done))
        self._begin()

    def stop(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Return True if no work is pending. The simulated process ends in any case."""
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
        except Exception as error:  # the real pool catches everything that an opener raises, too
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
