"""Find the region or table that a text names, from the store alone: works without an active master.

A region is named by its id, by a unique prefix of its id, or by `TABLE:KEY`. In a table with columns KEY is the value
of the key column, or `COLUMN=VALUE` of the first key columns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cli.common.connect import Cluster
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from regions.records.model import RegionRecord, TableRecord, TableState
from regions.records.partitioning import is_whole, place
from regions.records.rows.codec import RowError
from regions.records.rows.words import placed_text
from regions.records.znodes import decode_region

_HINT: Final = "`rk region list` shows their ids; TABLE:KEY names the region of a key."
_EXAMPLES: Final = 3
#: Limit of reads of a table's regions that are not whole: a region may be split meanwhile, or its record may be
#: damaged.
_READINGS_MAX: Final = 3


class FoundRegion(NamedTuple):
    """A region and its table; None for a table whose record was deleted."""

    region: RegionRecord
    table: TableRecord | None


def region_in_store(cluster: Cluster, text: str) -> FoundRegion:
    """Return the region that `text` names. Raise NotFoundError, or CliError if several match or its record was
    deleted."""
    tables = {one.table_id: one for one in cluster.tables()}
    table_name, colon, key = text.partition(":")
    if colon:
        table = table_of(tables, table_name)
        placed = place(key_text(table, key), table.hash_buckets)
        for region in regions_of(cluster, table.table_id):
            if region.contains(placed):
                return FoundRegion(region, table)
        raise NotFoundError(f"no region of {table.name} contains {key!r}: there is a hole", "`rk fsck` shows more.")
    fits = region_ids(cluster, text)
    if text in (region_id for _, region_id in fits):
        fits = [one for one in fits if one[1] == text]
    if not fits:
        raise NotFoundError(f"no region and no table {text!r}", _HINT)
    if len(fits) > 1:
        names = ", ".join(region_id for _, region_id in fits[:_EXAMPLES])
        raise CliError(f"{text!r} matches {len(fits)} regions: {names}, …", "Give more of the id, or TABLE:KEY.")
    [(table_id, region_id)] = fits
    path = cluster.layout.region(table_id, region_id)
    data = cluster.get(path)
    if data is None:
        raise NotFoundError(f"region {region_id} was deleted", _HINT)
    return FoundRegion(decode_region(data, path), tables.get(table_id))


def key_text(table: TableRecord, key: str) -> str:
    """Return the key that KEY of TABLE:KEY names: in a table with columns it has values. Raise UsageFaultError."""
    try:
        return placed_text(table, key)
    except RowError as error:
        raise UsageFaultError(str(error), "`rk table show TABLE` shows its columns.") from error


def region_ids(cluster: Cluster, prefix: str = "") -> list[tuple[str, str]]:
    """Return (table id, region id) of every region whose id has the prefix, in order."""
    layout = cluster.layout
    return [
        (table_id, region_id)
        for table_id in cluster.children(layout.regions)
        for region_id in cluster.children(layout.table_regions(table_id))
        if region_id.startswith(prefix)
    ]


def regions_of(cluster: Cluster, table_id: str) -> list[RegionRecord]:
    """Return a table's regions by start key: whole, unless the table has a hole or an overlap in the store."""
    there: list[RegionRecord] = []
    for _ in range(_READINGS_MAX):
        found = cluster.records(cluster.layout.table_regions(table_id), decode_region)
        there = sorted((one for one in found.values() if not one.is_replaced), key=lambda one: one.start_key)
        if is_whole(there):
            break  # else a region was split or merged while the records were read
    return there


def table_of(tables: dict[str, TableRecord], name: str) -> TableRecord:
    """Return the table with this name or id. Raise NotFoundError that lists the tables."""
    found = table_named(tables, name)
    if found is None:
        known = ", ".join(sorted(one.name for one in tables.values() if one.state is not TableState.REMOVED))
        raise NotFoundError(f"no table {name!r}", f"Tables: {known or 'none'}. More: rk table list.")
    return found


def table_named(tables: dict[str, TableRecord], name: str) -> TableRecord | None:
    """Return the table with this id or name, or None.

    The records of deleted tables are kept (MD-06). A name that was used several times means the present table, or the
    latest one.
    """
    fits = [one for one in tables.values() if name in (one.name, one.table_id)]
    return max(
        fits,
        key=lambda one: (one.table_id == name, one.state is not TableState.REMOVED, one.created_ms, one.table_id),
        default=None,
    )
