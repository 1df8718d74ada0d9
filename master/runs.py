"""Records of the durations of activations and bulk assignments, kept in the store for comparison.

Each event has a record of its own (N10): the begin of a tenure, at a startup of the cluster or at a failover, and each
bulk assignment. A record is created once and never changed, so a later event cannot alter an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from coord.client.ops import Create, Delete, WriteOp
from coord.errors import MultiFailed
from master.leadership.fence import Fence
from master.phases import Phases
from regions.cluster.state import ClusterState
from regions.messages import StartupPhase
from regions.records.model import RunRecord
from regions.records.znodes import encode

#: Records that stay in the store.
RUNS_KEPT: Final = 200


class Runs:
    """Writer of the records `/runs/<epoch>-<number>` of one tenure."""

    def __init__(self, fence: Fence, record: RunRecord) -> None:
        """`record` has the fields that all records of this tenure share."""
        self._fence = fence
        self._shared = record
        self._number = 0

    def record(self, kind: str, phases: Iterable[StartupPhase], **facts: object) -> RunRecord:
        """Return the record of an event, with a number that no other event of this tenure has."""
        took = tuple((phase.name, phase.seconds) for phase in phases if phase.done)
        found = msgspec.structs.replace(self._shared, kind=kind, number=self._number, phases=took, **facts)
        self._number += 1
        return found

    def beginning(self, path: str, phases: Phases, world: ClusterState, found: int, now_ms: int) -> RunRecord:
        """Return the record of the beginning of this tenure, which found so many transitions."""
        servers, replicas = len(world.servers), len(world.replicas)
        facts = {"path": path, "at_ms": now_ms, "servers": servers, "replicas": replicas, "found": found}
        return self.record(path, phases.report(), **facts)

    async def add(self, record: RunRecord) -> None:
        """Create a record, and remove the oldest records beyond RUNS_KEPT. May be repeated after a lost reply."""
        layout = self._fence.layout
        path = layout.run(record.epoch, record.number)
        if await self._fence.client.exists(path) is not None:
            return
        names = sorted(await self._fence.client.children(layout.runs))
        old: list[WriteOp] = [Delete(f"{layout.runs}/{name}") for name in names[: -(RUNS_KEPT - 1)]]
        made = Create(path, encode(record))
        try:
            await self._fence.write([made, *old])
        except MultiFailed:
            # For example, an operator has deleted one of the oldest records. The next record removes the others.
            await self._fence.write([made])
