"""Look-ups of tables, regions and replicas by the names and ids in requests."""

from __future__ import annotations

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.cluster.entities import Region, Replica, Table
from regions.cluster.state import ClusterState
from regions.records.model import TableState, TabletState
from regions.replication.tablet import TabletTable


def find_table(world: ClusterState, name: str) -> Table:
    """Return the table of that name or id. Raise RpcError(NOT_FOUND)."""
    table = world.names.get(name) or world.tables.get(name)
    if table is None:
        raise RpcError(ms.NOT_FOUND, f"there is no table {name!r}")
    return table


def find_region(world: ClusterState, region_id: str) -> Region:
    """Return the region of that id. Raise RpcError(NOT_FOUND)."""
    region = world.regions.get(region_id)
    if region is None:
        raise RpcError(ms.NOT_FOUND, f"there is no region {region_id!r}")
    return region


def find_replica(world: ClusterState, region_id: str, number: int) -> Replica:
    """Return a replica of that region. Raise RpcError(NOT_FOUND)."""
    region = find_region(world, region_id)
    if not 0 <= number < len(region.replicas):
        raise RpcError(ms.NOT_FOUND, f"region {region_id} has no replica {number}")
    return region.replicas[number]


def is_tablet(world: ClusterState, region_id: str) -> bool:
    """Return True if the region is a tablet."""
    region = world.regions.get(region_id)
    return region is not None and region.record.is_tablet


def summary(table: Table, tablets: TabletTable | None = None) -> ms.TableSummary:
    """Return a table's record with its counts of regions and replicas.

    `tablets` are the keeper's counts of a table of tablets; None on a standby, which knows only the records.
    """
    if table.record.is_tablet:
        return _summary_of_tablets(table, tablets)
    is_known = table.record.state is not TableState.ALTERING or bool(table.behind)
    altered = table.altered if is_known else -1
    return ms.TableSummary(
        table.record, len(table.regions), table.replicas, table.open_replicas, table.rit, table.parked, altered
    )


def _summary_of_tablets(table: Table, tablets: TabletTable | None) -> ms.TableSummary:
    """Return the counts of a table of tablets. A standby does not know how many replicas take part."""
    records = [region.record for region in table.regions.values()]
    running = [record for record in records if record.state is TabletState.RUNNING]
    members = sum(len(record.members) for record in records)
    serving = None if tablets is None else tablets.serving
    return ms.TableSummary(table.record, len(records), members, serving, 0, 0, running=len(running))
