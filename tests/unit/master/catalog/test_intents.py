"""Operators' intents as they are written: moves, fences, region intents, names. On a store in memory."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from coord.errors import NoNode
from master.catalog import store as catalog
from master.catalog import tables
from master.leadership.fence import Deposed, Fence
from regions.records.model import (
    FenceRecord,
    Incarnation,
    Move,
    MoveBatch,
    RegionRecord,
    ServerRecord,
    TableRecord,
    TableState,
)
from regions.records.znodes import Layout, decode_fence, decode_moves, decode_region, encode
from tests.unit.master.fake_store import FakeStore

T = TypeVar("T")
LAYOUT = Layout("/rk")
SERVER = ServerRecord("s1", "h", 1, 7)


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    for path in ("/rk", *LAYOUT.parents()):
        found.put(path)
    found.put(LAYOUT.epoch, b"", 4)
    return found


@pytest.fixture
def fence(store: FakeStore) -> Fence:
    return Fence(store, LAYOUT, 4)  # type: ignore[arg-type]


def run(store: FakeStore, work: Coroutine[Any, Any, T]) -> T:
    """Let the store answer until `work` is done."""
    results: list[Any] = []
    ensureDeferred(work).addBoth(results.append)
    store.answer()
    assert results, "it waits for something that nobody does"
    if isinstance(results[0], Failure):
        results[0].raiseException()
    result: T = results[0]
    return result


def test_a_batch_of_moves_is_one_write(store: FakeStore, fence: Fence) -> None:
    """FW-03: 2,000 moves are one znode in one multi; more are several batches."""
    moves = tuple(Move(f"r{number}-0", Incarnation("s1", 7), "s2") for number in range(catalog.MOVES_PER_BATCH))
    batch = MoveBatch("m1", moves, "move", "", 4, 1)
    run(store, catalog.accept_moves(fence, [batch]))
    assert len(store.multis) == 1
    assert len(store.multis[0]) == 2, "the check of the epoch, and the batch"
    assert decode_moves(store.nodes["/rk/moves/m1"][0]) == batch
    assert len(encode(batch)) < 512 * 1024
    assert run(store, catalog.load_moves(store, LAYOUT)) == [batch]  # type: ignore[arg-type]
    run(store, catalog.delete_if_there(fence, LAYOUT.move_batch("m1")))
    run(store, catalog.delete_if_there(fence, LAYOUT.move_batch("m1")))
    assert run(store, catalog.load_moves(store, LAYOUT)) == []  # type: ignore[arg-type]


def test_fencing_deletes_the_registration_and_writes_the_fence_in_one_multi(store: FakeStore, fence: Fence) -> None:
    """X10; FW-11: a deposed master cannot fence."""
    mark = FenceRecord(SERVER, 6_000, "hangs", 4, 1)
    assert run(store, catalog.fence_server(fence, mark)) is False, "it is not registered"
    store.put(LAYOUT.server("s1"), encode(msgspec.structs.replace(SERVER, start_code=8)))
    assert run(store, catalog.fence_server(fence, mark)) is False, "another start of it is"
    store.put(LAYOUT.server("s1"), encode(SERVER))
    store.put(LAYOUT.epoch, b"", 5)
    with pytest.raises(Deposed):
        run(store, catalog.fence_server(fence, mark))
    assert LAYOUT.server("s1") in store.nodes
    store.put(LAYOUT.epoch, b"", 4)
    assert run(store, catalog.fence_server(fence, mark)) is True
    assert LAYOUT.server("s1") not in store.nodes
    assert decode_fence(store.nodes["/rk/fenced/s1"][0]) == mark


def test_a_regions_intent_survives_concurrent_writes_of_servers(store: FakeStore, fence: Fence) -> None:
    """FW-04: read, change and write until no other write came between; the servers' changes stay."""
    record = RegionRecord("t", "t.0")
    store.put(LAYOUT.table_regions("t"))
    store.put(LAYOUT.region("t", "t.0"), encode(record), 3)

    def change(found: RegionRecord) -> RegionRecord:
        if store.nodes[LAYOUT.region("t", "t.0")][1] == 3:  # a server writes at this very moment
            store.put(LAYOUT.region("t", "t.0"), encode(msgspec.structs.replace(record, size_bytes=9)), 4)
        return msgspec.structs.replace(found, unassigned=True)

    written, version = run(store, catalog.change_region(fence, "t", "t.0", change))
    assert (written.unassigned, written.size_bytes, version) == (True, 9, 5)
    assert decode_region(store.nodes[LAYOUT.region("t", "t.0")][0]) == written
    assert run(store, catalog.change_region(fence, "t", "t.0", lambda one: one)) == (written, 5)
    with pytest.raises(NoNode):
        run(store, catalog.change_region(fence, "t", "t.9", change))


def test_names_change_in_the_same_write_as_their_tables(store: FakeStore, fence: Fence) -> None:
    """DD-06, DD-07: a rename and a delete move or free the name in the same write as the record."""
    table = TableRecord("t", "a")
    store.put(LAYOUT.table("t"), encode(table))
    store.put(LAYOUT.name("a"), b"t")
    store.put(LAYOUT.name("taken"), b"u")
    with pytest.raises(tables.AlreadyExists):
        run(store, tables.change(fence, msgspec.structs.replace(table, name="taken"), 0, [], former_name="a"))
    assert LAYOUT.name("a") in store.nodes
    renamed = msgspec.structs.replace(table, name="b")
    assert run(store, tables.change(fence, renamed, 0, [], former_name="a")) == 1
    assert LAYOUT.name("a") not in store.nodes
    removed = msgspec.structs.replace(renamed, state=TableState.REMOVED)
    assert run(store, tables.remove(fence, removed, 1, [])) == 2
    assert LAYOUT.name("b") not in store.nodes
    loaded = run(store, catalog.load_tables(store, LAYOUT))  # type: ignore[arg-type]
    assert loaded == [(removed, 2)]
