"""Deleted tables: restored with their regions, or purged after their grace period (DD-06)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from twisted.internet.defer import fail, succeed

from coord.errors import BadVersion, MultiFailed
from coord.rpc.server import RpcError
from master.assignment.dispatch import PURGE_S
from master.catalog import tables
from master.catalog.purging import RETRY_MS
from regions import messages as ms
from regions.records.model import (
    Incarnation,
    Intent,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TabletState,
    TransitionRecord,
)
from regions.records.znodes import decode_region, decode_table, encode
from tests.unit.master.active_fixture import LAYOUT, Bench

HOUR_S = 3_600.0
UNDELETE = ms.UndeleteTable("orders", request_id="u-1")


class Purger(Bench):
    """A master, with a test that answers its purge orders."""

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.hold_servers()
        self.orders: list[tuple[str, str]] = []
        self.answer: Any = None
        assert self.active_master is not None
        self.active_master.order_purge = self._order  # type: ignore[method-assign]

    def _order(self, server: ServerRecord, table_id: str) -> Any:
        self.orders.append((server.uuid, table_id))
        return succeed(ms.Purged(1)) if self.answer is None else fail(self.answer)

    def table(self, table_id: str = "t") -> TableRecord:
        return decode_table(self.store.nodes[LAYOUT.table(table_id)][0])

    def delete(self) -> None:
        """Delete the table, and wait until its region is closed."""
        self.ask(ms.DeleteTable("orders"))
        assert self.active_master is not None
        me = Incarnation("s1", 7)
        region, version = (
            self.active_master.world.regions["t.0"].record,
            self.active_master.world.regions["t.0"].version,
        )
        closed = TransitionRecord("t.0", "t", 0, RegionState.CLOSED, source=me, intent=Intent.CLOSE)
        path = LAYOUT.transition("t.0", 0)
        self.store.change(path, encode(closed))
        self.go_on(0.5)
        self.go_on(0.5)
        assert (region.region_id, version) == ("t.0", 0)
        assert self.table().finished_ms > 0, "all of it is closed"


@pytest.fixture
def bench(tmp_path: Path) -> Purger:
    return Purger(tmp_path, servers=2)


def test_a_deleted_table_records_when_its_rows_may_be_purged(bench: Purger) -> None:
    bench.ask(ms.DeleteTable("orders"))
    table = bench.table()
    assert table.state is TableState.REMOVED
    assert table.removed_ms > 0
    assert table.purge_at_ms == table.removed_ms + int(HOUR_S * 1000)


def test_an_undelete_restores_everything_in_one_write(bench: Purger) -> None:
    before = bench.table()
    bench.delete()
    assert decode_region(bench.store.nodes[LAYOUT.region("t", "t.0")][0]).state is TabletState.DELETED
    answer = bench.ask(UNDELETE)
    assert answer.tables[0].table == before
    assert bench.table() == before
    assert bench.store.nodes[LAYOUT.name("orders")][0] == b"t"
    region = decode_region(bench.store.nodes[LAYOUT.region("t", "t.0")][0])
    assert region.state is TabletState.RUNNING
    [multi] = [ops for ops in bench.store.multis if any(op.path == LAYOUT.request("u-1") for op in ops)]
    assert {op.path for op in multi} >= {LAYOUT.table("t"), LAYOUT.name("orders"), LAYOUT.region("t", "t.0")}
    bench.go_on(0.5)
    assert LAYOUT.transition("t.0", 0) in bench.store.nodes, "its region is assigned"


def test_a_repeated_undelete_changes_nothing(bench: Purger) -> None:
    bench.delete()
    first = bench.ask(UNDELETE)
    count = len(bench.store.multis)
    assert bench.ask(UNDELETE).tables[0].table.table_id == first.tables[0].table.table_id
    assert not [ops for ops in bench.store.multis[count:] if any(op.path == LAYOUT.name("orders") for op in ops)]
    assert bench.ask(replace(UNDELETE, name="other")) == ms.BAD_REQUEST


def test_an_undelete_to_a_taken_name_is_rejected(bench: Purger) -> None:
    bench.delete()
    bench.ask(ms.CreateTable("orders"))
    assert bench.ask(replace(UNDELETE, request_id="")) == ms.ALREADY_EXISTS
    assert bench.table().state is TableState.REMOVED
    answer = bench.ask(ms.UndeleteTable("t", "sales"))
    assert (answer.tables[0].table.name, bench.table().name) == ("sales", "sales")
    assert bench.store.nodes[LAYOUT.name("sales")][0] == b"t"


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (ms.UndeleteTable("nix"), ms.NOT_FOUND),
        (ms.UndeleteTable("t"), ms.BAD_REQUEST),
        (ms.UndeleteTable("orders"), ms.NOT_FOUND),
    ],
)
def test_a_table_that_is_not_deleted_cannot_be_restored(bench: Purger, wish: ms.UndeleteTable, code: str) -> None:
    assert bench.ask(wish) == code


def test_an_undelete_of_a_table_that_is_still_closing_must_be_retried(bench: Purger) -> None:
    bench.ask(ms.DeleteTable("orders"))
    assert bench.ask(UNDELETE) == ms.BUSY


def test_an_undelete_continues_an_interrupted_alteration(bench: Purger) -> None:
    """The intent is unchanged as well."""
    bench.ask(ms.SetTableIntent("orders", TableIntent.DISABLED))
    record = replace(bench.table(), state=TableState.REMOVED, finished_ms=1, removed_ms=1, fully_applied_schema="a")
    bench.store.put(LAYOUT.table("u"), encode(replace(record, table_id="u", name="gone")))
    bench.store.put(LAYOUT.table_regions("u"))
    answer = bench.ask(ms.UndeleteTable("gone")).tables[0].table
    assert answer.intent is TableIntent.DISABLED
    assert bench.table("u").fully_applied_schema in ("a", None)


def test_a_large_table_is_restored_once_all_its_regions_are_written(
    bench: Purger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its regions take several multis: the last one makes the table exist."""
    monkeypatch.setattr(tables, "CREATE_BYTES_MAX", 100)
    bench.delete()
    assert bench.ask(UNDELETE).tables[0].table.state is TableState.RUNNING
    [last] = [ops for ops in bench.store.multis if any(op.path == LAYOUT.request("u-1") for op in ops)]
    assert not any(op.path == LAYOUT.region("t", "t.0") for op in last)
    assert decode_region(bench.store.nodes[LAYOUT.region("t", "t.0")][0]).state is TabletState.RUNNING


