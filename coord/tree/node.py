"""One znode, the rules of paths, and the changes that the tree can apply to znodes."""

from __future__ import annotations

import re
import struct
from typing import Final

from crc32c import crc32c
from mypy_extensions import i32, i64, mypyc_attr, u8

from coord.tree.acl import AccessList
from coord.wire.jute import IS_COMPILED, NATIVE_BYTES_MAX

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be

#: czxid mzxid ctime mtime version cversion aversion ephemeral_owner data_length num_children pzxid
STAT: Final = struct.Struct("!qqqqiiiqiiq")
_pack_stat: Final = STAT.pack
#: A name in this module: compiled code looks up an imported name anew for every call.
_crc: Final = crc32c

KIND_PERSISTENT: Final = 0
KIND_EPHEMERAL: Final = 1
KIND_CONTAINER: Final = 2
KIND_TTL: Final = 3

I32_MAX: Final = 0x7FFFFFFF
#: Highest number of creates of children up to which the Stat of a znode determines that number.
_CREATES_SHOWN: Final = I32_MAX // 2

#: The largest prime below 2**32: reduces a longer number to 32 bits so that every bit has an effect.
_PRIME_32: Final = 0xFFFFFFFB

ROOT: Final = b"/"
SLASH: Final = ord("/")

_plain_name: Final = re.compile(rb"[\x20-\x2e\x30-\x7e]+").fullmatch
_DOT: Final = ord(".")

# Control characters, private use, surrogates and specials. Also everything beyond the basic plane, because ZooKeeper
# sees such a character as two surrogates.
_rejected: Final = re.compile(r"[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]").search


# --- paths: the rules of ZooKeeper's PathUtils, over UTF-8 bytes ------------------------------------------------------


def last_slash(path: bytes) -> int:
    """Return the position of the last slash of `path`, before which the parent's path ends; -1 without a slash."""
    if not IS_COMPILED:
        return path.rfind(b"/")
    at: i64 = len(path) - 1
    while at >= 0 and path[at] != SLASH:
        at -= 1
    return at


def _is_plain(path: bytes, at: int) -> bool:
    """Return True if `path[at:]` is printable ASCII and does not begin with a dot. Does not copy."""
    if not IS_COMPILED:
        return _plain_name(path, at) is not None and path[at] != _DOT
    start: i64 = at
    end: i64 = len(path)
    if start >= end or path[start] == _DOT:
        return False
    while start < end:
        byte = path[start]
        if byte < 0x20 or byte > 0x7E or byte == SLASH:
            return False
        start += 1
    return True


def is_valid_name(path: bytes, at: int = 0) -> bool:
    """Return True if `path[at:]` can be the last part of a path."""
    if _is_plain(path, at):
        return True
    name = path[at:]
    if name.isascii():
        return name not in (b".", b"..") and _plain_name(name) is not None
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    return _rejected(text) is None


def is_valid_path(path: bytes) -> bool:
    """Return True if `path` is absolute and all its parts are valid names. The root is valid."""
    if path == ROOT:
        return True
    if not path.startswith(ROOT):
        return False
    return all(is_valid_name(name) for name in path[1:].split(b"/"))


def parent_of(path: bytes) -> bytes:
    """Return the path of the parent. `path` must be valid and not the root."""
    return path[: last_slash(path)] or ROOT


# --- numbers ---------------------------------------------------------------------------------------------------------


