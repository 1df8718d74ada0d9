"""The real doors: this machine's clock, chance, entropy and files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import signal
import time
from pathlib import Path
from typing import Final

from coord.env import Clock, Disk, DiskFile, Entropy, Rng, System

#: prctl(2).
_PR_SET_PDEATHSIG: Final = 1


class OsClock:
    """CLOCK_MONOTONIC and CLOCK_REALTIME."""

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return time.time_ns() // 1_000_000


class OsRng:
    """A generator seeded by the system."""

    def __init__(self) -> None:
        self._random = random.Random()

    def below(self, n: int) -> int:
        """See `Rng.below`."""
        return self._random.randrange(n)


class OsEntropy:
    """The system's entropy pool."""

    def token(self, size: int) -> bytes:
        """See `Entropy.token`."""
        return secrets.token_bytes(size)


def os_system() -> System:
    """This machine's."""
    return System(OsClock(), OsRng(), OsEntropy())


def return_memory() -> None:
    """Give the system back what was freed between things that stay. Only glibc has to be told."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def end_with_parent(parent: int) -> None:
    """For a forked child: the system kills it when the process `parent` ends, however that ends. Linux only."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def share_processors() -> None:
    """Whoever this process speaks to runs beside it: a message that wakes it is to interrupt nobody (SCHED_BATCH).

    Where all processors are busy the sender then goes on to send to the others, and this process finds more to do in
    one turn when its own comes, some milliseconds later at most. Where one is free nothing changes. Threads and
    children that begin after this do the same.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class OsFile:
    """A file descriptor with positions given by the caller."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, offset: int, size: int) -> bytes:
        """See `DiskFile.read_at`."""
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._fd, min(size, 1 << 24), offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def write_at(self, offset: int, data: bytes) -> None:
        """See `DiskFile.write_at`."""
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], offset + written)

    def sync(self) -> None:
        """See `DiskFile.sync`. fdatasync flushes the size too when a reader would need it."""
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """See `DiskFile.truncate`."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """See `DiskFile.size`."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """See `DiskFile.close`."""
        os.close(self._fd)


class OsDisk:
    """A directory of the file system, private to this user."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def where(self, path: str) -> str:
        """See `Disk.where`."""
        return str(self._root / path)

    def make_folder(self, path: str) -> None:
        """See `Disk.make_folder`."""
        folder = self._root / path
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_folder(folder.parent)

    def names(self, path: str) -> list[str]:
        """See `Disk.names`."""
        return sorted(os.listdir(self._root / path))

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """See `Disk.open`. Symbolic links are refused: nobody redirects a store's files."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(self._root / path, flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        os.replace(self._root / old, self._root / new)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        os.unlink(self._root / path)

    def sync_folder(self, path: str) -> None:
        """See `Disk.sync_folder`."""
        _sync_folder(self._root / path)


class FolderLock:
    """Proof that no other process uses a data directory; held until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises BlockingIOError when another process holds it."""
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise
        # For whoever wonders who has it; a full disk need not take that.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the directory."""
        os.close(self._fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _doors_fit(root: Path) -> tuple[Clock, Rng, Entropy, Disk]:
    """Let the type checker prove that the real doors have the shape the pure side asks for."""
    return OsClock(), OsRng(), OsEntropy(), OsDisk(root)
