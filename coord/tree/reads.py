"""Reads and operations on watches, answered by one server from its own tree, without the log.

Each function returns `(error code, body of the reply)` and raises RemoteProtocolError for a malformed request;
`begin_watches` is an exception. As in ZooKeeper, exists always sets its watch, and other reads set theirs if they
succeed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from coord.errors import (
    BAD_ARGUMENTS,
    MARSHALLING_ERROR,
    NO_AUTH,
    NO_NODE,
    NO_WATCHER,
    OK,
    QUOTA_EXCEEDED,
    THROTTLED_OP,
    UNIMPLEMENTED,
    QuotaExceeded,
    RemoteProtocolError,
)
from coord.tree.acl import user_of
from coord.tree.command import decode_path_watch
from coord.tree.datatree import DataTree
from coord.tree.node import ROOT, Znode
from coord.tree.sessions import Session
from coord.tree.watches import WatchTable
from coord.wire.codec import decode_path, decode_path_version, decode_set_watches, encode_who_am_i_reply
from coord.wire.jute import I32, IS_COMPILED, NATIVE_BYTES_MAX, NULL, buffer, i32, read_buffer, strings
from coord.wire.multi import decode_multi
from coord.wire.opcodes import (
    EVENT_CHILDREN_CHANGED,
    EVENT_CREATED,
    EVENT_DATA_CHANGED,
    EVENT_DELETED,
    OP_ADD_WATCH,
    OP_CHECK_WATCHES,
    OP_ERROR,
    OP_EXISTS,
    OP_GET_ACL,
    OP_GET_ALL_CHILDREN_NUMBER,
    OP_GET_CHILDREN,
    OP_GET_CHILDREN2,
    OP_GET_DATA,
    OP_GET_EPHEMERALS,
    OP_MULTI_READ,
    OP_REMOVE_WATCHES,
    OP_SYNC,
    OP_WHO_AM_I,
    PERM_ADMIN,
    PERM_READ,
    WATCH_PERSISTENT,
    WATCH_PERSISTENT_RECURSIVE,
    WATCHER_CHILDREN,
    WATCHER_PERSISTENT_RECURSIVE,
)
from coord.wire.values import WatchSets

if IS_COMPILED:
    from librt.strings import BytesWriter, write_i32_be

Answer = tuple[int, bytes]

#: Bytes of values and listings in the answer to a multiRead, unless its first part is longer. One frame can name many
#: large znodes, and other clients wait while they are copied. ZooKeeper's own clients accept no longer answer.
MULTI_READ_BYTES_MAX: Final = 1 << 20
_pack_i32: Final = I32.pack
_OK_HEADER: Final = (i32(OP_GET_DATA) + b"\0" + i32(OK), i32(OP_GET_CHILDREN) + b"\0" + i32(OK))
_MULTI_END: Final = i32(OP_ERROR) + b"\1" + i32(-1)


def _found(tree: DataTree, path: bytes) -> Znode | None:
    """Return the znode at `path`, or None. As in ZooKeeper, the empty path is read as the root."""
    node = tree.nodes.get(path)
    return node if node is not None or path else tree.nodes[ROOT]


def get_data(tree: DataTree, path: bytes, session: Session) -> Answer:
    """Perform getData."""
    node = tree.nodes.get(path) or _found(tree, path)
    if node is None:
        return NO_NODE, b""
    acl = node.acl
    if not acl.world & PERM_READ and not acl.allows(PERM_READ, session.identities):
        return NO_AUTH, b""
    data = node.data
    if data is None:
        return OK, NULL + node.stat()
    if IS_COMPILED and len(data) <= NATIVE_BYTES_MAX:
        out = BytesWriter()
        write_i32_be(out, len(data))
        out.write(data)
        out.write(node.stat())
        return OK, out.getvalue()
    return OK, _pack_i32(len(data)) + data + node.stat()


def get_children(tree: DataTree, path: bytes, session: Session, with_stat: bool) -> Answer:
    """Perform getChildren or getChildren2."""
    node = _found(tree, path)
    if node is None:
        return NO_NODE, b""
    if not node.acl.allows(PERM_READ, session.identities):
        return NO_AUTH, b""
    listing = tree.listing(path or ROOT, node)
    return OK, listing + node.stat() if with_stat else listing


def exists(tree: DataTree, path: bytes, session: Session) -> Answer:
    """Perform exists, which needs the permission READ since ZooKeeper 3.9."""
    if 0 in path:
        return BAD_ARGUMENTS, b""
    node = _found(tree, path)
    if node is None:
        return NO_NODE, b""
    return (OK, node.stat()) if node.acl.allows(PERM_READ, session.identities) else (NO_AUTH, b"")


def get_acl(tree: DataTree, path: bytes, session: Session) -> Answer:
    """Perform getACL. Digests are masked for sessions with READ but not ADMIN permission."""
    node = _found(tree, path)
    if node is None:
        return NO_NODE, b""
    acl = node.acl
    if not acl.allows(PERM_READ | PERM_ADMIN, session.identities):
        return NO_AUTH, b""
    encoded = acl.encoded if acl.allows(PERM_ADMIN, session.identities) else acl.masked()
    return OK, encoded + node.stat()


def get_ephemerals(tree: DataTree, prefix: bytes, session: Session) -> Answer:
    """Perform getEphemerals: the session's ephemeral znodes that begin with `prefix`, sorted; a blank prefix matches
    all."""
    own = tree.ephemerals_of(session.session_id)
    if prefix.strip() in (b"", ROOT):
        return OK, strings(own)
    first = bisect_left(own, prefix)
    after = first
    while after < len(own) and own[after].startswith(prefix):
        after += 1
    return OK, strings(own[first:after])


def get_all_children_number(tree: DataTree, path: bytes, session: Session) -> Answer:
    """Perform getAllChildrenNumber: the number of znodes below `path`."""
    node = _found(tree, path)
    if node is None:
        return NO_NODE, b""
    if not node.acl.allows(PERM_READ, session.identities):
        return NO_AUTH, b""
    return OK, i32(tree.count_below(path or ROOT))


def multi_read(tree: DataTree, body: bytes, at: int, end: int, session: Session) -> Answer:
    """Perform multiRead: getData and getChildren; errors are parts of the reply.

    The first part that does not fit into MULTI_READ_BYTES_MAX, and all parts after it, get the error ThrottledOp, and
    the client requests them again. The first part of a request is always read, so every request makes progress.
    """
    parts: list[bytes] = []
    left = MULTI_READ_BYTES_MAX
    for op in decode_multi(body, at, end):
        if parts and op.opcode == OP_GET_DATA and _value_bytes(tree, op.path) > left:
            left = 0
        if left <= 0 and op.opcode in (OP_GET_DATA, OP_GET_CHILDREN):
            err, reply = THROTTLED_OP, b""
            header = b""
        elif op.opcode == OP_GET_DATA:
            err, reply = get_data(tree, op.path, session)
            header = _OK_HEADER[0]
        elif op.opcode == OP_GET_CHILDREN:
            err, reply = get_children(tree, op.path, session, with_stat=False)
            header = _OK_HEADER[1]
        else:
            raise RemoteProtocolError(f"operation {op.opcode} is not allowed in a multiRead")
        if err:
            code = i32(err)
            header, reply = i32(OP_ERROR) + b"\0" + code, code
        left -= len(reply)
        parts.append(header)
        parts.append(reply)
    parts.append(_MULTI_END)
    return OK, b"".join(parts)


def _value_bytes(tree: DataTree, path: bytes) -> int:
    """Return the length of a znode's value, 0 for an unknown path."""
    node = tree.nodes.get(path)
    return 0 if node is None or node.data is None else len(node.data)


