"""Feature levels in the state machine: commands are planned by the level in force, on every build alike."""

from __future__ import annotations

import pytest

from coord import errors as e
from coord.errors import CorruptRecord, UnsupportedLevel
from coord.tree.levels import LEVELS, SUPPORTED, decode_level, encode_level
from coord.tree.machine import StateMachine
from coord.tree.snapshot import SnapshotDecoder
from coord.wire import records as r
from tests.unit.coord.tree.tree_store import Client, Store, create_op


def client_at(level: int, supported: int = SUPPORTED) -> Client:
    """Return a client of a machine whose build supports `supported` and whose log has raised the level to `level`."""
    store = Store(StateMachine(supported=supported))
    if level:
        store.machine.raise_level(encode_level(level))
    return store.client(1)


def ttl_op(path: bytes, flags: int) -> r.MultiOp:
    """Return a createTTL whose flags name no TTL."""
    create = r.CreateRequest(r.OP_CREATE_TTL, path, b"", r.OPEN_ACL, flags, 1000)
    return r.MultiOp(r.OP_CREATE_TTL, path, b"", -1, create)


def test_every_level_says_what_it_changes() -> None:
    """The table is the documentation of the levels."""
    assert len(LEVELS) == SUPPORTED + 1
    assert all(line.strip() and "\n" not in line for line in LEVELS)


@pytest.mark.parametrize("level", [0, 1, (1 << 32) - 1])
def test_body_of_a_level_entry_round_trips(level: int) -> None:
    """Up to the largest number that fits; additions of a later build are ignored."""
    assert decode_level(encode_level(level)) == level
    assert decode_level(encode_level(level) + b"more") == level


@pytest.mark.parametrize("body", [b"", b"\1\0\0\0", b"\2\0\0\0\1"])
def test_body_of_another_format_is_refused(body: bytes) -> None:
    """The level is never guessed."""
    with pytest.raises(ValueError, match="not a feature level"):
        decode_level(body)


def test_create_ttl_in_a_multi_is_planned_by_the_level_in_force() -> None:
    """The build's own level does not count: an older replica must give the same answer."""
    for supported in (SUPPORTED, SUPPORTED + 1):
        [result] = client_at(0, supported).multi(ttl_op(b"/a", 0))
        assert (result.opcode, result.err) == (r.OP_ERROR, e.BAD_ARGUMENTS)
        client = client_at(1, supported)
        [result] = client.multi(ttl_op(b"/a", 0))
        assert (result.opcode, result.err, result.path) == (r.OP_CREATE, e.OK, b"/a")
        assert client.multi(ttl_op(b"/b", 1))[0].err == e.OK
        [result] = client.multi(ttl_op(b"/c", 7))
        assert (result.opcode, result.err) == (r.OP_ERROR, e.BAD_ARGUMENTS)
        assert client.stat(b"/b").ephemeral_owner == 1
        assert client.store.machine.tree.nodes[b"/a"].ttl_ms == 0


def test_a_create_ttl_with_a_ttl_is_the_same_at_every_level() -> None:
    """In a multi and alone."""
    for level in range(SUPPORTED + 1):
        client = client_at(level)
        assert client.multi(ttl_op(b"/t", 5))[0].err == e.OK
        assert client.store.machine.tree.nodes[b"/t"].ttl_ms == 1000
        alone = r.encode_create(r.CreateRequest(r.OP_CREATE_TTL, b"/u", b"", r.OPEN_ACL, 0, 1000))
        assert client.write(r.OP_CREATE_TTL, alone).err == e.BAD_ARGUMENTS


def test_the_level_is_part_of_the_digest_and_never_falls() -> None:
    """At level 0 the digest is that of builds without levels."""
    machine, plain = StateMachine(), StateMachine()
    machine.raise_level(encode_level(0))
    assert machine.digest() == plain.digest()
    machine.raise_level(encode_level(1))
    assert (machine.level, machine.last_zxid) == (1, 2)
    assert machine.digest() != plain.digest()
    machine.raise_level(encode_level(0))
    assert machine.level == 1


def test_a_level_that_the_build_does_not_support_changes_nothing() -> None:
    """The machine keeps its state, with a sentence that names the remedy."""
    machine = StateMachine(supported=1)
    with pytest.raises(UnsupportedLevel, match="level 2, this build supports levels up to 1: start a build that"):
        machine.raise_level(encode_level(2))
    assert (machine.level, machine.last_zxid) == (0, 0)


def test_a_snapshot_keeps_the_level() -> None:
    """A build below the level rejects the snapshot with that sentence, not as damage."""
    client = client_at(1)
    client.multi(create_op(b"/a"))
    machine = client.store.machine
    chunks = list(machine.snapshot_chunks())
    copy = StateMachine.restore(chunks)
    assert (copy.level, copy.digest(), copy.last_zxid) == (1, machine.digest(), machine.last_zxid)
    with pytest.raises(UnsupportedLevel, match="holds a state of feature level 1, this build supports levels up to 0"):
        StateMachine.restore(chunks, supported=0)


def test_a_snapshot_of_level_0_is_that_of_builds_from_before_levels() -> None:
    """They do not know chunk L. In a mixed store they receive snapshots while level 0 is in force."""
    kinds = [chunk[:1] for chunk in client_at(0).store.machine.snapshot_chunks()]
    assert b"L" not in kinds
    assert b"L" in [chunk[:1] for chunk in client_at(1).store.machine.snapshot_chunks()]


def test_a_second_level_in_a_snapshot_is_damage() -> None:
    """The level must also come before the data that it affects."""
    chunks = list(client_at(1).store.machine.snapshot_chunks())
    for before in ([0, 1], [0, 2]):
        reader = SnapshotDecoder()
        for place in before:
            reader.feed(chunks[place])
        with pytest.raises(CorruptRecord, match="the level once"):
            reader.feed(chunks[1])
