"""Warnings about peers: each text is logged once, so that a peer that dials repeatedly causes one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Texts remembered; beyond this number all are forgotten. Unknown peers could cause new texts without end.
TEXTS_MAX: Final = 64
#: A text is logged again after this time, so that a lasting fault also appears in newer parts of the log.
LOG_AGAIN_S: Final = 600.0


class Complaints:
    """The texts that were logged recently."""

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
