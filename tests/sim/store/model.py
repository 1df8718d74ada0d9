"""A model of the store's answers: a deliberately simple tree that keeps its whole history.

`Model.apply` takes the committed commands one by one and returns the expected answer of each. The state at any earlier
zxid can be read, which is how the answers to reads are checked. The model has the operations that the simulated clients
use, and shares no code with the store.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from coord import errors as e
from coord.tree.command import Command, decode_attach, decode_create_session, decode_identities
from coord.tree.levels import CREATE_TTL_IN_MULTI
from coord.wire import records as r

#: One line of an access list: permissions, scheme, id.
Line = tuple[int, bytes, bytes]
Identity = tuple[bytes, bytes]
#: A znode at one moment: data, czxid, mzxid, version, cversion, owner, children, pzxid, aversion, access list.
View = tuple[bytes, int, int, int, int, int, int, int, int, tuple[Line, ...]]

CREATES: Final = (r.OP_CREATE, r.OP_CREATE2, r.OP_CREATE_CONTAINER, r.OP_CREATE_TTL)
OPEN: Final[tuple[Line, ...]] = ((r.PERM_ALL, b"world", b"anyone"),)
CONFIG_PATH: Final = b"/zookeeper/config"


def allows(acl: tuple[Line, ...], perms: int, identities: list[Identity]) -> bool:
    """Return True if a client with these identities has one of the permissions."""
    if any(scheme == b"super" for scheme, _ in identities):
        return True
    who = [(b"world", b"anyone"), *identities]
    return any(line[0] & perms and (line[1], line[2]) in who for line in acl)


class Znode:
    """One znode in its present state."""

    def __init__(self, data: bytes, zxid: int, owner: int, acl: tuple[Line, ...] = OPEN, time_ms: int = 0) -> None:
        self.data = data
        self.czxid = self.mzxid = self.pzxid = zxid
        self.version = self.aversion = 0
        #: The session that owns an ephemeral; 0 for other znodes.
        self.owner = owner
        self.acl = acl
        self.is_container = False
        #: 0: none.
        self.ttl_ms = 0
        self.mtime_ms = time_ms
        self.creates = 0
        self.children: dict[bytes, None] = {}

    def is_reapable(self, time_ms: int) -> bool:
        """Return True if the store itself may delete the znode."""
        if self.children:
            return False
        if self.is_container:
            return self.creates > 0
        return self.ttl_ms > 0 and time_ms - self.mtime_ms > self.ttl_ms

    def view(self) -> View:
        children = len(self.children)
        cversion = 2 * self.creates - children
        first = (self.data, self.czxid, self.mzxid, self.version, cversion, self.owner)
        return (*first, children, self.pzxid, self.aversion, self.acl)

    def copy(self) -> Znode:
        twin = Znode(self.data, self.czxid, self.owner, self.acl, self.mtime_ms)
        twin.mzxid, twin.pzxid, twin.version, twin.creates = self.mzxid, self.pzxid, self.version, self.creates
        twin.aversion, twin.is_container, twin.ttl_ms = self.aversion, self.is_container, self.ttl_ms
        twin.children = dict(self.children)
        return twin


class Expected:
    """One command of the history and its expected answer."""

    def __init__(self, zxid: int, command: Command) -> None:
        self.zxid = zxid
        self.command = command
        self.err = e.OK
        #: create: the path; setData: the version; multi: a list of (err, path or version or None).
        self.answer: Any = None
        #: (event type, path, access list that decides which clients receive it), in order.
        self.events: list[tuple[int, bytes, tuple[Line, ...]]] = []


class SimSession:
    """One session of the history."""

    def __init__(self, session_id: int, passwd: bytes, timeout_ms: int, owner: int, identities: list[Identity]) -> None:
        self.session_id = session_id
        self.passwd = passwd
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.identities = identities


class Refused(Exception):  # noqa: N818 - it is an answer
    """Raised when the operation is rejected with this code."""

    def __init__(self, err: int) -> None:
        super().__init__(err)
        self.err = err


class Model:
    """Tree and sessions at `zxid`, with their history."""

    def __init__(self) -> None:
        self.zxid = 0
        #: The feature level in force.
        self.level = 0
        #: The leader's clock of the last group.
        self.time_ms = 0
        self.nodes: dict[bytes, Znode] = {}
        #: Session -> (zxid, identities from there on; None after its end).
        self._identities: dict[int, list[tuple[int, list[Identity] | None]]] = {}
        self.sessions: dict[int, SimSession] = {}
        #: Expected commands and answers; the item at zxid - 1 belongs to zxid.
        self.history: list[Expected] = []
        self._zxids: dict[bytes, list[int]] = {}
        self._views: dict[bytes, list[View | None]] = {}
        self._children: dict[bytes, list[tuple[bytes, ...]]] = {}
        for path in (b"/", b"/zookeeper", b"/zookeeper/quota", b"/zookeeper/config"):
            self.nodes[path] = Znode(b"", 0, 0)
        self.nodes[b"/"].children[b"zookeeper"] = None
        self.nodes[b"/zookeeper"].children = {b"quota": None, b"config": None}
        self.nodes[CONFIG_PATH].acl = ((r.PERM_READ, b"world", b"anyone"),)
        self.nodes[CONFIG_PATH].aversion = -1

    # --- the past -----------------------------------------------------------------------------------------------------

    def at(self, path: bytes, zxid: int) -> View | None:
        """Return the state of the znode at `zxid`; None if it did not exist."""
        place = bisect_right(self._zxids.get(path, ()), zxid)
        return self._views[path][place - 1] if place else None

    def children_at(self, path: bytes, zxid: int) -> tuple[bytes, ...]:
        """Return the names of its children at `zxid`, in the order of their creation."""
        place = bisect_right(self._zxids.get(path, ()), zxid)
        return self._children[path][place - 1] if place else ()

    def identities_at(self, session_id: int, zxid: int) -> list[Identity] | None:
        """Return the identities of the session at `zxid`; None if there was no such session."""
        found: list[Identity] | None = None
        for since, identities in self._identities.get(session_id, ()):
            if since > zxid:
                break
            found = identities
        return found

    def _identify(self, session: SimSession, identities: list[Identity] | None) -> None:
        session.identities = identities or []
        self._identities.setdefault(session.session_id, []).append((self.zxid, identities))

    def _note(self, paths: set[bytes]) -> None:
        for path in sorted(paths):
            zxids = self._zxids.setdefault(path, [])
            node = self.nodes.get(path)
            zxids.append(self.zxid)
            self._views.setdefault(path, []).append(node.view() if node is not None else None)
            self._children.setdefault(path, []).append(tuple(node.children) if node is not None else ())

    # --- the next command ---------------------------------------------------------------------------------------------

    def apply_membership(self, text: bytes) -> Expected:
        """Apply a committed configuration: /zookeeper/config has its server lines from now on."""
        self.zxid += 1
        expected = Expected(self.zxid, Command(0, 0, 0, r.OP_RECONFIG, b""))
        self.history.append(expected)
        node = self.nodes[CONFIG_PATH]
        node.data = text + b"version=%x" % self.zxid
        node.version, node.mzxid = -1, self.zxid
        expected.events.append((r.EVENT_DATA_CHANGED, CONFIG_PATH, node.acl))
        self._note({CONFIG_PATH})
        return expected

    def raise_level(self, level: int) -> None:
        """Set the level in force."""
        self.zxid += 1
        self.history.append(Expected(self.zxid, Command(0, 0, 0, r.OP_ERROR, b"")))
        self.level = max(self.level, level)

    def apply(self, command: Command, time_ms: int) -> Expected:
        """Perform a committed command of a group closed at `time_ms`."""
        self.time_ms = max(self.time_ms, time_ms)
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
            timeout_ms, passwd, address, _ = decode_create_session(body, 0, len(body))
            opened = SimSession(command.session_id, passwd, timeout_ms, self.zxid, [])
            self.sessions[command.session_id] = opened
            self._identify(opened, [(b"ip", address)])
            return
        changed: dict[bytes, Znode | None] = {}
        if session is None:
            if command.session_id == 0 and opcode == r.OP_DELETE_CONTAINER:
                self._reap(changed, r.decode_path(body, 0, len(body)), expected)
                self._commit(changed)
                return
            raise Refused(e.SESSION_EXPIRED)
        if opcode == r.OP_ATTACH:
            timeout_ms, passwd, address, _ = decode_attach(body, 0, len(body))
            if passwd != session.passwd:
                raise Refused(e.SESSION_EXPIRED)
            session.owner, session.timeout_ms = self.zxid, timeout_ms
            self._identify(session, [(b"ip", address)])
            return
        if command.owner != session.owner:
            raise Refused(e.SESSION_MOVED)
        if opcode == r.OP_AUTH:
            proved = decode_identities(body, 0, len(body))
            fresh = [one for one in proved if one not in session.identities]
            self._identify(session, [*session.identities, *fresh])
        elif opcode in (r.OP_CLOSE_SESSION, r.OP_EXPIRE):
            for path in sorted(p for p, node in self.nodes.items() if node.owner == command.session_id):
                self._remove(changed, path, expected)
            del self.sessions[command.session_id]
            self._identify(session, None)
        elif opcode == r.OP_MULTI:
            self._multi(changed, command, expected)
        else:
            expected.answer = self._one(changed, self._operation(opcode, body), session, expected)
        self._commit(changed)

    def _reap(self, changed: dict[bytes, Znode | None], path: bytes, expected: Expected) -> None:
        """Perform the leader's own deletion of a container or TTL znode, which is checked again at that time."""
        node = self.nodes.get(path)
        if node is None:
            raise Refused(e.NO_NODE)
        if node.children:
            raise Refused(e.NOT_EMPTY)
        if not node.is_reapable(self.time_ms):
            raise Refused(e.BAD_VERSION)
        self._remove(changed, path, expected)

    @staticmethod
    def _operation(opcode: int, body: bytes) -> r.MultiOp:
        if opcode in CREATES:
            create = r.decode_create(opcode, body, 0, len(body))
            return r.MultiOp(opcode, create.path, create.data, -1, create)
        if opcode == r.OP_SET_DATA:
            path, data, version = r.decode_set_data(body, 0, len(body))
            return r.MultiOp(opcode, path, data, version)
        if opcode == r.OP_SET_ACL:
            path, lines, version = r.decode_set_acl(body, 0, len(body))
            create = r.CreateRequest(opcode, path, None, lines or [], 0)
            return r.MultiOp(opcode, path, None, version, create)
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
                answers.append((e.OK, self._one(changed, op, self.sessions[command.session_id], expected)))
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

    def _one(self, changed: dict[bytes, Znode | None], op: r.MultiOp, session: SimSession, expected: Expected) -> Any:
        who = session.identities
        if op.opcode == r.OP_SET_ACL:
            return self._set_acl(changed, op, who)
        if op.create is not None:
            if op.opcode == r.OP_CREATE_TTL and op.create.flags not in (5, 6):
                # Clients never send it alone; in a multi it is an ordinary create since level 1.
                if self.level < CREATE_TTL_IN_MULTI:
                    raise Refused(e.BAD_ARGUMENTS)
                op = r.MultiOp(
                    r.OP_CREATE,
                    op.path,
                    op.data,
                    -1,
                    r.CreateRequest(r.OP_CREATE, op.path, op.data, op.create.acl, op.create.flags),
                )
            assert op.create is not None
            return self._create(changed, op.create, session, expected)
        if op.opcode == r.OP_DELETE:
            self._delete(changed, op.path, op.version, who, expected)
            return None
        node = self._find(changed, op.path)
        if node is None:
            raise Refused(e.NO_NODE)
        if not allows(node.acl, r.PERM_READ if op.opcode == r.OP_CHECK else r.PERM_WRITE, who):
            raise Refused(e.NO_AUTH)
        if op.version not in (-1, node.version):
            raise Refused(e.BAD_VERSION)
        if op.opcode == r.OP_CHECK:
            return None
        node = self._own(changed, op.path)
        node.data = op.data or b""
        node.version += 1
        node.mzxid = self.zxid
        node.mtime_ms = self.time_ms
        expected.events.append((r.EVENT_DATA_CHANGED, op.path, node.acl))
        return node.version

    @staticmethod
    def _resolve(lines: list[r.Acl] | None, who: list[Identity]) -> tuple[Line, ...]:
        """Return a request's access list with `auth` replaced by the session's identities."""
        resolved: dict[Line, None] = {}
        for line in lines or ():
            if line.scheme != b"auth":
                resolved[line.perms, line.scheme, line.id] = None
                continue
            proved = [one for one in who if one[0] == b"digest"]
            if not proved:
                raise Refused(e.INVALID_ACL)
            for scheme, name in proved:
                resolved[line.perms, scheme, name] = None
        if not resolved:
            raise Refused(e.INVALID_ACL)
        return tuple(resolved)

    def _set_acl(self, changed: dict[bytes, Znode | None], op: r.MultiOp, who: list[Identity]) -> int:
        assert op.create is not None
        acl = self._resolve(op.create.acl, who)
        node = self._find(changed, op.path)
        if node is None:
            raise Refused(e.NO_NODE)
        if not allows(node.acl, r.PERM_ADMIN, who):
            raise Refused(e.NO_AUTH)
        if op.version not in (-1, node.aversion):
            raise Refused(e.BAD_VERSION)
        node = self._own(changed, op.path)
        node.acl = acl
        node.aversion += 1
        return node.aversion

    def _create(
        self, changed: dict[bytes, Znode | None], create: r.CreateRequest, session: SimSession, expected: Expected
    ) -> bytes:
        acl = self._resolve(create.acl, session.identities)
        parent_path = parent_of(create.path)
        parent = self._find(changed, parent_path)
        if parent is None:
            raise Refused(e.NO_NODE)
        if not allows(parent.acl, r.PERM_CREATE, session.identities):
            raise Refused(e.NO_AUTH)
        path = create.path
        is_ttl = create.opcode == r.OP_CREATE_TTL
        if create.flags in (2, 3, 6):
            path += b"%010d" % parent.creates
        if self._find(changed, path) is not None:
            raise Refused(e.NODE_EXISTS)
        if parent.owner:
            raise Refused(e.NO_CHILDREN_FOR_EPHEMERALS)
        parent = self._own(changed, parent_path)
        parent.children[path.rpartition(b"/")[2]] = None
        parent.creates += 1
        parent.pzxid = self.zxid
        owner = session.session_id if create.flags in (1, 3) else 0
        node = changed[path] = Znode(create.data or b"", self.zxid, owner, acl, self.time_ms)
        node.is_container = create.flags == 4
        node.ttl_ms = create.ttl_ms if is_ttl else 0
        expected.events.append((r.EVENT_CREATED, path, acl))
        expected.events.append((r.EVENT_CHILDREN_CHANGED, parent_path, parent.acl))
        return path

    def _delete(
        self, changed: dict[bytes, Znode | None], path: bytes, version: int, who: list[Identity], expected: Expected
    ) -> None:
        parent = self._find(changed, parent_of(path))
        if parent is None:
            raise Refused(e.NO_NODE)
        if not allows(parent.acl, r.PERM_DELETE, who):
            raise Refused(e.NO_AUTH)
        node = self._find(changed, path)
        if node is None:
            raise Refused(e.NO_NODE)
        if version not in (-1, node.version):
            raise Refused(e.BAD_VERSION)
        if node.children:
            raise Refused(e.NOT_EMPTY)
        self._remove(changed, path, expected)

    def _remove(self, changed: dict[bytes, Znode | None], path: bytes, expected: Expected) -> None:
        node = self._find(changed, path)
        assert node is not None
        parent_path = parent_of(path)
        parent = self._own(changed, parent_path)
        del parent.children[path.rpartition(b"/")[2]]
        parent.pzxid = self.zxid
        changed[path] = None
        expected.events.append((r.EVENT_DELETED, path, node.acl))
        expected.events.append((r.EVENT_CHILDREN_CHANGED, parent_path, parent.acl))


def parent_of(path: bytes) -> bytes:
    """Return the path of the parent."""
    return path.rpartition(b"/")[0] or b"/"
