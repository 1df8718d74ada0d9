"""Background work of the active master on tables (OC-09, OC-11), which completes DDL operations:

- replace regions that could not be created
- mark deleted tables whose regions are all closed
- remove the remains of unfinished table creations
- delete the results of old requests, and the records of tables that were deleted long ago

All of this work depends only on records and may be repeated, so the next active master completes unfinished work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from twisted.logger import Logger

from coord.client.ops import Delete, WriteOp
from coord.errors import MultiFailed
from master.catalog import store, tables
from master.catalog.ddl import TableOperations
from master.catalog.forgetting import Forgetting
from master.catalog.locks import Lock, Rank
from master.context import ActiveContext
from master.leadership.fence import in_batches
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.forgotten import overdue
from regions.records.model import RegionRecord, TableRecord, TabletState, TransitionRecord
from regions.records.znodes import CorruptZnode, decode_region, decode_request, decode_transition
from regions.transitions.states import Cause

log = Logger()

#: Age and number of the request results that are kept. Clients retry a request within minutes.
REQUESTS_KEPT_MS: Final = 24 * 3600 * 1000
REQUESTS_KEPT_MAX: Final = 10_000
#: Delay of the first removal of old records, so that a new active master first completes its takeover; period of the
#: removals.
PRUNE_FIRST_MS: Final = 60 * 1000
PRUNE_EVERY_MS: Final = 10 * 60 * 1000


def _names_a_server(region: RegionRecord) -> bool:
    """Return True if the region's record names a server that has a replica open."""
    return any(one.start_code is not None for one in region.replicas)


