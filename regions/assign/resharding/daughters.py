"""The records of the regions that replace a split region, or two merged ones. Pure.

The id of a daughter is derived from its parents' ids. No id is used twice, because a region is split or merged only
once. Ids sort like their key ranges, so that clients find a region by a binary search over the names:

    t.0005        split at k:   t.0005A   t.0005B      "t.0005" < "t.0005A" < "t.0005B" < "t.0006"
    t.0005B       split at m:   t.0005BA  t.0005C      the last letter counts up: a table that grows at its end
    t.0005A       split at d:   t.0005AA   t.0005AB
    t.0005A and its right neighbor merged:  t.0005AM

Digits and small letters, of which other ids consist, are never counted up, and neither is A; then another letter is
appended.
"""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from regions.records.model import RegionRecord, TabletState
from regions.records.resharding.names import merged_id as merged_id
from regions.records.resharding.names import split_ids as split_ids
from regions.records.resharding.parents import Parent

#: Longest id. A directory of this name, with a replica's number, must be possible in every file system.
ID_MAX: Final = 180


def split_at(record: RegionRecord, key: str) -> tuple[RegionRecord, RegionRecord]:
    """Return the daughters of a region that is split at `key`, the first key of the second daughter."""
    assert record.contains(key), f"{record.region_id} at {key!r}"
    assert key != record.start_key, f"{record.region_id} at its first key"
    first, second = split_ids(record.region_id)
    return (
        _daughter(record, first, record.start_key, key, record.size_bytes // 2),
        _daughter(record, second, key, record.end_key, record.size_bytes // 2),
    )


def merged(left: RegionRecord, right: RegionRecord) -> RegionRecord:
    """Return the daughter of two neighbors."""
    assert left.end_key == right.start_key != "", f"{left.region_id} and {right.region_id} are no neighbors"
    size = left.size_bytes + right.size_bytes
    return _daughter(left, merged_id(left.region_id), left.start_key, right.end_key, size)


def _daughter(record: RegionRecord, region_id: str, start: str, end: str, size: int) -> RegionRecord:
    """Return a region that is RUNNING from its first write on. It has rows, so it is never replaced by an empty
    region."""
    return RegionRecord(
        record.table_id, region_id, start, end, size, state=TabletState.RUNNING, hash_buckets=record.hash_buckets
    )


def covers(parents: tuple[RegionRecord, ...], daughters: tuple[RegionRecord, ...]) -> bool:
    """Return True if the daughters have exactly the keys of the parents, without a hole or an overlap."""
    return _span(parents) == _span(daughters) is not None


def _span(regions: tuple[RegionRecord, ...]) -> tuple[str, str] | None:
    """Return the first and the last bound of adjacent regions; None if they are not adjacent, or if a range is
    empty."""
    for one, following in itertools.pairwise(regions):
        if not one.end_key or one.end_key != following.start_key:
            return None
    if any(one.end_key and one.end_key <= one.start_key for one in regions):
        return None
    return regions[0].start_key, regions[-1].end_key


def with_parents(daughter: RegionRecord, parents: tuple[RegionRecord, ...]) -> RegionRecord:
    """Return the record with which the daughter is created. It names the parents and their latest opens."""
    return msgspec.structs.replace(
        daughter, parents=tuple(Parent(one.region_id, one.location(0).token) for one in parents)
    )
