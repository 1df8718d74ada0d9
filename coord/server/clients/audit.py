"""The audit log: authentications, and changes of access lists. Its size is bounded, because clients decide how many
events there are.

In each second the first LINES_PER_SESSION events of a session are written as lines; one more line has the number of the
others. So an attacker produces few lines, and does not suppress those of other sessions. After LINES_PER_SECOND lines
of all sessions, one line sums up the rest of the second. Authentications of the superuser are always written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

audit = Logger(namespace="audit")

LINES_PER_SESSION: Final = 10
LINES_PER_SECOND: Final = 200
_SECOND_MS: Final = 1000


class AuditLog:
    """The audit lines of one node. Call `tick` at least once a second."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._began_ms = 0
        #: Lines written in this second, by session and in all.
        self._written: dict[int, int] = {}
        self._total = 0
        #: (session, address) -> lines of this second that were not written: all, and refused ones.
        self._left_out: dict[tuple[int, str], tuple[int, int]] = {}

    def note(
        self, session_id: int, address: str, text: str, *, is_refused: bool, is_kept: bool = False, **fields: Any
    ) -> None:
        """Write a line, or count it. `is_kept` lines are never left out."""
        self.tick()
        session = session_id & (1 << 64) - 1
        written = self._written.get(session, 0)
        if not is_kept and (written >= LINES_PER_SESSION or self._total >= LINES_PER_SECOND):
            key = (session, address) if self._total < LINES_PER_SECOND else (0, "")
            lines, refused = self._left_out.get(key, (0, 0))
            self._left_out[key] = (lines + 1, refused + is_refused)
            return
        self._written[session] = written + 1
        self._total += 1
        audit.info(text, session=session, address=address, **fields)

    def tick(self) -> None:
        """Write the sums of a second that has ended."""
        now_ms = self._monotonic_ms()
        if now_ms - self._began_ms < _SECOND_MS:
            return
        left_out, self._left_out = self._left_out, {}
        self._began_ms = now_ms
        self._written.clear()
        self._total = 0
        for (session, address), (lines, refused) in left_out.items():
            if session:
                audit.info(
                    "summary session={session:#x} address={address} lines={lines} refused={refused} within a second",
                    session=session,
                    address=address,
                    lines=lines,
                    refused=refused,
                )
            else:
                audit.warn(
                    "summary of many sessions lines={lines} refused={refused} within a second",
                    lines=lines,
                    refused=refused,
                )
