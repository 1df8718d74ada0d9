"""Snapshots: a written one is restored completely, a damaged one never."""

from __future__ import annotations

import pytest

from coord.errors import CorruptRecord
from coord.tree import snapshot
from coord.tree.machine import StateMachine
from coord.tree.snapshot import CHUNK_BYTES, SnapshotDecoder
from coord.wire import records as r
from tests.unit.coord.tree.tree_store import Store

PRIVATE = [r.Acl(r.PERM_ALL, b"digest", b"bob:hash"), r.Acl(r.PERM_READ, b"world", b"anyone")]


def furnished() -> Store:
    """Return a store with a znode of every kind, shared lists, identities, a quota and history."""
    store = Store()
    c = store.client(1)
    c.auth(b"digest", b"bob:hash")
    store.client(2, b"10.0.0.2")
    c.create(b"/a", b"data", acl=PRIVATE)
    c.create(b"/a/null", None, acl=PRIVATE)
    c.create(b"/a/e", flags=1)
    c.create(b"/c", flags=4)
    c.create(b"/c/x")
    c.delete(b"/c/x")
    c.create(b"/t", flags=5, opcode=r.OP_CREATE_TTL, ttl_ms=1000)
    c.create(b"/s-", flags=2)
    c.set(b"/a", b"again")
    for path in (b"", b"/zookeeper_stats", b"/zookeeper_limits"):
        c.create(b"/zookeeper/quota/a" + path)
    tree = store.machine.tree
    tree.nodes[b"/c"].ensure_extra().creates = 1 << 33
    tree._touch(b"/c", tree.nodes[b"/c"])
    return store


def test_round_trip_gives_the_same_machine() -> None:
    store = furnished()
    before = store.machine
    after = StateMachine.restore(before.snapshot_chunks())
    assert after.digest() == before.digest()
    assert (after.last_zxid, after.applied_time_ms) == (before.last_zxid, before.applied_time_ms)
    assert b"".join(after.snapshot_chunks()) == b"".join(before.snapshot_chunks())
    old, new = before.tree, after.tree
    assert list(new.nodes) == list(old.nodes)
    assert new.ephemerals == old.ephemerals
    assert (new.containers, new.ttls) == (old.containers, old.ttls)
    assert (new.data_bytes, new.ephemeral_count) == (old.data_bytes, old.ephemeral_count)
    assert {acl: known.refs for acl, known in new.acls.items()} == {acl: known.refs for acl, known in old.acls.items()}
    assert new.nodes[b"/a"].acl is new.nodes[b"/a/null"].acl
    assert {path: node.creates for path, node in new.nodes.items()} == {p: n.creates for p, n in old.nodes.items()}


def test_restored_machine_goes_on_like_the_original() -> None:
    """Sequence numbers, quota, ephemerals, sessions: the snapshot has everything on which later commands depend."""
    original = furnished()
    restored = Store(StateMachine.restore(original.machine.snapshot_chunks()))
    for store in (original, restored):
        c = store.client(3)
        for path in (b"/s-", b"/a/n-", b"/c/n-"):
            c.create(path, b"xyz", flags=2)
        c.id, c.owner = 1, 1
        c.set_acl(b"/t", PRIVATE)
        c.attach(address=b"10.9.9.9")
        c.close()
    assert original.machine.digest() == restored.machine.digest()
    assert b"".join(original.machine.snapshot_chunks()) == b"".join(restored.machine.snapshot_chunks())


def test_pieces_may_be_cut_anywhere() -> None:
    machine = furnished().machine
    data = b"".join(machine.snapshot_chunks())
    for size in (1, 7, 100, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert StateMachine.restore(pieces).digest() == machine.digest()


def test_large_state_is_cut_into_chunks_of_bounded_size() -> None:
    store = Store()
    c = store.client(1)
    for i in range(40):
        c.create(b"/n%d" % i, bytes(30_000))
    c.create(b"/big", bytes(2 * CHUNK_BYTES))
    chunks = list(store.machine.snapshot_chunks())
    assert len(chunks) > 6
    assert max(len(chunk) for chunk in chunks) < 3 * CHUNK_BYTES + 1000
    assert StateMachine.restore(chunks).digest() == store.machine.digest()


def test_writing_changes_nothing() -> None:
    machine = furnished().machine
    digest = machine.digest()
    assert list(machine.snapshot_chunks()) == list(machine.snapshot_chunks())
    assert machine.digest() == digest


def test_cut_off_anywhere_is_refused() -> None:
    data = b"".join(furnished().machine.snapshot_chunks())
    for end in range(len(data)):
        with pytest.raises(CorruptRecord):
            StateMachine.restore([data[:end]])
    with pytest.raises(CorruptRecord, match="found bytes after it"):
        StateMachine.restore([data, b"x"])


def test_every_flipped_byte_is_found() -> None:
    data = b"".join(furnished().machine.snapshot_chunks())
    for at in range(len(data)):
        with pytest.raises(CorruptRecord):
            StateMachine.restore([data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]])


def rebuilt(machine: StateMachine, at: int, payload: bytes) -> bytes:
    """Return the snapshot with the payload of chunk `at` replaced and a valid checksum."""
    chunks = list(machine.snapshot_chunks())
    chunks[at] = snapshot._chunk(chunks[at][0], payload)
    return b"".join(chunks)


def test_damage_behind_good_checksums_is_found() -> None:
    """A chunk with wrong content has a valid checksum; structure and digest find the fault."""
    machine = furnished().machine
    chunks = list(machine.snapshot_chunks())
    for number, chunk in enumerate(chunks):
        payload = chunk[9:]
        for at in range(len(payload)):
            damaged = payload[:at] + bytes([payload[at] ^ 0x5B]) + payload[at + 1 :]
            with pytest.raises(CorruptRecord):
                StateMachine.restore([rebuilt(machine, number, damaged)])


def test_another_version_is_refused() -> None:
    machine = furnished().machine
    header = snapshot._HEADER.pack(b"RKSNAP", snapshot.VERSION + 1, 1, 1)
    with pytest.raises(CorruptRecord, match="version 1"):
        StateMachine.restore([rebuilt(machine, 0, header)])


def test_chunk_out_of_place_is_refused() -> None:
    chunks = list(furnished().machine.snapshot_chunks())
    for order in (chunks[1:], [chunks[0], *chunks], [*chunks, chunks[1]], [chunks[0], chunks[-1]]):
        with pytest.raises(CorruptRecord):
            StateMachine.restore(order)


def test_unreasonable_length_is_refused_before_it_is_waited_for() -> None:
    reader = SnapshotDecoder("file")
    with pytest.raises(CorruptRecord, match="file"):
        reader.feed(b"H\xff\xff\xff\xff\0\0\0\0")
