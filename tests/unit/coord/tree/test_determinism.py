"""Replicas agree: for any hash seed of their process, any way to their state, and any bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord.errors import MARSHALLING_ERROR
from coord.tree import command, datatree
from coord.tree.acl import OPEN, READ_ONLY
from coord.tree.datatree import STALE_MAX, DataTree
from coord.tree.machine import StateMachine
from coord.tree.node import KIND_TTL, Znode
from coord.wire import records as r
from coord.wire.values import OPEN_ACL, Acl, CreateRequest, MultiOp
from tests.unit.coord.tree.tree_store import PASSWD, Store, check_op, create_op, delete_op, set_op

NAMES = [b"/a", b"/b", b"/a/x", b"/a/y", b"/a/x/z", "/\u00e9".encode(), b"/zookeeper/quota/a"]


def bodies(rng: random.Random) -> tuple[int, bytes]:
    """Return a request of any kind, mostly valid."""
    path = rng.choice(NAMES)
    acl = rng.choice([OPEN_ACL, OPEN_ACL, [Acl(31, b"auth", b"")], [Acl(5, b"ip", b"10.0.0.0/8"), Acl(31, b"x", b"")]])
    opcode = rng.choice([1, 1, 1, 15, 19, 21, 2, 5, 5, 7, 14, 20, 100, 16])
    if opcode in (1, 15, 19, 21):
        flags = rng.choice([5, 6]) if opcode == 21 else rng.choice([0, 0, 1, 2, 3, 4])
        name = path + rng.choice([b"", b"", b"/zookeeper_limits", b"/zookeeper_stats"])
        return opcode, r.encode_create(CreateRequest(opcode, name, b"x" * rng.randrange(9), acl, flags, 1000))
    if opcode == 2:
        return opcode, r.encode_path_version(path, -1)
    if opcode == 5:
        return opcode, r.encode_set_data(path, rng.choice([b"new", None]), -1)
    if opcode == 7:
        return opcode, r.encode_set_acl(path, acl, -1)
    if opcode == 14:
        ops = [create_op(path, b"m"), set_op(path, b"n"), delete_op(rng.choice(NAMES)), create_op(path, b"", 3)]
        return opcode, r.encode_multi(ops[: rng.randrange(5)])
    if opcode == 100:
        return opcode, command.encode_identities([(b"digest", b"u%d:h" % rng.randrange(3))])
    return opcode, r.encode_path(path)


def history(seed: int, count: int = 300) -> list[bytes]:
    """Return groups of a history in which sessions come and go."""
    rng = random.Random(seed)
    groups: list[bytes] = []
    owners: dict[int, int] = {}
    for turn in range(count):
        session = rng.randrange(1, 5)
        if session not in owners:
            # One command per turn, so zxids are turns counted from 1.
            owners[session] = turn + 1
            body = command.encode_create_session(5000, PASSWD, b"10.0.0.%d" % session)
            one = command.encode_command(session, 0, 0, r.OP_CREATE_SESSION, body)
        elif rng.random() < 0.05:
            one = command.encode_command(session, owners.pop(session), 0, r.OP_EXPIRE, b"")
        else:
            opcode, body = bodies(rng)
            one = command.encode_command(session, owners[session], turn, opcode, body)
        groups.append(command.encode_batch(1_000_000 + turn * 10, [one]))
    return groups


def transcript(groups: list[bytes], machine: StateMachine) -> str:
    """Return everything that a replica answers, and its digest after every group."""
    lines: list[str] = []
    for group in groups:
        for o in machine.apply_batch(group):
            events = [(kind, path) for kind, path, _ in o.events]
            lines.append(f"{o.zxid} {o.err} {o.body.hex()} {events} {machine.digest():x}")
    return "\n".join(lines)


def test_history_is_the_same_under_two_hash_seeds() -> None:
    script = (
        "from tests.unit.coord.tree.test_determinism import *\n"
        "m = StateMachine()\n"
        "print(transcript(history(7), m))\n"
        "print(b''.join(m.snapshot_chunks()).hex())\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10_000


def test_replica_from_a_snapshot_goes_on_alike_from_any_point() -> None:
    groups = history(11)
    for cut in range(0, len(groups), 23):
        straight = StateMachine()
        transcript(groups[:cut], straight)
        restored = StateMachine.restore(straight.snapshot_chunks())
        assert transcript(groups[cut:], straight) == transcript(groups[cut:], restored)


def test_batching_does_not_matter_when_times_agree() -> None:
    singles = [command.decode_batch(group)[1][0] for group in history(3)]
    encoded = [command.encode_command(c.session_id, c.owner, c.cxid, c.opcode, c.body) for c in singles]
    one, many = StateMachine(), StateMachine()
    one.apply_batch(command.encode_batch(5, encoded))
    for each in encoded:
        many.apply_batch(command.encode_batch(5, [each]))
    assert one.digest() == many.digest()


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_spoiled_commands_never_raise_and_refused_ones_change_nothing(seed: int, data: st.DataObject) -> None:
    """Bodies with changed, missing and inserted bytes, under any opcode."""
    machine = StateMachine()
    transcript(history(seed % 8, 60), machine)
    rng = random.Random(seed)
    session = rng.choice(sorted(machine.sessions.sessions))
    owner = machine.sessions.sessions[session].owner
    opcode, body = bodies(rng)
    opcode = data.draw(st.sampled_from([opcode, opcode, 1, 2, 5, 7, 14, 15, 19, 20, 21, 100, -10, -13, 13, 999]))
    spoiled = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(spoiled)))
        spoiled[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    before = machine.digest()
    zxid = machine.last_zxid
    one = command.encode_command(session, owner, 1, opcode, bytes(spoiled))
    outcomes = machine.apply_batch(command.encode_batch(1, [one]))
    assert len(outcomes) == 1
    assert machine.last_zxid == zxid + 1
    if outcomes[0].err:
        assert machine.digest() == before
        assert outcomes[0].body == b""
        assert outcomes[0].events == []
    assert StateMachine.restore(machine.snapshot_chunks()).digest() == machine.digest()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_some_group(data: bytes) -> None:
    machine = StateMachine()
    before = machine.digest()
    outcomes = machine.apply_batch(data)
    assert machine.digest() == before or any(outcome.err == 0 for outcome in outcomes)
    assert machine.last_zxid == len(outcomes)


def test_unreadable_writes_that_stop_zookeeper_are_refused_here() -> None:
    """Each of these makes the leader of ZooKeeper 3.9.5 propose an error that no server can apply."""
    machine = StateMachine()
    body = command.encode_create_session(5000, PASSWD, b"")
    machine.apply_batch(command.encode_batch(1, [command.encode_command(1, 0, 0, r.OP_CREATE_SESSION, body)]))
    null_acl = r.encode_multi([r.MultiOp(1, b"/a", b"", -1, CreateRequest(1, b"/a", b"", None, 0))])
    wedges = [(2, r.encode_path(b"/a")), (1, b""), (1, r.encode_path(b"/a")), (20, b""), (5, b"\0\0\0\x09/a")]
    before = machine.digest()
    for opcode, body in wedges:
        one = command.encode_command(1, 1, 0, opcode, body)
        assert machine.apply_batch(command.encode_batch(1, [one]))[0].err == MARSHALLING_ERROR
    one = command.encode_command(1, 1, 0, 14, null_acl)
    assert machine.apply_batch(command.encode_batch(1, [one]))[0].err == 0
    assert machine.digest() == before


def test_digest_is_the_same_however_often_it_is_asked_for_and_whoever_answers() -> None:
    """Checksums are computed when the digest is read; a replica without clients has the same state."""
    for seed in range(5):
        often, seldom, silent = StateMachine(), StateMachine(), StateMachine()
        silent.serve_clients(frozenset(), None)
        for group in history(seed):
            asked = [o.body for o in often.apply_batch(group)]
            often.digest()
            assert [o.body for o in seldom.apply_batch(group)] == asked
            assert not any(o.body for o in silent.apply_batch(group) if o.err == 0 and o.opcode in (1, 5))
        assert often.digest() == seldom.digest() == silent.digest()
        restored = StateMachine.restore(seldom.snapshot_chunks())
        assert restored.digest() == often.digest()


def test_no_more_znodes_than_the_limit_wait_for_their_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """One znode beyond the limit brings all of them up to date first."""
    limit = STALE_MAX
    if datatree.__file__.endswith(".py"):  # the interpreted tree would take half a minute for that many
        limit = 128
        monkeypatch.setattr(datatree, "STALE_MAX", limit)
    store = Store()
    client = store.client(1)
    tree = store.machine.tree
    tree.digest_sum()
    for n in range(limit):
        client.create(b"/n%d" % n)
    assert tree._stale_paths == [b"/"], "what is new has its own at once"
    tree.digest_sum()
    for n in range(limit):
        client.set(b"/n%d" % n, b"x")
    assert len(tree._stale) == limit
    client.create(b"/one-more")
    assert tree._stale_paths == [b"/"]
    assert tree.digest_sum() == counted_anew(tree)


def counted_anew(tree: DataTree) -> int:
    """Return the tree's part of the digest, computed from its znodes only."""
    return sum(node.checksum(path, node.stat()) for path, node in tree.nodes.items())


