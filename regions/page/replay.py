"""The latest messages to listeners. A listener that reconnects misses no message, or learns that it must begin again.

An id is "<generation>.<number>". A generation ends when the master's role or its copy of the cluster changes: numbers
of regions then have another meaning.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: Bytes of messages that are kept.
BYTES_MAX: Final = 1 << 20
#: Messages that are kept: 30 s at 10 a second.
MESSAGES_MAX: Final = 300


class PageReplay:
    """Messages of one generation, numbered from 1."""

    def __init__(self, generation: str) -> None:
        self.generation = generation
        #: Number of the latest message, 0 before the first.
        self.latest = 0
        self._kept: deque[bytes] = deque()
        self._bytes = 0

    @property
    def latest_id(self) -> str:
        """The id of the latest message."""
        return f"{self.generation}.{self.latest}"

    def next_id(self) -> str:
        """Return the id of the message that `add` gets next."""
        return f"{self.generation}.{self.latest + 1}"

    def add(self, message: bytes) -> None:
        """Keep a message; drop the oldest ones beyond the bounds."""
        self.latest += 1
        self._kept.append(message)
        self._bytes += len(message)
        while self._kept and (self._bytes > BYTES_MAX or len(self._kept) > MESSAGES_MAX):
            self._bytes -= len(self._kept.popleft())

    def since(self, last_id: str) -> list[bytes] | None:
        """Return the messages after `last_id`, or None if some of them are not kept or the id is not of this
        generation."""
        generation, _, number = last_id.rpartition(".")
        if generation != self.generation or not number.isascii() or not number.isdecimal() or len(number) > 12:
            return None
        missed = self.latest - int(number)
        if not 0 <= missed <= len(self._kept):
            return None
        return [self._kept[at] for at in range(len(self._kept) - missed, len(self._kept))]
