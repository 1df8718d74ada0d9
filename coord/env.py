"""The doors to time, chance and disk.

Everything of a store node that is worth simulating takes these as arguments and knows no other way out: a test or the
simulation passes its own, a process passes those of `coord.env_os`. There is no door for the network: a node is told
what arrived and hands out what should leave (`coord.server.node`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Two different times; neither is ever used for what the other is for."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment of this process; never goes back. For measuring spans on one node."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump. Only for what people see: ctime, mtime, logs."""
        ...


class Rng(Protocol):
    """Chance, for spreading timers."""

    def below(self, n: int) -> int:
        """A number in [0, n), n >= 1."""
        ...


class Entropy(Protocol):
    """Bytes nobody can guess: session ids, session passwords, incarnations."""

    def token(self, size: int) -> bytes:
        """`size` bytes."""
        ...


@dataclass(frozen=True)
class System:
    """What a process above the store takes from its machine besides the reactor."""

    clock: Clock
    rng: Rng
    entropy: Entropy


class DiskFile(Protocol):
    """One open file. Raises OSError as the system calls do."""

    def read_at(self, offset: int, size: int) -> bytes:
        """At most `size` bytes; shorter only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """All of `data`, or OSError with any part of it written. Not durable before `sync`."""
        ...

    def sync(self) -> None:
        """Data and size are durable when this returns."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to `size` bytes. Not durable before `sync`."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def close(self) -> None:
        """Give the descriptor back; syncs nothing."""
        ...


class Disk(Protocol):
    """A node's data directory. Paths are relative to it, with `/`. Raises OSError as the system calls do."""

    def where(self, path: str) -> str:
        """The path as an operator would type it, for messages."""
        ...

    def make_folder(self, path: str) -> None:
        """Create the folder (mode 0700) unless it exists; durable when this returns."""
        ...

    def names(self, path: str) -> list[str]:
        """Names in the folder, sorted."""
        ...

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; `create` makes a new file (mode 0600) and refuses one that exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replace `new` atomically. Durable only after `sync_folder`."""
        ...

    def remove(self, path: str) -> None:
        """Remove the file. Durable only after `sync_folder`."""
        ...

    def sync_folder(self, path: str) -> None:
        """Creations, renames and removals in this folder are durable when this returns."""
        ...


def replace_file(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Give `folder/name` the content `data` so that a crash leaves the old or the new content, durable on return."""
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
    """The whole content of a small file."""
    file = disk.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
