"""Which rounds of entries, and which reads, are done on the reactor's thread instead of a pool's. Pure.

A small round, or the read of a few keys, takes less time than its way to a thread and back. On a busy server the
threads compete for the interpreter with each other and with the reactor: a round of one row then takes several times as
long there.

But rounds and reads can wait for the disk, because LMDB reads the pages that are not in memory. A wait on the reactor's
thread delays all tablets. So a slow one sends the next ones to the pool, the more of them the longer it took: the
reactor's thread waits for a few hundredths of the time at most. And all of one turn together have a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coord.raft.messages import Entry

#: Payload of a small round: some thirty rows of 100 bytes. Larger ones would take longer than a millisecond.
ROUND_BYTES_MAX: Final = 4096
#: Keys of a small read: a few microseconds each, without their values.
READ_KEYS_MAX: Final = 16
#: Small reads of one tablet and turn: all of them see one snapshot.
READS_MAX: Final = 16
#: Small rounds, and small reads of a tablet, of one turn on the reactor's thread: a few milliseconds in all.
ROUNDS_PER_TURN: Final = 64
#: What takes longer counts as slow: a small round takes a tenth of this, if nothing waits.
FAST_S: Final = 0.002
#: After a slow one, so many go to the pool for each FAST_S that it took.
ROUNDS_AFTER_SLOW: Final = 32
#: Most that one slow one sends to the pool: a stall of a second is as good a reason as one of a minute.
ROUNDS_ELSEWHERE_MAX: Final = 32_000


class InPlace:
    """The choice for the rounds and reads of one server."""

    def __init__(self) -> None:
        #: Rounds and reads that still go to the pool.
        self._elsewhere = 0
        self._left = ROUNDS_PER_TURN

    def begin_turn(self) -> None:
        """Begin a turn of the host."""
        self._left = ROUNDS_PER_TURN

    def takes(self, entries: Sequence[Entry]) -> bool:
        """Return True if the round is to be applied on the reactor's thread."""
        return self._takes(is_small=sum(len(entry.data) for entry in entries) <= ROUND_BYTES_MAX)

    def takes_reads(self, keys: Sequence[int]) -> bool:
        """Return True if a tablet's reads are to be served on the reactor's thread.

        `keys` has the number of keys of each, 0 for one whose size is not known.
        """
        return self._takes(is_small=len(keys) <= READS_MAX and all(1 <= count <= READ_KEYS_MAX for count in keys))

    def _takes(self, *, is_small: bool) -> bool:
        if self._elsewhere:
            self._elsewhere -= 1
            return False
        if not self._left or not is_small:
            return False
        self._left -= 1
        return True

    def took(self, seconds: float) -> None:
        """Note how long a round, or a tablet's reads, on the reactor's thread took."""
        if seconds > FAST_S:
            self._elsewhere = min(ROUNDS_ELSEWHERE_MAX, int(seconds / FAST_S * ROUNDS_AFTER_SLOW))
