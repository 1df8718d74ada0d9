"""One part of a table: no row reaches Spark before all have been read, and none of a first attempt stays."""

from __future__ import annotations

from typing import Any

import pytest

from cli.backup.source import RegionFailedError, RegionSource
from pyspark_regionkeeper.errors import SourceError
from pyspark_regionkeeper.ranges import RegionPart
from pyspark_regionkeeper.reading import Spool, read_part
from regions.records.model import RegionRecord
from regionserver.kv.packing import pack_row


def test_a_region_that_is_read_anew_has_each_row_once() -> None:
    """Fails when `begin` leaves what was read."""
    spool = Spool()
    for key in (b"a", b"b", b"c", b"d"):
        spool.add(pack_row(key, b"old"))
    spool.begin()
    spool.add(pack_row(b"a", b"new"))
    spool.add(b"")
    spool.add(pack_row(b"c", b"new"))
    assert list(spool.rows()) == [(b"a", b"new"), (b"c", b"new")]
    spool.close()


class Locator:
    """The store, with one region or none."""

    def __init__(self, region: RegionRecord | None) -> None:
        self._region = region

    def refresh(self, _table: str, _region: str) -> RegionRecord | None:
        """Return the region."""
        return self._region


def rows_of(monkeypatch: pytest.MonkeyPatch, part: RegionPart, buckets: int, *keys: str) -> list[tuple[str, bytes]]:
    """Return the rows that a task gets from a region whose pages have these placed keys."""

    def read(_self: Any, _region: Any, _known: Any, sink: Spool, _span: Any) -> None:
        sink.begin()
        for key in keys:
            sink.add(pack_row(key.encode(), b"v"))

    monkeypatch.setattr(RegionSource, "read", read)
    locator: Any = Locator(RegionRecord("t", "t.1"))
    return list(read_part(locator, "t", part, buckets))


def test_rows_outside_of_the_part_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last page may have some. Fails with `<=` for the end."""
    part = RegionPart("t", "t.1", "b", "d")
    assert [key for key, _ in rows_of(monkeypatch, part, 0, "a", "b", "c", "d")] == ["b", "c"]
    open_part = RegionPart("t", "t.1", "", "")
    assert [key for key, _ in rows_of(monkeypatch, open_part, 4, "0001:x", "0001:y")] == ["x", "y"]


def test_errors_name_the_table_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is gone, a region that cannot be read."""
    part, gone, there = RegionPart("t", "t.1", "", ""), Locator(None), Locator(RegionRecord("t", "t.1"))
    with pytest.raises(SourceError, match="table 'sales' was deleted meanwhile, or made anew; read it again"):
        list(read_part(gone, "sales", part, 0))  # type: ignore[arg-type]

    def fail(*_arguments: Any) -> None:
        raise RegionFailedError("region t.1 could not be read for 60 s: it is not open")

    monkeypatch.setattr(RegionSource, "read", fail)
    with pytest.raises(SourceError, match=r"table 'sales': region t.1 could not be read .*`rk why t.1`"):
        list(read_part(there, "sales", part, 0))  # type: ignore[arg-type]
