"""Requests of clients to a tablet, their answers, and reads that wait.

The host does not interpret payloads and results. A request is a number that the shell chooses and does not use again
while the request waits.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, Final

#: Limits of bytes that are proposed and not applied: for one tablet, so that a slow tablet leaves room for the others;
#: and for all tablets of a server, so that the process does not run out of memory.
TABLET_BYTES_MAX: Final = 16 << 20
SERVER_BYTES_MAX: Final = 256 << 20
#: Limit of one tablet's reads that wait for a confirmation or for entries to be applied.
TABLET_READS_MAX: Final = 10_000
#: Ticks that a read with `at_least` waits for its index: two election timeouts, as in the core's settings.
AT_LEAST_TICKS: Final = 40
#: Ticks for which a stale read waits for the leader's answer, and until the rows include its index: 500 ms. Meanwhile
#: the client asks another member.
QUESTION_TICKS: Final = 10

#: In place of a time: nothing proves how old the rows are.
UNPROVED: Final = -1
#: In place of a tick: the reads wait as long as the replica runs.
NEVER: Final = 1 << 60


class Fate(enum.Enum):
    """Outcome of a request."""

    DONE = enum.auto()  #: applied; `TabletAnswer.value` has the result of the rows
    NOT_LEADER = enum.auto()  #: nothing was done; ask the leader
    UNKNOWN = enum.auto()  #: leadership ended before the entry was applied: repeat the request under its number
    BUSY = enum.auto()  #: nothing was done; too many requests wait, retry later
    DISK_FULL = enum.auto()  #: nothing was done; the disk of this server is full
    TOO_LARGE = enum.auto()  #: nothing was done; the payload is too large for any log
    TOO_STALE = enum.auto()  #: the replica lacks the index that the read names, or the proof of its age; ask the leader
    FAILED = enum.auto()  #: this replica does not run; try another one
    DOES_NOT_EXIST = enum.auto()  #: this server has no replica of the tablet
    REFUSED = enum.auto()  #: a change of members was rejected; `TabletAnswer.value` is the answer


class TabletAnswer:
    """The answer to one request."""

    def __init__(
        self,
        tablet: str,
        request: int,
        fate: Fate,
        value: Any = None,
        term: int = 0,
        index: int = 0,
        leader: int = 0,
        leader_server: str = "",
    ) -> None:
        self.tablet: str = tablet
        self.request: int = request
        self.fate: Fate = fate
        self.value: Any = value
        #: Position of the applied entry: a read with this `at_least` sees the write on any replica.
        self.term: int = term
        self.index: int = index
        #: The leading member and its server; 0 and "" if unknown.
        self.leader: int = leader
        self.leader_server: str = leader_server
        #: See `ReadyRead.as_of_ms`.
        self.as_of_ms: int = UNPROVED


class ReadyRead:
    """A read that the rows can answer now or later: they hold every entry up to `index`."""

    def __init__(self, tablet: str, request: int, index: int, as_of_ms: int) -> None:
        self.tablet: str = tablet
        self.request: int = request
        self.index: int = index
        #: The rows have every write that was acknowledged before this time by this server's monotonic clock; UNPROVED
        #: if no stale read has asked for a proof yet.
        self.as_of_ms: int = as_of_ms


class StaleRead:
    """A read that may miss the writes of the last `bound_ms`. It arrived at `now_ms`, and at tick `now`."""

    def __init__(self, request: int, bound_ms: int, now_ms: int, now: int, context: int) -> None:
        self.request: int = request
        self.bound_ms: int = bound_ms
        self.now_ms: int = now_ms
        self.now: int = now
        #: Context of a question to the leader. No other read of this server ever has the same one, not even in an
        #: earlier process: a late answer to a former question must not count for a new one.
        self.context: int = context


class ProposedEntry:
    """A request whose entry is in this leader's log."""

    def __init__(self, index: int, request: int, size: int) -> None:
        self.index: int = index
        self.request: int = request
        self.size: int = size


class InFlight:
    """Bytes of waiting payloads on one server."""

    def __init__(self, limit: int = SERVER_BYTES_MAX) -> None:
        self.limit = limit
        self.bytes = 0


