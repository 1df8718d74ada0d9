"""The ids of the daughters of splits and merges: no id is used twice, and ids sort as their key ranges do. Pure."""

from __future__ import annotations

from typing import Final

_FIRST: Final = "A"
_SECOND: Final = "B"
_MERGED: Final = "M"
_LAST: Final = "Z"


def split_ids(region_id: str) -> tuple[str, str]:
    """Return the ids of the two daughters of a split region."""
    last = region_id[-1]
    if _SECOND <= last < _LAST:
        return region_id + _FIRST, region_id[:-1] + chr(ord(last) + 1)
    return region_id + _FIRST, region_id + _SECOND


def merged_id(left: str) -> str:
    """Return the id of the region into which `left` and its right neighbor are merged."""
    return left + _MERGED


def left_of_merged(region_id: str) -> str:
    """Return the id of the left parent of a region that comes from a merge by its id, "" for any other region."""
    return region_id.removesuffix(_MERGED) if region_id.endswith(_MERGED) else ""
