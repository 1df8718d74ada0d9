"""Writes of operations on tables: each is one fenced multi, all or nothing (OC-01, OC-05).

If the request has an id, the multi ends with the request's record: so the result is in the store if and only if the
operation was performed. Only the creation of a table with too many regions for one multi takes several multis: first
the name and the directory of the regions, then the regions, and last the table's record, which makes the table exist.
If the master dies in between, no reader sees the remains. The next active master removes them, or a request for the
name does.

Removing the remains must not race with their creator, whose last multi may still be in flight. So the removal first
changes the directory's version, which the last multi of a creation checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from twisted.logger import Logger

from coord.client.ops import Check, Create, Delete, SetData, WriteOp, WriteResult
from coord.client.requests import gather
from coord.errors import MultiFailed, NodeExists, NoNode
from coord.wire.records import Stat
from master.catalog import store
from master.leadership.fence import BYTES_MAX, Fence, in_batches, total_weight
from regions.records.model import RegionRecord, RequestRecord, TableRecord, TabletState
from regions.records.znodes import Layout, decode_request, encode

log = Logger()

#: Bytes of one multi that creates a table: about 2,000 regions.
CREATE_BYTES_MAX: Final = BYTES_MAX


class AlreadyExists(Exception):  # noqa: N818 - an answer, not a fault
    """Raised when the name of a table is taken; nothing was written."""


class AlreadyDone(Exception):  # noqa: N818 - an answer, not a fault
    """Raised when a request with this id has been carried out before; nothing was written now."""


Ops = list[WriteOp]


def entry(fence: Fence, record: RequestRecord | None) -> Ops:
    """Return the operations that record a request's result in a multi; [] for a request without an id."""
    return [] if record is None else [Create(fence.layout.request(record.request_id), encode(record))]


async def find_request(fence: Fence, request_id: str) -> RequestRecord | None:
    """Return the result of the request with this id, or None if the request has not been carried out."""
    path = fence.layout.request(request_id)
    try:
        data, _ = await fence.client.get(path)
    except NoNode:
        return None
    return decode_request(data, path)


def create_batches(fence: Fence, table: TableRecord, regions: list[RegionRecord], record: Ops) -> list[Ops]:
    """Return the multis that create a table, in order. One is enough unless there are too many regions (TS-05)."""
    layout = fence.layout
    directory = layout.table_regions(table.table_id)
    head: Ops = [Create(layout.name(table.name), table.table_id.encode()), Create(directory)]
    made: Ops = [Create(layout.region(table.table_id, one.region_id), encode(one)) for one in regions]
    last: Ops = [Create(layout.table(table.table_id), encode(table)), *record]
    whole = [*head, *made, *last]
    if total_weight(whole, fence.acl_bytes) <= CREATE_BYTES_MAX:
        return [whole]
    return [head, *in_batches(made, fence.acl_bytes), [Check(directory, 0), *last]]


async def create(fence: Fence, table: TableRecord, regions: list[RegionRecord], record: Ops) -> None:
    """Write a table. The table exists when this returns.

    Raises:
        AlreadyExists, AlreadyDone: nothing was written.
        MultiFailed: another request has removed the unfinished table; the table does not exist.
        Deposed, ConnectionLoss, SessionExpired: the table may or may not exist.
    """
    batches = create_batches(fence, table, regions, record)
    await _named(fence, batches[0], fence.layout.name(table.name), record)
    await gather(fence.send(batch) for batch in batches[1:-1])
    if len(batches) > 1:
        await _write(fence, batches[-1], record)


async def change(fence: Fence, table: TableRecord, version: int, record: Ops, *, former_name: str = "") -> int:
    """Replace a table's record at `version`, rename the table if `former_name` differs, and return the new version.

    Raises:
        AlreadyExists: the new name is taken.
        AlreadyDone: the request has been carried out before.
        MultiFailed: the record has another version; nothing was written.
    """
    layout = fence.layout
    ops: Ops = [SetData(layout.table(table.table_id), encode(table), version)]
    if former_name and former_name != table.name:
        ops += [Create(layout.name(table.name), table.table_id.encode()), Delete(layout.name(former_name))]
    results = await _named(fence, [*ops, *record], layout.name(table.name), record)
    return _version(results[0])


async def remove(fence: Fence, table: TableRecord, version: int, record: Ops) -> int:
    """Write the record of a removed table, free its name, and return the record's new version. Raise as `change`."""
    layout = fence.layout
    ops: Ops = [SetData(layout.table(table.table_id), encode(table), version), Delete(layout.name(table.name)), *record]
    results = await _write(fence, ops, record)
    return _version(results[0])


async def write_undeleted(fence: Fence, table: TableRecord, version: int, ops: Ops, record: Ops) -> int:
    """Write the record of a restored table together with `ops`, its name and regions. Return the record's new version.

    Raise as `change`.
    """
    written = [SetData(fence.layout.table(table.table_id), encode(table), version), *ops]
    results = await _named(fence, written, fence.layout.name(table.name), record)
    return _version(results[0])


