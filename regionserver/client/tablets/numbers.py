"""Numbers and times of one client's writes to one tablet, by which the tablet recognizes copies of a write.

The tablet keeps results from `done_below` on, at most WRITER_RESULTS_MAX of them (`regionserver.tablets.writers`). A
write that waits for long holds `done_below` back while later writes end. So a client takes a new writer name before the
tablet would drop a result that is still needed. The client also takes a new name when the tablet's time has gone back
(the servers' clocks differ by minutes), because `began_ms` must never fall from one number of a writer to the next.

The class is pure; callers serialize its methods and pass the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from regionserver.tablets.commands import AHEAD_MS
from regionserver.tablets.writers import WRITER_RESULTS_MAX

#: Numbers between the oldest unfinished write and a new one, at most.
WINDOW_MAX: Final = WRITER_RESULTS_MAX // 2
#: A fall of the tablet's time by more than this starts a new writer; leaders accept AHEAD_MS.
FALL_MS_MAX: Final = AHEAD_MS // 2


class WriteName(NamedTuple):
    """The fields that all copies of one write share."""

    writer: str
    number: int
    done_below: int
    began_ms: int


@dataclass(slots=True)
class _Writer:
    name: str
    next_number: int = 1
    began_ms: int = 0
    #: Numbers of unfinished writes, the lowest first.
    unfinished: dict[int, None] = field(default_factory=dict)


class WriteNumbers:
    """Writes of one client to one tablet. `new_writer` returns a writer's name that was never used."""

    def __init__(self, new_writer: Callable[[], str]) -> None:
        self._new_writer = new_writer
        self._writer = _Writer(new_writer())
        self._time_ms: int | None = None
        self._learned_s = 0.0

    @property
    def knows_time(self) -> bool:
        """Return True if the tablet's time is known, so that a write can begin."""
        return self._time_ms is not None

    def learn(self, time_ms: int, now_s: float) -> None:
        """Learn the tablet's time from a reply that arrived now."""
        self._time_ms, self._learned_s = time_ms, now_s

    def begin(self, now_s: float) -> WriteName:
        """Return the name of a new write, unfinished until `finish`."""
        assert self._time_ms is not None, "the tablet's time is not known"
        time_ms = self._time_ms + max(0, int((now_s - self._learned_s) * 1000))
        writer = self._writer
        oldest = next(iter(writer.unfinished), writer.next_number)
        if writer.next_number - oldest >= WINDOW_MAX or time_ms < writer.began_ms - FALL_MS_MAX:
            writer = self._writer = _Writer(self._new_writer())
        number = writer.next_number
        writer.next_number += 1
        writer.unfinished[number] = None
        writer.began_ms = max(writer.began_ms, time_ms)
        return WriteName(writer.name, number, next(iter(writer.unfinished)), writer.began_ms)

    def finish(self, write: WriteName) -> None:
        """Record that no copy of `write` will be sent any more."""
        if write.writer == self._writer.name:
            self._writer.unfinished.pop(write.number, None)


def writer_names(client: str) -> Callable[[], str]:
    """Return a function that returns names of writers of the client with this id."""
    count = itertools.count(1)
    return lambda: f"{client}.{next(count)}"
