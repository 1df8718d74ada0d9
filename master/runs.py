"""Durations of each activation of a master, kept in the store so that activations can be compared (N10)."""

from __future__ import annotations

from typing import Final

import msgspec

from coord.client.ops import Create, Delete, SetData, WriteOp
from master.leadership.fence import Fence
from master.phases import Phases
from regions.records.model import RunRecord
from regions.records.znodes import encode

#: Records that stay in the store, the current tenure's included.
RUNS_KEPT: Final = 50


class Runs:
    """The record `/runs/<epoch>` of one tenure, written after the activation and after each bulk plan."""

    def __init__(self, fence: Fence, phases: Phases, record: RunRecord) -> None:
        self._fence = fence
        self._phases = phases
        self._record = record

    async def begin(self, facts: dict[str, object]) -> None:
        """Write the record for the first time and remove the oldest records beyond RUNS_KEPT."""
        layout = self._fence.layout
        names = sorted(await self._fence.client.children(layout.runs))
        old: list[WriteOp] = [Delete(f"{layout.runs}/{name}") for name in names[: -(RUNS_KEPT - 1)]]
        if old:
            await self._fence.write(old)
        await self.save(facts)

    async def save(self, facts: dict[str, object]) -> None:
        """Write the record with the current phases."""
        phases = tuple((phase.name, phase.seconds) for phase in self._phases.report() if phase.done)
        self._record = msgspec.structs.replace(self._record, phases=phases, **facts)
        path, data = self._fence.layout.run(self._record.epoch), encode(self._record)
        exists = await self._fence.client.exists(path) is not None
        await self._fence.write([SetData(path, data) if exists else Create(path, data)])