def wrap_i32(value: int) -> int:
    """Return `value` as a Java int after overflow."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def next_version(version: int) -> int:
    """Return the version after `version`.

    Wraps to negative numbers like ZooKeeper's, but skips -1: a compare-and-set with version -1 would match any
    version and fence nothing.
    """
    if version == -2:
        return 0
    return version + 1 if version != I32_MAX else -I32_MAX - 1


@mypyc_attr(acyclic=True)
class ZnodeExtra:
    """Fields that most znodes do not need, because they are persistent leaves with their first access list.

    `creates` counts the children ever created, which is the next sequence number; it does not wrap. `children` has
    the full paths of the children in the order of creation (the same objects as the tree's keys, so that no name is
    stored twice). Each child is at its `Znode.slot`; a deleted child leaves None, and `DataTree` compacts the list.
    """

    __slots__ = ("above", "aversion", "below", "children", "creates", "num_children", "owner_or_ttl", "pzxid")

    def __init__(self, pzxid: int) -> None:
        self.children: list[bytes | None] | None = None
        self.creates: i64 = 0
        self.pzxid: i64 = pzxid
        #: For an ephemeral znode its session, for a TTL znode its TTL in ms, else 0.
        self.owner_or_ttl: i64 = 0
        self.num_children: i32 = 0
        self.aversion: i32 = 0
        #: Number of znodes below this one.
        self.below: i64 = 0
        #: The parent of a znode that has had children in the tree; None for the root.
        self.above: Znode | None = None


@mypyc_attr(acyclic=True)
class Znode:
    """A znode. Its path is its key in the tree.

    There may be millions, so an object is as small as possible: compiled, the numbers are native and an object takes
    96 bytes; fields that few znodes need are in another object, `extra`. The wire form of the Stat is built on demand
    (`stat`).

    `slot` is this znode's index in its parent's `children`; -1 before it is in a tree, as for planning copies.

    `digest_part` is this znode's part of the tree's digest: a checksum over Stat, path, kind, access list and data, as
    of the last `update_digest`. If `is_digest_stale`, it is out of date, and the tree has this znode on its list.
    """

    __slots__ = (
        "_digest_part",
        "acl",
        "ctime",
        "czxid",
        "data",
        "extra",
        "is_digest_stale",
        "kind",
        "mtime",
        "mzxid",
        "slot",
        "version",
    )

    def __init__(self, data: bytes | None, acl: AccessList, kind: int, ephemeral_owner: int, ttl_ms: int) -> None:
        self.data: bytes | None = data
        self.acl: AccessList = acl
        self.extra: ZnodeExtra | None = None
        self.czxid: i64 = 0
        self.mzxid: i64 = 0
        self.ctime: i64 = 0
        self.mtime: i64 = 0
        self.version: i32 = 0
        self._digest_part: i32 = 0
        self.slot: i32 = -1
        self.kind: u8 = kind
        self.is_digest_stale: bool = False
        owner_or_ttl = ttl_ms if kind == KIND_TTL else ephemeral_owner
        if owner_or_ttl:
            self.ensure_extra().owner_or_ttl = owner_or_ttl

    def ensure_extra(self) -> ZnodeExtra:
        """Return `extra`; create it if it is missing."""
        extra = self.extra
        if extra is None:
            extra = self.extra = ZnodeExtra(self.czxid)
        return extra

    def if_in_tree(self) -> Znode | None:
        """Return this znode if it is in a tree, None if it is a planning copy."""
        return self if self.slot >= 0 else None

    def planning_copy(self, version: int) -> Znode:
        """Return a copy with the fields that planning reads, and with this version."""
        made = Znode(None, self.acl, self.kind, self.ephemeral_owner, self.ttl_ms)
        made.version = version
        extra = self.extra
        if extra is not None:
            copied = made.ensure_extra()
            copied.creates = extra.creates
            copied.num_children = extra.num_children
            copied.aversion = extra.aversion
        return made

    @property
    def ephemeral_owner(self) -> int:
        """The session that owns an ephemeral znode; 0 for other znodes."""
        extra = self.extra
        return extra.owner_or_ttl if extra is not None and self.kind != KIND_TTL else 0

    @property
    def ttl_ms(self) -> int:
        """Time without a write after which a TTL znode may be deleted; 0 for other znodes."""
        extra = self.extra
        return extra.owner_or_ttl if extra is not None and self.kind == KIND_TTL else 0

    def children(self) -> list[bytes]:
        """Return the paths of the children in the order of creation."""
        extra = self.extra
        if extra is None or extra.children is None:
            return []
        return [child for child in extra.children if child is not None]

    @property
    def num_children(self) -> int:
        """The number of children."""
        extra = self.extra
        return extra.num_children if extra is not None else 0

    @property
    def creates(self) -> int:
        """The number of children ever created."""
        extra = self.extra
        return extra.creates if extra is not None else 0

    @property
    def pzxid(self) -> int:
        """The zxid of the last creation or deletion of a child, or of this znode's own creation."""
        extra = self.extra
        return extra.pzxid if extra is not None else self.czxid

    @property
    def aversion(self) -> int:
        """The version of the access list."""
        extra = self.extra
        return extra.aversion if extra is not None else 0

    @property
    def digest_part(self) -> int:
        """This znode's part of the tree's digest as of the last `update_digest`; 0 before the first."""
        part: int = self._digest_part
        return part & 0xFFFFFFFF

    def stat(self) -> bytes:
        """Return the wire form of the Stat."""
        if IS_COMPILED:
            out = BytesWriter()
            self.write_stat(out)
            return out.getvalue()
        data = self.data
        length = len(data) if data is not None else 0
        extra = self.extra
        if extra is None:
            leaf: bytes = _pack_stat(
                self.czxid, self.mzxid, self.ctime, self.mtime, self.version, 0, 0, 0, length, 0, self.czxid
            )
            return leaf
        creates: int = extra.creates
        children: int = extra.num_children
        packed: bytes = _pack_stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            wrap_i32(2 * creates - children),
            extra.aversion,
            extra.owner_or_ttl if self.kind != KIND_TTL else 0,
            length,
            children,
            extra.pzxid,
        )
        return packed

    def write_stat(self, out: BytesWriter) -> None:
        """Write the wire form of the Stat. Compiled builds only."""
        creates: i64 = 0
        children: i32 = 0
        pzxid: i64 = self.czxid
        owner: i64 = 0
        aversion: i32 = 0
        extra = self.extra
        if extra is not None:
            creates = extra.creates
            children = extra.num_children
            pzxid = extra.pzxid
            aversion = extra.aversion
            if self.kind != KIND_TTL:
                owner = extra.owner_or_ttl
        data = self.data
        length: i64 = 0
        if data is not None:
            length = len(data)
        # The wire's cversion counts every create and every delete of a child, as in ZooKeeper.
        cversion: i64 = 2 * creates - i64(children)
        if cversion > I32_MAX:
            cversion = wrap_i32(cversion)
        write_i64_be(out, self.czxid)
        write_i64_be(out, self.mzxid)
        write_i64_be(out, self.ctime)
        write_i64_be(out, self.mtime)
        write_i32_be(out, self.version)
        write_i32_be(out, i32(cversion))
        write_i32_be(out, aversion)
        write_i64_be(out, owner)
        write_i32_be(out, i32(length))
        write_i32_be(out, children)
        write_i64_be(out, pzxid)

    def take_stat(self, data: bytes, at: int, creates: int) -> bool:
        """Set the fields of the Stat at `data[at:]`, with the number `creates`.

        Return False if they contradict each other, or the znode's data or owner.
        """
        if IS_COMPILED:
            self.czxid, self.mzxid = read_i64_be(data, at), read_i64_be(data, at + 8)
            self.ctime, self.mtime = read_i64_be(data, at + 16), read_i64_be(data, at + 24)
            self.version, cversion, aversion = (
                read_i32_be(data, at + 32),
                read_i32_be(data, at + 36),
                read_i32_be(data, at + 40),
            )
            owner, length = read_i64_be(data, at + 44), read_i32_be(data, at + 52)
            children, pzxid = read_i32_be(data, at + 56), read_i64_be(data, at + 60)
        else:
            fields = STAT.unpack_from(data, at)
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version = fields[:5]
            cversion, aversion, owner, length, children, pzxid = fields[5:]
        if aversion or children or creates or pzxid != self.czxid or self.extra is not None:
            extra = self.ensure_extra()
            extra.aversion = aversion
            extra.num_children = children
            extra.creates = creates
            extra.pzxid = pzxid
        # Not 32 bits: mypyc would convert an int next to an i32.
        number: int = children
        counted = 2 * creates - number
        if counted > I32_MAX:
            counted = wrap_i32(counted)
        own = self.data
        return (
            cversion == counted
            and length == (len(own) if own is not None else 0)
            and owner == (self.ephemeral_owner if self.extra is not None else 0)
        )

    def checksum(self, path: bytes, stat: bytes) -> int:
        """Return the up-to-date value of `digest_part`; `stat` is this znode's Stat."""
        kind: int = self.kind
        data = self.data
        extra = self.extra
        seed = kind
        if kind == KIND_TTL:
            seed = (self.ttl_ms * 4 + kind) % _PRIME_32
        stamp: int = _crc(path, seed)
        stamp ^= self.acl.stamp
        hidden = 0
        if extra is not None:
            creates: int = extra.creates
            children: int = extra.num_children
            if 2 * creates - children > I32_MAX:
                # The Stat does not determine the number of creates any more.
                hidden = creates % _PRIME_32
        if data is not None and not hidden:
            # The same as below, in one step.
            return _crc(data + stat, stamp)
        # Null data and empty data are different replies to a client.
        stamp = _crc(data, stamp) if data is not None else ~stamp & 0xFFFFFFFF
        return _crc(stat, stamp ^ hidden)

    def _checksum_now(self, path: bytes) -> int:
        """Return `checksum` with the present Stat; in compiled builds usually in one step."""
        data = self.data
        extra = self.extra
        if (
            not IS_COMPILED
            or data is None
            or len(data) > NATIVE_BYTES_MAX
            or self.kind == KIND_TTL
            or (extra is not None and extra.creates > _CREATES_SHOWN)
        ):
            return self.checksum(path, self.stat())
        out = BytesWriter()
        out.write(path)
        out.write(data)
        self.write_stat(out)
        # Continuing a CRC that was XORed with the stamp equals continuing the plain CRC over data whose next four bytes
        # are XORed with the stamp.
        at: i64 = len(path)
        stamp: i64 = self.acl.stamp
        for _ in range(4):
            out[at] = u8(i64(out[at]) ^ (stamp & 0xFF))
            stamp >>= 8
            at += 1
        return _crc(out.getvalue(), self.kind)

    def update_digest(self, path: bytes, stat: bytes | None = None) -> int:
        """Update `digest_part` and return it. `stat` is this znode's Stat, if the caller has it."""
        part = self._checksum_now(path) if stat is None else self.checksum(path, stat)
        self._digest_part = part if part <= I32_MAX else part - 0x100000000
        return part


