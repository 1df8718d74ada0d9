"""Quotas: the statistics follow the usage, as ZooKeeper 3.9.5 keeps them."""

from __future__ import annotations

import pytest

from tests.unit.coord.tree_store import Client, Store

BOOK = b"/zookeeper/quota/q"
LIMITS = BOOK + b"/zookeeper_limits"
STATS = BOOK + b"/zookeeper_stats"


@pytest.fixture
def c() -> Client:
    client = Store().client(1)
    for path in (b"/q", b"/q/a", b"/other", BOOK):
        client.create(path, b"12345")
    return client


def stats(client: Client) -> bytes | None:
    return client.get(STATS)[1]


def test_limits_count_what_is_there_and_then_every_change(c: Client) -> None:
    c.create(STATS, b"count=0,bytes=0")
    assert stats(c) == b"count=2,bytes=10"
    c.create(LIMITS, b"count=5,bytes=100")
    assert stats(c) == b"count=2,bytes=10"
    c.create(b"/q/b", b"12345")
    assert stats(c) == b"count=3,bytes=15"
    c.set(b"/q", b"1")
    assert stats(c) == b"count=3,bytes=11"
    c.delete(b"/q/b")
    assert stats(c) == b"count=2,bytes=6"
    c.create(b"/other/x", b"123")
    c.set(b"/q/a", None)
    assert stats(c) == b"count=2,bytes=1"


def test_statistics_made_after_the_limits_are_counted_at_once(c: Client) -> None:
    c.create(LIMITS, b"count=5,bytes=100")
    c.create(b"/q/b")
    c.create(STATS, b"")
    assert stats(c) == b"count=3,bytes=10"


def test_counting_moves_the_data_length_and_no_version(c: Client) -> None:
    c.create(STATS, b"count=0,bytes=0")
    c.create(LIMITS)
    before = c.stat(STATS)
    c.create(b"/q/b", bytes(1000))
    after = c.stat(STATS)
    assert (after.version, after.mzxid, after.mtime) == (before.version, before.mzxid, before.mtime)
    assert after.data_length == len(b"count=3,bytes=1010")


def test_counting_ends_with_the_limits(c: Client) -> None:
    c.create(STATS, b"count=0,bytes=0")
    c.create(LIMITS)
    c.delete(LIMITS)
    c.create(b"/q/b", b"12345")
    assert stats(c) == b"count=2,bytes=10"


def test_innermost_quota_counts(c: Client) -> None:
    inner = BOOK + b"/a"
    c.create(inner)
    for base in (BOOK, inner):
        c.create(base + b"/zookeeper_stats")
        c.create(base + b"/zookeeper_limits")
    c.create(b"/q/a/x", b"123")
    assert c.get(inner + b"/zookeeper_stats")[1] == b"count=2,bytes=8"
    assert stats(c) == b"count=2,bytes=10"


def test_spoiled_statistics_begin_at_zero(c: Client) -> None:
    c.create(STATS)
    c.create(LIMITS)
    c.set(STATS, b"count=99999999999999999999999,bytes=1")
    c.create(b"/q/b", b"12345")
    assert stats(c) == b"count=1,bytes=5"


def test_limits_directly_below_quota_limit_nothing(c: Client) -> None:
    c.create(b"/zookeeper/quota/zookeeper_limits")
    c.create(b"/q/b")
    assert c.exists(b"/q/b") == 0


def test_ephemerals_that_go_with_their_session_are_given_back(c: Client) -> None:
    c.create(STATS)
    c.create(LIMITS)
    other = c.store.client(2)
    other.create(b"/q/e", b"1", flags=1)
    assert stats(c) == b"count=3,bytes=11"
    other.close()
    assert stats(c) == b"count=2,bytes=10"
