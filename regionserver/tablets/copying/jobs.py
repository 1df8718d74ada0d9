"""The copy jobs of a server: the queued, the running, and the last finished ones. Pure; the caller passes the time.

QUEUED -> WAITING -> REMOVING -> ROWS -> CHECKING -> LOG -> DONE
   every state before DONE -> FAILED or CANCELED

A job is queued while IN_MAX others run, so that the next copy begins when one ends, without another request of its
leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from regionserver.tablets.copying.messages import CopyJob, CopyState

#: Limit of copies that a server receives at once. Each takes a thread and the disk.
IN_MAX: Final = 4
#: Limit of copies that wait for one of these places; further ones are THROTTLED.
QUEUED_MAX: Final = 128
#: Ended jobs that are kept for operators.
ENDED_MAX: Final = 100
#: When a sender that was throttled should ask again.
RETRY_AFTER_MS: Final = 2000
#: States of jobs that have ended.
ENDED: Final = (CopyState.DONE, CopyState.FAILED, CopyState.CANCELED)
#: States in which bytes are received.
_RECEIVING: Final = (CopyState.ROWS, CopyState.LOG)


class Job:
    """A job of this server.

    While the thread of its copy runs, that thread alone calls `enter`, and the reactor's thread calls `shown`.
    """

    def __init__(self, job: int, tablet: str, number: int, source: str, began_ms: int) -> None:
        self.job = job
        self.tablet = tablet
        self.number = number
        self.source = source
        self.began_ms = began_ms
        self.ended_ms = 0
        self.state = CopyState.QUEUED
        self.reason = ""
        self.received = 0
        self.expected = 0
        #: Set by an operator, or when the server stops; the job ends at its next step.
        self.is_canceled = False
        #: When progress was last written to the store, else when the job began.
        self.progressed_ms = began_ms
        self._receiving_ms = 0
        self._since_ms: int | None = None

    def enter(self, state: CopyState, now_ms: int, reason: str = "") -> None:
        """Move to another state. `now_ms` is the server's wall clock, for operators."""
        if self._since_ms is not None:
            self._receiving_ms += max(0, now_ms - self._since_ms)
        self._since_ms = now_ms if state in _RECEIVING else None
        self.state = state
        self.reason = reason
        if state in ENDED:
            self.ended_ms = now_ms

    def shown(self, now_ms: int) -> CopyJob:
        """Return the job as operators see it."""
        receiving_ms, since_ms = self._receiving_ms, self._since_ms
        if since_ms is not None:
            receiving_ms += max(0, now_ms - since_ms)
        rate = self.received * 1000 // receiving_ms if receiving_ms else 0
        return CopyJob(
            self.job, self.tablet, self.number, self.state, self.source, self.received,
            max(self.expected, self.received), rate, self.began_ms, self.ended_ms, self.reason,
        )  # fmt: skip


class CopyJobs:
    """All jobs of a server."""

    def __init__(self, limit: int = IN_MAX, queue: int = QUEUED_MAX) -> None:
        self._limit = limit
        self._queue = queue
        self._last = 0
        #: Queued and running jobs by tablet, in the order in which they were asked for.
        self._running: dict[str, Job] = {}
        self._ended: list[Job] = []
        #: Ended jobs by state, and bytes received, since the process started.
        self.counts: dict[CopyState, int] = dict.fromkeys(ENDED, 0)
        self.received = 0

    def has_room(self) -> bool:
        """Return True if another copy may be asked for."""
        return len(self._running) < self._limit + self._queue

    def next(self) -> Job | None:
        """Return the queued job that begins now. Return None if there is none, or no room for another one.

        Among the queued jobs choose one whose source serves the fewest copies of this server, because a source has a
        limit, too; of equal ones the first.
        """
        if self.count() >= self._limit:
            return None
        queued = [job for job in self._running.values() if job.state is CopyState.QUEUED]
        busy = Counter(job.source for job in self._running.values() if job.state is not CopyState.QUEUED)
        return min(queued, key=lambda job: busy[job.source], default=None)

    def of(self, tablet: str) -> Job | None:
        """Return the job that is queued or runs for a tablet."""
        return self._running.get(tablet)

    def add(self, tablet: str, number: int, source: str, now_ms: int) -> Job:
        """Queue a job. The owner begins the job when `next` returns it."""
        assert tablet not in self._running, f"a copy of {tablet} runs"
        self._last += 1
        job = self._running[tablet] = Job(self._last, tablet, number, source, now_ms)
        return job

    def end(self, job: Job, state: CopyState, now_ms: int, reason: str = "") -> None:
        """Note the end of a job."""
        job.enter(state, now_ms, reason)
        del self._running[job.tablet]
        self._ended = [*self._ended, job][-ENDED_MAX:]
        self.counts[state] += 1
        self.received += job.received

    def running(self) -> Iterable[Job]:
        """Return the jobs that are queued or run."""
        return self._running.values()

    def count(self) -> int:
        """Return how many jobs run: the queued ones do not."""
        return sum(job.state is not CopyState.QUEUED for job in self._running.values())

    def find(self, number: int) -> Job | None:
        """Return the queued or running job with this number."""
        return next((job for job in self._running.values() if job.job == number), None)

    def shown(self, now_ms: int) -> list[CopyJob]:
        """Return all jobs, the newest first."""
        found = [*self._running.values(), *self._ended]
        return [job.shown(now_ms) for job in sorted(found, key=lambda one: -one.job)]
