"""Bulk plans of tablets' first members: the planner's input, and how far a plan has been carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regions.cluster.state import ClusterState
from regions.plan import RegionRow, ServerRow, Snapshot
from regions.records.kinds import kind_in_tablets, pool
from regions.records.model import TabletState
from regions.records.replica_key import parse_replica_key


def is_of_tablets(keys: Sequence[str], world: ClusterState) -> bool:
    """Return True if these are replicas of tablets; a plan has replicas of one kind only."""
    found = (world.regions.get(parse_replica_key(key)[0]) for key in keys)
    region = next((one for one in found if one is not None), None)  # a table may have been deleted meanwhile
    return region is not None and region.record.is_tablet


def snapshot_of_tablets(keys: Sequence[str], world: ClusterState) -> Snapshot:
    """Return the planner's input: new tablets with the number of their replicas, and live servers that take tablets."""
    wanted = Counter(parse_replica_key(key)[0] for key in keys)
    regions: list[RegionRow] = []
    for region_id, count in sorted(wanted.items()):
        region = world.regions.get(region_id)
        if region is None:
            continue  # its table was deleted meanwhile
        record, table = region.record, region.table.record
        group = pool(table.group, table.kind)
        regions.append(RegionRow(region_id, record.table_id, record.size_bytes, count, group, record.start_key))
    servers = [
        ServerRow(
            one.uuid, one.record.host, one.rack, one.weight, pool(one.group, kind_in_tablets(one.kind)), one.draining
        )
        for one in sorted(world.servers.values(), key=lambda one: one.uuid)
        if one.record.tablets and not one.record.leaving and one.uuid not in world.bars
    ]
    return Snapshot.of(regions, servers, (), ())


def progress_of(keys: Sequence[str], world: ClusterState) -> tuple[int, int]:
    """Return the number of a plan's replicas that servers have begun, and the number of finished ones.

    The replicas of a tablet that is deleted, replaced, or must not be open count as finished.
    """
    begun = ended = 0
    for region_id, count in Counter(parse_replica_key(key)[0] for key in keys).items():
        region = world.regions.get(region_id)
        state = None if region is None or not region.table.wants_open else region.record.state
        begun += count if state is not TabletState.PREPARING else 0
        ended += count if state not in (TabletState.PREPARING, TabletState.CREATING) else 0
    return begun, ended
