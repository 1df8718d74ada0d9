"""Check that a region's LMDB file contains all its pages. Runs at every open, before LMDB maps the file.

A process that reads a mapped page beyond the end of its file is killed by SIGBUS. A truncated file (an incomplete copy,
a damaged file system) would kill one server after the other, so such a file must fail the open instead.

LMDB writes the two meta pages at the beginning of the file in turn. The page with the higher transaction id is valid
and names the highest page that was ever used. A file that contains this page is long enough. A shorter file need not be
truncated: LMDB does not write a last page that the same transaction allocated and freed. In this case `check_tree`
follows the tree, without a map, and looks for a page beyond the end. It reads every page, but rarely runs.

`check_tree` also finds pages whose contents would make LMDB read outside of its map, which kills the process as well.
LMDB itself trusts its pages. A region's file is checked this way after two of its servers in a row have died.

Source: the layout of MDB_meta, MDB_page and MDB_node in LMDB 0.9 (mdb.c).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from regionserver.opener import RegionError

PAGE_HEADER: Final = 16
_MAGIC_AND_VERSION: Final = (0xBEEFC0DE, 1)
#: magic, version, address, map size, then two MDB_db (free pages and rows), last page, transaction id.
_META: Final = struct.Struct("=IIQQ48s48sQQ")
META_BYTES: Final = _META.size
#: Of an MDB_db: page size (in the first one), flags, depth, branch, leaf and overflow pages, entries, root page.
_DB: Final = struct.Struct("=IHHQQQQQ")
_NO_PAGE: Final = 0xFFFFFFFFFFFFFFFF
_PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
#: Of an MDB_page: number, pad, flags, then lower and upper bound (or the count of overflow pages, in one field).
_PAGE: Final = struct.Struct("=QHHHH")
_NODE: Final = struct.Struct("=HHHH")
NODE_BYTES: Final = _NODE.size
_BRANCH: Final = 0x01
LEAF: Final = 0x02
_OVERFLOW: Final = 0x04
#: Flags of a transaction in progress, which may remain in a page.
DIRTY: Final = 0x10 | 0x4000 | 0x8000
KEY_BYTES_MAX: Final = 511
#: Pages between two progress reports of a walk.
PROGRESS_PAGES: Final = 1000
#: A node whose data are in overflow pages.
_BIG_DATA: Final = 0x01
#: A node whose data are the MDB_db of a named database.
_SUB_DATA: Final = 0x02
_PAGE_NUMBER: Final = struct.Struct("=Q")


class Meta(NamedTuple):
    """A meta page: the state that one commit left."""

    page_bytes: int
    roots: tuple[int, int]
    last_page: int
    transaction: int
    #: Entries of the main database, and the pages of its tree with their overflow pages.
    entries: int = 0
    used_pages: int = 0


class Damaged(RegionError):  # noqa: N818 - a finding, not a fault
    """Raised if the content of the file is not that of its last commit."""


def check_whole(path: str) -> Meta:
    """Check that every page of the file's latest commit is in the file, and return that commit's meta page.

    Raises:
        Damaged: the file is truncated, or is not a region's file.
        OSError: the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        meta = latest_meta(file.fileno(), path, length)
    if length < (meta.last_page + 1) * meta.page_bytes:
        check_tree(path)
    return meta


