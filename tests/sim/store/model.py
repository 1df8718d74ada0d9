"""What a store must answer: a deliberately simple tree that keeps its whole history.

`Model.apply` takes the committed commands one by one and says what each of them must have answered. The state behind
any zxid can be asked for afterwards, which is how the answers to reads are judged. Knows the operations that the
simulated clients use and nothing of how the store does them; access lists stay open.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from coord import errors as e
from coord.tree.command import Command, decode_attach, decode_create_session
from coord.wire import records as r

#: What a znode looks like at one moment: data, czxid, mzxid, version, cversion, owner, children, pzxid.
View = tuple[bytes, int, int, int, int, int, int, int]

CREATES: Final = (r.OP_CREATE, r.OP_CREATE2)


class Znode:
    """One znode as it is now."""

    def __init__(self, data: bytes, zxid: int, owner: int) -> None:
        self.data = data
        self.czxid = self.mzxid = self.pzxid = zxid
        self.version = 0
        self.owner = owner
        self.creates = 0
        self.children: dict[bytes, None] = {}

    def view(self) -> View:
        children = len(self.children)
        cversion = 2 * self.creates - children
        return (self.data, self.czxid, self.mzxid, self.version, cversion, self.owner, children, self.pzxid)

    def copy(self) -> Znode:
        twin = Znode(self.data, self.czxid, self.owner)
        twin.mzxid, twin.pzxid, twin.version, twin.creates = self.mzxid, self.pzxid, self.version, self.creates
        twin.children = dict(self.children)
        return twin


class Expected:
    """One command of the history and the answer it must have got."""

    def __init__(self, zxid: int, command: Command) -> None:
        self.zxid = zxid
        self.command = command
        self.err = e.OK
        #: create: the path; setData: the version; multi: a list of (err, path or version or None).
        self.answer: Any = None
        #: (event type, path), in order.
        self.events: list[tuple[int, bytes]] = []


class SimSession:
    """One session of the history."""

    def __init__(self, session_id: int, passwd: bytes, timeout_ms: int, owner: int) -> None:
        self.session_id = session_id
        self.passwd = passwd
        self.timeout_ms = timeout_ms
        self.owner = owner


class Refused(Exception):  # noqa: N818 - it is an answer
    """The operation is refused with this code."""

    def __init__(self, err: int) -> None:
        super().__init__(err)
        self.err = err


class Model:
    """Tree and sessions at `zxid`, and how they got there."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[bytes, Znode] = {}
        self.sessions: dict[int, SimSession] = {}
        #: By zxid - 1.
        self.history: list[Expected] = []
        self._zxids: dict[bytes, list[int]] = {}
        self._views: dict[bytes, list[View | None]] = {}
        self._children: dict[bytes, list[tuple[bytes, ...]]] = {}
        for path in (b"/", b"/zookeeper", b"/zookeeper/quota", b"/zookeeper/config"):
            self.nodes[path] = Znode(b"", 0, 0)
        self.nodes[b"/"].children[b"zookeeper"] = None
        self.nodes[b"/zookeeper"].children = {b"quota": None, b"config": None}

    # --- the past -----------------------------------------------------------------------------------------------------

    def at(self, path: bytes, zxid: int) -> View | None:
        """The znode as it was behind `zxid`; None if there was none."""
        place = bisect_right(self._zxids.get(path, ()), zxid)
        return self._views[path][place - 1] if place else None

    def children_at(self, path: bytes, zxid: int) -> tuple[bytes, ...]:
        """Names of its children behind `zxid`, in the order of their creation."""
        place = bisect_right(self._zxids.get(path, ()), zxid)
        return self._children[path][place - 1] if place else ()

    def _note(self, paths: set[bytes]) -> None:
        for path in sorted(paths):
            zxids = self._zxids.setdefault(path, [])
            node = self.nodes.get(path)
            zxids.append(self.zxid)
            self._views.setdefault(path, []).append(node.view() if node is not None else None)
            self._children.setdefault(path, []).append(tuple(node.children) if node is not None else ())

    # --- the next command ---------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> Expected:
        """Perform a committed command."""
        self.zxid += 1
        expected = Expected(self.zxid, command)
        self.history.append(expected)
        try:
            self._perform(command, expected)
        except Refused as refused:
            expected.err = refused.err
        return expected

    def _perform(self, command: Command, expected: Expected) -> None:
        opcode, body = command.opcode, command.body
        session = self.sessions.get(command.session_id)
        if opcode == r.OP_CREATE_SESSION:
            timeout_ms, passwd, _, _ = decode_create_session(body, 0, len(body))
            self.sessions[command.session_id] = SimSession(command.session_id, passwd, timeout_ms, self.zxid)
            return
        if session is None:
            raise Refused(e.SESSION_EXPIRED)
        if opcode == r.OP_ATTACH:
            timeout_ms, passwd, _, _ = decode_attach(body, 0, len(body))
            if passwd != session.passwd:
                raise Refused(e.SESSION_EXPIRED)
            session.owner, session.timeout_ms = self.zxid, timeout_ms
            return
        if command.owner != session.owner:
            raise Refused(e.SESSION_MOVED)
        changed: dict[bytes, Znode | None] = {}
        if opcode in (r.OP_CLOSE_SESSION, r.OP_EXPIRE):
            for path in sorted(p for p, node in self.nodes.items() if node.owner == command.session_id):
                self._delete(changed, path, -1, expected)
            del self.sessions[command.session_id]
        elif opcode == r.OP_MULTI:
            self._multi(changed, command, expected)
        else:
            expected.answer = self._one(changed, self._operation(opcode, body), command.session_id, expected)
        self._commit(changed)

    @staticmethod
    def _operation(opcode: int, body: bytes) -> r.MultiOp:
        if opcode in CREATES:
            create = r.decode_create(opcode, body, 0, len(body))
            return r.MultiOp(opcode, create.path, create.data, -1, create)
        if opcode == r.OP_SET_DATA:
            path, data, version = r.decode_set_data(body, 0, len(body))
            return r.MultiOp(opcode, path, data, version)
        assert opcode == r.OP_DELETE, f"no simulated client sends {opcode}"
        path, version = r.decode_path_version(body, 0, len(body))
        return r.MultiOp(opcode, path, None, version)

    def _commit(self, changed: dict[bytes, Znode | None]) -> None:
        for path, node in changed.items():
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node
        self._note(set(changed))

    def _multi(self, changed: dict[bytes, Znode | None], command: Command, expected: Expected) -> None:
        ops = r.decode_multi(command.body, 0, len(command.body))
        answers: list[tuple[int, Any]] = []
        for position, op in enumerate(ops):
            try:
                answers.append((e.OK, self._one(changed, op, command.session_id, expected)))
            except Refused as refused:
                changed.clear()
                expected.events.clear()
                codes = [e.OK] * position + [refused.err] + [e.RUNTIME_INCONSISTENCY] * (len(ops) - position - 1)
                expected.answer = [(code, None) for code in codes]
                return
        expected.answer = answers

    # --- operations on a tree with `changed` laid over it -------------------------------------------------------------

    def _find(self, changed: dict[bytes, Znode | None], path: bytes) -> Znode | None:
        return changed[path] if path in changed else self.nodes.get(path)

    def _own(self, changed: dict[bytes, Znode | None], path: bytes) -> Znode:
        node = changed.get(path)
        if node is None:
            node = changed[path] = self.nodes[path].copy()
        return node

    def _one(self, changed: dict[bytes, Znode | None], op: r.MultiOp, session_id: int, expected: Expected) -> Any:
        if op.create is not None:
            return self._create(changed, op.create, session_id, expected)
        node = self._find(changed, op.path)
        if node is None:
            raise Refused(e.NO_NODE)
        if op.version not in (-1, node.version):
            raise Refused(e.BAD_VERSION)
        if op.opcode == r.OP_CHECK:
            return None
        if op.opcode == r.OP_DELETE:
            return self._delete(changed, op.path, op.version, expected)
        node = self._own(changed, op.path)
        node.data = op.data or b""
        node.version += 1
        node.mzxid = self.zxid
        expected.events.append((r.EVENT_DATA_CHANGED, op.path))
        return node.version

    def _create(
        self, changed: dict[bytes, Znode | None], create: r.CreateRequest, session_id: int, expected: Expected
    ) -> bytes:
        parent_path = parent_of(create.path)
        parent = self._find(changed, parent_path)
        if parent is None:
            raise Refused(e.NO_NODE)
        path = create.path
        if create.flags & r.CREATE_SEQUENTIAL:
            path += b"%010d" % parent.creates
        if self._find(changed, path) is not None:
            raise Refused(e.NODE_EXISTS)
        if parent.owner:
            raise Refused(e.NO_CHILDREN_FOR_EPHEMERALS)
        parent = self._own(changed, parent_path)
        parent.children[path.rpartition(b"/")[2]] = None
        parent.creates += 1
        parent.pzxid = self.zxid
        owner = session_id if create.flags & r.CREATE_EPHEMERAL else 0
        changed[path] = Znode(create.data or b"", self.zxid, owner)
        expected.events.append((r.EVENT_CREATED, path))
        expected.events.append((r.EVENT_CHILDREN_CHANGED, parent_path))
        return path

    def _delete(self, changed: dict[bytes, Znode | None], path: bytes, version: int, expected: Expected) -> None:
        node = self._find(changed, path)
        if node is None:
            raise Refused(e.NO_NODE)
        if version not in (-1, node.version):
            raise Refused(e.BAD_VERSION)
        if node.children:
            raise Refused(e.NOT_EMPTY)
        parent_path = parent_of(path)
        parent = self._own(changed, parent_path)
        del parent.children[path.rpartition(b"/")[2]]
        parent.pzxid = self.zxid
        changed[path] = None
        expected.events.append((r.EVENT_DELETED, path))
        expected.events.append((r.EVENT_CHILDREN_CHANGED, parent_path))


def parent_of(path: bytes) -> bytes:
    """The path of the parent."""
    return path.rpartition(b"/")[0] or b"/"
