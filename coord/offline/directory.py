"""The data directory of a stopped node, opened read-only."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from coord.env import DiskFile
from coord.env_os import OsDisk, OsFile
from coord.errors import ConfigError, CorruptRecord, ForeignDirectory
from coord.server.recovery.meta import META, decode_meta
from coord.server.recovery.startup import SNAPSHOT_FOLDER, WAL_FOLDER
from coord.storage.reading import SegmentReader
from coord.storage.records import LogRecord
from coord.storage.snapshot import SnapshotReader

LOCK: Final = "lock"

#: (file or phase, bytes done, bytes in total); called from time to time.
Progress = Callable[[str, int, int], None]


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


class ReadOnlyDisk(OsDisk):
    """Files opened read-only, so a directory without write permission works, too."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """See `Disk.open`."""
        assert not create, "opened for reading only"
        return OsFile(os.open(self.where(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))


class LockedDirectory:
    """The data directory of a stopped daemon, locked so that no daemon starts on it meanwhile. Close it after use."""

    def __init__(self, path: Path, daemon: str) -> None:
        """Lock `path`. Raise ForeignDirectory if `daemon`, such as "node", is running on it."""
        self.path = path
        self._lock = self._take_lock(daemon)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.close()

    def _take_lock(self, daemon: str) -> int:
        """Take a shared lock and return its descriptor. Return -1 without a lock file, as in a copy: then no daemon
        runs."""
        try:
            fd = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return -1
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise ForeignDirectory(
                f"{self.path} is in use by a running {daemon} (process {owner or 'unknown'})"
            ) from error
        return fd


class StoppedDirectory(LockedDirectory):
    """The data directory of a stopped store node."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError if this is not a node's directory, ForeignDirectory if a node is running on it."""
        if not (path / WAL_FOLDER).is_dir() and not (path / SNAPSHOT_FOLDER).is_dir():
            raise ConfigError(
                f"{path} is not the data directory of a store node (no {WAL_FOLDER}, no {SNAPSHOT_FOLDER})"
            )
        super().__init__(path, "node")
        self.disk = ReadOnlyDisk(path)

    def meta(self) -> dict[str, Any]:
        """Return META: node and cluster of the directory; empty without the file. Raise CorruptRecord."""
        try:
            return decode_meta((self.path / META).read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CorruptRecord(str(self.path / META), 0, "a JSON object with a matching checksum", error) from error

    def snapshots(self) -> list[str]:
        """Return the names of the finished snapshots, oldest first."""
        return [name for name in self._names(SNAPSHOT_FOLDER) if name.endswith(".snap")]

    def open_snapshot(self, name: str) -> SnapshotReader:
        """Open a snapshot by name. Raise as SnapshotReader."""
        return SnapshotReader(self.disk, f"{SNAPSHOT_FOLDER}/{name}")

    def log(self) -> LogFiles:
        """Return the log."""
        return LogFiles(self.disk, [name for name in self._names(WAL_FOLDER) if name.endswith(".log")])

    def _names(self, folder: str) -> list[str]:
        return self.disk.names(folder) if (self.path / folder).is_dir() else []


class LogFiles:
    """The segments of a log, read in order. A torn tail ends the reading and is described in `cut`; nothing is
    repaired."""

    def __init__(self, disk: OsDisk, names: list[str]) -> None:
        self._disk = disk
        self.names = names
        self.bytes = 0
        #: Description of a torn record at the end, or of an unfinished segment; "" without one.
        self.cut = ""

    def size_of(self, name: str) -> int:
        """Return the bytes of a segment's file. Raise OSError."""
        return os.stat(self._disk.where(f"{WAL_FOLDER}/{name}")).st_size

    def records(self, progress: Progress = no_progress) -> Iterator[tuple[str, LogRecord]]:
        """Yield (file, record) of all durable records. Raise CorruptRecord for damage, StorageError for another
        format."""
        sequence = 0
        number = 0
        total = sum(self.size_of(name) for name in self.names)
        for position, name in enumerate(self.names):
            reader = SegmentReader(self._disk, f"{WAL_FOLDER}/{name}")
            is_last = position == len(self.names) - 1
            for record in reader.records(sequence, is_first=position == 0, is_last=is_last):
                if record.offset == 0 and number and reader.number != number + 1:
                    raise CorruptRecord(reader.path, 0, f"segment {number + 1}", f"segment {reader.number}")
                yield reader.path, record
            self.bytes += reader.size()
            progress(name, self.bytes, total)
            if reader.end == 0:
                self.cut = f"{reader.path}: unfinished segment; a node removes it at the start"
                return
            if reader.cut:
                self.cut = f"{reader.path}: torn record at byte {reader.end}; a node truncates it at the start"
            sequence, number = reader.sequence, reader.number
