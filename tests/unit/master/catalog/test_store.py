"""Creating the catalog's directories, and loading it."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from coord.errors import ConfigError
from master.catalog import store as catalog
from master.catalog import tables
from master.leadership.fence import Fence
from regions.records.model import ClusterRecord, RegionRecord, TableRecord
from regions.records.znodes import Layout, encode
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")


def run(store: FakeStore, coroutine: Any) -> Any:
    """Answer all requests. Return the result, or raise the error."""
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
    run(fake, catalog.initialize_root(fake, LAYOUT, 1))  # type: ignore[arg-type]
    return fake


@pytest.fixture
def fence(store: FakeStore) -> Fence:
    return Fence(store, LAYOUT, 0)  # type: ignore[arg-type]


def test_the_directories_are_created_once(store: FakeStore) -> None:
    assert set(LAYOUT.parents()) <= set(store.nodes)
    before = dict(store.nodes)
    run(store, catalog.initialize_root(store, LAYOUT, 2))  # type: ignore[arg-type]
    assert store.nodes == before


def test_a_newer_format_is_rejected(store: FakeStore) -> None:
    store.put(LAYOUT.cluster, encode(ClusterRecord("c", format_version=99)))
    with pytest.raises(ConfigError, match="format 99"):
        run(store, catalog.initialize_root(store, LAYOUT, 2))  # type: ignore[arg-type]


def test_the_clean_shutdown_mark_is_written_by_version(store: FakeStore, fence: Fence) -> None:
    loaded = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert not loaded.cluster.clean_shutdown
    run(store, catalog.write_clean_shutdown(fence, clean=True, now_ms=5))
    again = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert again.cluster.clean_shutdown


def test_a_corrupt_record_is_skipped_and_all_others_are_loaded(store: FakeStore, fence: Fence) -> None:
    """An unreadable region is left alone; all others are loaded."""
    regions = [RegionRecord("t1", "t1.0000", "", "g"), RegionRecord("t1", "t1.0001", "g", "")]
    run(store, tables.create(fence, TableRecord("t1", "orders", regions=2), regions, []))
    store.put(LAYOUT.region("t1", "t1.0000"), b"{", 1)
    loaded = run(store, catalog.load(store, LAYOUT))  # type: ignore[arg-type]
    assert [region.region_id for region, _ in loaded.regions] == ["t1.0001"]
