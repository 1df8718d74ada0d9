"""The size of one group's log in memory, and the entries that are only on the disk.

Entries stay in memory for members that lag slightly. A member that is away for long would keep its entries in memory
forever. So a host removes applied entries from memory once all groups together exceed a limit, and reads them back from
the disk for the members that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coord.raft.messages import Entry

#: Bytes of an entry in memory in addition to its payload: the objects of entry, index, term and payload.
ENTRY_BYTES: Final = 200


class LogMemory:
    """The size of a log in memory, and the terms of the entries that are only on the disk."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        #: Bytes of entries in memory. Replaced entries of a follower count until they are dropped.
        self.bytes = 0
        #: (first index, term) of each run of entries with one term that were removed from memory.
        self._runs: list[tuple[int, int]] = []
        self.added(entries)

    def added(self, entries: Sequence[Entry]) -> None:
        """Add new entries in memory to the size."""
        for entry in entries:
            self.bytes += ENTRY_BYTES + len(entry.data)

    def dropped(self, entries: Sequence[Entry]) -> None:
        """Record entries that leave the memory, in the order of the log."""
        for entry in entries:
            self.bytes -= ENTRY_BYTES + len(entry.data)
        self.on_disk(entries)

    def on_disk(self, entries: Sequence[Entry]) -> None:
        """Record entries that are only on the disk, in the order of the log."""
        for entry in entries:
            if not self._runs or self._runs[-1][1] != entry.term:
                self._runs.append((entry.index, entry.term))

    def term_at(self, index: int) -> int:
        """Return the term of an entry that was removed from memory, -1 if unknown."""
        for first, term in reversed(self._runs):
            if first <= index:
                return term
        return -1

    def forget_before(self, index: int) -> None:
        """Drop the records below `index`."""
        while len(self._runs) > 1 and self._runs[1][0] <= index:
            del self._runs[0]
