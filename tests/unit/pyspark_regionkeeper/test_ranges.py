"""Conditions on key columns as a range of keys, and a range as parts of regions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_regionkeeper.ranges import Condition, after_prefix, is_empty, key_range, parts
from regions.records import schema as sc
from regions.records.model import RegionRecord
from regions.records.partitioning import place, ranges
from regions.records.rows.codec import TypedTable

SALES = TypedTable("sales", sc.create([sc.parse_column("region:string:key"), sc.parse_column("id:int32:key")]), 0)
WORDS = TypedTable("words", sc.create([sc.parse_column("word:string:key"), sc.parse_column("n:int32")]), 0)
EVENTS = TypedTable("events", sc.create([sc.parse_column("at:timestamp:key")]), 0)
_COMPARE: dict[str, Any] = {
    "=": lambda have, want: have == want,
    "<": lambda have, want: have < want,
    "<=": lambda have, want: have <= want,
    ">": lambda have, want: have > want,
    ">=": lambda have, want: have >= want,
    "in": lambda have, want: have in want,
    "prefix": lambda have, want: have.startswith(want),
}


def holds(row: dict[str, Any], conditions: list[Condition]) -> bool:
    """Return Spark's result for a row."""
    return all(_COMPARE[one.sign](row[one.column], one.value) for one in conditions)


def is_within(key: str, span: tuple[str, str]) -> bool:
    """Return True if a key is in a range."""
    return key >= span[0] and (not span[1] or key < span[1])


_TEXTS = st.text("ab!\"' z~é\ud7ff\U0010ffff", max_size=3)
_NUMBERS = st.integers(-1200, 1200)
_CONDITIONS = st.lists(
    st.one_of(
        st.builds(Condition, st.just("region"), st.sampled_from(["=", "<", "<=", ">", ">=", "prefix"]), _TEXTS),
        st.builds(Condition, st.just("region"), st.just("in"), st.lists(_TEXTS, min_size=1, max_size=3)),
        st.builds(Condition, st.just("id"), st.sampled_from(["=", "<", "<=", ">", ">="]), _NUMBERS),
        st.builds(Condition, st.just("id"), st.just("in"), st.lists(_NUMBERS, min_size=1, max_size=3)),
    ),
    max_size=3,
)


@given(_CONDITIONS, st.lists(st.tuples(_TEXTS, _NUMBERS), max_size=20))
def test_a_range_has_every_row_that_meets_the_conditions(
    conditions: list[Condition], rows: list[tuple[str, int]]
) -> None:
    """This holds for any texts and numbers."""
    span = key_range(SALES, conditions)
    for region, number in rows:
        row = {"region": region, "id": number}
        if holds(row, conditions):
            assert is_within(SALES.key_of(row), span)


@given(st.lists(st.builds(Condition, st.just("key"), st.sampled_from(list(_COMPARE)[:5]), _TEXTS), max_size=3), _TEXTS)
def test_a_range_of_texts_has_every_key_that_meets_the_conditions(conditions: list[Condition], key: str) -> None:
    """Tables of keys and bytes."""
    if holds({"key": key}, conditions):
        assert is_within(key, key_range(None, conditions))


@pytest.mark.parametrize(
    ("conditions", "key", "outside"),
    [
        ([Condition("region", "=", "eu")], ("eu", 5), ("us", 5)),
        ([Condition("region", "=", "eu"), Condition("id", ">=", 5)], ("eu", 5), ("eu", 4)),
        ([Condition("region", "=", "eu"), Condition("id", "<", 9)], ("eu", 8), ("eu", 9)),
        ([Condition("region", "=", "eu"), Condition("id", "in", [3, 7])], ("eu", 7), ("eu", 8)),
        ([Condition("region", "=", "eu"), Condition("id", "<=", 9)], ("eu", 9), ("eu", 10)),
        ([Condition("region", "<=", "eu")], ("eu", 9), ("ev", 1)),
        ([Condition("region", ">", "eu")], ("ev", 1), ("eu", 1)),
    ],
)
def test_rows_outside_are_left_out(conditions: list[Condition], key: tuple[str, int], outside: tuple[str, int]) -> None:
    """Fails when the conditions are not used, and when `<=` is taken for `<`."""
    span = key_range(SALES, conditions)
    assert is_within(SALES.key_of(dict(zip(("region", "id"), key, strict=True))), span)
    assert not is_within(SALES.key_of(dict(zip(("region", "id"), outside, strict=True))), span)


def test_conditions_that_no_range_expresses_are_left_to_spark() -> None:
    """A value beyond the column's type, a time without zone, a column that is not a key."""
    assert key_range(SALES, [Condition("region", "=", "eu"), Condition("id", "<", 1 << 40)]) == ("eu ", "eu!")
    assert key_range(EVENTS, [Condition("at", ">", datetime(2026, 1, 1))]) == ("", "")
    assert key_range(EVENTS, [Condition("at", ">=", datetime(2026, 1, 1, tzinfo=UTC))])[0].startswith("p1767")
    assert key_range(WORDS, [Condition("n", "=", 5)]) == ("", "")
    assert key_range(WORDS, [Condition("word", "prefix", "py")]) == ("py", "pz")


@given(st.text(max_size=4), st.text(max_size=4))
def test_all_texts_with_a_prefix_come_before_its_end(prefix: str, rest: str) -> None:
    """And the end itself does not begin with the prefix."""
    end = after_prefix(prefix)
    assert not end or prefix + rest < end
    assert not (end and end.startswith(prefix))


def regions_of(splits: list[str], buckets: int) -> list[RegionRecord]:
    """Return the regions of a table."""
    return [
        RegionRecord("t", f"t.{number}", one.start_key, one.end_key)
        for number, one in enumerate(ranges(splits, buckets))
    ]


@pytest.mark.parametrize("buckets", [0, 4])
@given(
    key=st.text("abcxyz", min_size=1, max_size=3),
    bounds=st.tuples(st.text("abxz", max_size=2), st.text("abxz", max_size=2)),
)
def test_each_wanted_key_is_in_exactly_one_part(buckets: int, key: str, bounds: tuple[str, str]) -> None:
    """Also in a table with hash buckets, whose every bucket has a part. Fails when only the first bucket is read."""
    found = parts(regions_of(["b", "x"], buckets), buckets, *bounds)
    placed = place(key, buckets)
    wanted = is_within(key, bounds) and not is_empty(*bounds)
    assert sum(is_within(placed, (one.start, one.end)) for one in found) == int(wanted)


def test_regions_without_wanted_keys_get_no_task() -> None:
    """One region of three."""
    assert [one.region_id for one in parts(regions_of(["b", "x"], 0), 0, "c", "d")] == ["t.1"]
