"""The active master and the cluster's format."""

from __future__ import annotations

import pytest

from master.catalog import store
from master.catalog.formats import CHECK_EVERY_MS, Formats
from master.leadership.fence import Fence
from regions.records.formats import KNOWN, UNANNOUNCED
from regions.records.model import MasterRecord, ServerRecord
from regions.records.znodes import decode_cluster, encode
from tests.unit.master.catalog.test_store import LAYOUT, run
from tests.unit.master.fake_store import FakeStore


class Cluster:
    """A store with registrations, and the master's check of the format."""

    def __init__(self) -> None:
        self.store = FakeStore()
        run(self.store, store.initialize_root(self.store, LAYOUT, 1))  # type: ignore[arg-type]
        self.now_ms = 0
        self.formats = Formats(Fence(self.store, LAYOUT, 0), lambda: self.now_ms)  # type: ignore[arg-type]

    def master(self, name: str, known: int) -> None:
        self.store.put(LAYOUT.master(name), encode(MasterRecord(name, "h", 1, 1, 0, known)))

    def server(self, name: str, known: int) -> None:
        self.store.put(LAYOUT.server(name), encode(ServerRecord(name, name, 2, 1, format=known)))

    def look(self) -> int:
        run(self.store, self.formats.look())
        return decode_cluster(self.store.nodes[LAYOUT.cluster][0]).format_version


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_format_rises_when_the_last_older_process_has_left(cluster: Cluster) -> None:
    """A server or a standby of an older build announces no format, and the format stays until it has left."""
    cluster.master("m1", KNOWN)
    cluster.master("m2", 0)
    cluster.server("s1", KNOWN)
    cluster.server("s2", 0)
    assert cluster.look() == UNANNOUNCED
    cluster.master("m2", KNOWN)
    assert cluster.look() == UNANNOUNCED
    cluster.server("s2", KNOWN + 1)
    assert cluster.look() == KNOWN


def test_an_unreadable_registration_keeps_the_format(cluster: Cluster) -> None:
    """It may belong to any build."""
    cluster.master("m1", KNOWN)
    cluster.store.put(LAYOUT.server("s1"), b"{")
    assert cluster.look() == UNANNOUNCED


def test_the_format_never_decreases(cluster: Cluster) -> None:
    """An older server that comes later is named in the log."""
    cluster.master("m1", KNOWN)
    assert cluster.look() == KNOWN
    cluster.server("s1", 0)
    assert cluster.look() == KNOWN


def test_the_clean_shutdown_mark_keeps_the_format(cluster: Cluster) -> None:
    """Each active master writes that record."""
    cluster.master("m1", KNOWN)
    assert cluster.look() == KNOWN
    fence = Fence(cluster.store, LAYOUT, 0)  # type: ignore[arg-type]
    run(cluster.store, store.write_clean_shutdown(fence, clean=True, now_ms=5))
    assert cluster.look() == KNOWN


def test_registrations_are_not_checked_at_every_tick(cluster: Cluster) -> None:
    """Not at every tick."""
    assert not cluster.formats.is_due()
    cluster.now_ms += CHECK_EVERY_MS
    assert cluster.formats.is_due()
    assert not cluster.formats.is_due()
