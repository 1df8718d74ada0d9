"""One znode, and the changes that the tree knows how to make to znodes."""

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
#: Under a name of this module's own: compiled, one that is imported is looked up anew for every call.
_crc: Final = crc32c

KIND_PERSISTENT: Final = 0
KIND_EPHEMERAL: Final = 1
KIND_CONTAINER: Final = 2
KIND_TTL: Final = 3

I32_MAX: Final = 0x7FFFFFFF
#: Up to so many children ever created the Stat tells their number.
_CREATES_SHOWN: Final = I32_MAX // 2

#: The largest prime below 2**32: brings a longer number into 32 bits without dropping any of its bits.
_PRIME_32: Final = 0xFFFFFFFB

ROOT: Final = b"/"
SLASH: Final = ord("/")

_plain_name: Final = re.compile(rb"[\x20-\x2e\x30-\x7e]+").fullmatch
_DOT: Final = ord(".")

# Controls, private use, surrogates, specials; and everything beyond the basic plane, which ZooKeeper sees as
# surrogates.
_refused: Final = re.compile(r"[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]").search


# --- paths: the rules of ZooKeeper's PathUtils, over UTF-8 bytes ------------------------------------------------------


def last_slash(path: bytes) -> int:
    """Return where the last slash of `path` is: what is in front of it is the parent. -1 without one."""
    if not IS_COMPILED:
        return path.rfind(b"/")
    at: i64 = len(path) - 1
    while at >= 0 and path[at] != SLASH:
        at -= 1
    return at


def _is_plain(path: bytes, at: int) -> bool:
    """Return True if `path[at:]` is printable ASCII that does not begin with a dot. Decided without a copy."""
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
    return _refused(text) is None


def is_valid_path(path: bytes) -> bool:
    """Return True if `path` is absolute and all its parts are valid names; the root is."""
    if path == ROOT:
        return True
    if not path.startswith(ROOT):
        return False
    return all(is_valid_name(name) for name in path[1:].split(b"/"))


def parent_of(path: bytes) -> bytes:
    """The path of the parent; `path` is valid and not the root."""
    return path[: last_slash(path)] or ROOT


# --- numbers ---------------------------------------------------------------------------------------------------------


