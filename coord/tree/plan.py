"""Planning: turns a request into changes, or into an error code. Planning itself changes nothing.

The order of the checks is ZooKeeper's, because a client sees which of several errors it gets. Planning reads a
TreeView. The parts of a multi are planned one after the other: on the tree itself if no part reads what another one
changes, otherwise over an Overlay, which shows the tree after the earlier parts. So a multi that fails has nothing to
undo: its overlay is dropped.
"""

from __future__ import annotations

from typing import Final

from coord.errors import (
    BAD_ARGUMENTS,
    BAD_VERSION,
    INVALID_ACL,
    NO_AUTH,
    NO_CHILDREN_FOR_EPHEMERALS,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OK,
    QUOTA_EXCEEDED,
)
from coord.tree.acl import OPEN, Identity, resolve
from coord.tree.datatree import SPECIAL_PATHS, DataTree, TreeView, is_reapable, size_of
from coord.tree.node import (
    KIND_CONTAINER,
    KIND_EPHEMERAL,
    KIND_PERSISTENT,
    KIND_TTL,
    ROOT,
    SLASH,
    CreateDelta,
    DeleteDelta,
    Delta,
    SetAclDelta,
    SetDataDelta,
    Znode,
    is_valid_name,
    is_valid_path,
    last_slash,
    next_version,
    parent_of,
)
from coord.tree.sessions import Session
from coord.wire.opcodes import (
    ANY_VERSION,
    CREATE_SEQUENTIAL_TTL,
    OP_CHECK,
    OP_CREATE_CONTAINER,
    OP_CREATE_TTL,
    OP_DELETE,
    OP_SET_DATA,
    PERM_ADMIN,
    PERM_CREATE,
    PERM_DELETE,
    PERM_READ,
    PERM_WRITE,
)
from coord.wire.values import Acl, CreateRequest, MultiOp

#: Create flags -> kind of znode.
_KIND: Final = (
    KIND_PERSISTENT,
    KIND_EPHEMERAL,
    KIND_PERSISTENT,
    KIND_EPHEMERAL,
    KIND_CONTAINER,
    KIND_TTL,
    KIND_TTL,
)
_SEQUENTIAL: Final = (False, False, True, True, False, False, True)
_SEQUENTIAL_FLAGS: Final = tuple(flags for flags, is_sequential in enumerate(_SEQUENTIAL) if is_sequential)

_SPECIAL: Final = frozenset(SPECIAL_PATHS)

#: ZooKeeper stores a TTL in 40 bits.
TTL_MAX_MS: Final = (1 << 40) - 1


#: Result of planning one operation: the change to make, or an error code; OK means no change (check).
Planned = Delta | int


def _kind_of(request: CreateRequest) -> int:
    """Return the kind of znode that a create requests, or -1 for invalid flags or an invalid TTL."""
    flags = request.flags
    if flags < 0 or flags > CREATE_SEQUENTIAL_TTL:
        return -1
    kind = _KIND[flags]
    if request.opcode == OP_CREATE_TTL:
        return kind if kind == KIND_TTL and 0 < request.ttl_ms <= TTL_MAX_MS else -1
    if kind == KIND_TTL:
        return -1
    # createContainer makes a container whatever the flags are; a sequential one if the flags have that bit.
    return KIND_CONTAINER if request.opcode == OP_CREATE_CONTAINER else kind


def plan_create(view: TreeView, session: Session, request: CreateRequest) -> Planned:
    """Plan a create, create2, createContainer or createTTL. The delta's path has the sequence number."""
    kind = _kind_of(request)
    path = request.path
    slash = last_slash(path)
    if kind < 0 or slash < 0 or 0 in path:
        return BAD_ARGUMENTS
    acl = resolve(request.acl, session.identities)
    if acl is None:
        return INVALID_ACL
    parent_path = path[:slash] or ROOT
    parent = view.find(parent_path)
    if parent is None:
        return NO_NODE
    if not parent.acl.allows(PERM_CREATE, session.identities):
        return NO_AUTH
    if _SEQUENTIAL[request.flags]:
        path = b"%s%010d" % (path, parent.creates)
    # The parent exists, so only the last name can be invalid, or a second slash before it: `//a` has the root as
    # parent.
    # The root itself has no name and exists already.
    if slash == 1 or (not is_valid_name(path, slash + 1) and path != ROOT):
        return BAD_ARGUMENTS
    if view.find(path) is not None:
        return NODE_EXISTS
    if parent.kind == KIND_EPHEMERAL:
        return NO_CHILDREN_FOR_EPHEMERALS
    if view.enforces_quotas and view.is_over_quota(path, 1, size_of(request.data)):
        return QUOTA_EXCEEDED
    owner = session.session_id if kind == KIND_EPHEMERAL else 0
    return CreateDelta(path, parent_path, request.data, acl, kind, owner, request.ttl_ms, parent.if_in_tree())


