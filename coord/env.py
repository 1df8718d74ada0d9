"""Interfaces to time, randomness and disk.

The simulated parts of a store node take these as arguments and use nothing else of the machine. Tests and the
simulation pass their own implementations, a process passes those of `coord.env_os`. The network has no interface here:
a node is called with received frames and returns frames to send (`coord.server.node`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

#: Longest time of a setting in seconds, 23 days: `poll` takes milliseconds of 32 bits.
SECONDS_MAX: Final = 2_000_000


class Clock(Protocol):
    """Two clocks with separate purposes."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since a fixed moment of this process; never decreases. For measuring time on one node."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; may jump. Only for display: ctime, mtime, logs."""
        ...


def steady_wall_clock(clock: Clock) -> Callable[[], int]:
    """Return a function that returns milliseconds since 1970-01-01 UTC and never goes back.

    The wall clock is read once, here: a later jump of the wall clock does not expire the deadlines of the caller.
    """
    offset = clock.wall_ms() - clock.monotonic_ms()
    return lambda: clock.monotonic_ms() + offset


class Rng(Protocol):
    """Random numbers, for spreading timers."""

    def below(self, n: int) -> int:
        """Return a number in [0, n), n >= 1."""
        ...


class Entropy(Protocol):
    """Unpredictable bytes: session ids, session passwords, incarnations."""

    def token(self, size: int) -> bytes:
        """Return `size` bytes."""
        ...


@dataclass(frozen=True)
class System:
    """Parts of the machine that masters and region servers use in addition to the reactor."""

    clock: Clock
    rng: Rng
    entropy: Entropy


class DiskFile(Protocol):
    """One open file. Raises OSError as the system calls do."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of `data`, or raise OSError after writing any part of it. Not durable before `sync`."""
        ...

    def sync(self) -> None:
        """Make data and size durable."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate, or extend with zeros, to `size` bytes. Not durable before `sync`."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def close(self) -> None:
        """Close the descriptor without syncing."""
        ...


class Disk(Protocol):
    """A node's data directory. Paths are relative to it, with `/`. Raises OSError as the system calls do."""

    def where(self, path: str) -> str:
        """Return the path as an operator would type it, for messages."""
        ...

    def make_folder(self, path: str) -> None:
        """Create the folder (mode 0700) unless it exists; durable on return."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in the folder, sorted."""
        ...

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; `create` makes a new file (mode 0600) and fails if the file exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new` atomically, replacing an existing file. Durable only after `sync_folder`."""
        ...

    def remove(self, path: str) -> None:
        """Remove the file. Durable only after `sync_folder`."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        ...


def replace_file(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Replace the content of `folder/name` atomically: a crash leaves the old or the new content. Durable on return."""
    temporary = f"{folder}/{name}.tmp" if folder else f"{name}.tmp"
    final = f"{folder}/{name}" if folder else name
    if f"{name}.tmp" in disk.names(folder):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, final)
    disk.sync_folder(folder)


def read_file(disk: Disk, path: str) -> bytes:
    """Return the content of a small file."""
    file = disk.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