def check_tree(path: str, progress: Callable[[], None] = lambda: None) -> None:
    """Read every page of the file's latest commit; call `progress` regularly.

    Raises:
        Damaged: a page is missing, or refers to a place outside of the file.
        OSError: the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        Tree(file.fileno(), path).check(progress)


#: Returns that many bytes of a file from an offset on; fewer at the end of the file.
Read = Callable[[int, int], bytes]


def latest_meta(fd: int, path: str, length: int) -> Meta:
    """Return the meta page of the latest commit. Raise Damaged if the file has none."""
    return _latest_meta(partial(os.pread, fd), path, length)


def _latest_meta(read: Read, path: str, length: int) -> Meta:
    first = _meta(read, path, length, 0)
    second = _meta(read, path, length, first.page_bytes)
    if second.page_bytes != first.page_bytes:
        raise Damaged(f"{path} is damaged: its two meta pages contradict each other")
    return max(first, second, key=lambda one: one.transaction)


def _meta(read: Read, path: str, length: int, at: int) -> Meta:
    data = read(_META.size, at + PAGE_HEADER)
    if len(data) < _META.size:
        raise _cut(path, length)
    return parse_meta(data, path)


def parse_meta(data: bytes, path: str) -> Meta:
    """Return the contents of a meta page, `data` without the page header. Raise Damaged if it is none."""
    magic, version, _, _, free, rows, last_page, transaction = _META.unpack_from(data)
    page_bytes = _DB.unpack(free)[0]
    if (magic, version) != _MAGIC_AND_VERSION or page_bytes not in _PAGE_SIZES:
        raise Damaged(f"{path} is not a region's file")
    _, _, _, branch, leaf, overflow, entries, root = _DB.unpack(rows)
    roots = (_DB.unpack(free)[-1], root)
    return Meta(page_bytes, roots, last_page, transaction, entries, branch + leaf + overflow)


class Tree:
    """The pages of one file, read one at a time."""

    def __init__(self, fd: int, path: str, leaves_apart: bytes = b"", content: bytes | None = None) -> None:
        """`leaves_apart`: the named database whose leaf pages are only found, not read; b"" for none.

        `content`: all bytes of the file, if the caller has them.

        Raise Damaged, OSError.
        """
        self._read: Read = partial(os.pread, fd) if content is None else lambda size, at: content[at : at + size]
        self._path = path
        self._length = os.fstat(fd).st_size if content is None else len(content)
        self._meta = _latest_meta(self._read, path, self._length)
        self._page_bytes = self._meta.page_bytes
        self._seen: set[int] = set()
        self._leaves_apart = leaves_apart
        #: Numbers of the leaf pages of the database `leaves_apart`, each once.
        self.leaves: list[int] = []

    def check(self, progress: Callable[[], None]) -> None:
        """Check the trees of the file's latest commit. Raise Damaged, OSError."""
        for root in self._meta.roots:
            if root != _NO_PAGE:
                self._walk(root, progress)

    def _walk(self, root: int, progress: Callable[[], None]) -> None:
        waiting = [root]
        while waiting:
            number = waiting.pop()
            self._see(number, progress)
            waiting += self._children(number)

    def _see(self, number: int, progress: Callable[[], None]) -> None:
        if number in self._seen:
            raise self.damaged(number, "occurs twice in the tree")
        self._seen.add(number)
        if len(self._seen) % PROGRESS_PAGES == 0:
            progress()

    def _find_leaves(self, root: int, depth: int) -> None:
        """Check the branch pages of a tree, and collect the numbers of its leaf pages, which are all at one depth."""
        level = [root]
        for _ in range(depth - 1):
            below: list[int] = []
            for number in level:
                self._see(number, _nothing)
                below += self._children(number, _BRANCH)
            level = below
        for number in level:
            self._see(number, _nothing)
        self.leaves = level

    def page(self, number: int) -> bytes:
        """Return a page as it is in the file. Raise Damaged, OSError."""
        size = self._page_bytes
        page = self._read(size, number * size) if number * size < self._length else b""
        if len(page) < size:
            raise _cut(self._path, self._length)
        return page

    def _children(self, number: int, kinds: int = _BRANCH | LEAF) -> list[int]:
        """Return the children of a branch page, and the roots of named databases; check the rows of a leaf page."""
        size = self._page_bytes
        page = self.page(number)
        found, leaf2_key_bytes, flags, lower, upper = _PAGE.unpack_from(page)
        kind = flags & ~DIRTY
        if found != number or kind not in (_BRANCH, LEAF) or not kind & kinds or leaf2_key_bytes:
            raise self.damaged(number, "is not a page of the tree")
        count = (lower - PAGE_HEADER) // 2
        if not PAGE_HEADER <= lower <= upper <= size or lower % 2 or (flags & _BRANCH and count < 2):
            raise self.damaged(number, "has impossible bounds")
        children = []
        for at in struct.unpack_from(f"={count}H", page, PAGE_HEADER):
            if not upper <= at <= size - _NODE.size:
                raise self.damaged(number, "has a row outside of it")
            low, high, node_flags, key_bytes = _NODE.unpack_from(page, at)
            end = at + _NODE.size + key_bytes
            if flags & _BRANCH:
                children.append(low | high << 16 | node_flags << 32)
            elif node_flags == _SUB_DATA:
                children += self._named_root(number, page, end, page[end - key_bytes : end])
                end += _DB.size
            else:
                end += self._value_bytes(number, page, end, low | high << 16, node_flags)
            if key_bytes > KEY_BYTES_MAX or end > size:
                raise self.damaged(number, "has a row outside of it")
        return children

    def _named_root(self, number: int, page: bytes, at: int, name: bytes) -> list[int]:
        """Return the root of the named database whose MDB_db is at `at`. Return nothing for an empty database, and for
        `leaves_apart`."""
        if at + _DB.size > len(page):
            raise self.damaged(number, "has a row outside of it")
        _, _, depth, _, _, _, _, root = _DB.unpack_from(page, at)
        if root == _NO_PAGE:
            return []
        if name == self._leaves_apart:
            self._find_leaves(root, depth)
            return []
        return [root]

    def _value_bytes(self, number: int, page: bytes, at: int, value_bytes: int, flags: int) -> int:
        """Return the bytes of the page that a value occupies; check its overflow pages, if any."""
        if flags == 0:
            return value_bytes
        if flags != _BIG_DATA or at + _PAGE_NUMBER.size > len(page):
            raise self.damaged(number, "has a row of another kind")
        (first,) = _PAGE_NUMBER.unpack_from(page, at)
        at = first * self._page_bytes
        if at + PAGE_HEADER > self._length:
            raise _cut(self._path, self._length)
        found, _, overflow_flags, count_low, count_high = _PAGE.unpack(self._read(_PAGE.size, at))
        if found != first or overflow_flags & ~DIRTY != _OVERFLOW:
            raise self.damaged(first, "is not an overflow page")
        if (count_low | count_high << 16) * self._page_bytes < PAGE_HEADER + value_bytes:
            raise self.damaged(first, "is shorter than its value")
        if at + PAGE_HEADER + value_bytes > self._length:
            raise _cut(self._path, self._length)
        return _PAGE_NUMBER.size

    def long_rows(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and stored value of each row of a leaf page whose value has pages of its own. Raise Damaged."""
        page = self.page(number)
        count = (_PAGE.unpack_from(page)[3] - PAGE_HEADER) // 2
        for at in struct.unpack_from(f"={count}H", page, PAGE_HEADER):
            low, high, flags, key_bytes = _NODE.unpack_from(page, at)
            if flags == _BIG_DATA:
                begin, size = at + _NODE.size, low | high << 16
                end = begin + key_bytes
                self._value_bytes(number, page, end, size, flags)
                first = _PAGE_NUMBER.unpack_from(page, end)[0] * self._page_bytes
                yield page[begin:end], self._read(size, first + PAGE_HEADER)

    def damaged(self, number: int, what: str) -> Damaged:
        """Return the error for a page."""
        return Damaged(f"{self._path} is damaged: page {number} {what}; restore the file from a backup")


def _nothing() -> None:
    pass


def _cut(path: str, length: int) -> Damaged:
    return Damaged(
        f"{path} is truncated: it has {length} bytes, but its latest commit uses pages beyond them; restore the file"
        " from a backup"
    )