def plan_set_data(view: TreeView, session: Session, path: bytes, data: bytes | None, version: int) -> Planned:
    """Plan a setData."""
    node = view.find(path)
    if node is None:
        return _missing(path)
    if not node.acl.allows(PERM_WRITE, session.identities):
        return NO_AUTH
    if view.enforces_quotas and view.is_over_quota(path, 0, size_of(data) - view.size_at(path)):
        return QUOTA_EXCEEDED
    if version not in (ANY_VERSION, node.version):
        return BAD_VERSION
    return SetDataDelta(path, data, next_version(node.version), node.if_in_tree())


def plan_delete(view: TreeView, session: Session, path: bytes, version: int) -> Planned:
    """Plan a delete."""
    if not _is_deletable(path):
        return BAD_ARGUMENTS
    parent_path = parent_of(path)
    parent = view.find(parent_path)
    if parent is None:
        return NO_NODE
    if not parent.acl.allows(PERM_DELETE, session.identities):
        return NO_AUTH
    node = view.find(path)
    if node is None:
        return NO_NODE
    if version not in (ANY_VERSION, node.version):
        return BAD_VERSION
    if node.num_children:
        return NOT_EMPTY
    return DeleteDelta(path, parent_path, node.if_in_tree(), parent.if_in_tree())


def plan_check(view: TreeView, session: Session, path: bytes, version: int) -> Planned:
    """Plan a check, which is part of a multi."""
    node = view.find(path)
    if node is None:
        return _missing(path)
    if not node.acl.allows(PERM_READ, session.identities):
        return NO_AUTH
    return OK if version in (ANY_VERSION, node.version) else BAD_VERSION


def plan_set_acl(view: TreeView, session: Session, path: bytes, lines: list[Acl] | None, version: int) -> Planned:
    """Plan a setACL; `version` is that of the access list."""
    node = view.find(path)
    if node is None and not is_valid_path(path):
        return BAD_ARGUMENTS
    acl = resolve(lines, session.identities)
    if acl is None:
        return INVALID_ACL
    if node is None:
        return NO_NODE
    if not node.acl.allows(PERM_ADMIN, session.identities):
        return NO_AUTH
    if version not in (ANY_VERSION, node.aversion):
        return BAD_VERSION
    return SetAclDelta(path, acl, next_version(node.aversion))


def plan_delete_container(view: TreeView, identities: list[Identity] | None, path: bytes, time_ms: int) -> Planned:
    """Plan a deleteContainer by the leader itself (`identities` None) or by a client.

    In ZooKeeper any client can delete any empty znode by this operation, whatever its access list is. Here only
    znodes that the store may reap are deleted, and a client needs the permission to delete.
    """
    if not _is_deletable(path):
        return BAD_ARGUMENTS
    parent_path = parent_of(path)
    parent = view.find(parent_path)
    node = view.find(path)
    if parent is None or node is None:
        return NO_NODE
    if identities is not None and not parent.acl.allows(PERM_DELETE, identities):
        return NO_AUTH
    if node.num_children:
        return NOT_EMPTY
    if not is_reapable(node, time_ms):
        return BAD_VERSION
    return DeleteDelta(path, parent_path, node.if_in_tree(), parent.if_in_tree())


def _is_deletable(path: bytes) -> bool:
    # Search for a byte as a number: a bytes argument is tried as a number first, by way of an exception.
    return SLASH in path and 0 not in path and path not in _SPECIAL


def _missing(path: bytes) -> int:
    """Return the error for a missing znode. The path is checked only here, because existing paths are valid."""
    return NO_NODE if is_valid_path(path) else BAD_ARGUMENTS


# --- multi -----------------------------------------------------------------------------------------------------------

#: Marks a deleted znode in an overlay.
_DELETED: Final = Znode(None, OPEN, KIND_PERSISTENT, 0, 0)


