"""What one group's log takes in memory, and what was taken out of memory while the log on the disk still has it.

Entries are in memory because members that are a little behind need them. A member that is away for long would keep
them there for ever. So a host takes applied entries out of memory once all groups together are over a bound, and reads
them back from the disk for the members that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coord.raft.messages import Entry

#: Bytes of an entry in memory besides its payload: the objects of entry, index, term and payload.
ENTRY_BYTES: Final = 200


class LogMemory:
    """The size of a log in memory, and the terms of the entries that are on the disk alone."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        #: Bytes of entries in memory. Replaced entries of a follower count until they are dropped.
        self.bytes = 0
        #: (first index, term) of each run of entries with one term that were taken out of memory.
        self._runs: list[tuple[int, int]] = []
        self.added(entries)

    def added(self, entries: Sequence[Entry]) -> None:
        """Count entries that are new in memory."""
        for entry in entries:
            self.bytes += ENTRY_BYTES + len(entry.data)

    def dropped(self, entries: Sequence[Entry]) -> None:
        """Note entries that leave the memory, in the order of the log."""
        for entry in entries:
            self.bytes -= ENTRY_BYTES + len(entry.data)
        self.on_disk(entries)

    def on_disk(self, entries: Sequence[Entry]) -> None:
        """Note entries that are on the disk alone, in the order of the log."""
        for entry in entries:
            if not self._runs or self._runs[-1][1] != entry.term:
                self._runs.append((entry.index, entry.term))

    def term_at(self, index: int) -> int:
        """Return the term of an entry that was taken out of memory, -1 for one that is not known."""
        for first, term in reversed(self._runs):
            if first <= index:
                return term
        return -1

    def forget_before(self, index: int) -> None:
        """Forget what is only needed below `index`."""
        while len(self._runs) > 1 and self._runs[1][0] <= index:
            del self._runs[0]
