"""A rows file that arrives from another server: written, synced, read back, checked.

    each chunk      written; its rows summed (leaf_sums.py); synced behind, while the next ones arrive
    all is synced   each chunk read back: it has the checksum with which it was received
                    every page of the file's tree checked, and the sums of its leaf pages added

A copy that differs from what the source's checksums and digest say is never used (S2 has no such check; TiKV #11746
applied damaged copies).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from crc32c import crc32c

from regionserver.kv.pages import META_BYTES, PAGE_HEADER, Damaged, Tree, parse_meta
from regionserver.tablets.disk.syncing import SyncBehind
from regionserver.tablets.rows.environment import ROWS, translated
from regionserver.tablets.rows.state import RowsCount

if TYPE_CHECKING:
    from regionserver.tablets.rows.leaf_sums import LeafSums


class ReceivedRows:
    """One file. Methods raise OSError; one thread calls them."""

    def __init__(self, path: str) -> None:
        """Create the file, or empty it."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._behind = SyncBehind(self._fd)
        self._sums: LeafSums | None = None
        #: Bytes and CRC-32C of each chunk.
        self._chunks: list[tuple[int, int]] = []
        self.size = 0

    def write(self, chunk: memoryview) -> None:
        """Write the next bytes of the file, and check their rows. Raise RowsFailed."""
        data = bytes(chunk)
        self._chunks.append((len(data), crc32c(data)))
        at = 0
        while at < len(data):
            at += os.pwrite(self._fd, memoryview(data)[at:], self.size + at)
        self.size += len(data)
        self._behind.wrote(len(data))
        if self._sums is None:
            with translated(self._path):
                self._sums = _sums_of(data, self._path)
        self._sums.add(data)

    def sync(self) -> None:
        """Make the file's content durable."""
        self._behind.finish()

    def check(self, progress: Callable[[], None]) -> RowsCount:
        """Read the file back, and return its rows; call `progress` regularly. Raise RowsFailed for damage."""
        with translated(self._path):
            self._read_back(progress)
            # Damaged pages can lead LMDB outside its map, which kills the process. So pages are read without a map.
            tree = Tree(self._fd, self._path, leaves_apart=ROWS)
            tree.check(progress)
            if self._sums is None:
                raise Damaged(f"{self._path} is empty")
            return self._sums.total(tree, progress)

    def _read_back(self, progress: Callable[[], None]) -> None:
        at = 0
        for size, crc in self._chunks:
            if crc32c(os.pread(self._fd, size, at)) != crc:
                raise Damaged(f"{self._path} is damaged: bytes {at} to {at + size} are not those that were written")
            at += size
            progress()

    def close(self) -> None:
        """Close the file."""
        self._behind.close()
        os.close(self._fd)


def _sums_of(data: bytes, path: str) -> LeafSums:
    """Return empty sums for the file that begins with these bytes. Raise Damaged."""
    # numpy takes time and memory, and only a server that receives a copy needs it.
    from regionserver.tablets.rows.leaf_sums import LeafSums

    if len(data) < PAGE_HEADER + META_BYTES:
        raise Damaged(f"{path} is truncated: its first chunk has {len(data)} bytes")
    return LeafSums(parse_meta(data[PAGE_HEADER:], path).page_bytes)