def test_znode_that_goes_while_its_checksum_is_out_of_date_leaves_nothing_behind() -> None:
    """No trace remains in the digest, even if another znode is created at its path, nor in memory."""
    store = Store()
    client = store.client(1)
    tree = store.machine.tree
    client.create(b"/a", b"one")
    client.set(b"/a", b"two")
    gone = tree.nodes[b"/a"]
    client.delete(b"/a")
    assert gone.data is None
    assert tree.digest_sum() == counted_anew(tree)
    client.create(b"/a", b"three")
    client.set(b"/a", b"four")
    client.delete(b"/a")
    client.create(b"/a", b"five")
    client.set(b"/a", b"six")
    assert tree.digest_sum() == counted_anew(tree)


def test_checksum_made_in_one_step_is_the_checksum() -> None:
    for data in (None, b"", b"abc", b"abcd", bytes(range(256)) * 4, bytes(1025)):
        for kind, acl in ((0, OPEN), (1, OPEN), (2, READ_ONLY), (KIND_TTL, READ_ONLY)):
            for creates, children in ((0, 0), (3, 2), ((1 << 30) - 1, 0), (1 << 30, 0), (1 << 30, 7), (1 << 40, 1)):
                node = Znode(data, acl, kind, 7 if kind == 1 else 0, 1000)
                node.czxid = node.mzxid = 1 << 40
                if creates:
                    extra = node.ensure_extra()
                    extra.creates, extra.num_children = creates, children
                for path in (b"/", b"/a/b"):
                    assert node.update_digest(path) == node.digest_part == node.checksum(path, node.stat())


