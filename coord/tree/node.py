"""One znode, and the changes that the tree knows how to make to znodes."""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c
from mypy_extensions import mypyc_attr

from coord.tree.acl import AccessList
from coord.wire.jute import IS_COMPILED

if IS_COMPILED:
    from librt.strings import BytesWriter, write_i32_be, write_i64_be

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

#: A Stat that only the constructor's caller has not filled in yet.
_NO_STAT: Final = bytes(STAT.size)


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

    `creates` counts the children ever created, which is the next sequence number; it does not wrap. `children` holds
    the full paths of the children (the tree's own keys, so a name costs no memory twice) in the order of creation;
    None for a leaf that never had any.

    Derived, and rebuilt by `refresh` after every change: `stat` (the Stat as the wire has it) and `mark` (this znode's
    part of the tree's digest). `stamp` is the checksum of what the Stat does not show, `salt` the part of it that only
    a change of the access list changes.
    """

    def __init__(self, data: bytes | None, acl: AccessList, kind: int, ephemeral_owner: int, ttl_ms: int) -> None:
        self.data: bytes | None = data
        self.acl: AccessList = acl
        self.kind: int = kind
        self.ephemeral_owner: int = ephemeral_owner
        self.ttl_ms: int = ttl_ms
        self.czxid: int = 0
        self.mzxid: int = 0
        self.pzxid: int = 0
        self.ctime: int = 0
        self.mtime: int = 0
        self.version: int = 0
        self.aversion: int = 0
        self.creates: int = 0
        self.num_children: int = 0
        self.children: dict[bytes, None] | None = None
        self.salt: int = 0
        self.stamp: int = 0
        self.stat: bytes = _NO_STAT
        self.mark: int = 0

    def resalt(self, path: bytes) -> None:
        """Recompute `salt` and `stamp` of a new znode or of one with a new access list; `refresh` has to follow."""
        self.salt = crc32c(path, (self.ttl_ms * 4 + self.kind) % _PRIME_32) ^ self.acl.stamp
        self.restamp()

    def restamp(self) -> None:
        """Recompute `stamp` after a change of data; `refresh` has to follow."""
        data = self.data
        # A null and an empty data are different answers to a client.
        self.stamp = crc32c(data, self.salt) if data is not None else ~self.salt & 0xFFFFFFFF

    def is_intact(self, path: bytes) -> bool:
        """Whether `mark` is what `resalt` and `refresh` would make of the fields: nothing changed them behind its back.

        Changes nothing, so a forked child may ask without copying a page.
        """
        twin = Node(self.data, self.acl, self.kind, self.ephemeral_owner, self.ttl_ms)
        twin.czxid, twin.mzxid, twin.pzxid = self.czxid, self.mzxid, self.pzxid
        twin.ctime, twin.mtime = self.ctime, self.mtime
        twin.version, twin.aversion = self.version, self.aversion
        twin.creates, twin.num_children = self.creates, self.num_children
        twin.resalt(path)
        twin.refresh()
        return twin.mark == self.mark and twin.stat == self.stat

    def refresh(self) -> int:
        """Rebuild `stat` and `mark`; returns by how much the tree's digest changes."""
        data = self.data
        children = self.num_children
        # As ZooKeeper counts for the wire: every create and every delete of a child.
        cversion = 2 * self.creates - children
        stamp = self.stamp
        if cversion > I32_MAX:
            cversion = wrap_i32(cversion)
            # What the Stat no longer shows.
            stamp ^= self.creates % _PRIME_32
        size = len(data) if data is not None else 0
        stat: bytes
        if IS_COMPILED:
            out = BytesWriter()
            write_i64_be(out, self.czxid)
            write_i64_be(out, self.mzxid)
            write_i64_be(out, self.ctime)
            write_i64_be(out, self.mtime)
            write_i32_be(out, self.version)
            write_i32_be(out, cversion)
            write_i32_be(out, self.aversion)
            write_i64_be(out, self.ephemeral_owner)
            write_i32_be(out, size)
            write_i32_be(out, children)
            write_i64_be(out, self.pzxid)
            stat = out.getvalue()
        else:
            stat = _pack_stat(
                self.czxid,
                self.mzxid,
                self.ctime,
                self.mtime,
                self.version,
                cversion,
                self.aversion,
                self.ephemeral_owner,
                size,
                children,
                self.pzxid,
            )
        self.stat = stat
        before = self.mark
        mark: int = crc32c(stat, stamp)
        self.mark = mark
        return mark - before


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
