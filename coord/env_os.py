"""Implementations of `coord.env` for a real process: the machine's clock, randomness, entropy and files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import random
import secrets
import signal
import stat
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from coord.durable import sync_folder
from coord.env import Clock, Disk, DiskFile, Entropy, Rng, System
from coord.errors import ConfigError

log = Logger()

#: prctl(2).
_PR_SET_PDEATHSIG: Final = 1
#: Statistics of the thread that opens the file: nanoseconds on a processor and in the queue for one, times run.
_THREAD_STATISTICS: Final = "/proc/thread-self/schedstat"
_STATISTICS_BYTES_MAX: Final = 64
_NS: Final = 1e9
#: Number of the system call sched_setattr(2) by machine.
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}

_thread = threading.local()


class OsClock:
    """CLOCK_MONOTONIC and CLOCK_REALTIME."""

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return time.time_ns() // 1_000_000


class OsRng:
    """A pseudo-random generator seeded by the system."""

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
    """Return this machine's clock, random generator and entropy."""
    return System(OsClock(), OsRng(), OsEntropy())


def boot_time_s() -> float:
    """Return a monotonic clock for leases. Unlike CLOCK_MONOTONIC it also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def waited_s() -> float:
    """Return the seconds that this thread has spent neither on a processor nor in the queue for one, plus a constant.

    This is the time of waiting for a disk, a lock or the interpreter. A slow step has either waited, or the processors
    were busy; a wall clock cannot distinguish the two. On a system without statistics of threads the result includes
    the time in the queue for a processor.
    """
    return time.monotonic() - time.thread_time() - queued_s()


def queued_s() -> float:
    """Return the seconds that this thread has spent in the queue for a processor; 0 without statistics."""
    try:
        statistics: int = _thread.statistics
    except AttributeError:
        statistics = _thread.statistics = _open_statistics()
    return int(os.pread(statistics, _STATISTICS_BYTES_MAX, 0).split()[1]) / _NS if statistics >= 0 else 0.0


def _open_statistics() -> int:
    """Return a descriptor of this thread's statistics, or -1 if the system has none. The descriptor stays open as long
    as the process."""
    try:
        return os.open(_THREAD_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def return_memory() -> None:
    """Return freed memory between live allocations to the system. Only glibc needs this call."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this forked child when the process `parent` ends for any reason. Linux only."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def share_processors() -> None:
    """Run this process under SCHED_BATCH, for nodes that share a machine with their clients and peers.

    A message that wakes the process then does not preempt the sender. If all processors are busy, the sender goes on
    to send to the others, and this process finds more work in its next turn, some milliseconds later at most. If a
    processor is free, nothing changes. Threads and children started after this call inherit the policy.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_in_slices(slice_s: float) -> None:
    """Have the kernel run the calling thread, and threads that it starts from now on, in slices of that length.

    Where processors are busy, the kernel chooses the thread whose slice would end first, among those that have had no
    more than their share. So a thread with short slices that wakes now and then does not queue behind threads with
    long ones, and the shares do not change. Kernels before Linux 6.12, and other systems, ignore the length.
    """
    import ctypes

    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period.
        attributes = struct.pack("=IIQiIQQQ", 48, policy, 0, nice, 0, int(slice_s * _NS), 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


class OsFile:
    """A file descriptor with explicit offsets."""

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
        """See `DiskFile.sync`. fdatasync also flushes the size if a reader needs the new size."""
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
    """A directory of the file system with access for this user only."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"{root}/"

    def _path(self, path: str) -> str:
        """Return a path for the system: `pathlib` takes longer to join two names than the system to open a file."""
        return self._prefix + path

    def where(self, path: str) -> str:
        """See `Disk.where`."""
        return self._path(path) if path else str(self._root)

    def make_folder(self, path: str) -> None:
        """See `Disk.make_folder`."""
        folder = self._root / path
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)

    def names(self, path: str) -> list[str]:
        """See `Disk.names`."""
        return sorted(os.listdir(self._path(path)))

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """See `Disk.open`. Symbolic links are rejected, so that no other user can redirect a store's files."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(self._path(path), flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        os.replace(self._path(old), self._path(new))

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        os.unlink(self._path(path))

    def sync_folder(self, path: str) -> None:
        """See `Disk.sync_folder`."""
        sync_folder(self._path(path))


class FolderLock:
    """An exclusive lock on a data directory, held until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raise BlockingIOError if another process holds it, ConfigError if others may write here."""
        check_owned(folder)
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise
        # The pid is for the operator; a full disk must not prevent the start.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the directory for other processes."""
        os.close(self._fd)


def check_owned(folder: Path) -> None:
    """Refuse a data directory in which everybody may write: other users could replace its files, or put links there.

    A group may write, because an umask of 002 is common. A mount point may be open to everybody, because volumes of
    containers often are, and a container has no other users. Both cases are logged.

    Raises:
        ConfigError: everybody may write; the error says what to do.
    """
    mode = folder.stat().st_mode
    if not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    shown = f"data directory {folder} may be written by {{whom}} (mode {stat.S_IMODE(mode):04o})"
    if not mode & stat.S_IWOTH:
        log.info("{what}", what=shown.format(whom="its group"))
    elif os.path.ismount(folder):
        log.warn("{what}; it is a mount point, so it is used", what=shown.format(whom="everybody"))
    else:
        raise ConfigError(f"{shown.format(whom='everybody')}: run `chmod o-w {folder}`, or give another directory")


def _check_protocols(root: Path) -> tuple[Clock, Rng, Entropy, Disk]:
    """Let mypy check that the classes here implement the protocols of `coord.env`."""
    return OsClock(), OsRng(), OsEntropy(), OsDisk(root)
