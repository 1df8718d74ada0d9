"""The slots of the latest records, repeated in the records after them. Pure.

Every record begins with a trail for the record before it. So if a single record is damaged, the next one names its
slots exactly. Once per `WINDOW_BYTES` a trail covers the last two windows, so that damage of up to a window's length,
which may span many records, is covered as well. The header of a segment states all slots.
"""

from __future__ import annotations

from typing import Final

from coord.storage.shared.codec import encode_note, encode_trail

#: Bytes of records between two long trails. A piece takes 12 bytes, so with 10,000 slots that all write, long trails
#: take less than a quarter of the log; with 1,000 about a fortieth.
WINDOW_BYTES: Final = 1 << 20


class Trails:
    """The trail of the next record."""

    def __init__(self, sequence: int, pieces: dict[int, bytes], *, window_bytes: int = WINDOW_BYTES) -> None:
        """Begin after the record `sequence`. `pieces` are those of all slots in the log, including slots that have
        ended: the first trail states them all."""
        self._window_bytes = window_bytes
        #: Pieces of the window before this one, of this one, and of the last record; since which records.
        self._older = pieces
        self._older_since = 1
        self._recent: dict[int, bytes] = {}
        self._recent_since = sequence + 1
        self._last: list[bytes] = []
        self._last_since = sequence
        self._bytes = 0
        self._is_due = True

    def encode(self) -> bytes:
        """Return the trail of the next record."""
        return encode_trail(*self._now())

    def encode_note(self) -> bytes:
        """Return the note for the last record's seal, with the content of the next record's trail."""
        return encode_note(*self._now())

    def took(self, sequence: int, pieces: dict[int, bytes], size: int) -> None:
        """Add a record that has become durable."""
        assert sequence > self._last_since, f"record {sequence} after record {self._last_since}"
        if self._is_due:
            self._older, self._older_since = self._recent, self._recent_since
            self._recent, self._recent_since = {}, sequence
            self._bytes = 0
        self._recent.update(pieces)
        self._last, self._last_since = list(pieces.values()), sequence
        self._bytes += size
        self._is_due = self._bytes >= self._window_bytes

    def _now(self) -> tuple[int, list[bytes]]:
        if not self._is_due:
            return self._last_since, self._last
        return self._older_since, list({**self._older, **self._recent}.values())
