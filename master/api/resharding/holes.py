"""Closes a hole in a table's key space: keys whose region has no record in the store.

The records are read from the store again, under the table's lock. Two cases:

- This master knows a region with some of the keys, whose record is lost. It writes the record from its memory, so the
  region's rows are available at once, without a step of the server.
- No region with these keys is known. An empty region is written, and opened like any other.

The write checks the table's record, and sets the number of regions there. The write that ends a split or merge does the
same, so no overlap arises.
"""

from __future__ import annotations

import msgspec
from twisted.logger import Logger

from coord.client.ops import Create, SetData, WriteOp
from coord.rpc.server import RpcError
from coord.rpc.wire import Code
from master.active import ActiveMaster
from master.catalog import store
from master.catalog.locks import Lock, Rank
from master.catalog.lookup import find_table
from regions import messages as ms
from regions.assign.resharding.holes import Hole, holes_of, region_for
from regions.cluster import events as ev
from regions.cluster.entities import Table
from regions.records.model import RegionRecord, TableState
from regions.records.znodes import decode_region, encode

log = Logger()


async def close_hole(active_master: ActiveMaster, request: ms.CloseHole) -> ms.Accepted:
    """Close a hole. Raise RpcError if there is no such hole, or if it cannot be closed."""
    table = find_table(active_master.assigner.world, request.table)
    _refuse_table(table)
    table_id = table.record.table_id
    async with active_master.operations.locks.hold(Lock(Rank.TABLE, table_id)):
        stored = await _regions(active_master, table)
        hole = Hole(request.start_key, request.end_key)
        if hole not in holes_of(stored):
            raise RpcError(ms.BAD_REQUEST, f"table {table.record.name} has no hole {hole.words}: run rk fsck again")
        lost = _lost(table, stored, hole)
        made = lost or [region_for(hole, table.record, table.version, stored)]
        ids = ", ".join(one.region_id for one in made)
        words = f"the record of {ids} is written again" if lost else f"the empty region {ids} has the keys {hole.words}"
        if not request.dry_run:
            await _write(active_master, table, stored, made)
            log.warn("table {table}: {words}", table=table.record.name, words=words)
        return ms.Accepted(words)


def _refuse_table(table: Table) -> None:
    record = table.record
    if record.is_tablet:
        raise RpcError(
            Code.UNSUPPORTED,
            f"table {record.name} has tablets: an empty one would hide the rows that its servers have; restore the"
            " store or the table from a backup",
        )
    if record.state not in (TableState.RUNNING, TableState.ALTERING):
        raise RpcError(ms.BAD_REQUEST, f"table {record.name} is being deleted")


async def _regions(active_master: ActiveMaster, table: Table) -> list[RegionRecord]:
    """Return the table's regions in the store. Raise RpcError if a record cannot be read, or the table has changed."""
    fence, table_id = active_master.fence, table.record.table_id
    await active_master.operations.refresh_table(table_id)
    paths = await store.list_all(fence.client, [fence.layout.table_regions(table_id)])
    stored = [record for record, _ in store.decoded(await store.read_all(fence.client, paths), decode_region)]
    if len(stored) < len(paths):
        raise RpcError(
            ms.BAD_REQUEST,
            f"{len(paths) - len(stored)} records of regions of table {table.record.name} cannot be read, or have just"
            " been deleted: their keys are no hole (rk fsck names damaged records)",
        )
    return stored


def _lost(table: Table, stored: list[RegionRecord], hole: Hole) -> list[RegionRecord]:
    """Return the regions with keys of the hole that this master knows, and the store does not."""
    there = {one.region_id for one in stored}
    known = [one.record for one in table.regions.values() if one.record.region_id not in there]
    return sorted(
        (one for one in known if one.start_key >= hole.start and (not hole.end or "" < one.end_key <= hole.end)),
        key=lambda one: one.start_key,
    )


async def _write(
    active_master: ActiveMaster, table: Table, stored: list[RegionRecord], made: list[RegionRecord]
) -> None:
    layout, table_id = active_master.fence.layout, table.record.table_id
    count = sum(not one.is_replaced for one in stored) + len(made)
    record = msgspec.structs.replace(table.record, regions=count)
    ops: list[WriteOp] = [SetData(layout.table(table_id), encode(record), table.version)]
    ops += [Create(layout.region(table_id, one.region_id), encode(one)) for one in made]
    await active_master.fence.write(ops)
    version = table.version + 1
    active_master.observe(ev.TableSeen(record, version))
    for one in made:
        active_master.observe(ev.RegionSeen(one, 0))
