"""A disk in memory that loses unsynced data in a power cut and fails on request."""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable


class MemoryFile:
    """One open file of a MemoryDisk.

    The file does not keep its disk alive, because thousands of copies with a megabyte each would wait for the garbage
    collector.
    """

    def __init__(self, disk: MemoryDisk, content: bytearray) -> None:
        self._disk = weakref.ref(disk)
        self.content = content
        self.synced = b""

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self.content[offset : offset + size])

    def write_at(self, offset: int, data: bytes) -> None:
        self._maybe_fail("write")
        self.content.extend(bytes(max(0, offset + len(data) - len(self.content))))
        self.content[offset : offset + len(data)] = data

    def sync(self) -> None:
        self._maybe_fail("sync")
        disk = self._disk()
        if disk is not None:
            disk.syncs += 1
        self.synced = bytes(self.content)

    def _maybe_fail(self, name: str) -> None:
        disk = self._disk()
        if disk is not None:
            disk.maybe_fail(name)

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(max(0, size - len(self.content))))

    def size(self) -> int:
        return len(self.content)

    def close(self) -> None:
        pass


class MemoryDisk:
    """Files and folders in dicts. `failures` maps an operation's name to the errno it raises from now on."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}
        #: The names that would survive a power cut.
        self.durable: dict[str, MemoryFile] = {}
        self.failures: dict[str, int] = {}
        self.on_call: Callable[[str], None] = lambda name: None
        self.syncs = 0

    def maybe_fail(self, name: str) -> None:
        self.on_call(name)
        if name in self.failures:
            raise OSError(self.failures[name], f"injected {name} failure")

    def where(self, path: str) -> str:
        return f"mem:{path}"

    def make_folder(self, path: str) -> None:
        pass

    def names(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        return sorted({n[len(prefix) :].partition("/")[0] for n in self.files if n.startswith(prefix)})

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create:
            if path in self.files:
                raise FileExistsError(errno.EEXIST, path)
            self.maybe_fail("create")
            self.files[path] = MemoryFile(self, bytearray())
        elif path not in self.files:
            raise FileNotFoundError(errno.ENOENT, path)
        return self.files[path]

    def rename(self, old: str, new: str) -> None:
        self.maybe_fail("rename")
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        self.maybe_fail("remove")
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, path)
        del self.files[path]

    def sync_folder(self, path: str) -> None:
        self.maybe_fail("sync_folder")
        prefix = f"{path}/" if path else ""
        for name in [n for n in self.durable if n.startswith(prefix)]:
            del self.durable[name]
        for name, file in self.files.items():
            if name.startswith(prefix):
                self.durable[name] = file

    def power_cut(self) -> MemoryDisk:
        """Return a disk with only the durable content."""
        after = MemoryDisk()
        for name, file in self.durable.items():
            copy = MemoryFile(after, bytearray(file.synced))
            copy.synced = file.synced
            after.files[name] = copy
            after.durable[name] = copy
        return after

    def copy(self) -> MemoryDisk:
        """Return an independent disk with the same content, all of it durable."""
        after = MemoryDisk()
        for name, file in self.files.items():
            copy = MemoryFile(after, bytearray(file.content))
            copy.synced = bytes(file.content)
            after.files[name] = copy
            after.durable[name] = copy
        return after


class WriterReports:
    """Receives and keeps the reports of a log's writer."""

    def __init__(self) -> None:
        self.persisted = 0
        self.full: list[bool] = []
        self.failed: list[Exception] = []

    def on_persisted(self, number: int) -> None:
        self.persisted = number

    def on_full(self, is_full: bool) -> None:
        self.full.append(is_full)

    def on_failed(self, error: Exception) -> None:
        self.failed.append(error)
