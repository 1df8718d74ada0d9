"""What `rk backup create` refuses before it begins, and what a manifest says of an unchanged region."""

from __future__ import annotations

import pytest

from cli.backup.create import check_rate, tables_to_back_up
from cli.backup.format import RegionBackup
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from regions.records.model import TableIntent, TableRecord, TableState
from regions.records.znodes import Layout
from regionserver.kv.held import HELD_IDLE_S
from regionserver.kv.messages import RowsPoint


class FakeCluster:
    """A cluster with some tables and no regions."""

    layout = Layout("/rk")

    def __init__(self, *tables: TableRecord) -> None:
        self._tables = list(tables)

    def tables(self) -> list[TableRecord]:
        return self._tables

    def records(self, *_: object) -> dict[str, object]:
        return {}


def names(cluster: FakeCluster, *wanted: str) -> list[str]:
    return [record.name for record, _ in tables_to_back_up(cluster, wanted)]  # type: ignore[arg-type]


def test_all_tables_are_saved_or_the_named_ones() -> None:
    cluster = FakeCluster(
        TableRecord("t2", "b"), TableRecord("t1", "a"), TableRecord("t3", "old", state=TableState.REMOVED)
    )
    assert names(cluster) == ["a", "b"]
    assert names(cluster, "b", "t2", "b") == ["b"]
    with pytest.raises(NotFoundError, match="no table 'old'"):
        names(cluster, "old")


def test_a_disabled_table_is_refused_because_nobody_has_its_rows_open() -> None:
    asleep = TableRecord("t2", "b", intent=TableIntent.DISABLED)
    service = TableRecord("t3", "c", kind="counters/1", intent=TableIntent.DISABLED)
    cluster = FakeCluster(TableRecord("t1", "a"), asleep, service)
    with pytest.raises(CliError, match="disabled: b; no server"):
        names(cluster)
    assert names(cluster, "a", "c") == ["a", "c"]


def test_a_rate_leaves_time_between_two_pages() -> None:
    """At the least rate, the pages of all regions at once take half of the time for which servers keep a snapshot."""
    check_rate(0, 64)
    check_rate(0.36, 4)
    for rate, threads in ((0.34, 4), (0.02, 1), (5, 64)):
        with pytest.raises(UsageFaultError, match=f"keep a snapshot for {HELD_IDLE_S:g} s"):
            check_rate(rate, threads)


def test_the_point_of_a_manifest_is_compared_as_the_server_gave_it() -> None:
    digest = bytes(range(16))
    tablet = RegionBackup("r", "", "", "f", 1, 3, 9, digest.hex(), 1, "s", 4, 17)
    assert tablet.point(is_tablet=True).has_same_rows(RowsPoint(term=5, index=99, rows=3, size=9, digest=digest))
    shared = RegionBackup("r", "", "", "f", 1, 3, 9, digest.hex(), 1, "s", 0, 0, "rows-5.mdb", 8)
    assert shared.point(is_tablet=False) == RowsPoint("rows-5.mdb", 8)
