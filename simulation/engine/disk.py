"""A node's disk: writes and syncs take effect in simulated time, and a power cut keeps any part of the unsynced rest.

Every file has three parts: the content for readers (the page cache), the durable content, and the operations in between
with the times at which they begin and end. The log's writer has its own time (`begin_work`, `end_work`): a sync that it
issues now ends later, and a crash in between finds the sync unfinished.

    power cut   durable content, and of the unfinished writes any set of sectors; names likewise one by one
    kill        the page cache as it was at that moment; it is still not durable
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from simulation.engine.chance import SeededRandom

SECTOR: Final = 512
WRITE: Final = 0
CUT: Final = 1
SYNC: Final = 2

#: (kind, begins, ends, offset or size, data)
Operation = tuple[int, int, int, int, bytes]


def _perform(content: bytearray, operation: Operation) -> None:
    kind, _, _, at, data = operation
    if kind == WRITE:
        if at + len(data) > len(content):
            content.extend(bytes(at + len(data) - len(content)))
        content[at : at + len(data)] = data
    elif kind == CUT:
        del content[at:]
        content.extend(bytes(at - len(content)))


class SimFile:
    """One inode."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.content = bytearray()
        #: The page cache before `operations`, and the durable content.
        self.base = bytearray()
        self.durable = bytearray()
        self.operations: list[Operation] = []

    # --- DiskFile

    def read_at(self, offset: int, size: int) -> bytes:
        self._disk.trouble("read")
        return bytes(self.content[offset : offset + size])

    def write_at(self, offset: int, data: bytes) -> None:
        disk = self._disk
        disk.step()
        try:
            disk.trouble("write")
            disk.need_room(len(data))
        except OSError:
            self._change(WRITE, offset, data[: disk.chance.below(len(data) + 1)])
            raise
        self._change(WRITE, offset, data)
        disk.step()

    def truncate(self, size: int) -> None:
        self._disk.trouble("truncate")
        self._change(CUT, size, b"")

    def sync(self) -> None:
        disk = self._disk
        disk.step()
        begins = disk.time()
        try:
            disk.trouble("sync")
        except OSError:
            # From now on the pages count as clean, even if they have not reached the disk: no later sync writes them.
            self.settle(begins)
            for operation in self.operations:
                _perform(self.base, operation)
                if disk.chance.happens(0.5):
                    _perform(self.durable, operation)
            self.operations.clear()
            disk.counts_failed_sync()
            raise
        self.operations.append((SYNC, begins, disk.take_time(), 0, b""))
        self.settle(disk.now())
        disk.step()

    def size(self) -> int:
        return len(self.content)

    def close(self) -> None:
        pass

    # --- the simulation's side

    def _change(self, kind: int, at: int, data: bytes) -> None:
        now = self._disk.time()
        operation = (kind, now, now, at, data)
        _perform(self.content, operation)
        self.operations.append(operation)

    def settle(self, now: int) -> None:
        """Make durable the writes that the last finished sync covers."""
        operations = self.operations
        count = 0
        for position, operation in enumerate(operations):
            if operation[0] == SYNC and operation[2] <= now:
                count = position + 1
        for operation in operations[:count]:
            _perform(self.base, operation)
            _perform(self.durable, operation)
        del operations[:count]

    def written_back(self, now: int) -> None:
        """Let the system write back all pending pages, as it does after a while without a sync."""
        self.settle(now)
        late: list[Operation] = []
        for operation in self.operations:
            if operation[0] == SYNC or operation[1] > now:
                late.append(operation)
            else:
                _perform(self.base, operation)
                _perform(self.durable, operation)
        self.operations = late

    def killed(self, now: int) -> None:
        """Handle the death of the process: operations that had not begun are dropped."""
        self.settle(now)
        self.operations = [op for op in self.operations if op[1] <= now and op[0] != SYNC]
        self.content = bytearray(self.base)
        for operation in self.operations:
            _perform(self.content, operation)

    def power_cut(self, now: int, chance: SeededRandom) -> bool:
        """Handle a power cut. Return True if a write was torn."""
        self.settle(now)
        unsafe = [op for op in self.operations if op[1] <= now and op[0] != SYNC]
        self.operations.clear()
        mode = chance.below(4)  # no write, all writes, a prefix, or any part of them
        reached = chance.below(len(unsafe) + 1)
        torn = False
        for position, operation in enumerate(unsafe):
            if mode == 0 or (mode == 2 and position > reached):
                continue
            if operation[0] == WRITE and (mode == 3 or (mode == 2 and position == reached)):
                torn = self._tear(operation, chance, prefix=mode == 2) or torn
            elif operation[0] == WRITE or chance.happens(0.5):
                _perform(self.durable, operation)
        self.base = bytearray(self.durable)
        self.content = bytearray(self.durable)
        return torn

    def _tear(self, operation: Operation, chance: SeededRandom, *, prefix: bool) -> bool:
        _, begins, ends, offset, data = operation
        sectors = (len(data) + offset % SECTOR + SECTOR - 1) // SECTOR
        kept = 0
        limit = chance.below(sectors + 1)
        start = 0
        for number in range(sectors):
            stop = min(len(data), (offset // SECTOR + number + 1) * SECTOR - offset)
            if number < limit if prefix else chance.happens(0.5):
                _perform(self.durable, (WRITE, begins, ends, offset + start, data[start:stop]))
                kept += 1
            start = stop
        return 0 < kept < sectors


class SimDisk:
    """A data directory (`coord.env.Disk`)."""

    def __init__(self, name: str, chance: SeededRandom, now: Callable[[], int]) -> None:
        self.name = name
        self.chance = chance
        self.now = now
        self.files: dict[str, SimFile] = {}
        self.durable: dict[str, SimFile] = {}
        #: (kind, begins, ends, folder or path, other path, file) of changes that no finished sync of the folder covers.
        self.changes: list[tuple[str, int, int, str, str, SimFile | None]] = []
        #: Operation -> (errno, how many times it still fails); "any" stands for all.
        self.failures: dict[str, tuple[int, int]] = {}
        self.is_full = False
        #: Called before and after each operation; may raise to cut the power.
        self.step: Callable[[], None] = _nothing
        self.failed_syncs = 0
        #: Failures injected since the process started.
        self.injected = 0
        #: While not None: the time of the writing thread, and the duration of its syncs.
        self._cursor: int | None = None
        self._sync_us: Callable[[], int] = _no_time

    # --- time

    def time(self) -> int:
        return self.now() if self._cursor is None else self._cursor

    def take_time(self) -> int:
        """Return the end of a sync that begins now."""
        if self._cursor is None:
            return self.now()
        self._cursor += self._sync_us()
        return self._cursor

    def begin_work(self, sync_us: Callable[[], int]) -> None:
        """Let the following operations take place one after the other in the time of a thread."""
        self._cursor = self.now()
        self._sync_us = sync_us

    def end_work(self) -> int:
        """Return when the thread will be done."""
        assert self._cursor is not None
        ends, self._cursor = self._cursor, None
        return ends

    # --- failures

    def trouble(self, operation: str) -> None:
        for name in (operation, "any"):
            if name in self.failures:
                code, times = self.failures[name]
                if times > 1:
                    self.failures[name] = (code, times - 1)
                else:
                    del self.failures[name]
                self.injected += 1
                raise OSError(code, f"injected {operation} failure")

    def need_room(self, size: int) -> None:
        if self.is_full and size:
            self.injected += 1
            raise OSError(errno.ENOSPC, "injected: no space left")

    def counts_failed_sync(self) -> None:
        self.failed_syncs += 1

    # --- Disk

    def where(self, path: str) -> str:
        return f"{self.name}/{path}"

    def make_folder(self, path: str) -> None:
        pass

    def names(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        return sorted({n[len(prefix) :].partition("/")[0] for n in self.files if n.startswith(prefix)})

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if create:
            self.step()
            if path in self.files:
                raise FileExistsError(errno.EEXIST, path)
            self.trouble("create")
            self.need_room(1)
            file = self.files[path] = SimFile(self)
            self._changed("create", path, "", file)
        elif path not in self.files:
            raise FileNotFoundError(errno.ENOENT, path)
        return self.files[path]

    def rename(self, old: str, new: str) -> None:
        self.step()
        self.trouble("rename")
        file = self.files.pop(old)
        self.files[new] = file
        self._changed("rename", new, old, file)
        self.step()

    def remove(self, path: str) -> None:
        self.step()
        self.trouble("remove")
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, path)
        self._changed("remove", path, "", self.files.pop(path))

    def sync_folder(self, path: str) -> None:
        self.step()
        self.trouble("sync_folder")
        begins = self.time()
        self.changes.append(("sync", begins, self.take_time(), path, "", None))
        self.settle()
        self.step()

    def _changed(self, what: str, path: str, other: str, file: SimFile) -> None:
        now = self.time()
        self.changes.append((what, now, now, path, other, file))

    # --- the simulation's side

    def settle(self) -> None:
        """Make durable the names that a finished sync of their folder covers."""
        now = self.now()
        covered: dict[str, int] = {}
        for place, (what, _, ends, folder, _, _) in enumerate(self.changes):
            if what == "sync" and ends <= now:
                covered[folder] = place
        if not covered:
            return
        kept = []
        for place, change in enumerate(self.changes):
            is_sync = change[0] == "sync"
            if place > covered.get(change[3] if is_sync else _folder(change[3]), -1):
                kept.append(change)
            elif not is_sync:
                self._make_durable(change)
        self.changes = kept

    def _make_durable(self, change: tuple[str, int, int, str, str, SimFile | None]) -> None:
        what, _, _, path, other, file = change
        if what == "remove":
            self.durable.pop(path, None)
            return
        if what == "rename":
            self.durable.pop(other, None)
        assert file is not None
        self.durable[path] = file

    def killed(self) -> None:
        """Handle the death of the process; the machine continues."""
        self.settle()
        now = self.now()
        self._end_thread()
        self.changes = [change for change in self.changes if change[1] <= now and change[0] != "sync"]
        self.files = self._names_at_rest()
        for file in self.files.values():
            file.killed(now)
        self.failures.clear()

    def power_cut(self) -> bool:
        """Handle a power cut. Return True if a write was torn."""
        self.settle()
        now = self.now()
        self._end_thread()
        unsafe = [change for change in self.changes if change[1] <= now and change[0] != "sync"]
        self.changes = []
        mode = self.chance.below(3)
        for change in unsafe:
            if mode == 1 or (mode == 2 and self.chance.happens(0.5)):
                self._make_durable(change)
        self.files = dict(self.durable)
        torn = False
        for path in sorted(self.files):
            torn = self.files[path].power_cut(now, self.chance) or torn
        self.failures.clear()
        return torn

    def _names_at_rest(self) -> dict[str, SimFile]:
        durable, names = dict(self.durable), dict(self.durable)
        self.durable = names
        for change in self.changes:
            self._make_durable(change)
        self.durable = durable
        return names

    def _end_thread(self) -> None:
        self._cursor = None

    def lose(self, path: str) -> None:
        """Remove the file while the machine is off."""
        del self.files[path]
        self.durable.pop(path, None)

    def shorten(self, path: str, size: int) -> None:
        """Cut off the end of the file while the machine is off."""
        file = self.files[path]
        for content in (file.content, file.base, file.durable):
            del content[size:]

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Flip one bit on the medium."""
        file = self.files[path]
        for content in (file.content, file.base, file.durable):
            if offset < len(content):
                content[offset] ^= 1 << bit


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _nothing() -> None:
    """Do nothing: the default of `step`."""


def _no_time() -> int:
    return 0
