"""Range and hash partitioning: every key has one region, for client and server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.records import partitioning as parts
from regions.records.model import RegionRecord
from regions.records.partitioning import check_ranges

keys = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@pytest.mark.parametrize(
    ("splits", "buckets", "starts"),
    [
        ([], 0, [""]),
        (["g", "p"], 0, ["", "g", "p"]),
        ([], 2, ["", "0001:"]),
        (["m"], 3, ["", "0000:m", "0001:", "0001:m", "0002:", "0002:m"]),
    ],
)
def test_ranges(splits: list[str], buckets: int, starts: list[str]) -> None:
    """One half-open range for each region, no gap, no overlap."""
    found = parts.ranges(splits, buckets)
    assert [one.start_key for one in found] == starts
    check_ranges(found)


@pytest.mark.parametrize("buckets", [1, -1, parts.BUCKETS_MAX + 1])
def test_buckets_have_bounds(buckets: int) -> None:
    """With one bucket the key would only be longer."""
    with pytest.raises(ValueError, match="hash buckets"):
        parts.ranges([], buckets)


def test_the_most_buckets_are_in_order() -> None:
    """Four digits are enough for the last bucket, and for its upper bound."""
    found = parts.ranges([], parts.BUCKETS_MAX)
    assert len(found) == parts.BUCKETS_MAX
    check_ranges(found)
    assert parts.bounds("", "", parts.BUCKETS_MAX - 1) == ("0fff:", "1000:")


@given(key=keys, splits=st.lists(keys.filter(bool), unique=True, max_size=4), buckets=st.sampled_from([0, 2, 3, 16]))
def test_every_key_is_in_exactly_one_region(key: str, splits: list[str], buckets: int) -> None:
    """And in the bucket that client and server both compute; a raw key is never taken for a placed one."""
    placed = parts.place(key, buckets)
    regions = [RegionRecord("t", "r", one.start_key, one.end_key) for one in parts.ranges(sorted(splits), buckets)]
    assert sum(one.contains(placed) for one in regions) == 1
    assert parts.unplace(placed, buckets) == key
    assert parts.is_placed(placed, buckets)
    if buckets:
        bucket = parts.bucket_of(key, buckets)
        low, high = parts.bounds("", "", bucket)
        assert low <= placed < high
        wrong = parts.prefix((bucket + 1) % buckets) + key
        assert not parts.is_placed(wrong, buckets)


@given(key=keys, start=keys, end=keys)
def test_a_scans_bounds_hold_in_every_bucket(key: str, start: str, end: str) -> None:
    """A scan of a bucket finds exactly the keys of the range that are in it."""
    low, high = parts.bounds(start, end, parts.bucket_of(key, 5))
    assert (low <= parts.place(key, 5) < high) == (start <= key and (not end or key < end))


def test_the_hash_stays_as_it_is() -> None:
    """Rows are where earlier versions put them, so these values are on disks."""
    assert [parts.place(key, 4) for key in ("", "a", "melon", "zürich")] == [
        "0000:",
        "0003:a",
        "0003:melon",
        "0002:zürich",
    ]


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("", "0000:m", "bucket 0, [-∞, m)"),
        ("0001:m", "0002:", "bucket 1, [m, +∞)"),
        ("0002:", "", "bucket 2, [-∞, +∞)"),
    ],
)
def test_ranges_in_words(start: str, end: str, words: str) -> None:
    """As `rk table show` prints them."""
    assert parts.describe_range(start, end, 3) == words
