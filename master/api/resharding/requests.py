"""Accepts splits and merges of regions: checks, and the write that makes the work durable (OC-05).

A request is checked twice: before a server is asked for the middle of the region's bytes, and again under the region's
lock. The write checks the table's record. From then on the active master, this one or the next, does the rest.
"""

from __future__ import annotations

import msgspec

from coord.client.ops import Check, Create
from coord.errors import MultiFailed, RetryableError
from coord.rpc.server import RpcError
from master.active import ActiveMaster
from master.catalog import store
from master.catalog.locks import Lock, Rank
from master.catalog.lookup import find_region
from master.causes import acting
from regions import messages as ms
from regions.assign.resharding import objections
from regions.assign.resharding.daughters import merged, split_at
from regions.assign.resharding.parents import Parents
from regions.cluster import events as ev
from regions.cluster.entities import Region
from regions.records.acts.resharding import ReshardingRecord
from regions.records.formats import KNOWN
from regions.records.model import RegionRecord
from regions.records.znodes import encode

#: Why a split or merge happens, if an operator wants it.
BY_OPERATOR = "asked for by an operator"


async def split(
    active_master: ActiveMaster, request: ms.SplitRegion, now_ms: int, reason: str = BY_OPERATOR
) -> ms.Resharded:
    """Split a region. Raise RpcError if that is not possible."""
    joined = await _joined(active_master, (request.region_id,), request)
    if joined is not None:
        return joined
    region = find_region(active_master.assigner.world, request.region_id)
    # First check conditions that waiting cannot change, because a client repeats a request that is refused only for the
    # moment.
    _refuse(objections.objection_to_key(region, request.at) if request.at else "")
    await _check(active_master, [region])
    key = request.at or await _middle(active_master, region)
    _refuse(objections.objection_to_key(region, key))
    return await _accept(active_master, [region], split_at(region.record, key), request, now_ms, reason)


async def merge(
    active_master: ActiveMaster, request: ms.MergeRegions, now_ms: int, reason: str = BY_OPERATOR
) -> ms.Resharded:
    """Merge two neighbors, named in any order. Raise RpcError if that is not possible."""
    world = active_master.assigner.world
    for ids in ((request.region_id, request.other), (request.other, request.region_id)):
        joined = await _joined(active_master, ids, request)
        if joined is not None:
            return joined
    pair = [find_region(world, request.region_id), find_region(world, request.other)]
    left, right = sorted(pair, key=lambda one: one.record.start_key)
    _refuse(objections.objection_to_pair(left, right))
    await _check(active_master, [left, right])
    return await _accept(active_master, [left, right], (merged(left.record, right.record),), request, now_ms, reason)


async def _check(active_master: ActiveMaster, regions: list[Region]) -> None:
    """Raise RpcError if one of the regions cannot be split or merged now."""
    in_force = await store.format_in_force(active_master.fence)
    if in_force < KNOWN:
        await active_master.formats.look()  # all may have upgraded since it was checked last
        in_force = await store.format_in_force(active_master.fence)
    for region in regions:
        _refuse(objections.objection_to_table(region.table, in_force))
        _refuse(objections.objection_to_merge(region.table, in_force) if len(regions) > 1 else "")
        _refuse(objections.objection_to_region(region))
    _refuse_now(active_master, regions)


def _refuse_now(active_master: ActiveMaster, regions: list[Region]) -> None:
    """Raise RpcError(BUSY) if the regions cannot be split or merged at the moment."""
    for region in regions:
        _refuse(_parents_of(active_master, region).objection_now(region), ms.BUSY)
    if len(regions) > 1:
        left, right = regions
        _refuse(_parents_of(active_master, left).objection_to_pair(left, right), ms.BUSY)


def _parents_of(active_master: ActiveMaster, region: Region) -> Parents:
    return active_master.assigner.reshardings.parents_of(region.table)


async def _joined(
    active_master: ActiveMaster, ids: tuple[str, ...], request: ms.SplitRegion | ms.MergeRegions
) -> ms.Resharded | None:
    """Return the answer to a request whose work is under way or done, as after a lost reply. Return None for a new
    request."""
    world = active_master.assigner.world
    record = active_master.assigner.reshardings.find(ids[0])
    if record is not None and record.parents == ids:
        return await _answer(active_master, record, request)
    if all(one in world.regions for one in ids):
        return None
    heirs = [one for one in world.regions.values() if tuple(parent.region_id for parent in one.record.parents) == ids]
    if not heirs:
        return None
    daughters = sorted((one.record for one in heirs), key=lambda one: one.start_key)
    return ms.Resharded(heirs[0].table.record, [], daughters, is_done=True)


