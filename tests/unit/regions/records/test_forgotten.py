"""The ids of deleted tables without records."""

from __future__ import annotations

from regions.records.forgotten import FORGOTTEN_MAX, ForgottenTables
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
