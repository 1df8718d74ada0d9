"""Creating, loading and cleaning the catalogue."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from coord.errors import ConfigError
from master import catalog
from master.fence import OPS_MAX, Fence
from regions.layout import Layout, encode
from regions.messages import CreateTable
from regions.model import ClusterRecord, split_ranges
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")


def run(store: FakeStore, coroutine: Any) -> Any:
    """Answer everything, and give the result or raise."""
    done: Deferred[Any] = ensureDeferred(coroutine)
    store.answer()
    results: list[Any] = []
    failures: list[Any] = []
    done.addCallbacks(results.append, failures.append)
    if failures:
        raise failures[0].value
    return results[0]


@pytest.fixture
def store() -> FakeStore:
    fake = FakeStore()
    run(fake, catalog.lay_ground(fake, LAYOUT, 1))  # type: ignore[arg-type]
    return fake


@pytest.fixture
def fence(store: FakeStore) -> Fence:
    return Fence(store, LAYOUT, 0)  # type: ignore[arg-type]


def test_ground_is_laid_once(store: FakeStore) -> None:
    assert set(LAYOUT.parents()) <= set(store.nodes)
    before = dict(store.nodes)
    run(store, catalog.lay_ground(store, LAYOUT, 2))  # type: ignore[arg-type]
    assert store.nodes == before


def test_newer_format_is_refused(store: FakeStore) -> None:
    store.put(LAYOUT.cluster, encode(ClusterRecord("c", format_version=99)))
    with pytest.raises(ConfigError, match="format 99"):
        run(store, catalog.lay_ground(store, LAYOUT, 2))  # type: ignore[arg-type]


def test_small_table_is_one_multi(store: FakeStore, fence: Fence) -> None:
    """OC-01: one batch, all or nothing."""
    specs = split_ranges(["g", "p"])
    table, regions = run(store, catalog.create_table(fence, CreateTable("orders"), specs, "t1", 1))
    assert len(store.multis) == 1
    loaded = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert loaded.tables == [(table, 0)]
    assert [region for region, _ in loaded.regions] == regions
    assert loaded.orphans == []
    with pytest.raises(catalog.AlreadyExists):
        run(store, catalog.create_table(fence, CreateTable("orders"), specs, "t2", 1))


def test_large_table_becomes_visible_last_and_its_remains_are_removed(store: FakeStore, fence: Fence) -> None:
    """OC-05, DD-01: after any number of its multis there is no table, or all of it; remains go with the next load."""
    specs = split_ranges([f"k{number:05d}" for number in range(3 * OPS_MAX)])
    batches = 1 + 3 * OPS_MAX // OPS_MAX
    for answered in range(batches + 1):
        fresh = FakeStore()
        run(fresh, catalog.lay_ground(fresh, LAYOUT, 1))  # type: ignore[arg-type]
        guard = Fence(fresh, LAYOUT, 0)  # type: ignore[arg-type]
        ensureDeferred(catalog.create_table(guard, CreateTable("big"), specs, "t1", 1)).addErrback(lambda _: None)
        fresh.answer(answered)
        fresh.waiting.clear()  # the master dies
        loaded = run(fresh, catalog.load(fresh, LAYOUT))  # type: ignore[arg-type]
        assert [len(loaded.tables), len(loaded.regions)] in ([0, 0], [1, len(specs)])
        for orphan in loaded.orphans:
            run(fresh, catalog.remove_orphan(guard, *orphan))
        if not loaded.tables:
            assert not [path for path in fresh.nodes if path.startswith((LAYOUT.names + "/", LAYOUT.regions + "/"))]


def test_mark_is_written_by_version(store: FakeStore, fence: Fence) -> None:
    loaded = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert not loaded.cluster.clean_shutdown
    run(store, catalog.mark_run(fence, clean=True, now_ms=5))
    again = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert again.cluster.clean_shutdown


def test_corrupt_record_costs_only_itself(store: FakeStore, fence: Fence) -> None:
    """A region nobody can read is left alone; all others are loaded."""
    run(store, catalog.create_table(fence, CreateTable("orders"), split_ranges(["g"]), "t1", 1))
    store.put(LAYOUT.region("t1", "t1.0000"), b"{", 1)
    loaded = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert [region.region_id for region, _ in loaded.regions] == ["t1.0001"]
