"""plan and apply against a naive model: random histories, compared answer by answer and znode by znode.

The model is one dict that is copied before every multi; it knows the rules and no index, overlay, digest or cache.
"""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from coord import errors as e
from coord.tree.command import Command
from coord.tree.machine import StateMachine
from coord.wire import records as r
from coord.wire.values import MultiOp
from tests.unit.coord.tree.tree_store import Client, Store, check_op, create_op, delete_op, set_op

Op = tuple[str, bytes, int, bytes]
"""(what, path, flags or version, data)"""


class ModelNode:
    def __init__(self, data: bytes, owner: int, zxid: int) -> None:
        self.data = data
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.version = self.creates = self.deletes = 0


class Model:
    """The expected tree."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, ModelNode] = {b"/": ModelNode(b"", 0, 0)}
        self.sessions: set[int] = set()

    def children(self, path: bytes) -> list[bytes]:
        prefix = path if path == b"/" else path + b"/"
        return [p for p in self.nodes if p != b"/" and p.startswith(prefix) and b"/" not in p[len(prefix) :]]

    def perform(self, session: int, op: Op, zxid: int) -> tuple[int, bytes]:
        """Return (error, created path or b"")."""
        what, path, number, data = op
        parent = path[: path.rfind(b"/")] or b"/"
        node = self.nodes.get(path)
        if what == "create":
            if parent not in self.nodes:
                return e.NO_NODE, b""
            above = self.nodes[parent]
            if number & 2:
                path = b"%s%010d" % (path, above.creates)
            if path in self.nodes:
                return e.NODE_EXISTS, b""
            if above.owner:
                return e.NO_CHILDREN_FOR_EPHEMERALS, b""
            self.nodes[path] = ModelNode(data, session if number & 1 else 0, zxid)
            above.creates += 1
            above.pzxid = zxid
            return 0, path
        if node is None:
            return e.NO_NODE, b""
        if number not in (-1, node.version):
            return e.BAD_VERSION, b""
        if what == "set":
            node.data = data
            node.version += 1
            node.mzxid = zxid
        elif what == "delete":
            if self.children(path):
                return e.NOT_EMPTY, b""
            self.remove(path, zxid)
        return 0, b""

    def remove(self, path: bytes, zxid: int) -> None:
        del self.nodes[path]
        parent = self.nodes[path[: path.rfind(b"/")] or b"/"]
        parent.deletes += 1
        parent.pzxid = zxid

    def multi(self, session: int, ops: list[Op], zxid: int) -> list[int]:
        before = copy.deepcopy(self.nodes)
        for i, op in enumerate(ops):
            err, _ = self.perform(session, op, zxid)
            if err:
                self.nodes = before
                return [0] * i + [err] + [e.RUNTIME_INCONSISTENCY] * (len(ops) - i - 1)
        return [0] * len(ops)

    def end(self, session: int, zxid: int) -> None:
        self.sessions.discard(session)
        for path in [p for p, node in self.nodes.items() if node.owner == session]:
            self.remove(path, zxid)


def as_part(op: Op) -> MultiOp:
    what, path, number, data = op
    if what == "create":
        return create_op(path, data, number)
    if what == "set":
        return set_op(path, data, number)
    return delete_op(path, number) if what == "delete" else check_op(path, number)


def perform(client: Client, op: Op) -> tuple[int, bytes]:
    what, path, number, data = op
    if what == "create":
        outcome = client.create(path, data, number)
    elif what == "set":
        outcome = client.set(path, data, number)
    else:
        outcome = client.delete(path, number)
    return outcome.err, (
        r.decode_path(outcome.body, 0, len(outcome.body)) if what == "create" and outcome.body else b""
    )


def assert_same(machine: StateMachine, model: Model) -> None:
    ours = {path: node for path, node in machine.tree.nodes.items() if not path.startswith(b"/zookeeper")}
    assert sorted(ours) == sorted(model.nodes)
    for path, node in ours.items():
        want = model.nodes[path]
        assert (node.data, node.version, node.czxid, node.mzxid, node.pzxid, node.ephemeral_owner) == (
            want.data,
            want.version,
            want.czxid,
            want.mzxid,
            want.pzxid,
            want.owner,
        ), path
        stat = r.decode_stat(node.stat(), 0, 68)
        special = 1 if path == b"/" else 0
        children = model.children(path)
        assert stat.cversion == want.creates + want.deletes - special
        assert stat.num_children == len(children) + special
        assert stat.data_length == len(want.data)
        assert sorted(node.children()) == sorted([*children, b"/zookeeper"] if special else children)
        for child in node.children():
            assert node.extra.children[machine.tree.nodes[child].slot] == child
    for session in range(1, 4):
        owned = sorted(path for path, node in model.nodes.items() if node.owner == session)
        assert machine.tree.ephemerals_of(session) == owned
    assert sorted(machine.sessions.sessions) == sorted(model.sessions)


def assert_consistent(machine: StateMachine) -> None:
    """Check that incremental counts equal a fresh count, which reading a snapshot computes."""
    again = StateMachine.restore(machine.snapshot_chunks())
    assert again.digest() == machine.digest()
    assert again.tree.data_bytes == machine.tree.data_bytes
    assert again.tree.ephemeral_count == machine.tree.ephemeral_count
    assert {k: v.refs for k, v in again.tree.acls.items()} == {k: v.refs for k, v in machine.tree.acls.items()}


PATHS = st.sampled_from([b"/a", b"/b", b"/a/x", b"/a/y", b"/a/x/z", b"/a0000000000"])
DATA = st.sampled_from([b"", b"1", b"22"])
VERSIONS = st.sampled_from([-1, -1, 0, 1, 2])
CREATES = st.tuples(st.just("create"), PATHS, st.sampled_from([0, 0, 0, 1, 2, 3]), DATA)
CHANGES = st.tuples(st.sampled_from(["set", "delete"]), PATHS, VERSIONS, DATA)
CHECKS = st.tuples(st.just("check"), PATHS, VERSIONS, DATA)
SESSIONS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("op"), SESSIONS, st.one_of(CREATES, CREATES, CHANGES)),
    st.tuples(st.just("multi"), SESSIONS, st.lists(st.one_of(CREATES, CREATES, CHANGES, CHECKS), max_size=6)),
    st.tuples(st.sampled_from(["open", "close", "expire", "attach"]), SESSIONS, st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_any_history_agrees_with_the_model(steps: list[tuple[str, int, object]]) -> None:
    store = Store()
    model = Model()
    clients: dict[int, Client] = {}
    for session in (1, 2):
        clients[session] = store.client(session)
        model.sessions.add(session)
    for kind, session, argument in steps:
        step(store, model, clients, kind, session, argument)
    assert_same(store.machine, model)
    assert_consistent(store.machine)


def step(store: Store, model: Model, clients: dict[int, Client], kind: str, session: int, argument: object) -> None:
    client = clients.get(session)
    alive = session in model.sessions
    zxid = store.machine.last_zxid + 1
    if kind == "open":
        if not alive:
            clients[session] = store.client(session)
            model.sessions.add(session)
    elif client is None:
        return
    elif kind == "attach":
        assert client.attach().err == (0 if alive else e.SESSION_EXPIRED)
    elif kind in ("close", "expire"):
        opcode = r.OP_CLOSE_SESSION if kind == "close" else r.OP_EXPIRE
        err = store.apply(Command(session, client.owner, 0, opcode, b"")).err
        assert err == (0 if alive else e.SESSION_EXPIRED)
        if alive:
            model.end(session, zxid)
    elif not alive:
        assert client.set(b"/a", b"").err == e.SESSION_EXPIRED
    elif kind == "op":
        op: Op = argument  # type: ignore[assignment]
        before = store.machine.digest()
        answer = perform(client, op)
        assert answer == model.perform(session, op, zxid), op
        assert not answer[0] or store.machine.digest() == before
    else:
        ops: list[Op] = argument  # type: ignore[assignment]
        before = store.machine.digest()
        errs = [result.err for result in client.multi(*[as_part(each) for each in ops])]
        assert errs == model.multi(session, ops, zxid)
        assert not any(errs) or store.machine.digest() == before
