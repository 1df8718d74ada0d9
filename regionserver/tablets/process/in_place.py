"""Chooses the rounds of entries and the reads that run on the reactor's thread instead of a pool's. Pure.

A small round, or the read of a few keys, takes less time than a handover to a thread and back. On a busy server the
threads compete for the interpreter with each other and with the reactor, so a round of one row takes several times as
long there.

But rounds and reads can wait for the disk, because LMDB reads the pages that are not in memory. A wait on the reactor's
thread delays all tablets. So after a round or read that has waited, the next ones go to the pool; their number grows
with the time of the wait. The reactor's thread therefore waits for a few hundredths of the time at most. Time in the
queue for a processor does not count (`coord.env_os.waited_s`), because the pool's threads would wait for a processor,
too. The work of one turn is also bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from coord.raft.messages import Entry

#: Payload of a small round: some thirty rows of 100 bytes. Larger rounds would take longer than a millisecond.
ROUND_BYTES_MAX: Final = 4096
#: Keys of a small read: a few microseconds each, without their values.
READ_KEYS_MAX: Final = 16
#: Small reads of one tablet and turn: all of them see one snapshot.
READS_MAX: Final = 16
#: Small rounds, and small reads of a tablet, of one turn on the reactor's thread: a few milliseconds in all.
ROUNDS_PER_TURN: Final = 64
#: Work that waits longer counts as slow. A small round takes a tenth of this time in all if nothing waits.
FAST_S: Final = 0.002
#: After slow work, this many rounds go to the pool for each FAST_S that the work has waited.
ROUNDS_AFTER_SLOW: Final = 32
#: Largest number of rounds that go to the pool after slow work: stalls of a second and of a minute count alike.
ROUNDS_ELSEWHERE_MAX: Final = 32_000


class InPlace:
    """The choice for the rounds and reads of one server."""

    def __init__(self, waited_s: Callable[[], float] = lambda: 0.0) -> None:
        """`waited_s` is a clock that counts the time which the calling thread waits."""
        self._waited_s = waited_s
        self._began_s = 0.0
        #: Rounds and reads that still go to the pool.
        self._elsewhere = 0
        self._left = ROUNDS_PER_TURN

    def begin_turn(self) -> None:
        """Begin a turn of the host."""
        self._left = ROUNDS_PER_TURN

    def takes(self, entries: Sequence[Entry]) -> bool:
        """Return True if the round is small enough to be applied on the reactor's thread now."""
        return self._takes(is_small=sum(len(entry.data) for entry in entries) <= ROUND_BYTES_MAX)

    def takes_reads(self, keys: Sequence[int]) -> bool:
        """Return True if a tablet's reads are to be served on the reactor's thread.

        `keys` has the number of keys of each read, 0 if unknown.
        """
        return self._takes(is_small=len(keys) <= READS_MAX and all(1 <= count <= READ_KEYS_MAX for count in keys))

    def _takes(self, *, is_small: bool) -> bool:
        if self._elsewhere:
            self._elsewhere -= 1
            return False
        if not self._left or not is_small:
            return False
        if self._left == ROUNDS_PER_TURN:
            self._began_s = self._waited_s()
        self._left -= 1
        return True

    def done(self) -> None:
        """Note that a round, or a tablet's reads, on the reactor's thread is done."""
        now_s = self._waited_s()
        self.waited(now_s - self._began_s)
        self._began_s = now_s

    def waited(self, seconds: float) -> None:
        """Note the seconds that a round, or a tablet's reads, has waited on the reactor's thread."""
        if seconds > FAST_S:
            self._elsewhere = min(ROUNDS_ELSEWHERE_MAX, int(seconds / FAST_S * ROUNDS_AFTER_SLOW))