async def record_only(fence: Fence, table: TableRecord, version: int, record: Ops) -> None:
    """Record the result of a request that changes nothing, and check that the table's record is still at `version`.

    The result keeps a later retry from being carried out. Raise as `change`.
    """
    await _write(fence, [Check(fence.layout.table(table.table_id), version), *record], record)


def replace_region(
    layout: Layout, former: RegionRecord, version: int, fresh: RegionRecord, table: tuple[str, int]
) -> list[WriteOp]:
    """Return the operations that replace a region that could not be created by `fresh` (DD-03).

    The same multi deletes the transitions of the former region. `table` is the (id, version) on which the decision was
    based. If a record has changed since, the store refuses the multi, and the region stays (DD-04).
    """
    replaced = msgspec.structs.replace(former, state=TabletState.REPLACED)
    return [
        Check(layout.table(table[0]), table[1]),
        SetData(layout.region(former.table_id, former.region_id), encode(replaced), version),
        Create(layout.region(fresh.table_id, fresh.region_id), encode(fresh)),
    ]


async def clear_locations(fence: Fence, regions: list[tuple[RegionRecord, int]]) -> list[tuple[RegionRecord, int]]:
    """Clear the servers in the records of a removed table's regions, and return the regions with their new versions.

    The servers have died, but may not know yet that they count as dead. After this write they cannot begin to close a
    region, because the first step checks the version of the region's record. May be repeated. Raise MultiFailed if a
    record has changed.
    """
    ops: Ops = []
    left: list[tuple[RegionRecord, int]] = []
    for region, version in regions:
        closed = tuple(msgspec.structs.replace(one, start_code=None) for one in region.replicas)
        if closed == region.replicas:
            left.append((region, version))
            continue
        record = msgspec.structs.replace(region, replicas=closed)
        ops.append(SetData(fence.layout.region(region.table_id, region.region_id), encode(record), version))
        left.append((record, version + 1))
    for batch in in_batches(ops):
        await fence.write(batch)
    return left


async def mark_deleted(fence: Fence, regions: list[tuple[RegionRecord, int]]) -> None:
    """Write DELETED into the regions of a removed table.

    The regions are closed and name no server (`clear_locations`), so no server writes them any more. May be repeated.
    Raise MultiFailed if a record has changed. A tablet keeps its state: an undelete must know whether it was created.
    """
    ops: Ops = []
    for region, version in regions:
        record = msgspec.structs.replace(region, state=TabletState.DELETED)
        if record != region and not region.is_replaced and not region.is_tablet:
            ops.append(SetData(fence.layout.region(region.table_id, region.region_id), encode(record), version))
    for batch in in_batches(ops):
        await fence.write(batch)


async def remove_orphan(fence: Fence, table_id: str, name_path: str) -> None:
    """Remove the remains of an unfinished table creation. Do nothing if the table exists.

    May be repeated, and performed twice at the same time. The directory is deleted last, together with the name, so a
    name that another table has taken in the meantime is kept.
    """
    layout = fence.layout
    directory = layout.table_regions(table_id)
    # Creating and deleting the record in one multi is a check that it does not exist.
    absent = layout.table(table_id)
    claim: Ops = [Create(absent), Delete(absent)]
    last: Ops = [Delete(name_path)] if name_path else []
    try:
        there = await fence.client.exists(directory)
        if there is None and not await _names(fence, name_path, table_id):
            return
        if there is not None:
            claim.append(SetData(directory, b"", there.version))
            last.insert(0, Delete(directory))
        await fence.write(claim)
        made: Ops = [Delete(path) for path in await store.list_all(fence.client, [directory])]
        for batch in in_batches(made):
            await fence.write(batch)
        await fence.write(last)
    except MultiFailed as error:
        log.info("did not remove table {table_id}: its creation was finished, or another request removes its remains:"
                 " {error}", table_id=table_id, error=error)  # fmt: skip
        return
    log.info("removed the remains of table {table_id}, whose creation was not finished", table_id=table_id)


async def _names(fence: Fence, name_path: str, table_id: str) -> bool:
    """Return True if the name belongs to this table."""
    found = await store.read_all(fence.client, [name_path] if name_path else [])
    return bool(found) and found[0][1] == table_id.encode()


def new_table_id(token: Callable[[int], bytes]) -> str:
    """Return eight random hexadecimal digits. The store refuses a duplicate, because its region directory exists."""
    return token(4).hex()


async def _named(fence: Fence, ops: Ops, name_path: str, record: Ops) -> list[WriteResult]:
    try:
        return await _write(fence, ops, record)
    except MultiFailed as error:
        failed = ops[error.index] if 0 <= error.index < len(ops) else None
        if failed is not None and failed.path == name_path and isinstance(error.error, NodeExists):
            raise AlreadyExists(name_path.rpartition("/")[2]) from error
        raise


async def _write(fence: Fence, ops: Ops, record: Ops) -> list[WriteResult]:
    try:
        return await fence.write(ops)
    except MultiFailed as error:
        failed = ops[error.index] if 0 <= error.index < len(ops) else None
        if record and failed is record[0] and isinstance(error.error, NodeExists):
            raise AlreadyDone(failed.path) from error
        raise


def _version(result: WriteResult) -> int:
    assert isinstance(result, Stat), f"the result of a set is a Stat, not {result!r}"
    return result.version
