"""Steps of `rk unstick` and their undo: done exactly as shown, or not at all (N11).

The first write of a step is a multi that checks the version of every znode shown to the operator, and creates the undo
record. If the store rejects the multi, nothing is done, and the reply names the change. An assignment is part of that
multi. The steps of a retry and of a fence follow it, as compare-and-sets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from coord.client.ops import Check, Create, SetData, WriteOp
from coord.errors import BadVersion, MultiFailed, NoNode
from coord.rpc.server import RpcError
from coord.wire.records import Stat
from master.active import ActiveMaster
from master.assignment import fencing
from master.catalog import store
from master.catalog.locks import Lock, Rank
from master.catalog.lookup import find_replica, is_tablet
from regions import messages as ms
from regions.cluster import events as ev
from regions.cluster.entities import Replica
from regions.diagnose.remedy.undo import RegionNow
from regions.diagnose.remedy.undo import undo as decide_undo
from regions.records.acts.undo import UNDO_RECORDS_MAX, UNDO_REPLICAS_MAX, Remedy, UndoRecord
from regions.records.model import Move, RegionRecord
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import decode_region, decode_server, decode_transition, decode_undo, encode

_NOTHING_DONE = "nothing was done, because something has changed since it was shown: "
_AGAIN = "Run `rk unstick` again to see the present state."


async def unstick(active_master: ActiveMaster, request: ms.UnstickRegion, now_ms: int) -> ms.Accepted:
    """Take the shown step. Raise RpcError, which names the change, if the state is not the shown one any more."""
    if is_tablet(active_master.world, request.region_id):
        raise RpcError(ms.BAD_REQUEST, f"{request.region_id} is a tablet, whose members agree by themselves")
    replica = find_replica(active_master.world, request.region_id, request.replica)
    table_id = replica.region.record.table_id
    locks = (Lock(Rank.TABLE, table_id, writes=False), Lock(Rank.REGION, request.region_id))
    async with active_master.operations.locks.hold(*locks):
        ops = await _as_shown(active_master, request, table_id)
        _check_memory(replica, request)
        record = await _record_of(active_master, replica, request, now_ms)
        layout = active_master.fence.layout
        changed: RegionRecord | None = None
        if request.action is Remedy.ASSIGN:
            changed = msgspec.structs.replace(await _read_region(active_master, table_id, request), unassigned=False)
            ops = [*ops, SetData(layout.region(table_id, request.region_id), encode(changed), request.shown.region)]
        created = Create(layout.undo_record(record.undo_id), encode(record))
        results = await _write_as_shown(active_master, [*ops, created])
        if changed is not None:
            written = results[len(ops) - 1]
            assert isinstance(written, Stat), "the store answers a write with the znode's state"
            active_master.observe(ev.RegionSeen(changed, written.version))
    active_master.persist(lambda: _prune(active_master))
    match request.action:
        case Remedy.RETRY:
            active_master.observe(ev.RetryRequested(replica.key))
            return ms.Accepted(f"retrying {replica.key}")
        case Remedy.ASSIGN:
            return ms.Accepted(f"{request.region_id} is assigned")
    fence = ms.FenceServer(request.server, f"rk unstick {request.region_id}", start_code=request.shown.start_code)
    return await fencing.fence(active_master, fence)


async def undo(active_master: ActiveMaster, request: ms.UndoUnstick, now_ms: int) -> ms.Accepted:
    """Undo an action, if everything is as it was shown. Raise RpcError."""
    fence = active_master.fence
    path = fence.layout.undo_record(request.undo_id)
    found = store.decoded(await store.read_all(fence.client, [path]), decode_undo)
    if not found:
        raise RpcError(ms.NOT_FOUND, f"there is no record {request.undo_id} of rk unstick")
    [(record, version)] = found
    if version != request.version:
        raise RpcError(ms.BAD_REQUEST, f"{_NOTHING_DONE}the record {request.undo_id} was used", _AGAIN)
    regions = await _regions_now(active_master, record)
    servers = {one.uuid: one for one in active_master.registry.servers}
    decided = decide_undo(record, regions, servers)
    if decided.refusal:
        raise RpcError(ms.BAD_REQUEST, f"nothing was done: {decided.refusal}", decided.hint)
    if (decided.region_version, decided.replicas) != (request.region_version, request.replicas):
        raise RpcError(ms.BAD_REQUEST, _NOTHING_DONE + _undo_difference(request, decided.replicas), _AGAIN)
    undone = SetData(path, encode(msgspec.structs.replace(record, undone_ms=now_ms)), version)
    if record.action is Remedy.ASSIGN:
        return await _unassign(active_master, record, undone, decided.region_version)
    moves = _moves_back(active_master, record, decided.replicas)
    checks = [
        Check(fence.layout.region(now.record.table_id, now.record.region_id), now.version)
        for now in (regions[key] for key in decided.replicas)
    ]
    await _write_as_shown(active_master, [*dict.fromkeys(checks), undone])
    await active_master.accept_moves(moves, "undo of rk unstick")
    assert record.server is not None, "the record of a fence names its server"
    return ms.Accepted(f"{len(moves)} regions move back to {record.server.uuid}")


async def _unassign(active_master: ActiveMaster, record: UndoRecord, undone: SetData, version: int) -> ms.Accepted:
    path = active_master.fence.layout.region(record.table_id, record.region_id)
    locks = (Lock(Rank.TABLE, record.table_id, writes=False), Lock(Rank.REGION, record.region_id))
    async with active_master.operations.locks.hold(*locks):
        [(region, _)] = store.decoded(await store.read_all(active_master.fence.client, [path]), decode_region)
        changed = msgspec.structs.replace(region, unassigned=True)
        results = await _write_as_shown(active_master, [SetData(path, encode(changed), version), undone])
        written = results[0]
        assert isinstance(written, Stat), "the store answers a write with the znode's state"
        active_master.observe(ev.RegionSeen(changed, written.version))
    return ms.Accepted(f"{record.region_id} is unassigned again, and closes")


# --- what was shown ---------------------------------------------------------------------------------------------------


async def _as_shown(active_master: ActiveMaster, request: ms.UnstickRegion, table_id: str) -> list[WriteOp]:
    """Return the checks of all versions that were shown. Raise RpcError if one is another by now."""
    layout, shown = active_master.fence.layout, request.shown
    region, transition = (
        layout.region(table_id, request.region_id),
        layout.transition(request.region_id, request.replica),
    )
    server = layout.server(request.server) if request.server else ""
    found = await store.read_all(active_master.fence.client, [one for one in (region, transition, server) if one])
    versions = {path: stat.version for path, _, stat in found}
    changed = []
    if versions.get(region, -1) != shown.region:
        changed.append(_version_text(f"the record of region {request.region_id}", shown.region, versions.get(region)))
    if versions.get(transition, -1) != shown.transition:
        [state] = [
            one.state.value
            for one, _ in store.decoded([one for one in found if one[0] == transition], decode_transition)
        ] or [""]
        text = _version_text("its transition", shown.transition, versions.get(transition))
        changed.append(f"{text}{f', {state} now' if state else ''}")
    if server:
        now = [one.start_code for one, _ in store.decoded([one for one in found if one[0] == server], decode_server)]
        if not now:
            changed.append(f"server {request.server} is not registered any more")
        elif now[0] != shown.start_code:
            changed.append(
                f"server {request.server} has restarted: start {shown.start_code} was shown, start {now[0]} is running"
            )
    if changed:
        raise RpcError(ms.BAD_REQUEST, _NOTHING_DONE + "; ".join(changed), _AGAIN)
    # The store has no check of absence. A transition that did not exist was absent in the read above.
    checked = {region: shown.region, transition: shown.transition, server: versions.get(server, -1)}
    return [Check(path, version) for path, version in checked.items() if version >= 0]


def _version_text(what: str, shown: int, now: int | None) -> str:
    if now is None:
        return f"{what} is gone"
    return f"{what} exists now" if shown < 0 else f"{what} was shown at version {shown} and is at version {now}"


def _check_memory(replica: Replica, request: ms.UnstickRegion) -> None:
    """Raise RpcError if the action does not fit the master's state, as in a request that was not made from a
    preview."""
    parked = replica.transition is not None and replica.transition.parked
    why = ""
    if request.action is Remedy.NOTHING or (request.action is Remedy.FENCE and not request.server):
        why = "the request names no action"
    elif request.action is Remedy.RETRY and not parked:
        why = f"{replica.key} is not parked"
    elif request.action is Remedy.ASSIGN and not replica.region.record.unassigned:
        why = f"{request.region_id} is not unassigned"
    if why:
        raise RpcError(ms.BAD_REQUEST, f"nothing was done: {why}", _AGAIN)


def _undo_difference(request: ms.UndoUnstick, replicas: Sequence[str]) -> str:
    if not request.replicas:
        return "the region's record was written"
    gone, more = set(request.replicas) - set(replicas), set(replicas) - set(request.replicas)
    return f"{len(gone)} of the replicas that were to move back have moved on, and {len(more)} have come"


async def _write_as_shown(active_master: ActiveMaster, ops: Sequence[WriteOp]) -> list[object]:
    """Perform `ops` or none. Raise RpcError if one was refused."""
    try:
        return list(await active_master.fence.write(ops))
    except MultiFailed as error:
        if not isinstance(error.error, BadVersion | NoNode) and not isinstance(ops[error.index], Create):
            raise
        path = ops[error.index].path
        raise RpcError(ms.BAD_REQUEST, f"{_NOTHING_DONE}{path} was written at the same moment", _AGAIN) from error


# --- records ----------------------------------------------------------------------------------------------------------


async def _record_of(
    active_master: ActiveMaster, replica: Replica, request: ms.UnstickRegion, now_ms: int
) -> UndoRecord:
    record = UndoRecord(
        f"{now_ms:013d}-{replica.key}",
        request.action,
        replica.region.record.table_id,
        request.region_id,
        request.replica,
        now_ms,
        request.by,
        request.why,
        request.shown.region + (request.action is Remedy.ASSIGN),
    )
    server = active_master.world.servers.get(request.server)
    if server is None:
        return record
    open_there = [one for one in server.open.values() if not one.region.record.is_tablet]
    if len(open_there) > UNDO_REPLICAS_MAX:
        return msgspec.structs.replace(record, server=server.incarnation, replicas_dropped=len(open_there))
    versions = await _versions(active_master, open_there)
    return msgspec.structs.replace(record, server=server.incarnation, replicas=versions)


async def _versions(active_master: ActiveMaster, replicas: Iterable[Replica]) -> dict[str, int]:
    layout = active_master.fence.layout
    paths = {one.key: layout.region(one.region.record.table_id, one.region.record.region_id) for one in replicas}
    found = {
        path: stat.version for path, _, stat in await store.read_all(active_master.fence.client, [*paths.values()])
    }
    return {str(key): found[path] for key, path in paths.items() if path in found}


async def _read_region(active_master: ActiveMaster, table_id: str, request: ms.UnstickRegion) -> RegionRecord:
    path = active_master.fence.layout.region(table_id, request.region_id)
    [(record, _)] = store.decoded(await store.read_all(active_master.fence.client, [path]), decode_region)
    return record


async def _regions_now(active_master: ActiveMaster, record: UndoRecord) -> dict[str, RegionNow]:
    """Return the present regions of the record's replicas, by replica key."""
    client, layout = active_master.fence.client, active_master.fence.layout
    if record.action is Remedy.ASSIGN:
        path = layout.region(record.table_id, record.region_id)
        found = store.decoded(await store.read_all(client, [path]), decode_region)
        return {region.region_id: RegionNow(region, version) for region, version in found}
    regions = active_master.world.regions
    keys = {key: parse_replica_key(key) for key in record.replicas}
    paths = {
        key: layout.region(regions[region_id].record.table_id, region_id)
        for key, (region_id, _) in keys.items()
        if region_id in regions
    }
    transitions = {key: layout.transition(*keys[key]) for key in paths}
    under_way = {path for path, _, _ in await store.read_all(client, [*transitions.values()])}
    read = {path: (data, stat.version) for path, data, stat in await store.read_all(client, [*paths.values()])}
    return {
        key: RegionNow(decode_region(read[path][0], path), read[path][1], transitions[key] in under_way)
        for key, path in paths.items()
        if path in read
    }


def _moves_back(active_master: ActiveMaster, record: UndoRecord, keys: Iterable[str]) -> list[Move]:
    assert record.server is not None, "the record of a fence names its server"
    moves = []
    for key in keys:
        replica = active_master.world.replicas.get(key)
        if replica is None or replica.home is None or replica.open_on is None or replica.transition is not None:
            raise RpcError(ms.BUSY, f"{key} is in transition: nothing was done", _AGAIN)
        moves.append(Move(replica.key, replica.home, record.server.uuid))
    return moves


async def _prune(active_master: ActiveMaster) -> None:
    """Delete the oldest records beyond UNDO_RECORDS_MAX. May be repeated."""
    fence = active_master.fence
    names = sorted(await fence.client.children(fence.layout.undo))
    for name in names[:-UNDO_RECORDS_MAX]:
        await store.delete_if_there(fence, fence.layout.undo_record(name))
