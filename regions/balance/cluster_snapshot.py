"""Builds a planner's input from the active master's replies about the running cluster. Pure.

A region takes part if it should be open: its table is enabled, and no operator has unassigned the region. A replica in
transition counts on its destination, so the snapshot is the same before, during and after the move. The snapshot has no
block locations.

The voters of a tablet are its replicas, numbered in the order of their numbers. A server has one pool in a snapshot,
and servers without a shared directory take only tablets. So a table of tablets takes part only if all servers that take
its members are in one pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from regions.messages import Regions, RegionStatus, ReplicaStatus, ServerLoad
from regions.plan import LastRow, RegionRow, ServerRow, Snapshot
from regions.records.kinds import kind_in_tablets, may_host, pool
from regions.records.model import RegionState, ServerRecord, TableIntent, TableRecord, TableState, TabletState
from regions.replication.config import voters


def census(servers: Iterable[ServerLoad], tables: Iterable[Regions]) -> Snapshot:
    """Return the snapshot of all regions; of shared regions alone it equals `snapshot_of` on a master."""
    servers = list(servers)
    rows: list[RegionRow] = []
    last: list[LastRow] = []
    for found in tables:
        where = pool_of(found.table, servers)
        for status in found.regions if where is not None else ():
            if not _is_wanted(found.table, status):
                continue
            region = status.region
            row = RegionRow(
                region.region_id,
                region.table_id,
                status.best_size,
                found.table.replication,
                where or "",
                region.start_key,
            )
            rows.append(row)
            places = [(one.replica, whereabouts(one)) for one in status.replicas]
            if region.is_tablet:
                there = sorted(voters(region.members), key=lambda one: one.number)[: found.table.replication]
                places = [(at, one.uuid) for at, one in enumerate(there)]
            last += [LastRow(region.region_id, replica, uuid) for replica, uuid in places if uuid]
    live = [
        ServerRow(
            one.server.uuid,
            one.server.host,
            one.server.rack,
            one.server.weight,
            pool(one.server.group, one.server.kind),
            one.draining,
        )
        for one in servers
    ]
    return Snapshot.of(rows, sorted(live, key=lambda one: one.server_id), (), last)


def pool_of(table: TableRecord, servers: Iterable[ServerLoad]) -> str | None:
    """Return the pool of a table's servers in a snapshot; None for a table of tablets that can take no part."""
    if not table.is_tablet:
        return pool(table.group, table.kind)
    records = [one.server for one in servers]
    hosts = {one.uuid for one in records if one.tablets and _takes(one, table)}
    pools = {pool(one.group, one.kind) for one in records if one.uuid in hosts}
    if len(pools) != 1:
        return None
    [found] = pools
    return found if {one.uuid for one in records if pool(one.group, one.kind) == found} == hosts else None


def _takes(server: ServerRecord, table: TableRecord) -> bool:
    kind = kind_in_tablets(server.kind)
    return may_host(1.0, server.group, kind, group=table.group, kind=table.kind)


def whereabouts(replica: ReplicaStatus) -> str:
    """Return the uuid of the server that has, or is getting, a replica; "" if there is none."""
    transition = replica.transition
    if transition is not None and transition.destination is not None:
        return transition.destination.uuid
    if transition is not None and transition.state is RegionState.OFFLINE:
        return ""
    return "" if replica.server is None else replica.server.uuid


def _is_wanted(table: TableRecord, status: RegionStatus) -> bool:
    enabled = table.intent == TableIntent.ENABLED and table.state in (TableState.RUNNING, TableState.ALTERING)
    is_made = not status.region.is_tablet or status.region.state is TabletState.RUNNING
    return enabled and is_made and not status.region.unassigned