class Janitor:
    """See the module docstring. One per tenure."""

    def __init__(
        self,
        active_master: ActiveContext,
        operations: TableOperations,
        now_ms: Callable[[], int],
        forgetting: Forgetting,
        finished: Callable[[TableRecord], None] = lambda _: None,
    ) -> None:
        """`finished` is called for each deleted table whose regions are all closed."""
        self.finished = finished
        self._active_master = active_master
        self._operations = operations
        self._now_ms = now_ms
        self._forgetting = forgetting
        self._prune_at_ms = now_ms() + PRUNE_FIRST_MS

    async def finish_table(self, effect: fx.FinishTable) -> None:
        """Write DELETED into the regions of a deleted table, then `finished_ms` into the table's record (DD-06).

        Wait while one of the regions has a transition: a server whose registration is gone may have begun to close the
        region before it noticed.
        """
        fence, table = self._active_master.fence, effect.record
        suspects = {one.region_id for one, _ in effect.regions if _names_a_server(one)}
        for known in (effect.regions, None):
            try:
                # None: a region has changed since the effect, because servers write region records, too. Read the
                # records again.
                regions = known or await store.load_regions(fence.client, fence.layout, table.table_id)
                suspects |= {one.region_id for one, _ in regions if _names_a_server(one)}
                regions = await tables.clear_locations(fence, regions)
                late = await self._transitions_of(table.replication, suspects)
                if late:
                    self._begun_meanwhile(table.table_id, regions, late)
                    return
                await tables.mark_deleted(fence, regions)
                record = msgspec.structs.replace(table, finished_ms=self._now_ms())
                await tables.change(fence, record, effect.version, [])
            except MultiFailed as error:
                log.info("could not mark deleted table {table} as closed, a record has changed: {error}",
                         table=table.name, error=error)  # fmt: skip
            else:
                self._active_master.observe(ev.FinishAnswered(table.table_id, True))
                self.finished(record)
                return
        self._active_master.observe(ev.FinishAnswered(table.table_id, False))
        await self._operations.refresh_table(table.table_id)

    async def _transitions_of(self, replication: int, region_ids: Iterable[str]) -> list[tuple[TransitionRecord, int]]:
        fence = self._active_master.fence
        keys = ((region_id, replica) for region_id in sorted(region_ids) for replica in range(replication))
        found = await store.read_all(fence.client, [fence.layout.transition(*key) for key in keys])
        return store.decoded(found, decode_transition)

    def _begun_meanwhile(
        self, table_id: str, regions: list[tuple[RegionRecord, int]], late: list[tuple[TransitionRecord, int]]
    ) -> None:
        """Hand the transitions that servers have begun to the assigner, which completes them before the table."""
        log.info("deleted table {table} is not closed yet: {count} transitions", table=table_id, count=len(late))
        self._active_master.observe(ev.FinishAnswered(table_id, False))
        begun = {record.region_id for record, _ in late}
        for region, version in regions:
            if region.region_id in begun:
                self._active_master.observe(ev.RegionSeen(region, version))
        for record, version in late:
            self._active_master.observe(ev.TransitionRead(record.key, record, version))

    async def replace_region(self, effect: fx.ReplaceRegion) -> None:
        """Replace a region in one write (DD-03). If the store refuses the write, nothing has changed (DD-04)."""
        former, fresh = effect.record, effect.fresh
        layout, history_writer = self._active_master.fence.layout, self._active_master.history_writer
        locks = (Lock(Rank.TABLE, former.table_id, writes=False), Lock(Rank.REGION, former.region_id))
        async with self._operations.locks.hold(*locks):
            ops: list[WriteOp] = [
                Delete(layout.transition(former.region_id, one.replica), version) for one, version in effect.transitions
            ]
            table = (former.table_id, effect.table_version)
            ops += tables.replace_region(layout, former, effect.version, fresh, table)
            try:
                await history_writer.write(history_writer.page_of_ends(effect.transitions, Cause.REPLACED), ops)
            except MultiFailed as error:
                if await self._is_replaced(former):  # by an earlier write of this effect whose reply was lost
                    self._active_master.observe(ev.RegionReplaced(former.region_id, fresh))
                    return
                log.info("could not replace region {region}: {error}", region=former.region_id, error=error)
                self._active_master.observe(ev.ReplaceFailed(former.region_id))
                return
            self._active_master.observe(ev.RegionReplaced(former.region_id, fresh))

    async def _is_replaced(self, region: RegionRecord) -> bool:
        path = self._active_master.fence.layout.region(region.table_id, region.region_id)
        found = store.decoded(await store.read_all(self._active_master.fence.client, [path]), decode_region)
        return any(record.state is TabletState.REPLACED for record, _ in found)

    async def clear(self, orphans: Iterable[tuple[str, str]]) -> None:
        """Remove the remains of unfinished table creations, except of tables that are being created now."""
        for table_id, name_path in orphans:
            if table_id not in self._operations.preparing:
                await tables.remove_orphan(self._active_master.fence, table_id, name_path)

    def prune_is_due(self) -> bool:
        """Return True if it is time to delete old records."""
        now_ms = self._now_ms()
        if now_ms < self._prune_at_ms:
            return False
        self._prune_at_ms = now_ms + PRUNE_EVERY_MS
        return True

    async def prune(self) -> None:
        """Delete records whose retention has passed. May be repeated."""
        await self._prune_requests()
        await self._forgetting.run()
        await self._forgetting.forget_replaced()

    async def _prune_requests(self) -> None:
        """Delete request results that are too old or too many, the oldest first. May be repeated."""
        fence = self._active_master.fence
        found = await store.read_all(fence.client, await store.list_all(fence.client, [fence.layout.requests]))
        aged: list[tuple[int, str]] = []
        for path, data, _ in found:
            try:
                aged.append((decode_request(data, path).at_ms, path))
            except CorruptZnode as error:
                log.error("keeping a damaged request result: {error}", error=error)
        before_ms = self._now_ms() - REQUESTS_KEPT_MS
        gone: list[WriteOp] = [Delete(path) for path in overdue(aged, before_ms, REQUESTS_KEPT_MAX)]
        for batch in in_batches(gone):
            await fence.write(batch)
        if gone:
            log.info("deleted the results of {count} old requests", count=len(gone))
