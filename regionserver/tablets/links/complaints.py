"""What is logged about peers: each text once, so that a peer that dials again and again costs one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Texts that are logged until all are forgotten; strangers could cause new ones without end.
TEXTS_MAX: Final = 64
#: After this time a text is logged again: a fault that lasts must be seen in a new part of the log.
LOG_AGAIN_S: Final = 600.0


class Complaints:
    """The texts that were logged lately."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._texts: set[str] = set()
        self._since = seconds()

    def is_new(self, text: str) -> bool:
        """Return True if `text` must be logged now."""
        now = self._seconds()
        if now - self._since >= LOG_AGAIN_S:
            self._texts.clear()
            self._since = now
        if text in self._texts or len(self._texts) >= TEXTS_MAX:
            return False
        self._texts.add(text)
        return True
