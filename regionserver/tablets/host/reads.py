"""Linearizable reads of one tablet, from request to rows.

    fresh      arrived in this turn
    asked      wait until a majority has confirmed the leader: one round for all reads of a turn (Dissertation §6.4)
    confirmed  wait until the rows hold the index that was committed when the round began

When leadership ends, fresh and asked reads are rejected, because no majority will confirm them. Confirmed reads stay:
their confirmation remains valid.
"""

from __future__ import annotations

from collections import deque

from regionserver.tablets.host.requests import AT_LEAST_TICKS


class Reads:
    """The waiting reads of one group."""

    def __init__(self) -> None:
        self.fresh: list[int] = []
        #: Context of the round -> its reads.
        self.asked: dict[int, list[int]] = {}
        #: (index, reads); indexes do not fall.
        self.confirmed: deque[tuple[int, list[int]]] = deque()
        #: (index, tick at which it is given up, read) of reads that name an index; in order of arrival.
        self.at_least: list[tuple[int, int, int]] = []
        #: Number of reads that wait, of all kinds.
        self.waiting = 0
        self._context = 0

    def add(self, read: int) -> None:
        """Add a read of this turn."""
        self.fresh.append(read)
        self.waiting += 1

    def begin_round(self) -> int:
        """Put the fresh reads into one round, and return its context. A context is valid for one core only."""
        self._context += 1
        self.asked[self._context] = self.fresh
        self.fresh = []
        return self._context

    def confirm(self, context: int, index: int) -> None:
        """A majority has confirmed the round: its reads may be answered once `index` is applied."""
        reads = self.asked.pop(context, None)
        if reads is not None:
            self.confirmed.append((max(index, self.confirmed[-1][0] if self.confirmed else 0), reads))

    def take_unconfirmed(self) -> list[int]:
        """Remove and return the reads that no majority has confirmed."""
        reads = [read for batch in self.asked.values() for read in batch] + self.fresh
        self.asked = {}
        self.fresh = []
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
            ready += self.confirmed.popleft()[1]
        if self.at_least:
            ready += [read for index, _, read in self.at_least if index <= applied]
            self.at_least = [each for each in self.at_least if each[0] > applied]
        self.waiting -= len(ready)
        return ready

    def take_late(self, now: int) -> list[int]:
        """Remove and return the reads that have waited too long for an index."""
        late = [read for _, until, read in self.at_least if until <= now]
        if late:
            self.at_least = [each for each in self.at_least if each[1] > now]
            self.waiting -= len(late)
        return late

    def take_all(self) -> list[int]:
        """Remove and return every read."""
        reads = self.take_unconfirmed()
        reads += [read for _, batch in self.confirmed for read in batch] + [read for _, _, read in self.at_least]
        self.confirmed.clear()
        self.at_least = []
        self.waiting = 0
        return reads
