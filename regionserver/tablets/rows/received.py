"""A rows file that arrives from another server: written, synced, read back, checked.

    each chunk      written; its rows summed on another thread (leaf_sums.py); synced behind, while the next ones arrive
    all is there    a long file is synced; each chunk read back: it has the checksum with which it was received
                    every page of the file's tree checked, and the sums of its leaf pages added

For a long file further threads save time. For a short file they would only compete with the server's other work, so the
receiving thread does everything.

A copy that does not match the source's checksums and digest is never used (S2 has no such check; TiKV #11746 applied
damaged copies).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from regionserver.kv.pages import META_BYTES, PAGE_HEADER, Damaged, Tree, parse_meta
from regionserver.tablets.disk.syncing import SyncBehind
from regionserver.tablets.rows.environment import ROWS, translated
from regionserver.tablets.rows.state import RowsCount

if TYPE_CHECKING:
    from regionserver.tablets.rows.leaf_sums import LeafSums, Spread


#: Files up to this many bytes have no threads of their own.
ALONE_BYTES: Final = 8 << 20
#: Limit of chunks that wait for their sums. With more of them the receiving thread waits.
_WAITING_MAX: Final = 4
#: Threads of the check, whose work is the kernel's, the CRC's and the hash's: one reads back, the others hash.
_CHECKING: Final = 3


class ReceivedRows:
    """One file. Methods raise OSError; one thread calls them."""

    def __init__(self, path: str) -> None:
        """Create the file, or empty it."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._behind = SyncBehind(self._fd)
        #: The first chunks, while the file may be short.
        self._first: list[bytes] = []
        #: The thread of the sums: sums are Python's work, receiving and writing the kernel's, so both together take
        #: only as long as the longer one. None while the file may be short.
        self._summing: ThreadPoolExecutor | None = None
        self._unsummed: deque[Future[None]] = deque()
        self._sums: LeafSums | None = None
        #: Bytes and CRC-32C of each chunk.
        self._chunks: list[tuple[int, int]] = []
        self.size = 0

    def write(self, chunk: memoryview, crc: int) -> None:
        """Write the next bytes of the file, and have their rows checked; `crc` is the CRC-32C received with them.

        Raise RowsFailed, also for earlier bytes.
        """
        data = bytes(chunk)
        self._chunks.append((len(data), crc))
        at = 0
        while at < len(data):
            at += os.pwrite(self._fd, memoryview(data)[at:], self.size + at)
        self.size += len(data)
        self._behind.wrote(len(data))
        self._first.append(data)
        if self.size > ALONE_BYTES:
            self._sum_beside()

    def _sum_beside(self) -> None:
        """Have the chunks that were received summed on another thread. Raise RowsFailed, also for earlier bytes."""
        if self._summing is None:
            self._summing = ThreadPoolExecutor(1, "sums")
        self._unsummed += [self._summing.submit(self._sum, data) for data in self._first]
        self._first.clear()
        self._wait_for_sums(_WAITING_MAX)

    def _sum(self, data: bytes) -> None:
        """Sum the rows of a chunk."""
        with translated(self._path):
            if self._sums is None:
                self._sums = _sums_of(data, self._path)
            self._sums.add(data)

    def _wait_for_sums(self, waiting: int) -> None:
        """Wait until at most that many chunks wait for their sums. Raise RowsFailed."""
        while len(self._unsummed) > waiting:
            self._unsummed.popleft().result()

    def sync(self) -> None:
        """Make the content of a long file durable.

        A short one becomes durable with its steady point (`hot_copy.adopt`): each sync of a new file waits for the
        file system's journal, as the log of this server does.
        """
        if self.size > ALONE_BYTES:
            self._behind.finish()

    def check(self, progress: Callable[[], None]) -> RowsCount:
        """Read the file back, and return its rows; call `progress` regularly. Raise RowsFailed for damage."""
        if self._summing is None:
            with translated(self._path):
                self._read_back(progress)
                # The bytes read back have the same checksums as the received bytes.
                content = b"".join(self._first)
                if content:
                    self._sum(content)
                return self._counted(progress, content=content)
        self._wait_for_sums(0)
        with translated(self._path), ThreadPoolExecutor(_CHECKING, "check") as pool:
            reading_back = pool.submit(self._read_back, progress)
            try:
                return self._counted(progress, pool.map)
            finally:
                # A change by the disk explains all other findings of the check.
                reading_back.result()

    def _counted(self, progress: Callable[[], None], spread: Spread = map, content: bytes | None = None) -> RowsCount:
        """Check every page, and return the sum of all rows. `content`: see `Tree`."""
        # Damaged pages can lead LMDB outside its map, which kills the process. So pages are read without a map.
        tree = Tree(self._fd, self._path, ROWS, content)
        tree.check(progress)
        if self._sums is None:
            raise Damaged(f"{self._path} is empty")
        return self._sums.total(tree, progress, spread)

    def _read_back(self, progress: Callable[[], None]) -> None:
        at = 0
        for size, crc in self._chunks:
            if crc32c(os.pread(self._fd, size, at)) != crc:
                raise Damaged(f"{self._path} is damaged: bytes {at} to {at + size} are not those that were written")
            at += size
            progress()

    def close(self) -> None:
        """Close the file."""
        if self._summing is not None:
            self._summing.shutdown(cancel_futures=True)
        self._behind.close()
        os.close(self._fd)


def _sums_of(data: bytes, path: str) -> LeafSums:
    """Return empty sums for the file that begins with these bytes. Raise Damaged."""
    # numpy takes time and memory, and only a server that receives a copy needs it.
    from regionserver.tablets.rows.leaf_sums import LeafSums

    if len(data) < PAGE_HEADER + META_BYTES:
        raise Damaged(f"{path} is truncated: its first chunk has {len(data)} bytes")
    return LeafSums(parse_meta(data[PAGE_HEADER:], path).page_bytes)
