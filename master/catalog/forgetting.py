"""Removes the records of deleted tables some time after their rows (MD-06, DD-06).

A deleted table keeps its record and those of its regions, so that `rk table undelete` can restore it, and its replicas
are recognized. Once its rows are removed, nothing can restore the table. After the retention the table's records are
replaced by its id in `/forgotten/<xx>`, and no new table may get this id. So the store does not grow with every table
that ever existed.

1. Delete the records of the table's regions, batch by batch.
2. In one multi, add the id to `/forgotten/<xx>`, and delete the regions' directory and the table's record.

The records of regions that were split, merged or replaced are deleted after the same time, when no split or merge needs
them any more. Their ids cannot be used again: an id is derived from the ids of parents, and each parent is split or
merged only once (`regions/assign/resharding/daughters.py`).

Each step depends only on records and may be repeated, so the next active master continues where this one stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.client.ops import Create, Delete, SetData, WriteOp
from coord.client.requests import gather
from coord.errors import MultiFailed
from master.catalog import store
from master.catalog.locks import Lock, LockTable, Rank
from master.context import ActiveContext
from master.leadership.fence import Fence, in_batches
from regions.cluster.entities import Table
from regions.records.forgotten import ForgottenTables, overdue
from regions.records.model import TableRecord
from regions.records.znodes import decode_forgotten, decode_region, decode_table, encode
from regions.transitions.purging import is_forgettable

log = Logger()

#: Limit of the deleted tables whose records are kept. Above the limit, records are removed at any age, in the order of
#: the purges.
DELETED_KEPT_MAX: Final = 1_000
#: Limit of the replaced regions whose records are kept. Above the limit, records are removed at any age.
REPLACED_KEPT_MAX: Final = 10_000
#: Tables whose regions are counted at once.
COUNTED_AT_ONCE: Final = 500
#: Tables that are forgotten in one round.
ROUND_MAX: Final = 200


class Forgetting:
    """See the module docstring. One per tenure."""

    def __init__(
        self, active_master: ActiveContext, locks: LockTable, now_ms: Callable[[], int], retention_ms: int
    ) -> None:
        """`retention_ms`: how long the records of a table are kept after its rows were removed."""
        self._active_master = active_master
        self._locks = locks
        self._now_ms = now_ms
        self._retention_ms = retention_ms

    async def run(self) -> None:
        """Forget the tables that are due, the first purged ones first."""
        fence = self._active_master.fence
        found = await store.load_tables(fence.client, fence.layout)
        purged = [(table.purged_ms, table.table_id) for table, _ in found if is_forgettable(table)]
        due = overdue(purged, self._now_ms() - self._retention_ms, DELETED_KEPT_MAX)
        forgotten = 0
        for table_id in due[:ROUND_MAX]:
            forgotten += await self._forget(table_id)
        if forgotten:
            log.info("removed the records of {count} deleted tables; their ids are kept", count=forgotten)

    async def forget_replaced(self) -> None:
        """Delete the records of regions that were replaced long ago, the oldest first. May be repeated."""
        fence = self._active_master.fence
        versions: dict[str, int] = {}
        aged: list[tuple[int, str]] = []
        for table in await self._with_replaced():
            directory = fence.layout.table_regions(table.record.table_id)
            paths = await store.list_all(fence.client, [directory])
            former = [one for one in paths if one.rpartition("/")[2] not in table.regions]
            for path, data, stat in await store.read_all(fence.client, former):
                for record, version in store.decoded([(path, data, stat)], decode_region):
                    if record.is_replaced and not self._is_needed(record.region_id):
                        versions[path] = version
                        aged.append((stat.mtime, path))
        gone = overdue(aged, self._now_ms() - self._retention_ms, REPLACED_KEPT_MAX)
        for batch in in_batches([Delete(path, versions[path]) for path in gone]):
            await fence.write(batch)
        for path in gone:
            self._active_master.keeper.forgotten(path.rpartition("/")[2])
        if gone:
            log.info("removed the records of {count} regions that were split, merged or replaced", count=len(gone))

    def _is_needed(self, region_id: str) -> bool:
        works = self._active_master.assigner.reshardings.records()
        return any(region_id in work.parents for work in works)

    async def _with_replaced(self) -> list[Table]:
        """Return the tables that have more regions in the store than are in use."""
        client, layout = self._active_master.fence.client, self._active_master.fence.layout
        known = list(self._active_master.world.tables.values())
        found: list[Table] = []
        for at in range(0, len(known), COUNTED_AT_ONCE):
            part = known[at : at + COUNTED_AT_ONCE]
            stats = await gather(client.exists(layout.table_regions(one.record.table_id)) for one in part)
            found += [
                one
                for one, stat in zip(part, stats, strict=True)
                if stat is not None and stat.num_children > len(one.regions)
            ]
        return found

    async def _forget(self, table_id: str) -> bool:
        """Replace a table's records by its id. Return False if a record has changed meanwhile."""
        fence, layout = self._active_master.fence, self._active_master.fence.layout
        path, directory = layout.table(table_id), layout.table_regions(table_id)
        async with self._locks.hold(Lock(Rank.TABLE, table_id)):
            read = await store.read_all(fence.client, [path])
            for table, version in store.decoded(read, decode_table):
                if not is_forgettable(table):
                    return False
                try:
                    for batch in in_batches([Delete(one) for one in await store.list_all(fence.client, [directory])]):
                        await fence.write(batch)
                    there = await fence.client.exists(directory)
                    gone: list[WriteOp] = [Delete(directory)] if there is not None else []
                    await fence.write([await _added(fence, table), *gone, Delete(path, version)])
                except MultiFailed as error:
                    log.info("did not remove the records of deleted table {table}, a record has changed: {error}",
                             table=table_id, error=error)  # fmt: skip
                    return False
                return True
        return False


async def _added(fence: Fence, table: TableRecord) -> WriteOp:
    """Return the write that adds a table's id."""
    path = fence.layout.forgotten_ids(table.table_id)
    for record, version in store.decoded(await store.read_all(fence.client, [path]), decode_forgotten):
        return SetData(path, encode(record.with_table(table.table_id, table.purged_ms)), version)
    return Create(path, encode(ForgottenTables().with_table(table.table_id, table.purged_ms)))


async def forgotten_ms(fence: Fence, table_id: str) -> int:
    """Return the time at which the rows of a forgotten table were removed, 0 for an unknown id."""
    read = await store.read_all(fence.client, [fence.layout.forgotten_ids(table_id)])
    return max((record.purged_ms.get(table_id, 0) for record, _ in store.decoded(read, decode_forgotten)), default=0)
