"""Locks of operations on tables (OC-03), for one tenure of the active master.

A lock is held for reading or for writing. Readers share a lock. Waiters are served in order of arrival, so none
starves. Each lock has a rank and a key. A holder may only request locks of a higher rank, or of the same rank and a
later key, so deadlocks are impossible. The order of ranks is: requests, tables, names, regions ("table before
tablets").

Locks exist only in memory: they order the operations of this master. The fencing epoch excludes other masters. An
operation that is unfinished at the end of the tenure was never visible.
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
    """Kinds of locks, in the order in which they must be taken."""

    REQUEST = 0
    TABLE = 1
    NAME = 2
    REGION = 3


class Lock(NamedTuple):
    """A lock to be taken, exclusively if `writes`."""

    rank: Rank
    key: str
    writes: bool = True


class _Held:
    """Holders and waiters of one lock."""

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
            assert self.is_written, "released for writing, and not held for writing"
            self.is_written = False
        else:
            assert self.readers > 0, "released for reading, and not held for reading"
            self.readers -= 1


class LockTable:
    """All locks of one tenure."""

    def __init__(self) -> None:
        self._held: dict[tuple[Rank, str], _Held] = {}
        self._end: Exception | None = None

    @asynccontextmanager
    async def hold(self, *locks: Lock) -> AsyncIterator[None]:
        """Hold `locks` within the block, taken in the given order. Locks that the caller holds must precede them.

        Raises:
            Exception: the exception of `fail`, if the tenure ends first; then no lock is held.
        """
        _check_order(locks)
        taken: list[Lock] = []
        try:
            for lock in locks:
                await self._take(lock)
                taken.append(lock)
            yield
        except GeneratorExit:
            taken.clear()  # the process is exiting and discards the coroutine: do not wake the waiters
            raise
        finally:
            for lock in reversed(taken):
                self._release(lock)

    def is_locked(self, rank: Rank, key: str) -> bool:
        """Return True if the lock is held, for reading or for writing."""
        return (rank, key) in self._held

    def fail(self, error: Exception) -> None:
        """Fail all current and future waiters with `error` at the end of the tenure."""
        self._end = error
        waiting = [one for held in self._held.values() for _, one in held.waiting]
        for held in self._held.values():
            held.waiting.clear()
        for one in waiting:
            one.errback(error)

    def __len__(self) -> int:
        """Return the number of locks that are held."""
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
    """Assert that the locks are in order. Otherwise two operations could deadlock."""
    for left, right in itertools.pairwise(locks):
        assert (left.rank, left.key) < (right.rank, right.key), f"{right} is locked after {left}"


__all__ = ["Lock", "LockTable", "Rank"]
