"""The writes of operations on tables: the contents of one multi, the remains after a crash between several (OC-01,
OC-05)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from coord.client.ops import Check, Create, multi_body
from coord.errors import MultiFailed
from coord.wire import records as r
from master.catalog import store as catalog
from master.catalog import tables
from master.catalog.ddl import new_table, plan_create
from master.leadership.fence import Fence
from regions.assign.replacement import successor
from regions.messages.ddl import CreateTable
from regions.records import schema as sc
from regions.records.kinds import KV
from regions.records.model import RegionRecord, ReplicaLocation, RequestRecord, TableRecord, TableState, TabletState
from regions.records.znodes import Layout, decode_region, encode
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")
DOCS = Path(__file__).parents[4] / "docs" / "masters.md"
#: More than one multi can hold, in these tests.
MANY = 1_200


@pytest.fixture
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit multis, so that larger creations take several."""
    monkeypatch.setattr(tables, "CREATE_BYTES_MAX", 50_000)


def run(store: FakeStore, work: Any) -> Any:
    """Let the store answer everything. Return the result, or raise the error."""
    results: list[Any] = []
    ensureDeferred(work).addBoth(results.append)
    store.answer()
    assert results, "it waits for something that nobody does"
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]


def ground() -> tuple[FakeStore, Fence]:
    store = FakeStore()
    run(store, catalog.initialize_root(store, LAYOUT, 1))  # type: ignore[arg-type]
    return store, Fence(store, LAYOUT, 0)  # type: ignore[arg-type]


def table_of(regions: int, name: str = "orders", table_id: str = "t1") -> tuple[TableRecord, list[RegionRecord]]:
    request = CreateTable(name, [f"k{number:06d}" for number in range(1, regions)])
    schema, specs = plan_create(request)
    return new_table(request, schema, specs, table_id, 1, TableState.RUNNING, KV)


def entry_of(fence: Fence, table: TableRecord, request_id: str = "id-1") -> tables.Ops:
    return tables.entry(fence, RequestRecord(request_id, "CreateTable", "d", table, 0, 1))


def loaded(store: FakeStore) -> catalog.Loaded:
    found: catalog.Loaded = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    return found


def test_a_table_is_one_multi_with_the_result_of_its_request() -> None:
    """OC-01: table, regions, name and result, all or nothing; the regions begin as PREPARING (DD-01)."""
    store, fence = ground()
    table, regions = table_of(3)
    run(store, tables.create(fence, table, regions, entry_of(fence, table)))
    assert len(store.multis) == 1
    found = loaded(store)
    assert found.tables == [(table, 0)]
    assert [region for region, _ in found.regions] == regions
    assert {region.state for region in regions} == {TabletState.PREPARING}
    assert found.orphans == []
    result = run(store, tables.find_request(fence, "id-1"))
    assert result.table == table


def test_a_taken_name_and_a_repeated_request_are_distinguished() -> None:
    """OC-05: both are rejected as a whole; the error says which of the two it was."""
    store, fence = ground()
    table, regions = table_of(3)
    run(store, tables.create(fence, table, regions, entry_of(fence, table)))
    before = dict(store.nodes)
    other, others = table_of(2, table_id="t2")
    with pytest.raises(tables.AlreadyExists, match="orders"):
        run(store, tables.create(fence, other, others, entry_of(fence, other, "id-2")))
    fresh, more = table_of(2, "fresh", "t3")
    with pytest.raises(tables.AlreadyDone):
        run(store, tables.create(fence, fresh, more, entry_of(fence, fresh)))
    assert store.nodes == before


def test_a_thousand_tablets_are_one_multi() -> None:
    """TS-05, OC-02: 1,000 tablets and 3 columns."""
    fence = Fence(FakeStore(), Layout(), 7)  # type: ignore[arg-type]
    columns = [sc.parse_column(text) for text in ("id:int64:key", "name:string", "price:double")]
    request = CreateTable("orders", [f"{number:04d}" for number in range(1, 1000)], columns=columns)
    schema, specs = plan_create(request)
    table, regions = new_table(request, schema, specs, "1a2b3c4d", 1_700_000_000_000, TableState.RUNNING, KV)
    entry = entry_of(fence, table, "0b0d6b5e-6f5f-4e0c-9a76-0d8a3c1f2a11")
    [batch] = tables.create_batches(fence, table, regions, entry)
    whole = [Check(fence.layout.epoch, 7), *batch]
    assert len(whole) == 1 + 2 + 1000 + 2
    size = len(multi_body(whole, b"", r.OPEN_ACL)[1])
    assert size < 0xFFFFF // 2, "it fits twice into the frame limit of the store"
    assert f"{round(size / 1000)} kB" in DOCS.read_text(), f"the batch has {size} bytes"


@pytest.mark.usefixtures("small_multis")
def test_a_large_creation_writes_the_visible_record_last() -> None:
    """OC-05, DD-01: after any number of its multis there is no table, or all of it; the next load removes the
    remains."""
    table, regions = table_of(MANY)
    _, fence = ground()
    batches = tables.create_batches(fence, table, regions, entry_of(fence, table))
    assert len(batches) > 3
    shown = [[isinstance(op, Create) and op.path == LAYOUT.table("t1") for op in batch] for batch in batches]
    assert [any(one) for one in shown] == [False] * (len(batches) - 1) + [True]
    assert isinstance(batches[-1][-1], Create)
    assert batches[-1][-1].path == LAYOUT.request("id-1")
    for answered in range(len(batches) + 1):
        fresh, guard = ground()
        ensureDeferred(tables.create(guard, table, regions, entry_of(guard, table))).addErrback(lambda _: None)
        fresh.answer(answered)
        fresh.waiting.clear()  # the master dies
        found = loaded(fresh)
        assert [len(found.tables), len(found.regions)] in ([0, 0], [1, len(regions)])
        is_there = run(fresh, tables.find_request(guard, "id-1")) is not None
        assert is_there == bool(found.tables), "the result is there exactly if the table is"
        for orphan in found.orphans:
            run(fresh, tables.remove_orphan(guard, *orphan))
        if not found.tables:
            assert not [path for path in fresh.nodes if path.startswith((LAYOUT.names + "/", LAYOUT.regions + "/"))]