def planned_at_random(rng: random.Random) -> MultiOp:
    """Return an operation at one of a few paths, valid or not."""
    path = rng.choice([b"/a", b"/b", b"/a/x", b"/a/y", b"/a/x/z"])
    kind = rng.randrange(5)
    if kind == 0:
        return set_op(path, b"%d" % rng.randrange(100), rng.choice([-1, -1, 0, 1]))
    if kind == 1:
        return delete_op(path, rng.choice([-1, -1, 0]))
    if kind == 2:
        return check_op(path, rng.choice([-1, 0, 1]))
    return create_op(path, b"new", rng.choice([0, 0, 0, 1, 2]))


def test_multi_leaves_what_its_parts_leave_one_after_the_other() -> None:
    """This holds even if its parts use the same znodes repeatedly."""
    for seed in range(60):
        rng = random.Random(seed)
        alone, together = Store(), Store()
        one, other = alone.client(1), together.client(1)
        for _ in range(4):
            taken = [op for op in [planned_at_random(rng) for _ in range(40)] if not one.multi(op)[0].err]
            assert not any(result.err for result in other.multi(*taken))
        for path, node in alone.machine.tree.nodes.items():
            twin = together.machine.tree.nodes[path]
            assert (twin.data, twin.version, twin.creates, twin.children()) == (
                node.data,
                node.version,
                node.creates,
                node.children(),
            )
        assert len(together.machine.tree.nodes) == len(alone.machine.tree.nodes)
        assert together.machine.tree.digest_sum() == counted_anew(together.machine.tree)