def who_am_i(session: Session) -> Answer:
    """Perform whoAmI: the session's identities, without secrets."""
    return OK, encode_who_am_i_reply([(identity[0], user_of(identity)) for identity in session.identities])


# --- watches ---------------------------------------------------------------------------------------------------------


def _with_watch(
    tree: DataTree, opcode: int, body: bytes, at: int, end: int, session: Session, watches: WatchTable
) -> Answer:
    """Perform a read that may set a one-shot watch."""
    path, watch = decode_path_watch(body, at, end)
    if watch and not watches.has_room(session.session_id):
        return QUOTA_EXCEEDED, b""
    if opcode == OP_GET_DATA:
        answer = get_data(tree, path, session)
    elif opcode == OP_EXISTS:
        answer = exists(tree, path, session)
    else:
        answer = get_children(tree, path, session, with_stat=opcode == OP_GET_CHILDREN2)
    if watch:
        err = answer[0]
        if err == OK or (err == NO_NODE and opcode == OP_EXISTS):
            if opcode in (OP_GET_DATA, OP_EXISTS):
                watches.watch_data(path or ROOT, session.session_id)
            else:
                watches.watch_children(path or ROOT, session.session_id)
    return answer


def add_watch(path: bytes, mode: int, session: Session, watches: WatchTable) -> Answer:
    """Perform addWatch."""
    if not watches.has_room(session.session_id):
        return QUOTA_EXCEEDED, b""
    if mode == WATCH_PERSISTENT:
        watches.watch_persistent(path, session.session_id)
    elif mode == WATCH_PERSISTENT_RECURSIVE:
        watches.watch_recursive(path, session.session_id)
    else:
        return MARSHALLING_ERROR, b""
    # The reply is an ErrorResponse with the code OK.
    return OK, i32(OK)


