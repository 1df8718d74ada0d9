"""Syncs of many small files at once, and of a long file while it is written.

A sync of one file waits for the disk and for the file system's journal. Simultaneous syncs share both waits: with eight
threads a thousand files take about a thirtieth of the time that sequential syncs take.

If a long file is synced only at its end, the whole wait for the disk comes last. So a thread syncs it every 32 MiB,
while the next part is written.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from coord.env import DiskFile

#: Number of simultaneous syncs. More of them gain little, because they wait for the same journal.
SYNC_THREADS: Final = 8
#: Limit of files that are written, open and not synced yet: each needs a descriptor.
UNSYNCED_MAX: Final = 128

#: Bytes of a long file between two syncs.
SYNC_EVERY_BYTES: Final = 32 << 20

#: Makes all files durable before it returns. Raises OSError if one of them could not be synced.
SyncFiles = Callable[[Sequence[DiskFile]], None]


def sync_in_turn(files: Sequence[DiskFile]) -> None:
    """Sync the files one after the other."""
    for file in files:
        file.sync()


def sync_together(files: Sequence[DiskFile]) -> None:
    """Sync the files on several threads. Every sync has ended when this returns or raises."""
    if len(files) <= 1:
        sync_in_turn(files)
        return
    threads = min(SYNC_THREADS, len(files))
    parts = [files[at::threads] for at in range(threads)]
    errors = [error for found in _threads().map(_sync_all, parts) for error in found]
    if errors:
        raise errors[0]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process that sync files together. While copies run they are needed all the time."""
    return ThreadPoolExecutor(SYNC_THREADS, "sync")


def _sync_all(files: Sequence[DiskFile]) -> list[OSError]:
    """Sync the files, and return the errors."""
    errors: list[OSError] = []
    for file in files:
        try:
            file.sync()
        except OSError as error:
            errors.append(error)
    return errors


class SyncBehind:
    """Syncs a file while it is written. One thread calls all methods; an error of a sync is raised by the next one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pool = ThreadPoolExecutor(1, "sync")
        self._running: Future[None] | None = None
        self._unsynced = 0

    def wrote(self, size: int) -> None:
        """Note that `size` bytes were written, and begin a sync if it is time. Raise OSError."""
        self._unsynced += size
        if self._unsynced < SYNC_EVERY_BYTES:
            return
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        self._unsynced = 0
        self._running = self._pool.submit(os.fdatasync, self._fd)

    def finish(self) -> None:
        """Make everything durable. Raise OSError."""
        if self._running is not None:
            self._running.result()
            self._running = None
        os.fsync(self._fd)

    def close(self) -> None:
        """Wait for a sync that runs; the file may be closed then."""
        self._pool.shutdown()
