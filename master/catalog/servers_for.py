"""Choices for a table to be created that depend on the live servers: its kind, its storage, the servers of its tablets.

Servers register the kind of their opener. Those without a shared directory take replicas of tablets alone.
"""

from __future__ import annotations

from coord.rpc.wire import RpcError
from regions import messages as ms
from regions.cluster.entities import Server
from regions.cluster.state import ClusterState
from regions.messages import ddl
from regions.records.kinds import (
    can_open,
    kind_in_tablets,
    may_host,
    one_copy,
    resolve,
    takes_tablets_alone,
)
from regions.records.members import Storage
from regions.replication.creation import storage_for


def _not_fenced(world: ClusterState) -> list[Server]:
    """Return the registered servers that are not fenced."""
    return [one for one in world.servers.values() if one.fenced_until_ms is None]


def kind_for(request: ddl.CreateTable, world: ClusterState) -> str:
    """Return the kind of a table to be created.

    Raise RpcError(BAD_REQUEST) if the kind is ambiguous or unknown, or if it does not support the replication.
    """
    servers = _not_fenced(world)
    of_group = [kind_in_tablets(one.kind) for one in servers if one.group == request.group]
    try:
        kind = resolve(request.kind, of_group or [kind_in_tablets(one.kind) for one in servers])
    except ValueError as error:
        raise RpcError(ms.BAD_REQUEST, str(error)) from error
    return kind


def storage_of(request: ddl.CreateTable, kind: str, world: ClusterState) -> Storage:
    """Return where the rows of a table to be created lie.

    Raise RpcError(BAD_REQUEST) for options that exclude each other, for more replicas than copies would be kept, and
    for shared rows if the servers have no shared directory. If there is no server yet, the table waits for one.
    """
    try:
        storage = storage_for(request.storage, kind, request.replication)
    except ValueError as error:
        raise RpcError(ms.BAD_REQUEST, str(error)) from error
    kinds = [one.kind for one in _not_fenced(world) if one.group == request.group]
    is_without = any(map(takes_tablets_alone, kinds)) and not any(can_open(one, kind) for one in kinds)
    if storage is Storage.SHARED and is_without:
        # Do not choose a tablet of one member instead: the death of its server would be an outage, so the caller must
        # request this.
        raise RpcError(
            ms.BAD_REQUEST,
            f"a table with {request.replication} replica of kind {kind} lies in a shared directory, and no live server"
            f" of {_shown(request.group)} has one: create the table with --replicas 3 (or --storage tablet), or"
            " start servers with --shared-dir",
        )
    objection = one_copy(kind, request.replication, storage)
    if objection:
        raise RpcError(ms.BAD_REQUEST, f"{objection}; create the table with --replicas 1 or --storage tablet")
    if storage is Storage.SHARED and (request.racks_min or request.allow_under_replicated):
        raise RpcError(ms.BAD_REQUEST, "racks and a lower number of replicas to begin with are for tablets alone")
    return storage


def missing_group(group: str, world: ClusterState) -> str:
    """Return why a table of tablets cannot be created if `group` has no live server, else ""."""
    groups = {one.group for one in _not_fenced(world)}
    if group in groups:
        return ""
    if not groups:
        return "no region server is there: start region servers, then create the table"
    there = ", ".join(_shown(one) for one in sorted(groups))
    return (
        f"no server of {_shown(group)} is there; the servers that are there belong to {there}: create the table in one"
        f" of these groups, or start servers of {_shown(group)}"
    )


def _shown(group: str) -> str:
    return f"group {group!r}" if group else "the default group"


def tablet_hosts(group: str, kind: str, world: ClusterState) -> tuple[int, list[Server]]:
    """Return the number of live servers that could take a region of the table, and those servers that take tablets."""
    servers = [
        one
        for one in _not_fenced(world)
        if may_host(one.weight, one.group, kind_in_tablets(one.kind), group=group, kind=kind) and not one.draining
    ]
    return len(servers), [one for one in servers if one.record.tablets]
