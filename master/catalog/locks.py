"""Locks of operations on tables (OC-03): who must wait for whom, in one reign of one master.

A lock is for reading or for writing; readers share, and everybody is served in the order of asking, so that nobody
waits for ever. What is locked has a rank, and whoever holds a lock may ask only for what ranks higher, or is of the
same rank and later in order: so no two operations can wait for each other. Requests come before tables, tables before
names, names before regions: "table before tablets".

Locks are kept in memory alone. They order what this master does; that no other master does anything is the fencing
epoch's affair, and what was half done when a reign ends was never visible.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from twisted.internet.defer import Deferred


class Rank(enum.IntEnum):
    """Kinds of things that are locked, in the order in which they must be."""

    REQUEST = 0
    TABLE = 1
    NAME = 2
    REGION = 3


class Lock(NamedTuple):
    """Something to be locked; `writes`: nobody else may hold it meanwhile."""

    rank: Rank
    key: str
    writes: bool = True


class _Held:
    """Holders of one thing, and those that wait for it."""

    __slots__ = ("is_written", "readers", "waiting")

    def __init__(self) -> None:
        self.readers = 0
        self.is_written = False
        self.waiting: deque[tuple[bool, Deferred[None]]] = deque()

    def admits(self, writes: bool) -> bool:
        return not self.is_written and not (writes and self.readers)

    def take(self, writes: bool) -> None:
        self.is_written = writes
        self.readers += not writes

    def release(self, writes: bool) -> None:
        if writes:
            assert self.is_written, "given back, and nobody held it"
            self.is_written = False
        else:
            assert self.readers > 0, "given back, and nobody read it"
            self.readers -= 1


class LockTable:
    """All locks of one reign."""

    def __init__(self) -> None:
        self._held: dict[tuple[Rank, str], _Held] = {}
        self._end: Exception | None = None

    @asynccontextmanager
    async def hold(self, *locks: Lock) -> AsyncIterator[None]:
        """Hold `locks`, taken in their order, within the block; what the caller holds already must come before them.

        Raises:
            Exception: the one given to `fail`, should the reign end first; then nothing is held.
        """
        _check_order(locks)
        taken: list[Lock] = []
        try:
            for lock in locks:
                await self._take(lock)
                taken.append(lock)
            yield
        except GeneratorExit:
            taken.clear()  # thrown away unfinished, by a process that ends: nobody's turn comes because of that
            raise
        finally:
            for lock in reversed(taken):
                self._release(lock)

    def is_locked(self, rank: Rank, key: str) -> bool:
        """Whether anybody holds it, to read or to write."""
        return (rank, key) in self._held

    def fail(self, error: Exception) -> None:
        """The reign is over: whoever waits gets `error`, and so does whoever asks from now on."""
        self._end = error
        waiting = [one for held in self._held.values() for _, one in held.waiting]
        for held in self._held.values():
            held.waiting.clear()
        for one in waiting:
            one.errback(error)

    def __len__(self) -> int:
        """How many things are locked."""
        return len(self._held)

    async def _take(self, lock: Lock) -> None:
        if self._end is not None:
            raise self._end
        held = self._held.setdefault((lock.rank, lock.key), _Held())
        if not held.waiting and held.admits(lock.writes):
            held.take(lock.writes)
            return
        turn: Deferred[None] = Deferred()
        held.waiting.append((lock.writes, turn))
        await turn

    def _release(self, lock: Lock) -> None:
        held = self._held[lock.rank, lock.key]
        held.release(lock.writes)
        served: list[Deferred[None]] = []
        while held.waiting and held.admits(held.waiting[0][0]):
            writes, turn = held.waiting.popleft()
            held.take(writes)
            served.append(turn)
        if not held.readers and not held.is_written:
            del self._held[lock.rank, lock.key]
        for turn in served:
            turn.callback(None)


def _check_order(locks: Sequence[Lock]) -> None:
    """A broken order is a fault of this program: two operations could wait for each other."""
    for left, right in itertools.pairwise(locks):
        assert (left.rank, left.key) < (right.rank, right.key), f"{right} is locked after {left}"


__all__ = ["Lock", "LockTable", "Rank"]
