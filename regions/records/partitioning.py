"""Partitioning of a table's keys into regions: by range, or by hash and range. Pure.

A region has one half-open range of *placed* keys, for every table. Without hash buckets a key is its own placed key.
With n buckets the placed key is the bucket, four hexadecimal digits and a colon, and then the key:

    place("melon", 4) = "0003:melon"        bucket 3 is [0003:, 0004:), and ranges within it are cut at 0003:<split>

The bucket is the CRC-32 of the key's UTF-8 bytes modulo n. Clients place keys before they look up the region and send a
request. Servers work on placed keys and reject a key in the wrong bucket: a client that does not know the table's
buckets must not write rows where no other client looks for them.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from regions.records.model import RegionRecord

BUCKETS_MIN: Final = 2
BUCKETS_MAX: Final = 4096
#: Length of the prefix of a placed key.
PREFIX_BYTES: Final = 5


class KeyBounds(Protocol):
    """An object with a range of placed keys: from `start_key` to before `end_key`, "" for no bound."""

    @property
    def start_key(self) -> str: ...
    @property
    def end_key(self) -> str: ...


class RegionSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One region of a table to be created."""

    start_key: str = ""
    end_key: str = ""
    size_bytes: int = 0


def split_ranges(splits: list[str]) -> list[RegionSpec]:
    """Return key ranges that cover all keys, split at `splits`.

    Raises:
        ValueError: an empty split key, or keys that are not strictly increasing.
    """
    if any(not key for key in splits):
        raise ValueError("a split key must not be empty")
    for left, right in itertools.pairwise(splits):
        if left >= right:
            raise ValueError(f"split keys must increase strictly: {right!r} comes after {left!r}")
    bounds = ["", *splits, ""]
    return [RegionSpec(start, end) for start, end in itertools.pairwise(bounds)]


def check_ranges(specs: Sequence[KeyBounds]) -> None:
    """Check that the regions cover the whole key space without gaps or overlaps.

    Raises:
        ValueError: with the first offending pair.
    """
    if not specs:
        raise ValueError("a table needs at least one region")
    if specs[0].start_key != "" or specs[-1].end_key != "":
        raise ValueError("regions must cover the whole key space: the first start and the last end are empty")
    for left, right in itertools.pairwise(specs):
        if left.end_key != right.start_key or left.end_key == "" or left.start_key >= left.end_key:
            raise ValueError(f"region [{left.start_key!r}, {left.end_key!r}) is not followed by {right.start_key!r}")
    if len(specs) > 1 and specs[-1].start_key == "":
        raise ValueError("the last region starts without a bound")


def is_whole(regions: Sequence[RegionRecord]) -> bool:
    """Return True if regions, in the order of their keys, have every key once."""
    try:
        check_ranges(regions)
    except ValueError:
        return False
    return True


def bucket_of(key: str, buckets: int) -> int:
    """Return the bucket of an unplaced key. Raise UnicodeEncodeError for an invalid text."""
    return zlib.crc32(key.encode()) % buckets


def prefix(bucket: int) -> str:
    """Return the prefix of the placed keys of a bucket."""
    return f"{bucket:04x}:"


def place(key: str, buckets: int) -> str:
    """Return the placed key, or the key itself if `buckets` is 0."""
    return prefix(bucket_of(key, buckets)) + key if buckets else key


def unplace(placed: str, buckets: int) -> str:
    """Return the key of a placed key."""
    return placed[PREFIX_BYTES:] if buckets else placed


def is_placed(placed: str, buckets: int) -> bool:
    """Return True if a placed key is in the bucket of its key."""
    return not buckets or placed == place(placed[PREFIX_BYTES:], buckets)


def bounds(start: str, end: str, bucket: int) -> tuple[str, str]:
    """Return the range of the placed keys of one bucket that lie in `[start, end)`; "" means no bound."""
    return prefix(bucket) + start, prefix(bucket) + end if end else prefix(bucket + 1)


def ranges(splits: Sequence[str], buckets: int) -> list[RegionSpec]:
    """Return ranges of placed keys that cover all keys: every bucket, split at `splits`.

    Raises:
        ValueError: too few or too many buckets, or splits that are not strictly increasing.
    """
    plain = split_ranges(list(splits))
    if not buckets:
        return plain
    if not BUCKETS_MIN <= buckets <= BUCKETS_MAX:
        raise ValueError(f"{buckets} hash buckets: give {BUCKETS_MIN} to {BUCKETS_MAX}, or 0 for none")
    cuts = [prefix(bucket) + one.start_key for bucket in range(buckets) for one in plain]
    return split_ranges(cuts[1:])


def describe_range(start: str, end: str, buckets: int) -> str:
    """Return the text of a range of placed keys: `bucket 3, [a, m)`, open ends as ∞; "" without buckets."""
    if not buckets:
        return ""
    bucket = int(start[: PREFIX_BYTES - 1] or "0", 16)
    until = end[PREFIX_BYTES:] if end.startswith(prefix(bucket)) else ""
    return f"bucket {bucket}, [{start[PREFIX_BYTES:] or '-∞'}, {until or '+∞'})"


__all__ = [
    "BUCKETS_MAX",
    "BUCKETS_MIN",
    "PREFIX_BYTES",
    "bounds",
    "bucket_of",
    "describe_range",
    "is_placed",
    "is_whole",
    "place",
    "prefix",
    "ranges",
    "unplace",
]
