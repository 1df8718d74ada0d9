"""Builds a planner's input from the active master's replies about the running cluster. Pure.

A region takes part if it should be open: its table is enabled, and no operator has unassigned the region. A replica in
transition counts on its destination, so the snapshot is the same before, during and after the move. The snapshot has no
block locations. Tablets take no part: their members cannot be moved.
"""

from __future__ import annotations

from collections.abc import Iterable

from regions.messages import Regions, RegionStatus, ReplicaStatus, ServerLoad
from regions.plan import LastRow, RegionRow, ServerRow, Snapshot
from regions.records.kinds import pool
from regions.records.model import RegionState, TableIntent, TableRecord, TableState


def census(servers: Iterable[ServerLoad], tables: Iterable[Regions]) -> Snapshot:
    """Return the snapshot of all shared regions, equal to `snapshot_of` on a master."""
    rows: list[RegionRow] = []
    last: list[LastRow] = []
    for found in tables:
        if found.table.is_tablet:
            continue
        for status in found.regions:
            if not _is_wanted(found.table, status):
                continue
            region = status.region
            row = RegionRow(
                region.region_id,
                region.table_id,
                region.size_bytes,
                found.table.replication,
                pool(found.table.group, found.table.kind),
                region.start_key,
            )
            rows.append(row)
            places = [(one.replica, whereabouts(one)) for one in status.replicas]
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
    return enabled and not status.region.unassigned