@pytest.mark.usefixtures("small_multis")
def test_a_creation_whose_remains_were_removed_cannot_be_finished() -> None:
    """OC-05: its last write comes late, after the removal: there must be no table without regions."""
    store, fence = ground()
    table, regions = table_of(MANY)
    batches = tables.create_batches(fence, table, regions, [])
    run(store, fence.write(batches[0]))
    run(store, fence.write(batches[1]))
    clearing = ensureDeferred(tables.remove_orphan(fence, "t1", LAYOUT.name("orders")))
    store.answer(2)  # it has looked, and claimed it
    with pytest.raises(MultiFailed):
        run(store, fence.write(batches[-1]))
    assert clearing.called
    assert not [path for path in store.nodes if path.startswith((LAYOUT.names + "/", LAYOUT.tables + "/"))]


def test_two_masters_may_remove_the_same_remains() -> None:
    """A name that another table has taken meanwhile is kept."""
    store, fence = ground()
    table, regions = table_of(3)
    run(store, fence.write(tables.create_batches(fence, table, regions, [])[0][:4]))
    clearing = [ensureDeferred(tables.remove_orphan(fence, "t1", LAYOUT.name("orders"))) for _ in range(2)]
    store.answer()
    assert all(one.called for one in clearing)
    other, others = table_of(2, table_id="t2")
    run(store, tables.create(fence, other, others, []))
    run(store, tables.remove_orphan(fence, "t1", LAYOUT.name("orders")))
    assert store.nodes[LAYOUT.name("orders")][0] == b"t2"


def test_an_existing_table_is_not_removed_as_remains() -> None:
    """Its directory was read before its last write, and the removal comes after that write."""
    store, fence = ground()
    table, regions = table_of(3)
    run(store, tables.create(fence, table, regions, []))
    before = dict(store.nodes)
    run(store, tables.remove_orphan(fence, "t1", LAYOUT.name("orders")))
    assert store.nodes == before


def test_a_region_is_replaced_in_one_write_or_not_at_all() -> None:
    """DD-03, DD-04: the former record says REPLACED and is kept (MD-06); its successor has the range."""
    store, fence = ground()
    table, regions = table_of(3)
    run(store, tables.create(fence, table, regions, []))
    former = regions[1]
    fresh = successor(former)
    assert (fresh.region_id, fresh.replaces) == (f"{former.region_id}r1", former.region_id)
    assert successor(fresh).region_id == f"{former.region_id}r2"
    before = dict(store.nodes)
    for version, table_version in ((1, 0), (0, 1)):
        with pytest.raises(MultiFailed):
            run(store, fence.write(tables.replace_region(LAYOUT, former, version, fresh, ("t1", table_version))))
    assert store.nodes == before
    run(store, fence.write(tables.replace_region(LAYOUT, former, 0, fresh, ("t1", 0))))
    kept = decode_region(store.nodes[LAYOUT.region("t1", former.region_id)][0])
    assert kept == replace(former, state=TabletState.REPLACED)
    names = sorted(store._children(LAYOUT.table_regions("t1")))
    assert names == [regions[0].region_id, former.region_id, fresh.region_id, regions[2].region_id], "in key order"


def test_deleted_metadata_is_kept() -> None:
    """MD-06, DD-06: the record says REMOVED, its regions DELETED; the name is free; no record is deleted."""
    store, fence = ground()
    table, regions = table_of(3)
    run(store, tables.create(fence, table, regions, []))
    run(store, tables.remove(fence, replace(table, state=TableState.REMOVED), 0, []))
    on_dead_server = regions[0].with_location(ReplicaLocation(0, "s1", 7))
    left = run(store, tables.clear_locations(fence, [(on_dead_server, 0), *((one, 0) for one in regions[1:])]))
    run(store, tables.mark_deleted(fence, left))
    found = loaded(store)
    assert found.regions[0][0].location(0) == ReplicaLocation(0, "s1"), "it is open nowhere"
    assert [one.state for one, _ in found.tables] == [TableState.REMOVED]
    assert [one.state for one, _ in found.regions] == [TabletState.DELETED] * 3
    assert LAYOUT.name("orders") not in store.nodes


def test_records_of_an_earlier_version_are_read() -> None:
    """Formats: a schema that is text, no states, no versions; written by the first format's program."""
    store, _ = ground()
    store.put(LAYOUT.table("t1"), b'{"table_id":"t1","name":"old","schema":"id int","schema_version":3,"regions":1}')
    store.put(LAYOUT.name("old"), b"t1")
    store.put(LAYOUT.table_regions("t1"))
    store.put(LAYOUT.region("t1", "t1.0000"), b'{"table_id":"t1","region_id":"t1.0000"}')
    found = loaded(store)
    [(table, _)], [(region, _)] = found.tables, found.regions
    assert (table.schema, table.schema_version, table.state) == ("id int", 3, TableState.RUNNING)
    assert (region.state, region.generation) == (TabletState.RUNNING, 0)
    with_columns = replace(table, schema=sc.create([sc.parse_column("id:int64:key")]))
    store.put(LAYOUT.table("t1"), encode(with_columns))
    assert loaded(store).tables[0][0] == with_columns