def _check_or_remove(opcode: int, path: bytes, kind: int, session: Session, watches: WatchTable) -> Answer:
    if not WATCHER_CHILDREN <= kind <= WATCHER_PERSISTENT_RECURSIVE:
        return MARSHALLING_ERROR, b""
    if opcode == OP_CHECK_WATCHES:
        there = watches.has(path, session.session_id, kind)
    else:
        there = watches.remove(path, session.session_id, kind)
    return (OK if there else NO_WATCHER), b""


#: Places of the kinds of watches in `WatchRestore`, and the event of each kind that a client has missed.
_DATA, _EXIST, _CHILD, _PERSISTENT, _RECURSIVE = range(5)
_MISSED: Final = (EVENT_DATA_CHANGED, EVENT_CREATED, EVENT_CHILDREN_CHANGED)


class WatchRestore:
    """A setWatches or setWatches2 under way. Restores a reconnected client's watches in parts, and reports the events
    that the client has missed. A change between two parts is either reported as missed, or fires the watch."""

    def __init__(self, sets: WatchSets) -> None:
        self._since = sets.relative_zxid
        self._kinds = (sets.data, sets.exist, sets.child, sets.persistent, sets.recursive)
        self._kind = 0
        self._at = 0
        self._missed: dict[tuple[int, bytes], None] = {}
        #: Watches that are not restored yet.
        self.left = sum([len(paths) for paths in self._kinds])

    def step(self, tree: DataTree, session: Session, watches: WatchTable, most: int) -> list[tuple[int, bytes]]:
        """Restore at most `most` more watches; return (event type, path) of the events that the client has missed. Each
        event is returned once."""
        missed: list[tuple[int, bytes]] = []
        while self.left and most > 0:
            paths = self._kinds[self._kind]
            if self._at == len(paths):
                self._kind, self._at = self._kind + 1, 0
                continue
            path = paths[self._at]
            self._at += 1
            self.left -= 1
            most -= 1
            event = self._restore(tree, path, session, watches)
            if event and (event, path) not in self._missed:
                self._missed[event, path] = None
                missed.append((event, path))
        return missed

    def _restore(self, tree: DataTree, path: bytes, session: Session, watches: WatchTable) -> int:
        """Set one watch, or return the type of the event that the client has missed. Return 0 if there is none."""
        kind = self._kind
        if kind == _PERSISTENT:
            watches.watch_persistent(path, session.session_id)
            return 0
        if kind == _RECURSIVE:
            watches.watch_recursive(path, session.session_id)
            return 0
        node = _found(tree, path)
        if node is None:
            if kind != _EXIST:
                return EVENT_DELETED
            watches.watch_data(path, session.session_id)
            return 0
        if kind == _DATA and node.mzxid <= self._since:
            watches.watch_data(path, session.session_id)
            return 0
        if kind == _CHILD and node.pzxid <= self._since:
            watches.watch_children(path, session.session_id)
            return 0
        return _MISSED[kind] if node.acl.allows(PERM_READ, session.identities) else 0


def begin_watches(
    body: bytes, at: int, end: int, session: Session, watches: WatchTable, *, second: bool
) -> WatchRestore:
    """Begin setWatches or setWatches2; their events have the zxid -1, and precede the empty reply.

    Raise QuotaExceeded above the limit of watches per session.
    """
    restore = WatchRestore(decode_set_watches(body, at, end, second=second))
    if not watches.has_room(session.session_id, restore.left):
        raise QuotaExceeded
    return restore


# --- all of them -----------------------------------------------------------------------------------------------------


def answer_read(
    tree: DataTree, opcode: int, body: bytes, at: int, end: int, session: Session, watches: WatchTable
) -> Answer:
    """Answer any read except setWatches. The record is `body[at:end]`. Return UNIMPLEMENTED for other opcodes."""
    if opcode in (OP_GET_DATA, OP_EXISTS, OP_GET_CHILDREN, OP_GET_CHILDREN2):
        return _with_watch(tree, opcode, body, at, end, session, watches)
    if opcode == OP_MULTI_READ:
        return multi_read(tree, body, at, end, session)
    if opcode == OP_ADD_WATCH:
        path, mode = decode_path_version(body, at, end)
        return add_watch(path, mode, session, watches)
    if opcode in (OP_CHECK_WATCHES, OP_REMOVE_WATCHES):
        path, kind = decode_path_version(body, at, end)
        return _check_or_remove(opcode, path, kind, session, watches)
    if opcode == OP_GET_ACL:
        return get_acl(tree, decode_path(body, at, end), session)
    if opcode == OP_GET_ALL_CHILDREN_NUMBER:
        return get_all_children_number(tree, decode_path(body, at, end), session)
    if opcode == OP_GET_EPHEMERALS:
        return get_ephemerals(tree, read_buffer(body, at, end)[0] or b"", session)
    if opcode == OP_WHO_AM_I:
        return who_am_i(session)
    if opcode == OP_SYNC:
        # Return the path, whether the znode exists or not; the node has already waited for the read index.
        return OK, buffer(read_buffer(body, at, end)[0])
    return UNIMPLEMENTED, b""
