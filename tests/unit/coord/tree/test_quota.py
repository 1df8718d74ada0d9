"""Quotas: the statistics follow the usage, as ZooKeeper 3.9.5 keeps them."""

from __future__ import annotations

import pytest

from coord.errors import BAD_VERSION, OK, QUOTA_EXCEEDED
from coord.tree.command import decode_batch, encode_batch, encode_command
from coord.tree.machine import StateMachine
from coord.tree.quota import NOTES_MAX
from coord.wire import records as r
from coord.wire.values import OPEN_ACL, CreateRequest, MultiOp
from tests.unit.coord.tree.tree_store import Client, Store

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


# --- limits that hold (S: ZooKeeper 3.9 enforceQuota) -----------------------------------------------------------------


def limited(c: Client, limits: bytes) -> None:
    """Enforce quotas from now on; create /q and /q/a with 5 bytes each."""
    c.create(STATS)
    c.create(LIMITS, limits)
    c.store.machine.tree.enforces_quotas = True


def made(path: bytes, data: bytes = b"") -> MultiOp:
    return MultiOp(r.OP_CREATE, path, create=CreateRequest(r.OP_CREATE, path, data, OPEN_ACL, 0))


def test_hard_count_refuses_the_first_one_too_many(c: Client) -> None:
    """At the limit a create is accepted, beyond it is not; deletes make room; other paths are not limited."""
    limited(c, b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3")
    assert c.create(b"/q/b").err == OK
    assert c.create(b"/q/c").err == QUOTA_EXCEEDED
    assert c.set(b"/q/b", bytes(1000)).err == OK
    assert c.create(b"/other/x").err == OK
    assert c.delete(b"/q/b").err == OK
    assert c.create(b"/q/c").err == OK
    assert stats(c) == b"count=3,bytes=10"


def test_hard_bytes_refuse_growth_alone(c: Client) -> None:
    """Under a limit below the present size everything may shrink; the quota is checked before the version."""
    limited(c, b"count=-1,bytes=-1=;byteHardLimit=12")
    assert c.set(b"/q", bytes(7)).err == OK
    assert c.set(b"/q", bytes(8)).err == QUOTA_EXCEEDED
    assert c.create(b"/q/b", b"1").err == QUOTA_EXCEEDED
    assert c.create(b"/q/b", b"").err == OK
    c.set(LIMITS, b"byteHardLimit=3")
    assert c.set(b"/q", bytes(6)).err == OK
    assert c.set(b"/q", bytes(6), 99).err == BAD_VERSION
    assert c.set(b"/q", bytes(7), 99).err == QUOTA_EXCEEDED


def test_multi_counts_its_earlier_parts(c: Client) -> None:
    """All or nothing, counting the room that earlier parts use or free."""
    limited(c, b"countHardLimit=3;byteHardLimit=20")
    refused = c.multi(made(b"/q/b"), made(b"/q/c"))
    assert [part.err for part in refused] == [OK, QUOTA_EXCEEDED]
    assert c.exists(b"/q/b") != OK
    assert [part.err for part in c.multi(made(b"/q/b", bytes(10)), made(b"/other/y", bytes(99)))] == [OK, OK]
    moved = c.multi(MultiOp(r.OP_DELETE, b"/q/b", None, -1), made(b"/q/c", bytes(10)))
    assert [part.err for part in moved] == [OK, OK]
    grown = c.multi(MultiOp(r.OP_SET_DATA, b"/q/c", b"", -1), MultiOp(r.OP_SET_DATA, b"/q/c", bytes(11), -1))
    assert [part.err for part in grown] == [OK, QUOTA_EXCEEDED]
    assert stats(c) == b"count=3,bytes=20"


def test_soft_limits_are_told_once_and_refuse_nothing(c: Client) -> None:
    """Also hard limits that are not enforced; the note is for the log and not part of the state."""
    limited(c, b"count=2,bytes=12=;countHardLimit=3")
    c.store.machine.tree.enforces_quotas = False
    notes = c.store.machine.tree.quotas.notes
    for name in (b"b", b"c", b"d"):
        assert c.create(b"/q/" + name, b"12").err == OK
    assert notes == [
        "quota of /q exceeded: count 3, count 2",
        "quota of /q exceeded: count 4, countHardLimit 3",
        "quota of /q exceeded: bytes 14, bytes 12",
    ]
    for _ in range(NOTES_MAX):
        c.delete(b"/q/b")
        c.create(b"/q/b", bytes(5000))
    assert len(notes) <= NOTES_MAX


@pytest.mark.parametrize("limits", [None, b"", b"countHardLimit=", b"countHardLimit=x", b"countHardLimit=-1", b"\xff"])
def test_limits_that_say_nothing_limit_nothing(c: Client, limits: bytes | None) -> None:
    """Limits with invalid text."""
    limited(c, b"")
    c.set(LIMITS, limits)
    assert c.create(b"/q/b", b"12345").err == OK


def test_the_group_says_whether_quotas_hold() -> None:
    """Every node decides like the leader that closed the group, even if it applies its commands one by one."""
    store = Store()
    c = store.client(1)
    for path in (b"/q", BOOK):
        c.create(path)
    c.create(STATS)
    c.create(LIMITS, b"countHardLimit=1")
    body = r.encode_create(CreateRequest(r.OP_CREATE, b"/q/x", b"", OPEN_ACL, 2))
    command = encode_command(c.id, c.owner, 1, r.OP_CREATE, body)
    machines = [StateMachine.restore(store.machine.snapshot_chunks()) for _ in range(2)]
    for holds in (True, False, True):
        group = encode_batch(7, [command, command], enforce_quotas=holds)
        assert [outcome.err for outcome in machines[0].apply_batch(group)] == [QUOTA_EXCEEDED if holds else OK] * 2
        time_ms, commands = decode_batch(group)
        assert machines[1].begin_batch(group) == 2
        for one in commands:
            machines[1].apply(one, time_ms)
        assert machines[0].digest() == machines[1].digest()
        assert machines[0].last_zxid == machines[1].last_zxid


def test_full_store_takes_nothing_that_grows() -> None:
    """The leader's mark in the batch rejects creates; deletes, shorter data and sessions are accepted."""
    store = Store()
    c = store.client(1)
    c.create(b"/q", b"12345")
    tree = store.machine.tree
    store.machine.begin_batch(encode_batch(1, [], is_full=True))
    assert (tree.is_full, tree.enforces_quotas) == (True, True)
    assert c.create(b"/r").err == QUOTA_EXCEEDED
    assert c.set(b"/q", b"123456").err == QUOTA_EXCEEDED
    assert c.set(b"/q", b"54321").err == OK
    refused = c.multi(MultiOp(r.OP_DELETE, b"/q", None, -1), made(b"/r"))
    assert [part.err for part in refused] == [OK, QUOTA_EXCEEDED]
    assert store.client(2).create(b"/r").err == QUOTA_EXCEEDED
    assert c.delete(b"/q").err == OK
    store.machine.begin_batch(encode_batch(1, []))
    assert (tree.is_full, tree.enforces_quotas) == (False, False)
    assert c.create(b"/r").err == OK