class Overlay(TreeView):
    """The tree after some planned changes.

    Holds its own copy of every changed znode, with the fields that planning reads: version, access list and its
    version, kind, number of children and of creates. For a znode whose data is replaced it holds only the delta,
    because most such znodes are not read again.
    """

    def __init__(self, tree: DataTree) -> None:
        self._tree = tree
        self._nodes = tree.nodes
        self._changed: dict[bytes, Znode | SetDataDelta] = {}
        self.enforces_quotas = tree.enforces_quotas
        # Used only while quotas are enforced: sizes of created or written znodes, and the growth below each quota.
        self._sizes: dict[bytes, int] = {}
        self._added: dict[bytes, tuple[int, int]] = {}

    def find(self, path: bytes) -> Znode | None:
        """Return the znode after the planned changes, or None."""
        known = self._changed.get(path)
        if known is None:
            return self._nodes.get(path)
        if isinstance(known, SetDataDelta):
            return self._own(path)
        return known if known is not _DELETED else None

    def size_at(self, path: bytes) -> int:
        """Return the bytes of data of a znode after the planned changes."""
        known = self._sizes.get(path, -1)
        return known if known >= 0 else self._tree.size_at(path)

    def is_over_quota(self, path: bytes, count: int, size: int) -> bool:
        """Return True if a hard limit would be exceeded. The check counts the growth by earlier changes, but not the
        space that they freed."""
        if self._tree.is_full and (count > 0 or size > 0):
            return True
        limited = self._tree.quotas.limited(path)
        if not limited:
            return False
        added_count, added_size = self._added.get(limited, (0, 0))
        grown_count = added_count + count if count > 0 else 0
        grown_size = added_size + size if size > 0 else 0
        return self._tree.is_over_limit(limited, grown_count, grown_size)

    def _charge(self, delta: Delta) -> None:
        path = delta.path
        count = 0
        size = 0
        if isinstance(delta, SetDataDelta):
            size = size_of(delta.data) - self.size_at(path)
            self._sizes[path] = size_of(delta.data)
        elif isinstance(delta, CreateDelta):
            count = 1
            size = self._sizes[path] = size_of(delta.data)
        elif isinstance(delta, DeleteDelta):
            count = -1
            size = -self.size_at(path)
        limited = self._tree.quotas.limited(path)
        if limited:
            added_count, added_size = self._added.get(limited, (0, 0))
            self._added[limited] = (added_count + count, added_size + size)

    def record(self, delta: Delta) -> None:
        """Add a planned change to the overlay."""
        if self.enforces_quotas:
            self._charge(delta)
        path = delta.path
        if isinstance(delta, SetDataDelta):
            if delta.node is not None:
                # The znode is the tree's own, so no earlier change has touched it.
                self._changed[path] = delta
            else:
                self._own(path).version = delta.version
        elif isinstance(delta, CreateDelta):
            self._changed[path] = Znode(None, delta.acl, delta.kind, delta.ephemeral_owner, delta.ttl_ms)
            extra = self._own(delta.parent).ensure_extra()
            extra.num_children += 1
            extra.creates += 1
        elif isinstance(delta, DeleteDelta):
            self._changed[path] = _DELETED
            self._own(delta.parent).ensure_extra().num_children -= 1
        elif isinstance(delta, SetAclDelta):
            node = self._own(path)
            node.acl = delta.acl
            node.ensure_extra().aversion = delta.aversion

    def _own(self, path: bytes) -> Znode:
        known = self._changed.get(path)
        if isinstance(known, Znode):
            return known
        node = self._nodes[path]
        own = node.planning_copy(known.version if known is not None else node.version)
        self._changed[path] = own
        return own


class PlannedMulti:
    """A planned multi. If `err` is OK, there is one delta per part (None for a check).

    Otherwise part `failed` was rejected with `err`, and no change is made.
    """

    def __init__(self, deltas: list[Delta | None], err: int, failed: int) -> None:
        assert (err == OK) == (failed < 0), f"error {err}, and part {failed} was rejected"
        self.deltas = deltas
        self.err = err
        self.failed = failed


def plan_multi(tree: DataTree, session: Session, ops: list[MultiOp]) -> PlannedMulti:
    """Plan all parts, or stop at the first part that is rejected."""
    overlay = None if not tree.enforces_quotas and _are_apart(ops) else Overlay(tree)
    view: TreeView = tree if overlay is None else overlay
    deltas: list[Delta | None] = []
    last = len(ops) - 1
    for i, op in enumerate(ops):
        planned = _plan_part(view, session, op)
        if not isinstance(planned, int):
            deltas.append(planned)
            if overlay is not None and i < last:
                overlay.record(planned)
        elif planned == OK:
            deltas.append(None)
        else:
            return PlannedMulti([], planned, i)
    assert len(deltas) == len(ops), f"{len(deltas)} changes for {len(ops)} parts"
    return PlannedMulti(deltas, OK, -1)


def _are_apart(ops: list[MultiOp]) -> bool:
    """Return True if no two parts name the same znode, and no part creates or deletes a child of a named znode.

    Then no part reads what another part changes: of a parent, a create reads only the access list and the kind, unless
    it is sequential, and a delete only the access list. The exception are enforced hard quotas: they count the growth
    by the parts before.
    """
    paths: set[bytes] = set()
    parents: set[bytes] = set()
    parent = b""
    for op in ops:
        path = op.path
        paths.add(path)
        create = op.create
        if create is not None:
            if create.flags in _SEQUENTIAL_FLAGS:
                return False
        elif op.opcode != OP_DELETE:
            continue
        above = path[: last_slash(path)] or ROOT
        if above != parent:
            parent = above
            parents.add(above)
    return len(paths) == len(ops) and paths.isdisjoint(parents)


def _plan_part(view: TreeView, session: Session, op: MultiOp) -> Planned:
    opcode = op.opcode
    if opcode == OP_SET_DATA:
        return plan_set_data(view, session, op.path, op.data, op.version)
    if opcode == OP_CHECK:
        return plan_check(view, session, op.path, op.version)
    if opcode == OP_DELETE:
        return plan_delete(view, session, op.path, op.version)
    assert op.create is not None, opcode
    return plan_create(view, session, op.create)
