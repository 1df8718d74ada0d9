"""The log alone on its simulated disk: batches, power cuts at any step, restarts. Some eighty histories a second, so
that bugs that need a rare size at a rare position are found."""

from __future__ import annotations

from typing import Final

from coord.errors import CorruptRecord
from coord.storage.records import WriteBatch
from coord.storage.wal import Wal, open_wal
from simulation.engine.chance import SeededRandom
from simulation.engine.disk import SimDisk
from simulation.engine.history import Violation
from tests.sim.store.machinery import PowerCut
from tests.sim.store.world import Bug

FOLDER: Final = "wal"
BATCHES: Final = 40


def run_log(seed: int, bug: type[Bug] = Bug) -> None:
    """Run one history of a log. Raise Violation."""
    with bug().planted():
        _History(seed).run()


class _History:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = SeededRandom(seed)
        self.disk = SimDisk("disk", self.chance, lambda: 0)
        self.disk.step = self._step
        self.segment_bytes = self.chance.pick([300, 800, 3000])
        self.sizes = self.chance.pick([[20], [20, 600], [10, 100, 1500]])
        self.crashes = self.chance.pick([0.01, 0.05])
        #: The written entries, by index - 1; the first `acknowledged` of them are durable.
        self.written: list[bytes] = []
        self.acknowledged = 0

    def _step(self) -> None:
        if self.chance.happens(self.crashes):
            raise PowerCut

    def run(self) -> None:
        wal = self._restart()
        for _ in range(BATCHES):
            batch = WriteBatch()
            first = len(self.written) + 1
            for index in range(first, first + 1 + self.chance.below(3)):
                data = bytes([index % 251]) * (1 + self.chance.below(self.chance.pick(self.sizes)))
                batch.add_entry(1, index, 0, data)
                self.written.append(data)
            try:
                wal.write([batch])
                self.acknowledged = len(self.written)
            except PowerCut:
                self.disk.power_cut()
                wal = self._restart()

    def _restart(self) -> Wal:
        while True:
            try:
                wal, found = open_wal(self.disk, FOLDER, segment_bytes=self.segment_bytes)
            except PowerCut:
                self.disk.power_cut()
                continue
            except CorruptRecord as error:
                raise Violation(f"the log is taken for damaged: {error}; log alone, seed {self.seed}") from error
            entries = [entry.data for entry in found.entries]
            if len(entries) < self.acknowledged or entries != self.written[: len(entries)]:
                raise Violation(f"{len(entries)} entries of {self.acknowledged}; log alone, seed {self.seed}")
            del self.written[len(entries) :]
            return wal