# --- the purge --------------------------------------------------------------------------------------------------------


def test_rows_are_purged_after_the_grace_period_and_not_before(bench: Purger) -> None:
    bench.delete()
    bench.go_on(HOUR_S - 60)
    bench.go_on(0.5)
    assert (bench.orders, bench.table().purging_ms) == ([], 0)
    bench.go_on(70)
    bench.go_on(0.5)
    assert bench.orders == [("s1", "t")]
    assert bench.table().purged_ms >= bench.table().purging_ms >= bench.table().purge_at_ms > 0
    bench.go_on(60)
    assert len(bench.orders) == 1
    assert bench.ask(UNDELETE) == ms.BAD_REQUEST


def test_the_start_of_a_purge_is_written_before_the_order_and_ends_undelete(bench: Purger) -> None:
    bench.delete()
    bench.answer = RpcError("unreachable", "no")
    bench.go_on(HOUR_S)
    bench.go_on(1)
    assert bench.table().purging_ms > 0
    assert bench.ask(UNDELETE) == ms.BAD_REQUEST
    for _ in range(3):
        bench.go_on(RETRY_MS / 1000)
        bench.go_on(0.5)
    assert {server for server, _ in bench.orders} == {"s1", "s2"}, "one after the other"
    assert bench.table().purged_ms == 0
    bench.answer = None
    bench.go_on(RETRY_MS / 1000)
    bench.go_on(0.5)
    assert bench.table().purged_ms > 0


def test_a_purge_whose_end_was_not_written_is_tried_again(bench: Purger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was changed between the read and the write. Tried: a forgotten table waits for the next master."""
    bench.delete()
    real, refused = tables.change, []

    async def change(fence: Any, record: TableRecord, version: int, more: Any) -> Any:
        if record.purged_ms and not refused:
            refused.append(record)
            raise MultiFailed(0, BadVersion("/t"), [BadVersion("/t")])
        return await real(fence, record, version, more)

    monkeypatch.setattr(tables, "change", change)
    bench.go_on(HOUR_S)
    bench.go_on(1)
    assert (len(refused), bench.table().purged_ms) == (1, 0)
    bench.go_on(RETRY_MS / 1000)
    bench.go_on(0.5)
    assert bench.table().purged_ms > 0
    assert len(bench.orders) == 2, "the server removes the rest of the rows, which are none"


def test_a_restored_table_is_not_purged(bench: Purger) -> None:
    bench.delete()
    bench.ask(UNDELETE)
    bench.go_on(2 * HOUR_S)
    bench.go_on(1)
    assert bench.orders == []
    assert bench.table().state is TableState.RUNNING


def test_the_next_master_continues_a_purge(bench: Purger, tmp_path: Path) -> None:
    """The former master had begun, and no server had replied."""
    bench.delete()
    bench.answer = RpcError("unreachable", "no")
    bench.go_on(HOUR_S)
    bench.go_on(1)
    purging_ms = bench.table().purging_ms
    store_later = bench.succeeded_by(tmp_path / "later")
    active_master = store_later.active_master
    assert active_master is not None
    asked: list[str] = []
    active_master.order_purge = lambda _, table_id: asked.append(table_id) or succeed(ms.Purged())  # type: ignore
    store_later.go_on(PURGE_S + 1)  # the order that it sent at once is not answered
    for _ in range(3):
        store_later.go_on(RETRY_MS / 1000)
    after = decode_table(store_later.store.nodes[LAYOUT.table("t")][0])
    assert asked == ["t"]
    assert (after.purging_ms, after.purged_ms > 0) == (purging_ms, True)


def test_a_table_deleted_by_an_older_build_gets_its_grace_period_from_now(bench: Purger) -> None:
    record = TableRecord("old", "old", state=TableState.REMOVED, finished_ms=1)
    later_ms = bench.now_ms()
    bench.store.put(LAYOUT.table("old"), encode(record))
    assert bench.active_master is not None
    bench.active_master.purging.finished(record)
    bench.go_on(1)
    bench.go_on(1)
    assert bench.table("old").purge_at_ms >= later_ms + int(HOUR_S * 1000)
    assert bench.orders == []
    bench.go_on(HOUR_S)
    bench.go_on(1)
    assert bench.orders == [("s1", "old")]


def test_only_servers_of_the_tables_kind_get_purge_orders(bench: Purger) -> None:
    record = TableRecord("c", "c", state=TableState.REMOVED, finished_ms=1, purge_at_ms=1, kind="counters/1")
    bench.store.put(LAYOUT.table("c"), encode(record))
    assert bench.active_master is not None
    bench.active_master.purging.finished(record)
    bench.go_on(1)
    bench.go_on(20)
    assert bench.orders == []
