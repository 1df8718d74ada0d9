"""Digests of the rows at chosen entries, so that replicas can be compared at one entry.

The digest of the rows is known after each commit, and each replica commits at different entries. So a commit also ends
at each DIGEST_EVERY-th entry, and at requested entries. The digest needs no read of rows.
"""

from __future__ import annotations

import threading
from typing import Final

#: Entries between two digests that leaders compare.
DIGEST_EVERY: Final = 1_000
#: Digests kept, the newest ones: a member that is behind by some seconds still has one in common with its leader.
MARKS_KEPT: Final = 8
#: Entries that may be asked for at the same time.
WANTED_MAX: Final = 64


class DigestMarks:
    """Digests of one replica's rows by the index of the entry. `want` may be called on any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._wanted: tuple[int, ...] = ()
        self._found: dict[int, bytes] = {}
        #: The first entry after the applied ones that leaders compare. Entries are applied in order.
        self._next = 0
        #: Index of the newest digest that leaders compare; 0: none yet.
        self.latest = 0
        #: Index of the digest that this server, as the leader, has compared last; 0: none yet.
        self.compared = 0

    def want(self, index: int) -> None:
        """Request the digest at an entry that is not applied yet. Without effect for an applied entry."""
        with self._changing:
            if len(self._wanted) < WANTED_MAX:
                self._wanted = (*self._wanted, index)

    def stop_after(self, applied: int) -> int:
        """Return the entry at which the commit after entry `applied` must end at the latest."""
        if applied >= self._next:  # runs for each commit, and rarely divides
            self._next = (applied // DIGEST_EVERY + 1) * DIGEST_EVERY
        if not self._wanted:
            return self._next
        return min([self._next, *(index for index in self._wanted if index > applied)])

    def reached(self, index: int, digest: bytes) -> None:
        """Keep the digest after the entry at `index`."""
        with self._changing:
            self._wanted = tuple(one for one in self._wanted if one > index)
            kept = list(self._found.items())[1 - MARKS_KEPT :]
            self._found = {**dict(kept), index: digest}
            if index % DIGEST_EVERY == 0:
                self.latest = index

    def at(self, index: int) -> bytes | None:
        """Return the digest after the entry at `index`, None if it is unknown."""
        return self._found.get(index)

    def known(self) -> list[tuple[int, bytes]]:
        """Return the digests that are kept, by index."""
        return sorted(self._found.items())
