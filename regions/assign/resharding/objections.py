"""Why a region cannot be split or merged now. Pure; each function returns a sentence, "" if nothing is in the way."""

from __future__ import annotations

from regions.assign.resharding.daughters import ID_MAX
from regions.cluster.entities import Region, Table
from regions.records.formats import RESHARDING, TABLET_MERGES, TABLET_RESHARDING
from regions.records.model import TableIntent, TableState


def objection_to_table(table: Table, format_in_force: int) -> str:
    """Return why no region of the table can be split or merged."""
    record = table.record
    name = f"table {record.name}"
    if not record.is_tablet and record.replication != 1:
        return f"{name} has {record.replication} replicas of each region: only regions with one can be split and merged"
    if record.state not in (TableState.RUNNING, TableState.ALTERING):
        return f"{name} is being deleted"
    if record.intent is not TableIntent.ENABLED:
        return f"{name} is disabled: enable it first (`rk table enable {record.name}`)"
    what, needed = ("a split of a tablet", TABLET_RESHARDING) if record.is_tablet else ("a split or merge", RESHARDING)
    return _objection_to_format(what, needed, format_in_force)


def objection_to_merge(table: Table, format_in_force: int) -> str:
    """Return why no regions of the table can be merged, although they can be split."""
    if not table.record.is_tablet:
        return ""
    return _objection_to_format("a merge of tablets", TABLET_MERGES, format_in_force)


def _objection_to_format(what: str, needed: int, in_force: int) -> str:
    if in_force >= needed:
        return ""
    return f"the cluster has format {in_force}, and {what} needs format {needed}: upgrade all masters and servers"


def objection_to_region(region: Region) -> str:
    """Return why this region cannot be split or merged until an operator acts. Its table has no objection."""
    region_id = region.record.region_id
    if region.record.unassigned:
        return f"region {region_id} is unassigned: assign it first (`rk region assign {region_id}`)"
    if len(region_id) > ID_MAX:
        return (
            f"the id of region {region_id[:20]}… has {len(region_id)} characters after many splits and merges, and"
            f" {ID_MAX} are possible: copy the rows into a new table"
        )
    for replica in region.replicas:
        if replica.transition is not None and replica.transition.parked:
            return f"region {region_id} is parked: remove the cause, then retry it (`rk region retry {region_id}`)"
        if replica.is_damaged:
            return f"the rows of region {region_id} are damaged: restore them first"
    return ""


def objection_now(region: Region) -> str:
    """Return why this region, considered by itself, cannot be split or merged at the moment."""
    region_id = region.record.region_id
    if region.resharding:
        return f"region {region_id} takes part in a split or merge already (`rk why {region_id}`)"
    for replica in region.replicas:
        if replica.transition is not None or replica.order is not None or replica.move is not None:
            return f"region {region_id} is moving: try again when it is open (`rk why {region_id}`)"
        if replica.open_on is None:
            return f"region {region_id} is not open: try again when it is open (`rk why {region_id}`)"
    return ""


def objection_to_key(region: Region, key: str) -> str:
    """Return why the region cannot be split at `key`."""
    record = region.record
    if not key:
        return f"region {record.region_id} cannot be split at the empty key"
    if not record.contains(key):
        return f"{key!r} is not in region {record.region_id}: give a key between its bounds (`rk region list`)"
    if key == record.start_key:
        return f"{key!r} is the first key of region {record.region_id}: all its rows would be in one half"
    return ""


def objection_to_pair(left: Region, right: Region) -> str:
    """Return why two regions cannot be merged."""
    one, two = left.record, right.record
    if one.table_id != two.table_id:
        return f"regions {one.region_id} and {two.region_id} belong to two tables"
    if one.region_id == two.region_id:
        return f"region {one.region_id} cannot be merged with itself"
    if not one.end_key or one.end_key != two.start_key:
        return f"regions {one.region_id} and {two.region_id} are not neighbors: their key ranges do not touch"
    return ""