def wrap_i32(value: int) -> int:
    """`value` as a Java int has it after overflow."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def next_version(version: int) -> int:
    """The version after `version`.

    Wraps to the negative numbers like ZooKeeper's, but leaves out -1: a compare-and-set that named it would match any
    version and fence nothing.
    """
    if version == -2:
        return 0
    return version + 1 if version != I32_MAX else -I32_MAX - 1


@mypyc_attr(acyclic=True)
class More:
    """What most znodes do without, since they are persistent leaves with the access list they were made with.

    `creates` counts the children ever created, which is the next sequence number; it does not wrap. `children` holds
    the full paths of the children (the tree's own keys, so a name costs no memory twice) in the order of creation, each
    at the place that its `Znode.slot` says, and None where one was deleted; `DataTree` closes the ranks.
    """

    __slots__ = ("aversion", "children", "creates", "num_children", "pzxid", "tenure")

    def __init__(self, pzxid: int) -> None:
        self.children: list[bytes | None] | None = None
        self.creates: i64 = 0
        self.pzxid: i64 = pzxid
        #: Of an ephemeral znode the session that owns it, of a TTL znode its milliseconds, else 0.
        self.tenure: i64 = 0
        self.num_children: i32 = 0
        self.aversion: i32 = 0


@mypyc_attr(acyclic=True)
class Znode:
    """A znode. Its path is its key in the tree.

    There may be millions, so this has the fewest bytes that will do: compiled, the numbers are native and an object is
    96 bytes; what few znodes need is in another object, `more`. The Stat as the wire has it is made anew whenever it is
    asked for (`stat`).

    `slot` is this znode's place among its parent's `children`; -1 before it has one, as planning's sketches never do.

    `mark` is this znode's part of the tree's digest: a checksum over Stat, path, kind, access list and data as they
    were when `remark` was called; `is_unmarked` says that it is out of date and the tree has this znode on its list.
    """

    __slots__ = (
        "_mark",
        "acl",
        "ctime",
        "czxid",
        "data",
        "is_unmarked",
        "kind",
        "more",
        "mtime",
        "mzxid",
        "slot",
        "version",
    )

    def __init__(self, data: bytes | None, acl: AccessList, kind: int, ephemeral_owner: int, ttl_ms: int) -> None:
        self.data: bytes | None = data
        self.acl: AccessList = acl
        self.more: More | None = None
        self.czxid: i64 = 0
        self.mzxid: i64 = 0
        self.ctime: i64 = 0
        self.mtime: i64 = 0
        self.version: i32 = 0
        self._mark: i32 = 0
        self.slot: i32 = -1
        self.kind: u8 = kind
        self.is_unmarked: bool = False
        tenure = ttl_ms if kind == KIND_TTL else ephemeral_owner
        if tenure:
            self.grown().tenure = tenure

    def grown(self) -> More:
        """`more`, which is there from now on."""
        more = self.more
        if more is None:
            more = self.more = More(self.czxid)
        return more

    def if_planted(self) -> Znode | None:
        """This znode if it is one of the tree's, None if it is a sketch."""
        return self if self.slot >= 0 else None

    def sketch(self, version: int) -> Znode:
        """A znode like this one as far as planning looks at it, at that version."""
        drawn = Znode(None, self.acl, self.kind, self.ephemeral_owner, self.ttl_ms)
        drawn.version = version
        more = self.more
        if more is not None:
            copied = drawn.grown()
            copied.creates = more.creates
            copied.num_children = more.num_children
            copied.aversion = more.aversion
        return drawn

    @property
    def ephemeral_owner(self) -> int:
        """The session with which the znode ends; 0 if it does not."""
        more = self.more
        return more.tenure if more is not None and self.kind != KIND_TTL else 0

    @property
    def ttl_ms(self) -> int:
        """How long a TTL znode may be left alone; 0 for all others."""
        more = self.more
        return more.tenure if more is not None and self.kind == KIND_TTL else 0

    def children(self) -> list[bytes]:
        """The paths of its children in the order of creation."""
        more = self.more
        if more is None or more.children is None:
            return []
        return [child for child in more.children if child is not None]

    @property
    def num_children(self) -> int:
        """Return how many children it has."""
        more = self.more
        return more.num_children if more is not None else 0

    @property
    def creates(self) -> int:
        """Return how many children were ever created."""
        more = self.more
        return more.creates if more is not None else 0

    @property
    def pzxid(self) -> int:
        """The zxid of the last change of its children, or of its own creation."""
        more = self.more
        return more.pzxid if more is not None else self.czxid

    @property
    def aversion(self) -> int:
        """The version of its access list."""
        more = self.more
        return more.aversion if more is not None else 0

    @property
    def mark(self) -> int:
        """This znode's part of the tree's digest, as `remark` left it; 0 before."""
        mark: int = self._mark
        return mark & 0xFFFFFFFF

    def stat(self) -> bytes:
        """The Stat as the wire has it."""
        if IS_COMPILED:
            out = BytesWriter()
            self._write_stat(out)
            return out.getvalue()
        data = self.data
        length = len(data) if data is not None else 0
        more = self.more
        if more is None:
            leaf: bytes = _pack_stat(
                self.czxid, self.mzxid, self.ctime, self.mtime, self.version, 0, 0, 0, length, 0, self.czxid
            )
            return leaf
        creates: int = more.creates
        children: int = more.num_children
        packed: bytes = _pack_stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            wrap_i32(2 * creates - children),
            more.aversion,
            more.tenure if self.kind != KIND_TTL else 0,
            length,
            children,
            more.pzxid,
        )
        return packed

    def _write_stat(self, out: BytesWriter) -> None:
        """`stat`, compiled."""
        creates: i64 = 0
        children: i32 = 0
        pzxid: i64 = self.czxid
        owner: i64 = 0
        aversion: i32 = 0
        more = self.more
        if more is not None:
            creates = more.creates
            children = more.num_children
            pzxid = more.pzxid
            aversion = more.aversion
            if self.kind != KIND_TTL:
                owner = more.tenure
        data = self.data
        length: i64 = 0
        if data is not None:
            length = len(data)
        # As ZooKeeper counts for the wire: every create and every delete of a child.
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
        """Become the znode of the Stat at `data[at:]`, which `creates` belongs to.

        False if both contradict each other, or what is known of the znode: its data and whose it is.
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
        if aversion or children or creates or pzxid != self.czxid or self.more is not None:
            more = self.grown()
            more.aversion = aversion
            more.num_children = children
            more.creates = creates
            more.pzxid = pzxid
        # Not in 32 bits: an int beside an i32 would be taken for one.
        number: int = children
        counted = 2 * creates - number
        if counted > I32_MAX:
            counted = wrap_i32(counted)
        own = self.data
        return (
            cversion == counted
            and length == (len(own) if own is not None else 0)
            and owner == (self.ephemeral_owner if self.more is not None else 0)
        )

    def checksum(self, path: bytes, stat: bytes) -> int:
        """What `mark` is when it is up to date with everything else; `stat` is this znode's."""
        kind: int = self.kind
        data = self.data
        more = self.more
        seed = kind
        if kind == KIND_TTL:
            seed = (self.ttl_ms * 4 + kind) % _PRIME_32
        stamp: int = _crc(path, seed)
        stamp ^= self.acl.stamp
        hidden = 0
        if more is not None:
            creates: int = more.creates
            children: int = more.num_children
            if 2 * creates - children > I32_MAX:
                # What the Stat no longer shows.
                hidden = creates % _PRIME_32
        if data is not None and not hidden:
            # As below, in one step.
            return _crc(data + stat, stamp)
        # A null and an empty data are different answers to a client.
        stamp = _crc(data, stamp) if data is not None else ~stamp & 0xFFFFFFFF
        return _crc(stat, stamp ^ hidden)

    def _checksum_now(self, path: bytes) -> int:
        """`checksum` with the Stat as it is; mostly in one step, compiled."""
        data = self.data
        more = self.more
        if (
            not IS_COMPILED
            or data is None
            or len(data) > NATIVE_BYTES_MAX
            or self.kind == KIND_TTL
            or (more is not None and more.creates > _CREATES_SHOWN)
        ):
            return self.checksum(path, self.stat())
        out = BytesWriter()
        out.write(path)
        out.write(data)
        self._write_stat(out)
        # Going on from a CRC with the stamp on it is going on from the CRC alone where the next four bytes have the
        # stamp on them.
        at: i64 = len(path)
        stamp: i64 = self.acl.stamp
        for _ in range(4):
            out[at] = u8(i64(out[at]) ^ (stamp & 0xFF))
            stamp >>= 8
            at += 1
        return _crc(out.getvalue(), self.kind)

    def remark(self, path: bytes, stat: bytes | None = None) -> int:
        """Bring `mark` up to date with everything else; returns it. `stat` is this znode's, where it is at hand."""
        mark = self._checksum_now(path) if stat is None else self.checksum(path, stat)
        self._mark = mark if mark <= I32_MAX else mark - 0x100000000
        return mark


@mypyc_attr(acyclic=True)
class Delta:
    """One planned change of one znode. Planning made sure that it can be applied.

    A delta may bring the tree's own znode along, which planning has found, so that it is not looked up again.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path


@mypyc_attr(acyclic=True)
class CreateDelta(Delta):
    """A new znode; `parent` exists and may have children."""

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
    """An existing znode without children, a child of `parent`, goes."""

    def __init__(self, path: bytes, parent: bytes, node: Znode | None = None, parent_node: Znode | None = None) -> None:
        self.path = path
        self.parent = parent
        self.node = node
        self.parent_node = parent_node


@mypyc_attr(acyclic=True)
class SetDataDelta(Delta):
    """New data; `version` is the one the znode has afterwards."""

    def __init__(self, path: bytes, data: bytes | None, version: int, node: Znode | None = None) -> None:
        self.path = path
        self.data = data
        self.version = version
        self.node = node


@mypyc_attr(acyclic=True)
class SetAclDelta(Delta):
    """A new access list; `aversion` is the one the znode has afterwards."""

    def __init__(self, path: bytes, acl: AccessList, aversion: int) -> None:
        self.path = path
        self.acl = acl
        self.aversion = aversion
