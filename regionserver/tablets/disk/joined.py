"""The shared log for files.py during a start, before the turn writes the log.

Once the server runs, the turn writes the log. Steps on files then run on a thread of their own, with a SlotLog that
passes the changes to the turn and waits until they are durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from coord.storage.shared.items import Change, RecoveredSlot
from coord.storage.shared.log import SharedLog


class StartingSlots:
    """The slots of a newly opened log (`files.SlotLog`)."""

    def __init__(self, log: SharedLog) -> None:
        self._log = log

    def write(self, changes: Sequence[Change]) -> None:
        """See `SlotLog.write`."""
        self._log.write([self._log.batch(list(changes))])

    def contents(self, slot: int) -> RecoveredSlot | None:
        """See `SlotLog.contents`."""
        return self._log.contents(slot)
