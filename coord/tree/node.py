"""One znode, and the changes that the tree knows how to make to znodes."""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c
from mypy_extensions import i32, i64, mypyc_attr, u8

from coord.tree.acl import AccessList
from coord.wire.jute import IS_COMPILED

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be

#: czxid mzxid ctime mtime version cversion aversion ephemeral_owner data_length num_children pzxid
STAT: Final = struct.Struct("!qqqqiiiqiiq")
_pack_stat: Final = STAT.pack

KIND_PERSISTENT: Final = 0
KIND_EPHEMERAL: Final = 1
KIND_CONTAINER: Final = 2
KIND_TTL: Final = 3

I32_MAX: Final = 0x7FFFFFFF

#: The largest prime below 2**32: brings a longer number into 32 bits without dropping any of its bits.
_PRIME_32: Final = 0xFFFFFFFB


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
class Node:
    """A znode. Its path is its key in the tree.

    There may be millions, so this has the fewest bytes that will do: compiled, the numbers are native and an object is
    128 bytes. The Stat as the wire has it is made anew whenever it is asked for (`stat`).

    `creates` counts the children ever created, which is the next sequence number; it does not wrap. `children` holds
    the full paths of the children (the tree's own keys, so a name costs no memory twice) in the order of creation;
    None for a leaf that never had any.

    `mark` is this znode's part of the tree's digest: a checksum over Stat, path, kind, access list and data as they
    were when `remark` was called; the tree knows for which znodes that is out of date.
    """

    __slots__ = (
        "_mark",
        "_tenure",
        "acl",
        "aversion",
        "children",
        "creates",
        "ctime",
        "czxid",
        "data",
        "kind",
        "mtime",
        "mzxid",
        "num_children",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes | None, acl: AccessList, kind: int, ephemeral_owner: int, ttl_ms: int) -> None:
        self.data: bytes | None = data
        self.acl: AccessList = acl
        self.children: dict[bytes, None] | None = None
        self.czxid: i64 = 0
        self.mzxid: i64 = 0
        self.pzxid: i64 = 0
        self.ctime: i64 = 0
        self.mtime: i64 = 0
        self.creates: i64 = 0
        #: Of an ephemeral znode the session that owns it, of a TTL znode its milliseconds, else 0.
        self._tenure: i64 = ttl_ms if kind == KIND_TTL else ephemeral_owner
        self.version: i32 = 0
        self.aversion: i32 = 0
        self.num_children: i32 = 0
        self._mark: i32 = 0
        self.kind: u8 = kind

    @property
    def ephemeral_owner(self) -> int:
        """The session with which the znode ends; 0 if it does not."""
        return self._tenure if self.kind != KIND_TTL else 0

    @property
    def ttl_ms(self) -> int:
        """How long a TTL znode may be left alone; 0 for all others."""
        return self._tenure if self.kind == KIND_TTL else 0

    @property
    def mark(self) -> int:
        """This znode's part of the tree's digest, as `remark` left it; 0 before."""
        mark: int = self._mark
        return mark & 0xFFFFFFFF

    def stat(self) -> bytes:
        """The Stat as the wire has it."""
        data = self.data
        # As ZooKeeper counts for the wire: every create and every delete of a child.
        creates: int = self.creates
        children: int = self.num_children
        cversion = 2 * creates - children
        if cversion > I32_MAX:
            cversion = wrap_i32(cversion)
        owner = self._tenure if self.kind != KIND_TTL else 0
        if IS_COMPILED:
            out = BytesWriter()
            write_i64_be(out, self.czxid)
            write_i64_be(out, self.mzxid)
            write_i64_be(out, self.ctime)
            write_i64_be(out, self.mtime)
            write_i32_be(out, self.version)
            write_i32_be(out, cversion)
            write_i32_be(out, self.aversion)
            write_i64_be(out, owner)
            write_i32_be(out, len(data) if data is not None else 0)
            write_i32_be(out, self.num_children)
            write_i64_be(out, self.pzxid)
            return out.getvalue()
        packed: bytes = _pack_stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            cversion,
            self.aversion,
            owner,
            len(data) if data is not None else 0,
            self.num_children,
            self.pzxid,
        )
        return packed

    def take_stat(self, stat: bytes, creates: int) -> bool:
        """Become the znode of this Stat, which `creates` belongs to; False if both contradict what is known of it."""
        if IS_COMPILED:
            self.czxid, self.mzxid = read_i64_be(stat, 0), read_i64_be(stat, 8)
            self.ctime, self.mtime = read_i64_be(stat, 16), read_i64_be(stat, 24)
            self.version, self.aversion = read_i32_be(stat, 32), read_i32_be(stat, 40)
            self.num_children, self.pzxid = read_i32_be(stat, 56), read_i64_be(stat, 60)
        else:
            fields = STAT.unpack(stat)
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version = fields[:5]
            self.aversion = fields[6]
            self.num_children, self.pzxid = fields[9:]
        self.creates = creates
        return self.stat() == stat

    def checksum(self, path: bytes) -> int:
        """What `mark` is when it is up to date with everything else."""
        kind: int = self.kind
        data = self.data
        stamp: int = crc32c(path, (self.ttl_ms * 4 + kind) % _PRIME_32) ^ self.acl.stamp
        # A null and an empty data are different answers to a client.
        stamp = crc32c(data, stamp) if data is not None else ~stamp & 0xFFFFFFFF
        creates: int = self.creates
        children: int = self.num_children
        if 2 * creates - children > I32_MAX:
            # What the Stat no longer shows.
            stamp ^= creates % _PRIME_32
        found: int = crc32c(self.stat(), stamp)
        return found

    def remark(self, path: bytes) -> int:
        """Bring `mark` up to date with everything else; returns it."""
        mark = self.checksum(path)
        self._mark = mark if mark <= I32_MAX else mark - 0x100000000
        return mark


@mypyc_attr(acyclic=True)
class Delta:
    """One planned change of one znode. Planning made sure that it can be applied."""

    def __init__(self, path: bytes) -> None:
        self.path = path


@mypyc_attr(acyclic=True)
class CreateDelta(Delta):
    """A new znode; its parent exists and may have children."""

    def __init__(
        self, path: bytes, data: bytes | None, acl: AccessList, kind: int, ephemeral_owner: int, ttl_ms: int
    ) -> None:
        self.path = path
        self.data = data
        self.acl = acl
        self.kind = kind
        self.ephemeral_owner = ephemeral_owner
        self.ttl_ms = ttl_ms


@mypyc_attr(acyclic=True)
class DeleteDelta(Delta):
    """An existing znode without children goes."""


@mypyc_attr(acyclic=True)
class SetDataDelta(Delta):
    """New data; `version` is the one the znode has afterwards."""

    def __init__(self, path: bytes, data: bytes | None, version: int) -> None:
        self.path = path
        self.data = data
        self.version = version


@mypyc_attr(acyclic=True)
class SetAclDelta(Delta):
    """A new access list; `aversion` is the one the znode has afterwards."""

    def __init__(self, path: bytes, acl: AccessList, aversion: int) -> None:
        self.path = path
        self.acl = acl
        self.aversion = aversion
