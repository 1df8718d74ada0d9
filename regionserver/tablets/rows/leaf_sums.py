"""The rows of a file that arrives in chunks: checksums, count, bytes and digest of each leaf page. Pure.

A MiB holds up to 10,000 small rows. So numpy finds and bounds the rows of a chunk, and combines rows of one length to
check their checksums at once. For each row only one call of the library remains, which computes its hash.

A CRC is affine over the exclusive or of messages of one length: the CRC of the exclusive or of n rows follows from
their own CRCs. So one CRC checks n rows. Damage of one row of them is always found. Damage of two rows is missed if
both have the same bits flipped at the same place; the digest still finds such damage in keys and values.

The pages that belong to the rows are known only when the whole file has arrived, because branch pages may be anywhere.
So every page that looks like a leaf page is summed on arrival, and `total` adds the pages of the tree. Damage in a page
counts only if the tree has the page: free pages and parts of long values may look like anything.

A leaf page holds the length of a key, the key and the value one after the other, just as `digest.row_hash` hashes them.

Source: the layout of MDB_page and MDB_node in LMDB 0.9 (mdb.c), as in `regionserver/kv/pages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from regionserver.kv.pages import DIRTY, KEY_BYTES_MAX, LEAF, NODE_BYTES, PAGE_HEADER, Damaged, Tree
from regionserver.kv.rows import CRC_BYTES, seal, shown, unseal
from regionserver.tablets.rows.digest import DIGEST_BYTES, add_to_digest, row_hash, row_hashes
from regionserver.tablets.rows.state import RowsCount

#: CRC-32C of any row that is whole, with its checksum.
_WHOLE: Final = crc32c(seal(b"", b""))
#: Rows of one length that are checked together; for fewer, numpy takes longer than one CRC for each.
_TOGETHER_MIN: Final = 32
#: Parts of the leaves with long rows, which may be summed at the same time: hashes of long values run in parallel.
_LONG_PARTS: Final = 2
#: The digest of a page as 4 numbers of 32 bits.
_LIMBS: Final = DIGEST_BYTES // 4
_LIMB_BITS: Final = 32
#: Bytes of a node before its key; the last two are the length of the key.
_LENGTH_BYTES: Final = 2
_PAGE_NUMBER_BYTES: Final = 8

#: Findings in a page. Only SOUND pages have sums.
_NO_LEAF, _SOUND, _BOUNDS, _OUTSIDE, _KIND, _CHECKSUM = range(6)
_TEXTS: Final = {
    _NO_LEAF: "is not a page of the tree",
    _BOUNDS: "has impossible bounds",
    _OUTSIDE: "has a row outside of it",
    _KIND: "has a row of another kind",
    _CHECKSUM: "has a row whose checksum does not match",
}


class _Nodes(NamedTuple):
    """The nodes of all leaf pages of a chunk, ordered by page. Each field is an array with one value per node."""

    #: Place of the page in the chunk, offset of the node in the chunk, bytes of key and stored value.
    page: Any
    at: Any
    key: Any
    value: Any
    is_long: Any


class _Sums(NamedTuple):
    """Sums of the pages of a chunk: arrays with an item for each page."""

    finding: Any
    has_long: Any
    rows: Any
    size: Any
    digest: Any


class _LongSums(NamedTuple):
    """Sums of rows whose values have pages of their own."""

    rows: int
    size: int
    hashes: int


#: Calls a function for each part of the leaves with long rows.
Spread = Callable[[Callable[[list[int]], _LongSums], list[list[int]]], Iterable[_LongSums]]


class LeafSums:
    """Sums of the leaf pages of one file."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._pages = 0
        self._rest = b""
        self._chunks: list[_Sums] = []
        #: The first damaged row that was found in a page.
        self._damaged: dict[int, bytes] = {}

    def add(self, chunk: bytes) -> None:
        """Sum the pages of the next bytes of the file."""
        if self._rest:
            chunk = self._rest + chunk
        whole = len(chunk) // self._page_bytes * self._page_bytes
        self._rest = chunk[whole:]
        if whole:
            sums = self._sums(chunk if not self._rest else chunk[:whole])
            self._chunks.append(sums)
            self._pages += len(sums.finding)

    def total(self, tree: Tree, progress: Callable[[], None] = lambda: None, spread: Spread = map) -> RowsCount:
        """Return the sums of the leaves that a checked tree has set apart; call `progress` regularly.

        `spread` calls a function for each of a few parts of the long rows, on other threads or on this one.

        Raise Damaged, OSError, and RpcError for a long row whose checksum does not match.
        """
        if not self._chunks:
            raise Damaged("no page was received")
        sums = _Sums(*(np.concatenate(parts) for parts in zip(*self._chunks, strict=True)))
        leaves = np.array(sorted(tree.leaves), dtype=np.int64)
        if len(leaves) and leaves[-1] >= self._pages:
            raise tree.damaged(int(leaves[-1]), "is missing")
        bad = leaves[sums.finding[leaves] != _SOUND]
        if len(bad):
            raise self._error(tree, int(bad[0]), int(sums.finding[bad[0]]))
        rows, size = int(sums.rows[leaves].sum()), int(sums.size[leaves].sum())
        limbs = sums.digest[leaves].sum(axis=0, dtype=np.uint64).tolist()
        total = sum(limb << (_LIMB_BITS * place) for place, limb in enumerate(limbs))
        long = leaves[sums.has_long[leaves]].tolist()
        parts = [long[at::_LONG_PARTS] for at in range(_LONG_PARTS)]
        for found in spread(lambda numbers: _long_sums(tree, numbers, progress), parts):
            rows, size, total = rows + found.rows, size + found.size, total + found.hashes
        return RowsCount(rows, size, add_to_digest(bytes(DIGEST_BYTES), total))

    def _error(self, tree: Tree, number: int, finding: int) -> Damaged:
        key = self._damaged.get(number)
        return tree.damaged(number, _TEXTS[finding] + (f": {shown(key)}" if key is not None else ""))

    def _sums(self, data: bytes) -> _Sums:
        """Return the sums of whole pages."""
        finding, nodes = self._nodes(data)
        count = len(finding)
        has_long = np.zeros(count, dtype=bool)
        has_long[nodes.page[nodes.is_long]] = True
        rows = _Nodes(*(part[~nodes.is_long] for part in nodes))
        digests = self._hashed(data, rows, finding)
        is_first = np.ones(len(rows.page), dtype=bool)
        is_first[1:] = rows.page[1:] != rows.page[:-1]
        firsts, pages = np.flatnonzero(is_first), rows.page[is_first]
        sums = _Sums(finding, has_long, *(np.zeros(shape, np.uint32) for shape in (count, count, (count, _LIMBS))))
        if len(firsts):
            sums.rows[pages] = np.diff(firsts, append=len(rows.page))
            sums.size[pages] = np.add.reduceat(rows.key + rows.value - CRC_BYTES, firsts)
            sums.digest[pages] = _carried(np.add.reduceat(digests, firsts, axis=0, dtype=np.uint64))
        return sums

    def _nodes(self, data: bytes) -> tuple[Any, _Nodes]:
        """Return the finding of each page, and the nodes of the sound leaf pages."""
        size = self._page_bytes
        words = np.frombuffer(data, "<u2").reshape(-1, size // 2)
        numbers = np.frombuffer(data, "<u8").reshape(-1, size // 8)[:, 0]
        own = np.arange(self._pages, self._pages + len(words), dtype=np.uint64)
        is_leaf = (numbers == own) & (words[:, 4] == 0) & ((words[:, 5] & ~np.uint16(DIRTY)) == LEAF)
        lower, upper = words[:, 6].astype(np.int64), words[:, 7].astype(np.int64)
        is_bounded = (lower >= PAGE_HEADER) & (lower <= upper) & (upper <= size) & (lower % 2 == 0)
        finding = np.where(is_leaf, np.where(is_bounded, _SOUND, _BOUNDS), _NO_LEAF).astype(np.uint8)
        pages = np.flatnonzero(finding == _SOUND)
        counts = (lower[pages] - PAGE_HEADER) // 2
        page = np.repeat(pages, counts)
        place = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = words[page, PAGE_HEADER // 2 + place].astype(np.int64)
        is_inside = (at >= upper[page]) & (at <= size - NODE_BYTES) & (at % 2 == 0)
        at[~is_inside] = 0
        flat, first = words.reshape(-1), page * (size // 2) + at // 2
        value = flat[first].astype(np.int64) | flat[first + 1].astype(np.int64) << 16
        flags, key = flat[first + 2], flat[first + 3].astype(np.int64)
        is_long = flags == 1
        end = at + NODE_BYTES + key + np.where(is_long, _PAGE_NUMBER_BYTES, value)
        is_inside &= (end <= size) & (key <= KEY_BYTES_MAX)
        finding[page[value < CRC_BYTES]] = _CHECKSUM
        finding[page[flags > 1]] = _KIND
        finding[page[~is_inside]] = _OUTSIDE
        nodes = _Nodes(page, page * size + at, key, value, is_long)
        is_sound = finding[page] == _SOUND
        return finding, _Nodes(*(part[is_sound] for part in nodes))

    def _hashed(self, data: bytes, rows: _Nodes, finding: Any) -> Any:
        """Return the hashes of rows, and note pages with a row whose checksum does not match."""
        begin = rows.at + NODE_BYTES
        end = begin + rows.key + rows.value
        for row in broken_rows(data, begin, end):
            page, at = int(rows.page[row]), int(begin[row])
            finding[page] = _CHECKSUM
            self._damaged.setdefault(self._pages + page, data[at : at + int(rows.key[row])])
        hashes = row_hashes(data, (begin - _LENGTH_BYTES).tolist(), (end - CRC_BYTES).tolist())
        return np.frombuffer(hashes, "<u4").reshape(-1, _LIMBS)


def _long_sums(tree: Tree, leaves: list[int], progress: Callable[[], None]) -> _LongSums:
    """Return the sums of the long rows of these leaves. Raise Damaged, OSError, RpcError."""
    rows = size = hashes = 0
    for number in leaves:
        progress()
        for key, stored in tree.long_rows(number):
            value = unseal(key, stored)
            rows += 1
            size += len(key) + len(value)
            hashes += row_hash(key, value)
    return _LongSums(rows, size, hashes)


def _carried(limbs: Any) -> Any:
    """Return sums of limbs as limbs, modulo the digest's."""
    for place in range(_LIMBS - 1):
        limbs[:, place + 1] += limbs[:, place] >> np.uint64(_LIMB_BITS)
    return (limbs & np.uint64((1 << _LIMB_BITS) - 1)).astype(np.uint32)


def broken_rows(data: bytes, begin: Any, end: Any) -> list[int]:
    """Return the numbers of rows that do not match, in order. Row n is at `begin[n]` to `end[n]` in `data`."""
    lengths = end - begin
    suspects: list[int] = []
    for group in _groups(lengths):
        if len(group) < _TOGETHER_MIN or not _match(data, begin[group], int(lengths[group[0]])):
            suspects += group.tolist()
    return [row for row in sorted(suspects) if crc32c(data[int(begin[row]) : int(end[row])]) != _WHOLE]


def _groups(lengths: Any) -> list[Any]:
    """Return the numbers of the rows of each length."""
    if not len(lengths):
        return []
    order = np.argsort(lengths, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)


def _match(data: bytes, begins: Any, length: int) -> bool:
    """Return True if the exclusive or of rows of one length has the CRC that follows from their own."""
    # A view of every place in the data where a row of this length can begin.
    places: Any = np.ndarray((len(data) - length + 1, length), np.uint8, data, strides=(1, 1))
    combined = np.bitwise_xor.reduce(places[begins], axis=0).tobytes()
    # The constant parts of the checksums cancel each other in pairs. For an even number of rows the CRC of zeros
    # remains.
    expected = _WHOLE if len(begins) % 2 else crc32c(bytes(length))
    return bool(crc32c(combined) == expected)
