"""Which rounds of entries are applied on the reactor's thread instead of a pool's. Pure.

A small round takes less time than its way to a thread and back. On a busy server the threads compete for the
interpreter with each other and with the reactor: a round of one row then takes several times as long there.

But a round can wait for the disk, because LMDB reads the pages that are not in memory. A wait on the reactor's thread
delays all tablets. So a slow round sends the next ones to the pool, the more of them the longer it took: the reactor's
thread waits for a few hundredths of the time at most. And all rounds of one turn together have a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coord.raft.messages import Entry

#: Payload of a small round: some thirty rows of 100 bytes. Larger ones would take longer than a millisecond.
ROUND_BYTES_MAX: Final = 4096
#: Small rounds of one turn on the reactor's thread: a few milliseconds in all.
ROUNDS_PER_TURN: Final = 64
#: A round that takes longer counts as slow: a small one takes a tenth of this, if nothing waits.
FAST_S: Final = 0.002
#: After a slow round, so many go to the pool for each FAST_S that it took.
ROUNDS_AFTER_SLOW: Final = 32
#: Most rounds that one slow round sends to the pool: a stall of a second is as good a reason as one of a minute.
ROUNDS_ELSEWHERE_MAX: Final = 32_000


class InPlace:
    """The choice for the rounds of one server."""

    def __init__(self) -> None:
        #: Rounds that still go to the pool.
        self._elsewhere = 0
        self._left = ROUNDS_PER_TURN

    def begin_turn(self) -> None:
        """Begin a turn of the host."""
        self._left = ROUNDS_PER_TURN

    def takes(self, entries: Sequence[Entry]) -> bool:
        """Return True if the round is to be applied on the reactor's thread."""
        if self._elsewhere:
            self._elsewhere -= 1
            return False
        if not self._left or sum(len(entry.data) for entry in entries) > ROUND_BYTES_MAX:
            return False
        self._left -= 1
        return True

    def took(self, seconds: float) -> None:
        """Note how long a round on the reactor's thread took."""
        if seconds > FAST_S:
            self._elsewhere = min(ROUNDS_ELSEWHERE_MAX, int(seconds / FAST_S * ROUNDS_AFTER_SLOW))
