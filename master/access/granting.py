"""The requests about grants. The active master writes them by compare-and-set, under its fence."""

from __future__ import annotations

from collections.abc import Callable

from coord.client.ops import Create, SetData
from coord.errors import BadVersion, MultiFailed, NodeExists, NoNode
from coord.rpc.server import RpcError
from coord.security.principal import NOBODY, USER, Principal
from master.active import ActiveMaster
from master.catalog.lookup import find_table
from master.leadership.fence import Fence
from regions import messages as ms
from regions.access import grants
from regions.access.grants import GrantError, NoSuchGrant
from regions.cluster.state import ClusterState
from regions.records.acts.grants import Grant, GrantsRecord
from regions.records.znodes import decode_grants, encode

Change = Callable[[GrantsRecord], GrantsRecord]
#: Version of a znode that does not exist.
_MISSING = -1


async def read(fence: Fence) -> tuple[GrantsRecord, int]:
    """Return the grants in the store and the version of their znode. Raise CorruptZnode."""
    path = fence.layout.grants
    try:
        data, stat = await fence.client.get(path)
    except NoNode:
        return decode_grants(b""), _MISSING
    return decode_grants(data, path), stat.version


async def change(fence: Fence, changed: Change) -> bool:
    """Change the grants by compare-and-set, with retries. Return False if `changed` returns them unchanged."""
    path = fence.layout.grants
    while True:
        before, version = await read(fence)
        after = changed(before)
        if after is before:
            return False
        data = encode(after)
        try:
            await fence.write([Create(path, data) if version == _MISSING else SetData(path, data, version)])
        except MultiFailed as error:
            if isinstance(error.error, BadVersion | NodeExists | NoNode):
                continue
            raise
        return True


async def perform(active_master: ActiveMaster, request: ms.ChangeGrant, by: Principal, now_ms: int) -> ms.Accepted:
    """Grant or revoke a role. Raise RpcError."""
    world = active_master.assigner.world
    table = find_table(world, request.table).record if request.table else None
    table_id, where = ("", "of the cluster") if table is None else (table.table_id, f"on table {table.name}")
    try:
        user = grants.user_named(request.user)
        grant = Grant(user.name, request.role, table_id, "" if by is NOBODY else str(by), now_ms)

        def changed(record: GrantsRecord) -> GrantsRecord:
            if request.granted:
                return grants.add(record, grant)
            return grants.remove(record, grant, force=request.force)

        if request.dry_run:
            before, _ = await read(active_master.fence)
            is_change = changed(before) is not before
        else:
            is_change = await change(active_master.fence, changed)
    except NoSuchGrant as error:
        raise RpcError(ms.NOT_FOUND, str(error)) from error
    except GrantError as error:
        raise RpcError(ms.BAD_REQUEST, str(error)) from error
    what = f"{request.role.value} {where}"
    if not is_change:
        return ms.Accepted(f"{user} has {what} already")
    would = "would have" if request.dry_run else "has"
    return ms.Accepted(f"{user} {would} {what}" if request.granted else f"{user} {would} no more {what}")


async def forget_table(active_master: ActiveMaster, table_id: str) -> None:
    """Remove the grants on a deleted table."""
    await change(active_master.fence, lambda record: grants.without_table(record, table_id))


async def listed(active_master: ActiveMaster, request: ms.ListGrants, *, checked: bool) -> ms.GrantList:
    """Return grants by user, then table. Raise RpcError."""
    world = active_master.assigner.world
    record, _ = await read(active_master.fence)
    found: tuple[Grant, ...] = record.grants
    if request.table:
        table_id = find_table(world, request.table).record.table_id
        found = tuple(one for one in found if one.table_id == table_id)
    if request.user:
        try:
            name = grants.user_named(request.user).name
        except GrantError as error:
            raise RpcError(ms.BAD_REQUEST, str(error)) from error
        found = tuple(one for one in found if one.user == name)
    shown_ = sorted((shown(one, world) for one in found), key=lambda one: (one.user, one.table, one.role.value))
    return ms.GrantList(shown_, checked=checked)


def shown(grant: Grant, world: ClusterState | None) -> ms.ShownGrant:
    """Return a grant for people, with the table's name if this master knows it."""
    table = None if world is None or not grant.table_id else world.tables.get(grant.table_id)
    name = grant.table_id if table is None else table.record.name
    return ms.ShownGrant(f"{USER}:{grant.user}", grant.role, name, grant.table_id, grant.by, grant.at_ms)