def _refuse(objection: str, code: str = ms.BAD_REQUEST) -> None:
    if objection:
        raise RpcError(code, objection)


async def _middle(active_master: ActiveMaster, region: Region) -> str:
    """Ask the region's server for the key in the middle of its bytes, and return the key."""
    region_id = region.record.region_id
    server = _parents_of(active_master, region).home(region)
    assert server is not None, f"{region_id} is open nowhere"
    origin = acting()
    cause_id = "" if origin is None else origin.cause_id
    try:
        found = await active_master.dispatcher.find_split_key(server, region_id, cause_id)
    except RpcError as error:
        # A standby's word, which would send the client to another master.
        raise RpcError(ms.BUSY if error.code == ms.NOT_LEADER else error.code, error.message) from error
    return found.key


async def _accept(
    active_master: ActiveMaster,
    parents: list[Region],
    daughters: tuple[RegionRecord, ...],
    request: ms.SplitRegion | ms.MergeRegions,
    now_ms: int,
    reason: str,
) -> ms.Resharded:
    """Write the work, and wait for its end if the request says so."""
    table = parents[0].table
    ids = tuple(one.record.region_id for one in parents)
    seal = active_master.assigner.reshardings.next_seal() if table.record.is_tablet else ""
    record = ReshardingRecord(
        table.record.table_id, ids, daughters, reason=reason, epoch=active_master.fence.epoch, since_ms=now_ms,
        seal=seal, origin=acting(),
    )  # fmt: skip
    if request.dry_run:
        return ms.Resharded(table.record, [one.record for one in parents], list(daughters))
    locks = (
        Lock(Rank.TABLE, record.table_id, writes=False),
        *(Lock(Rank.REGION, one) for one in sorted(ids)),
    )
    async with active_master.operations.locks.hold(*locks):
        _refuse_now(active_master, parents)
        await _write(active_master, record, table.version)
    return await _answer(active_master, record, request)


async def _answer(
    active_master: ActiveMaster, record: ReshardingRecord, request: ms.SplitRegion | ms.MergeRegions
) -> ms.Resharded:
    """Return the answer about work that is in the store, when it is done if the request says so."""
    reshardings, world = active_master.assigner.reshardings, active_master.assigner.world
    region_id, table = record.region_id, world.tables[record.table_id].record
    parents = [world.regions[one].record for one in record.parents if one in world.regions]
    answer = ms.Resharded(table, parents, list(record.daughters))
    if not request.wait_ms:
        return answer

    def is_over() -> bool:
        return region_id in reshardings.canceled or all(
            (region := world.regions.get(one.region_id)) is not None
            and _parents_of(active_master, region).is_open(region)
            for one in record.daughters
        )

    def so_far() -> str:
        found = reshardings.find(region_id)
        state = "being canceled" if found is None else found.state.value
        return f"the {record.words} is {state} and continues (`rk why {region_id}`)"

    await active_master.wait(is_over, request.wait_ms, so_far)
    _refuse(f"the {record.words} was canceled: {why}" if (why := reshardings.canceled.get(region_id)) else "")
    return msgspec.structs.replace(answer, is_done=True)


async def _write(active_master: ActiveMaster, record: ReshardingRecord, table_version: int) -> None:
    layout = active_master.fence.layout
    path = layout.resharding(record.region_id)
    try:
        await active_master.fence.write(
            [Check(layout.table(record.table_id), table_version), Create(path, encode(record))]
        )
    except MultiFailed as error:
        await active_master.operations.refresh_table(record.table_id)
        raise RpcError(
            ms.BUSY, f"the table was changed at the same time, or the {record.words} began before: {error.error}"
        ) from error
    except RetryableError:
        # The work may have been written. The regions stay locked until the outcome is known, so that no other work on
        # them begins.
        await active_master.retry_write(lambda: active_master.resharding.read(record))
        raise
    active_master.observe(ev.ReshardingSeen(record, 0))
