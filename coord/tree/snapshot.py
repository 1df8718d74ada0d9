"""Snapshots: the whole state as a stream of checked chunks.

    snapshot = chunk*
    chunk    = kind:u8 length:u32 crc:u32 payload            (crc: CRC32C over kind, length and payload)

    H header   magic:"RKSNAP" version:u16 last_zxid:i64 time_ms:i64              first, once
    L level    level:u32                                        after the header, once; missing for level 0
    A lists    count:u32 (length:u32 access list)*                                numbered from 0 over all chunks
    S sessions count:u32 (length:u32 session)*
    N znodes   count:u32 (length:u32 znode)*                                      parents before their children
    T trailer  digest:u64 last_zxid:i64 time_ms:i64 lists:u64 sessions:u64 znodes:u64         last, once

    access list = its jute encoding
    session     = id:i64 owner:i64 timeout_ms:i32 passwd:buffer count:u32 (scheme:ustring id:ustring)*
    znode       = list:u32 kind:u8 ttl_ms:i64 creates:i64 stat:68 bytes path:ustring data:buffer

All numbers are big-endian. A chunk has about CHUNK_BYTES, more only if a single record is larger, so neither side needs
memory for more than one chunk besides the state. A reader of version N rejects other versions, and a feature level
(`coord.tree.levels`) that its build does not support.

Writing only reads the state, so a forked child can do it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from coord.errors import CorruptRecord, RemoteProtocolError, StateDamaged, UnsupportedLevel
from coord.tree.acl import AccessList
from coord.tree.datatree import DataTree
from coord.tree.levels import SUPPORTED
from coord.tree.node import KIND_TTL, ROOT, STAT, Znode, parent_of
from coord.tree.sessions import Session, SessionTable
from coord.wire.codec import read_acl
from coord.wire.jute import I32, I64, IS_COMPILED, buffer, read_buffer, read_string, short

if IS_COMPILED:
    from librt.strings import read_i32_be, read_i64_be

VERSION: Final = 1
CHUNK_BYTES: Final = 256 << 10
#: Longest chunk: the largest record is one znode.
CHUNK_BYTES_MAX: Final = 64 << 20

_MAGIC: Final = b"RKSNAP"
_CHUNK: Final = struct.Struct("!BII")
_CHECKED: Final = struct.Struct("!BI")
_HEADER: Final = struct.Struct("!6sHqq")
_TRAILER: Final = struct.Struct("!QqqQQQ")
_U32: Final = struct.Struct("!I")
_SESSION: Final = struct.Struct("!qqi")
_NODE: Final = struct.Struct("!IBqq68s")
_NODE_FIXED: Final = struct.Struct("!IBqq")
_NODE_FIXED_BYTES: Final = _NODE_FIXED.size
#: Offset of the ephemeral owner in a Stat.
_OWNER_OFFSET: Final = 44

_KIND_HEADER: Final = ord("H")
_KIND_LEVEL: Final = ord("L")
_KIND_LISTS: Final = ord("A")
_KIND_SESSIONS: Final = ord("S")
_KIND_NODES: Final = ord("N")
_KIND_TRAILER: Final = ord("T")


# --- writing ---------------------------------------------------------------------------------------------------------


def write_snapshot(
    tree: DataTree, sessions: SessionTable, last_zxid: int, time_ms: int, digest: int, level: int = 0
) -> Iterator[bytes]:
    """Yield the state's chunks in order. The state must not change meanwhile.

    Every znode is checked against its part of the digest. Raise StateDamaged.
    """
    assert level >= 0, f"feature level {level}"
    assert 0 <= digest < 1 << 64, f"digest {digest:#x}"
    yield _chunk(_KIND_HEADER, _HEADER.pack(_MAGIC, VERSION, last_zxid, time_ms))
    if level:
        # Without this chunk, builds without feature levels can read the snapshot while level 0 is in force.
        yield _chunk(_KIND_LEVEL, _U32.pack(level))
    lists = list(tree.acls.values())
    # By identity: equal lists are one object, see DataTree.share.
    numbers = {id(acl): number for number, acl in enumerate(lists)}
    yield from _chunks(_KIND_LISTS, _lists(lists))
    yield from _chunks(_KIND_SESSIONS, _sessions(sessions))
    yield from _chunks(_KIND_NODES, _nodes(tree, numbers))
    trailer = _TRAILER.pack(digest, last_zxid, time_ms, len(lists), len(sessions), len(tree.nodes))
    yield _chunk(_KIND_TRAILER, trailer)


# Functions, not generator expressions: mypyc turns those into whole lists.


def _lists(lists: list[AccessList]) -> Iterator[bytes]:
    for acl in lists:
        yield acl.encoded


def _sessions(sessions: SessionTable) -> Iterator[bytes]:
    for session in sessions.sessions.values():
        yield _encode_session(session)


def _nodes(tree: DataTree, numbers: dict[int, int]) -> Iterator[bytes]:
    expected = tree.digest_sum()
    total = 0
    for path, node in tree.nodes.items():
        stat = node.stat()
        if node.checksum(path, stat) != node.digest_part:
            raise StateDamaged(f"the znode {path.decode(errors='replace')!r}")
        total += node.digest_part
        head: bytes = _NODE.pack(numbers[id(node.acl)], node.kind, node.ttl_ms, node.creates, stat)
        yield head + buffer(path) + buffer(node.data)
    if total != expected:
        raise StateDamaged(f"the digest of {len(tree.nodes)} znodes, {expected:#x}, which add up to {total:#x},")


def _chunk(kind: int, payload: bytes) -> bytes:
    assert len(payload) <= CHUNK_BYTES_MAX, f"no reader accepts a chunk of {len(payload)} bytes"
    crc = crc32c(payload, crc32c(_CHECKED.pack(kind, len(payload))))
    return _CHUNK.pack(kind, len(payload), crc) + payload


def _chunks(kind: int, records: Iterator[bytes]) -> Iterator[bytes]:
    """Pack records into chunks of about CHUNK_BYTES."""
    parts: list[bytes] = []
    count = 0
    size = 0
    for record in records:
        parts.append(_U32.pack(len(record)))
        parts.append(record)
        count += 1
        size += len(record)
        if size >= CHUNK_BYTES:
            yield _chunk(kind, _U32.pack(count) + b"".join(parts))
            parts = []
            count = size = 0
    if parts:
        yield _chunk(kind, _U32.pack(count) + b"".join(parts))


def _encode_session(session: Session) -> bytes:
    parts = [_SESSION.pack(session.session_id, session.owner, session.timeout_ms), buffer(session.passwd)]
    parts.append(_U32.pack(len(session.identities)))
    for scheme, identity in session.identities:
        parts.append(buffer(scheme))
        parts.append(buffer(identity))
    return b"".join(parts)


# --- reading ---------------------------------------------------------------------------------------------------------


class SnapshotDecoder:
    """Builds a state from a snapshot in pieces of any size.

    `feed` each piece, with other work in between if needed, then pass the decoder to StateMachine.of_snapshot. Any
    damage raises CorruptRecord with the offset of the chunk; the decoder is then unusable.
    """

    def __init__(self, name: str = "snapshot", supported: int = SUPPORTED) -> None:
        """`supported` is the highest feature level that the snapshot may have."""
        assert supported >= 0, f"feature level {supported}"
        self.tree = DataTree(empty=True)
        self.sessions = SessionTable()
        self.supported = supported
        self.level: int = 0
        self.last_zxid: int = 0
        self.applied_time_ms: int = 0
        self._name = name
        self._buffer = bytearray()
        #: Offset in the snapshot at which the buffer begins.
        self._offset: int = 0
        self._lists: list[AccessList] = []
        self._has_header: bool = False
        #: Number of znodes some of whose children are still missing.
        self._incomplete: int = 0
        #: The parent of the last znode: siblings often follow each other.
        self._parent_path: bytes = b""
        self._parent: Znode | None = None
        self._digest: int = -1

    def feed(self, piece: bytes) -> None:
        """Process the next bytes. Raise CorruptRecord, UnsupportedLevel."""
        self._buffer += piece
        head = _CHUNK.size
        at = 0
        while len(self._buffer) - at >= head:
            kind, length, crc = _CHUNK.unpack_from(self._buffer, at)
            if length > CHUNK_BYTES_MAX:
                raise self._corrupt(f"at most {CHUNK_BYTES_MAX} bytes", length)
            if len(self._buffer) - at - head < length:
                break
            payload = bytes(self._buffer[at + head : at + head + length])
            actual = crc32c(payload, crc32c(_CHECKED.pack(kind, length)))
            if actual != crc:
                raise self._corrupt(f"checksum {crc:#010x}", f"{actual:#010x}")
            self._take(kind, payload)
            at += head + length
            self._offset += head + length
        del self._buffer[:at]
        assert len(self._buffer) < head + CHUNK_BYTES_MAX, f"{len(self._buffer)} bytes are buffered"

    def check_end(self) -> None:
        """Raise CorruptRecord unless the snapshot is complete and every znode has its children."""
        if self._digest < 0 or self._buffer:
            raise self._corrupt("a trailer", "the end" if self._digest < 0 else "bytes after it")
        assert self._has_header, "a trailer was accepted before a header"
        if self._incomplete:
            raise self._corrupt("all children of every znode", f"{self._incomplete} znodes with missing children")

    def check_digest(self, digest: int) -> None:
        """Raise CorruptRecord unless the restored state has the digest of the written state."""
        assert self._digest >= 0, "the trailer was not read"
        if digest != self._digest:
            raise self._corrupt(f"digest {self._digest:#x}", f"{digest:#x}")

    def _corrupt(self, expected: object, actual: object) -> CorruptRecord:
        return CorruptRecord(self._name, self._offset, expected, actual)

    def _take(self, kind: int, payload: bytes) -> None:
        if self._has_header != (kind != _KIND_HEADER) or self._digest >= 0:
            raise self._corrupt("header first and trailer last", f"a chunk of kind {kind}")
        try:
            if kind == _KIND_HEADER:
                self._take_header(payload)
            elif kind == _KIND_LEVEL:
                self._take_level(payload)
            elif kind == _KIND_TRAILER:
                self._take_trailer(payload)
            elif kind in (_KIND_LISTS, _KIND_SESSIONS, _KIND_NODES):
                self._take_records(kind, payload)
            else:
                raise self._corrupt("a kind of chunk", kind)
        except (RemoteProtocolError, struct.error, ValueError, OverflowError) as error:
            raise self._corrupt("a readable record", error) from error

    def _take_header(self, payload: bytes) -> None:
        magic, version, last_zxid, time_ms = _HEADER.unpack(payload)
        if magic != _MAGIC or version != VERSION:
            raise self._corrupt(f"a snapshot of version {VERSION}", f"{magic!r} version {version}")
        self.last_zxid = last_zxid
        self.applied_time_ms = time_ms
        self._has_header = True

    def _take_level(self, payload: bytes) -> None:
        # The level must come before any record that a later level may encode differently.
        if self.level or self._lists or len(self.sessions) or self.tree.nodes:
            raise self._corrupt("the level once, after the header", "a chunk with the level")
        level = _U32.unpack_from(payload)[0]
        if level > self.supported:
            raise UnsupportedLevel(f"{self._name} holds a state of", level, self.supported)
        self.level = level

    def _take_trailer(self, payload: bytes) -> None:
        digest, last_zxid, time_ms, lists, sessions, nodes = _TRAILER.unpack(payload)
        counted = (self.last_zxid, self.applied_time_ms, len(self._lists), len(self.sessions), len(self.tree.nodes))
        written = (last_zxid, time_ms, lists, sessions, nodes)
        if counted != written:
            raise self._corrupt(written, counted)
        self._digest = digest

    def _take_records(self, kind: int, payload: bytes) -> None:
        count = _U32.unpack_from(payload)[0]
        at = 4
        size = len(payload)
        for _ in range(count):
            start = at + 4
            if start > size:
                raise short(at, size)
            length: int = read_i32_be(payload, at) if IS_COMPILED else I32.unpack_from(payload, at)[0]
            at = start + length
            if length < 0 or at > size:
                raise short(start, size)
            if kind == _KIND_NODES:
                self._take_node(payload, start, at)
            elif kind == _KIND_SESSIONS:
                self._take_session(payload, start, at)
            else:
                acl = AccessList(read_acl(payload, start, at)[0] or [])
                self._lists.append(self.tree.acls.setdefault(acl.encoded, acl))

    def _take_session(self, payload: bytes, at: int, end: int) -> None:
        session_id, owner, timeout_ms = _SESSION.unpack_from(payload, at)
        passwd, at = read_string(payload, at + _SESSION.size, end)
        count = I32.unpack_from(payload, at)[0]
        at += I32.size
        identities: list[tuple[bytes, bytes]] = []
        for _ in range(count):
            scheme, at = read_string(payload, at, end)
            identity, at = read_string(payload, at, end)
            identities.append((scheme, identity))
        self.sessions.add(Session(session_id, passwd, timeout_ms, owner, identities))

    def _take_node(self, payload: bytes, at: int, end: int) -> None:
        stat_at = at + _NODE_FIXED_BYTES
        if stat_at + STAT.size > end:
            raise short(at, end)
        if IS_COMPILED:
            acl_number, kind = read_i32_be(payload, at), payload[at + 4]
            ttl_ms, creates = read_i64_be(payload, at + 5), read_i64_be(payload, at + 13)
            owner = read_i64_be(payload, stat_at + _OWNER_OFFSET)
        else:
            acl_number, kind, ttl_ms, creates = _NODE_FIXED.unpack_from(payload, at)
            owner = I64.unpack_from(payload, stat_at + _OWNER_OFFSET)[0]
        path, at = read_string(payload, stat_at + STAT.size, end)
        data, _ = read_buffer(payload, at, end)
        if not 0 <= acl_number < len(self._lists) or kind > KIND_TTL:
            raise self._corrupt("a known access list and kind", (acl_number, kind))
        tree = self.tree
        node = Znode(data, tree.share(self._lists[acl_number]), kind, owner, ttl_ms)
        if not node.take_stat(payload, stat_at, creates) or node.ttl_ms != ttl_ms:
            raise self._corrupt(f"the Stat of {path!r}", "another")
        parent = self._parent_of(path) if path != ROOT else None
        if not tree.insert(path, node, parent, payload[stat_at : stat_at + STAT.size]):
            raise self._corrupt("each znode once", path)
        if node.extra is not None and node.extra.num_children:
            self._incomplete += 1
        if parent is not None:
            extra = parent.ensure_extra()
            missing = extra.num_children - (len(extra.children) if extra.children is not None else 0)
            if missing < 0:
                raise self._corrupt(f"{extra.num_children} children of the parent of {path!r}", "one more")
            if missing == 0:
                self._incomplete -= 1

    def _parent_of(self, path: bytes) -> Znode:
        """Return the parent of `path`, which has been read already."""
        assert path != ROOT, "the root has no parent"
        parent_path = parent_of(path)
        if parent_path == self._parent_path and self._parent is not None:
            return self._parent
        parent = self.tree.nodes.get(parent_path)
        if parent is None:
            raise self._corrupt("a znode below its parent", path)
        self._parent_path = parent_path
        self._parent = parent
        return parent
