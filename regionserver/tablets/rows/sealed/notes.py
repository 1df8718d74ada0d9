"""The keys that commits change while the daughters of a tablet are prepared (`tablets/splits/prepared.py`).

A key is noted after its commit. So a reader that first takes the notes and then reads the rows sees every noted change.
A change without a note was committed before `begin`, or is noted later.

A failed commit may have reached the file nevertheless. When it is applied again it changes nothing, and leaves no note.
So after a failure the notes are lost, and the daughters are made after the seal.
"""

from __future__ import annotations

import threading
from typing import Final

from regionserver.tablets.rows.round import RoundChanges

#: Keys beyond which the notes are lost: nobody takes them.
NOTED_MAX: Final = 200_000
#: Bytes of keys beyond which the notes are lost.
NOTED_BYTES_MAX: Final = 64 << 20


class KeyNotes:
    """The notes of one tablet; thread-safe. Nothing is noted before `begin`.

    The notes have one reader, the one that has begun last. An earlier reader that is given up must not end the notes of
    the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The noted keys, None while nothing is noted.
        self._keys: set[bytes] | None = None
        self._bytes = 0
        self._reader = 0

    def begin(self) -> int:
        """Note keys from now on. Return the number of the reader, for `take` and `lose`."""
        with self._lock:
            self._keys, self._bytes = set(), 0
            self._reader += 1
            return self._reader

    def lose(self, reader: int = 0) -> None:
        """Stop noting and drop the notes, unless another reader than `reader` has begun. 0: for any reader."""
        with self._lock:
            if reader in (0, self._reader):
                self._keys, self._bytes = None, 0

    def add(self, changes: RoundChanges) -> None:
        """Note the keys of a commit."""
        if self._keys is None:
            return
        with self._lock:
            if self._keys is None:
                return
            for key, _ in changes.puts:
                self._bytes += len(key)
                self._keys.add(key)
            for key in changes.deletes:
                self._bytes += len(key)
                self._keys.add(key)
            if len(self._keys) > NOTED_MAX or self._bytes > NOTED_BYTES_MAX:
                self._keys = None

    def count(self) -> int:
        """Return how many keys are noted."""
        keys = self._keys
        return 0 if keys is None else len(keys)

    def take(self, reader: int = 0) -> list[bytes] | None:
        """Return the noted keys in their order and forget them; None if notes were lost or another reader has begun."""
        with self._lock:
            if self._keys is None or reader not in (0, self._reader):
                return None
            keys, self._keys, self._bytes = self._keys, set(), 0
        return sorted(keys)
