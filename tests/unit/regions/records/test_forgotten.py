"""The ids of deleted tables without records, and which records are removed after a time."""

from __future__ import annotations

from regions.records.forgotten import FORGOTTEN_MAX, ForgottenTables, overdue
from regions.records.znodes import decode_forgotten, encode


def test_ids_are_kept_with_the_time_of_the_purge() -> None:
    found = ForgottenTables().with_table("b", 2).with_table("a", 1)
    assert decode_forgotten(encode(found)) == found
    assert found.purged_ms == {"a": 1, "b": 2}


def test_beyond_the_limit_the_first_purged_id_is_dropped() -> None:
    full = ForgottenTables({f"{number:08x}": number for number in range(FORGOTTEN_MAX)})
    assert full.with_table("00000001", 1) == full
    after = full.with_table("new", FORGOTTEN_MAX)
    assert len(after.purged_ms) == FORGOTTEN_MAX
    assert "00000000" not in after.purged_ms
    assert "new" in after.purged_ms
    assert len(encode(after)) < 700_000, "one znode holds at most 1 MB"


def test_records_are_removed_by_age_and_by_number_the_oldest_first() -> None:
    """Tried: without one of the two conditions in `overdue` one of these lists is shorter."""
    aged = [(30, "c"), (10, "a"), (40, "d"), (20, "b")]
    assert overdue(aged, before_ms=0, kept_max=9) == []
    assert overdue(aged, before_ms=20, kept_max=9) == ["a", "b"]
    assert overdue(aged, before_ms=0, kept_max=1) == ["a", "b", "c"]
    assert overdue(aged, before_ms=10, kept_max=2) == ["a", "b"]
    assert overdue([(0, "a")], before_ms=None, kept_max=1) == []
    assert overdue([], before_ms=10, kept_max=0) == []
