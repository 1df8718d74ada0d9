"""The tablets in the data directory of a stopped server, read and never changed.

`rk debug tablet` shows what is here. A server that runs on the directory is refused: its log and its rows change under
the reader.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from coord.errors import ConfigError, ForeignDirectory
from coord.offline.directory import ReadOnlyDisk
from coord.storage.shared.items import Change, RecoveredLog, RecoveredSlot
from coord.storage.shared.recovery import recover
from regionserver.session.instance import InstanceRecord
from regionserver.tablets.disk.files import RowsJudge, TabletFiles
from regionserver.tablets.disk.layout import BLOCKS, LOG, METAS
from regionserver.tablets.disk.startup import Decision, Found, decide
from regionserver.tablets.offline.steady_points import StartingRows

_INSTANCE: Final = "instance.json"
_LOCK: Final = "lock"


class NoSlots:
    """A shared log that takes nothing: nothing is carried out here."""

    def write(self, changes: Sequence[Change]) -> None:
        """Refuse."""
        raise AssertionError(f"a stopped server's log is only read: {changes}")

    def contents(self, slot: int) -> RecoveredSlot | None:
        """Refuse."""
        raise AssertionError(f"slot {slot} of a stopped server is only read")


class StoppedServer:
    """One server's data directory, held so that no server starts on it meanwhile. Close it."""

    def __init__(self, path: Path) -> None:
        """Hold `path`.

        Raises:
            ConfigError: It is no server's directory with tablets.
            ForeignDirectory: A server runs on it.
        """
        self.path = path
        self._lock = -1
        if not any((path / name).is_dir() for name in (BLOCKS, METAS)):
            raise ConfigError(f"{path} is not the data directory of a region server with tablets (no {BLOCKS})")
        self._hold()
        self.disk = ReadOnlyDisk(path)
        self.files = TabletFiles(self.disk, NoSlots())

    def close(self) -> None:
        """Let a server have the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> StoppedServer:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def server(self) -> str:
        """Return the server's uuid, "" if the directory does not say."""
        try:
            return msgspec.json.decode((self.path / _INSTANCE).read_bytes(), type=InstanceRecord).uuid
        except (OSError, ValueError):
            return ""

    def log(self) -> RecoveredLog:
        """Return what the shared log holds. Raises CorruptRecord, StorageError, OSError."""
        return recover(self.disk, LOG)

    def survey(self, log: RecoveredLog | None, judge: RowsJudge | None = None) -> list[Found]:
        """Return what there is of each tablet. Raises NewerFormat, ConfigError."""
        return self.files.survey(log.slots if log is not None else {}, judge or StartingRows(self.path)).tablets

    def decide(self, found: Found) -> Decision:
        """Return what a start would do with a tablet."""
        return decide(found, self.server(), 0)

    def _hold(self) -> None:
        """Share the lock. A copy has perhaps no lock file: then no server holds it."""
        try:
            fd = os.open(self.path / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise ForeignDirectory(
                f"{self.path} is in use by a running server (process {owner or 'unknown'})"
            ) from error
        self._lock = fd