class Reads:
    """The waiting reads of one group, from request to rows.

        fresh      arrived in this turn
        asked      wait until a majority has confirmed the leader: one round for all reads of a turn (Dissertation §6.4)
        confirmed  wait until the rows hold the index that was committed when the round began

    When leadership ends, fresh and asked reads are rejected, because no majority can confirm them any more. Confirmed
    reads stay: their confirmation remains valid.

    **Stale reads** may miss the latest writes, and any replica serves them. A round proves the age of the rows: they
    have every write that was acknowledged before the round's question was sent. So the age counts from the question, by
    this server's own clock, however late the answer arrives. One round serves all stale reads whose bound is longer
    than the time since its question.
    """

    def __init__(self) -> None:
        self.fresh: list[int] = []
        #: Stale reads that need a new question, in order of arrival.
        self.unproved: list[StaleRead] = []
        #: Context of the round -> its reads.
        self.asked: dict[int, list[int]] = {}
        #: Context of a round of stale reads -> the time of the question, and the tick at which the round is given up.
        self.questions: dict[int, tuple[int, int]] = {}
        #: (index, reads, time of the question or UNPROVED, tick at which the reads are given up); indexes never
        #: decrease. The round of a question remains after its reads are given up, because it proves the age of the rows
        #: for later reads.
        self.confirmed: deque[tuple[int, list[int], int, int]] = deque()
        #: (index, tick at which it is given up, read) of reads that name an index; in order of arrival.
        self.at_least: list[tuple[int, int, int]] = []
        #: Number of reads that wait, of all kinds.
        self.waiting = 0
        #: See `ReadyRead.as_of_ms`. Never decreases.
        self.as_of_ms: int = UNPROVED
        self._context = 0

    def add(self, read: int) -> None:
        """Add a read of this turn."""
        self.fresh.append(read)
        self.waiting += 1

    def proves(self, bound_ms: int, now_ms: int) -> bool:
        """Return True if the rows certainly have every write that was acknowledged `bound_ms` ago."""
        return _is_within(self.as_of_ms, bound_ms, now_ms)

    def add_stale(self, read: StaleRead) -> None:
        """Add a stale read: it is ready, or waits for the answer to a question."""
        if self.proves(read.bound_ms, read.now_ms):
            self.wait_for(read.request, 0, read.now)
            return
        self.waiting += 1
        for context, (asked_ms, _) in self.questions.items():
            if _is_within(asked_ms, read.bound_ms, read.now_ms):
                self.asked[context].append(read.request)
                return
        self.unproved.append(read)

    def begin_round(self) -> int:
        """Put the fresh reads into one round, and return its context. A context is valid for one core only."""
        self._context += 1
        self.asked[self._context] = self.fresh
        self.fresh = []
        return self._context

    def begin_question(self) -> int:
        """Put the stale reads that need one into a round, and return its context."""
        first = self.unproved[0]
        self.asked[first.context] = [read.request for read in self.unproved]
        self.questions[first.context] = (first.now_ms, first.now + QUESTION_TICKS)
        self.unproved = []
        return first.context

    def confirm(self, context: int, index: int) -> None:
        """A majority has confirmed the round: its reads may be answered once `index` is applied."""
        reads = self.asked.pop(context, None)
        if reads is not None:
            asked_ms, until = self.questions.pop(context, (UNPROVED, NEVER))
            floor = self.confirmed[-1][0] if self.confirmed else 0
            if len(self.confirmed) > 1 and not self.confirmed[-1][1]:
                # A member that was removed gets no more entries, and may be asked for long.
                self.confirmed.pop()
            self.confirmed.append((max(index, floor), reads, asked_ms, until))

    def take_unconfirmed(self) -> list[int]:
        """Remove and return the reads that no majority has confirmed."""
        reads = [read for batch in self.asked.values() for read in batch] + self.fresh
        reads += [read.request for read in self.unproved]
        self.asked = {}
        self.questions = {}
        self.fresh = []
        self.unproved = []
        self.waiting -= len(reads)
        return reads

    def wait_for(self, read: int, index: int, now: int) -> None:
        """Let a read wait until `index` is applied, or AT_LEAST_TICKS have passed."""
        self.at_least.append((index, now + AT_LEAST_TICKS, read))
        self.waiting += 1

    def take_ready(self, applied: int) -> list[int]:
        """Remove and return the reads that the rows at index `applied` can answer."""
        ready: list[int] = []
        while self.confirmed and self.confirmed[0][0] <= applied:
            _, reads, asked_ms, _ = self.confirmed.popleft()
            ready += reads
            self.as_of_ms = max(self.as_of_ms, asked_ms)
        if self.at_least:
            ready += [read for index, _, read in self.at_least if index <= applied]
            self.at_least = [each for each in self.at_least if each[0] > applied]
        self.waiting -= len(ready)
        return ready

    def take_late(self, now: int) -> list[int]:
        """Remove and return the reads that have waited too long for an index, or for a proof."""
        late = [read for _, until, read in self.at_least if until <= now]
        if late:
            self.at_least = [each for each in self.at_least if each[1] > now]
        for context in [context for context, (_, until) in self.questions.items() if until <= now]:
            del self.questions[context]
            late += self.asked.pop(context)
        for _, reads, _, until in self.confirmed:
            if until <= now and reads:
                late += reads
                reads.clear()
        self.waiting -= len(late)
        return late

    def take_all(self) -> list[int]:
        """Remove and return every read."""
        reads = self.take_unconfirmed()
        reads += [read for _, batch, _, _ in self.confirmed for read in batch] + [read for _, _, read in self.at_least]
        self.confirmed.clear()
        self.at_least = []
        self.waiting = 0
        return reads


def _is_within(as_of_ms: int, bound_ms: int, now_ms: int) -> bool:
    """Return True if less than `bound_ms` have passed. Both times are rounded down to milliseconds."""
    return as_of_ms != UNPROVED and now_ms - as_of_ms < bound_ms
