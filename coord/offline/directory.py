"""The data directory of a stopped node, read and never changed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from coord.env import DiskFile
from coord.env_os import OsDisk, OsFile
from coord.errors import ConfigError, CorruptRecord, ForeignDirectory
from coord.server.recovery.startup import SNAPSHOT_FOLDER, WAL_FOLDER
from coord.storage.reading import SegmentReader
from coord.storage.records import LogRecord
from coord.storage.snapshot import SnapshotReader

META: Final = "meta.json"
LOCK: Final = "lock"

#: (what is being read, bytes read, bytes in all): called now and then.
Progress = Callable[[str, int, int], None]


def no_progress(what: str, done: int, total: int) -> None:
    """For those who show none."""


class ReadOnlyDisk(OsDisk):
    """Files that are only read: it also works on a copy that may not be written to."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """See `Disk.open`."""
        assert not create, "opened for reading only"
        return OsFile(os.open(self.where(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))


class StoppedDirectory:
    """One data directory, held so that no node starts on it meanwhile. Close it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when there is no node's directory, ForeignDirectory when a node is running on it."""
        self.path = path
        self._lock = -1
        if not (path / WAL_FOLDER).is_dir() and not (path / SNAPSHOT_FOLDER).is_dir():
            raise ConfigError(
                f"{path} is not the data directory of a store node (no {WAL_FOLDER}, no {SNAPSHOT_FOLDER})"
            )
        self._take_lock()
        self.disk = ReadOnlyDisk(path)

    def close(self) -> None:
        """Let a node have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> StoppedDirectory:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def meta(self) -> dict[str, Any]:
        """Whose directory it is; empty when it does not say. Raises CorruptRecord."""
        try:
            found = json.loads((self.path / META).read_bytes())
            if not isinstance(found, dict):
                raise ValueError("no object")
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CorruptRecord(str(self.path / META), 0, "a JSON object", error) from error
        return found

    def snapshots(self) -> list[str]:
        """Names of the finished snapshots, oldest first."""
        return [name for name in self._names(SNAPSHOT_FOLDER) if name.endswith(".snap")]

    def open_snapshot(self, name: str) -> SnapshotReader:
        """Open one of them. Raises as SnapshotReader."""
        return SnapshotReader(self.disk, f"{SNAPSHOT_FOLDER}/{name}")

    def log(self) -> LogFiles:
        """Its log."""
        return LogFiles(self.disk, [name for name in self._names(WAL_FOLDER) if name.endswith(".log")])

    def _names(self, folder: str) -> list[str]:
        return self.disk.names(folder) if (self.path / folder).is_dir() else []

    def _take_lock(self) -> None:
        """A copy has perhaps no lock file: then nobody holds it."""
        try:
            fd = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise ForeignDirectory(f"{self.path} is in use by a running node (process {owner or 'unknown'})") from error
        self._lock = fd


class LogFiles:
    """The segments of a log, read in order. A torn tail ends the reading and shows in `cut`; nothing is repaired."""

    def __init__(self, disk: OsDisk, names: list[str]) -> None:
        self._disk = disk
        self.names = names
        self.bytes = 0
        #: A line about a torn record at the end, or a segment that was never finished.
        self.cut = ""

    def size_of(self, name: str) -> int:
        """Return the bytes of a segment's file. Raises OSError."""
        return os.stat(self._disk.where(f"{WAL_FOLDER}/{name}")).st_size

    def records(self, progress: Progress = no_progress) -> Iterator[tuple[str, LogRecord]]:
        """(file, record) of everything durable. Raises CorruptRecord at damage, StorageError for another format."""
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
                self.cut = f"{reader.path}: never finished; a node removes it when it starts"
                return
            if reader.cut:
                self.cut = f"{reader.path}: a torn record at byte {reader.end}; a node cuts it when it starts"
            sequence, number = reader.sequence, reader.number
