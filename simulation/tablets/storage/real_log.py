"""The shared log itself (`coord.storage.shared`), on a simulated disk that loses any set of unsynced sectors.

The model predicts the content after each start: everything that was synced, and all or nothing of the record that was
being written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from coord.storage.shared.batch import SlotBatch
from coord.storage.shared.items import Change, RecoveredLog
from coord.storage.shared.log import open_shared_log
from simulation.engine.chance import SeededRandom
from simulation.engine.disk import SimDisk
from simulation.engine.history import Violation
from simulation.tablets.storage.log import SimLog

#: Small, so that histories have several segments.
SEGMENT_BYTES: Final = 16 << 10


class RealLog(SimLog):
    """The shared log of one server, and its model."""

    def __init__(self, name: str, now: Callable[[], int]) -> None:
        super().__init__()
        self._name = name
        self._now = now
        self._disks = 0
        self._prunes = 0
        self.lose()

    def lose(self) -> None:
        """See `SimLog.lose`."""
        super().lose()
        self._disks += 1
        self._disk = SimDisk(self._name, SeededRandom(f"{self._name} disk {self._disks}"), self._now)
        self._log, _ = open_shared_log(self._disk, segment_bytes=SEGMENT_BYTES)
        #: Batches of the records in the queue, and the number of them that were passed to the disk.
        self._batches: list[SlotBatch] = []
        self._begun = 0

    def next_slot(self) -> int:
        """See `SimLog.next_slot`."""
        return self._log.next_slot()

    def write_now(self, changes: Sequence[Change]) -> None:
        """See `SimLog.write_now`."""
        self._log.write([self._log.batch(list(changes))])
        super().write_now(changes)

    def write(self, number: int, changes: Sequence[Change]) -> None:
        """See `SimLog.write`."""
        super().write(number, changes)
        self._batches.append(self._log.batch(list(changes)))

    def begin(self, span_us: int) -> int:
        """See `SimLog.begin`."""
        self._begun = len(self._batches)
        self._disk.begin_work(lambda: span_us)
        self._log.write(self._batches)
        return self._disk.end_work() - self._now()

    def sync(self, count: int) -> int:
        """See `SimLog.sync`."""
        assert count == self._begun, f"{count} records are durable, {self._begun} were written"
        self._begun = 0
        del self._batches[:count]
        self._prunes += 1
        self._log.prune(self._prunes)
        return super().sync(count)

    def kill(self, chance: SeededRandom) -> None:
        """See `SimLog.kill`."""
        del chance
        self._disk.killed()
        self._reopen()

    def power_cut(self, chance: SeededRandom, counts: Counter[str]) -> None:
        """See `SimLog.power_cut`."""
        del chance
        if self._disk.power_cut():
            counts["torn_sectors"] += 1
        self._reopen()
        counts["real_log_recovered"] += 1

    def _reopen(self) -> None:
        """Open the log anew, and let the model follow the log's content."""
        self._log, found = open_shared_log(self._disk, segment_bytes=SEGMENT_BYTES)
        begun, self._begun = self._begun, 0
        why = self._difference(found)
        if why and begun:
            # The record that was being written has survived.
            super().sync(begun)
            why = self._difference(found)
        if why:
            raise Violation(f"the log of {self._name} does not hold what it held: {why}")
        self._forget_queue()
        self._batches = []

    def _difference(self, found: RecoveredLog) -> str:
        """Return how the opened log differs from the model, "" if it does not."""
        if set(found.slots) != set(self.slots):
            return f"slots {sorted(found.slots)}, expected {sorted(self.slots)}"
        for number, expected in self.slots.items():
            if expected.damage:
                continue
            slot = found.slots[number]
            if slot.damage:
                return f"slot {number} is damaged: {slot.damage}"
            state = (slot.hard_state.term, slot.hard_state.vote)
            if state != (expected.hard_state.term, expected.hard_state.vote):
                return f"slot {number} has term and vote {state}"
            if (slot.floor, slot.last) != (expected.floor, expected.last()):
                return (
                    f"slot {number} holds {slot.floor} to {slot.last}, expected {expected.floor} to {expected.last()}"
                )
            entries = [(each.term, each.index, each.kind, each.data) for each in slot.entries]
            if entries != [(each.term, each.index, each.kind, each.data) for each in expected.entries]:
                return f"the entries of slot {number} differ"
        return ""
