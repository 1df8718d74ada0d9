"""`undelete` restores a deleted table with its rows, in one write (DD-06, `regions/transitions/purging.py`).

Regions that do not fit into the multi are written before it. They belong to a deleted table, so no reader sees them
until the last multi restores the table. If that multi is refused, or if the master dies before it, the table remains
deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from coord.client.ops import Create, SetData
from coord.errors import MultiFailed
from coord.rpc.server import RpcError
from master.catalog import store, tables
from master.catalog.locks import Lock, LockTable, Rank
from master.context import ActiveContext
from master.leadership.fence import in_batches, total_weight
from regions import messages as ms
from regions.cluster import events as ev
from regions.messages import ddl
from regions.records.model import RegionRecord, TableRecord, TableState
from regions.records.znodes import check_table_name, decode_table, encode
from regions.transitions import purging


class Undelete:
    """Carries out UndeleteTable during one tenure."""

    def __init__(self, active_master: ActiveContext, locks: LockTable, forget: Callable[[str], None]) -> None:
        """`forget(table_id)` is called for a table that must not be purged any more."""
        self._active_master = active_master
        self._locks = locks
        self._forget = forget

    async def perform(self, request: ddl.UndeleteTable, entry: Callable[[TableRecord], tables.Ops]) -> TableRecord:
        """Restore the table. `entry` returns the operations that record the result.

        Raise RpcError, or as the functions of `master.catalog.tables`.
        """
        found = await self._find(request.table)
        name = request.name or found.name
        try:
            check_table_name(name)
        except ValueError as error:
            raise RpcError(ms.BAD_REQUEST, str(error)) from error
        async with self._locks.hold(Lock(Rank.TABLE, found.table_id), Lock(Rank.NAME, name)):
            former, version = await self._latest(found)
            if name in self._active_master.world.names:
                raise RpcError(ms.ALREADY_EXISTS, f"table {name!r} already exists: give another name with --as")
            table = purging.undeleted(former, name)
            fence = self._active_master.fence
            regions = await store.load_regions(fence.client, fence.layout, table.table_id)
            back, table_version = await self._write(table, version, regions, entry(table))
            self._forget(table.table_id)
            self._active_master.observe(ev.TableSeen(table, table_version, back))
        return table

    async def _find(self, text: str) -> TableRecord:
        """Return the deleted table with this id, or the restorable table that had this name last."""
        fence = self._active_master.fence
        every = [record for record, _ in await store.load_tables(fence.client, fence.layout)]
        named = [one for one in every if one.table_id == text] or [
            one for one in every if one.name == text and one.state is TableState.REMOVED
        ]
        if not named:
            raise RpcError(ms.NOT_FOUND, f"there is no deleted table {text!r}")
        found = max(named, key=lambda one: (not purging.objection_to_undelete(one), one.removed_ms, one.created_ms))
        self._check(found)
        return found

    @staticmethod
    def _check(table: TableRecord) -> None:
        objection = purging.objection_to_undelete(table)
        if objection:
            raise RpcError(ms.BAD_REQUEST, objection)

    async def _latest(self, known: TableRecord) -> tuple[TableRecord, int]:
        """Return the table's record and its version, read under the table's lock."""
        fence = self._active_master.fence
        path = fence.layout.table(known.table_id)
        [(table, version)] = store.decoded(await store.read_all(fence.client, [path]), decode_table)
        self._check(table)
        if not table.finished_ms:
            raise RpcError(ms.BUSY, f"regions of table {table.name} ({table.table_id}) are still being closed")
        return table, version

    async def _write(
        self, table: TableRecord, version: int, regions: list[tuple[RegionRecord, int]], entry: tables.Ops
    ) -> tuple[list[tuple[RegionRecord, int]], int]:
        """Write table and regions; return the new region records and the version of the table's record."""
        fence, layout = self._active_master.fence, self._active_master.fence.layout
        ops: tables.Ops = []
        back: list[tuple[RegionRecord, int]] = []
        for former, region_version in regions:
            region = purging.undeleted_region(former)
            if region == former:
                back.append((former, region_version))
                continue
            path = layout.region(region.table_id, region.region_id)
            ops.append(SetData(path, encode(region), region_version))
            back.append((region, region_version + 1))
        name = Create(layout.name(table.name), table.table_id.encode())
        last: tables.Ops = [name, *entry]
        size = total_weight([*ops, *last], fence.acl_bytes) + len(encode(table))
        if size <= tables.CREATE_BYTES_MAX:
            last, ops = [*ops, *last], []
        for batch in in_batches(ops):
            await fence.write(batch)
        try:
            return back, await tables.write_undeleted(fence, table, version, last, entry)
        except MultiFailed as error:
            raise RpcError(ms.BUSY, f"table {table.name} was changed at the same time: {error.error}") from error