@mypyc_attr(acyclic=True)
class Delta:
    """One planned change of one znode. Planning has checked that it can be applied.

    A delta may carry the znode that planning has found in the tree. Then applying need not look it up again.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path


@mypyc_attr(acyclic=True)
class CreateDelta(Delta):
    """Create a znode; `parent` exists and may have children."""

    def __init__(
        self,
        path: bytes,
        parent: bytes,
        data: bytes | None,
        acl: AccessList,
        kind: int,
        ephemeral_owner: int,
        ttl_ms: int,
        parent_node: Znode | None = None,
    ) -> None:
        self.path = path
        self.parent = parent
        self.parent_node = parent_node
        self.data = data
        self.acl = acl
        self.kind = kind
        self.ephemeral_owner = ephemeral_owner
        self.ttl_ms = ttl_ms


@mypyc_attr(acyclic=True)
class DeleteDelta(Delta):
    """Delete an existing znode without children, a child of `parent`."""

    def __init__(self, path: bytes, parent: bytes, node: Znode | None = None, parent_node: Znode | None = None) -> None:
        self.path = path
        self.parent = parent
        self.node = node
        self.parent_node = parent_node


@mypyc_attr(acyclic=True)
class SetDataDelta(Delta):
    """Replace a znode's data; `version` is its new version."""

    def __init__(self, path: bytes, data: bytes | None, version: int, node: Znode | None = None) -> None:
        self.path = path
        self.data = data
        self.version = version
        self.node = node


@mypyc_attr(acyclic=True)
class SetAclDelta(Delta):
    """Replace a znode's access list; `aversion` is the list's new version."""

    def __init__(self, path: bytes, acl: AccessList, aversion: int) -> None:
        self.path = path
        self.acl = acl
        self.aversion = aversion
