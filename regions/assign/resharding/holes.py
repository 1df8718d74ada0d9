"""Holes in a table's key space, and the region that closes one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from regions.records.model import RegionRecord, TableRecord, TabletState

#: Appended to the left neighbor's id. A split counts up the last letter of an id, but never a small letter, so no split
#: ever produces this id (`daughters.py`).
_MARK: Final = "z"


class Hole(NamedTuple):
    """Keys that no region holds: from `start` to before `end`; "" for no bound."""

    start: str
    end: str

    @property
    def words(self) -> str:
        """Return the range for people."""
        if not self.end:
            return f"from {self.start!r} on" if self.start else "all keys"
        return f"from {self.start!r} to {self.end!r}"


def holes_of(regions: Iterable[RegionRecord]) -> list[Hole]:
    """Return the holes between a table's regions, those that are replaced left out."""
    found: list[Hole] = []
    reached = ""
    for region in sorted((one for one in regions if not one.is_replaced), key=lambda one: one.start_key):
        if region.start_key > reached:
            found.append(Hole(reached, region.start_key))
        if not region.end_key:
            return found
        reached = max(reached, region.end_key)
    return [*found, Hole(reached, "")]


def region_for(hole: Hole, table: TableRecord, version: int, regions: Collection[RegionRecord]) -> RegionRecord:
    """Return an empty region with the keys of a hole.

    `version` is the version of the table's record. The same write raises it, so no id is used twice. If the neighbors'
    ids sort like their keys, the new id sorts between them.
    """
    left = max((one.region_id for one in regions if one.start_key < hole.start), default=f"{table.table_id}.")
    return RegionRecord(
        table.table_id,
        f"{left}{_MARK}{version:x}",
        hole.start,
        hole.end,
        state=TabletState.PREPARING,
        hash_buckets=table.hash_buckets,
    )
