"""The tablets in the data directory of a stopped server, read and never changed.

`rk debug tablet` prints the result. A directory in use by a running server is rejected, because its log and rows
change while they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coord.errors import ConfigError
from coord.offline.directory import LockedDirectory, ReadOnlyDisk
from coord.storage.shared.items import Change, RecoveredLog, RecoveredSlot
from coord.storage.shared.recovery import recover
from regionserver.session.instance import read_record
from regionserver.tablets.disk.files import RowsJudge, TabletFiles
from regionserver.tablets.disk.instance import check_tablets
from regionserver.tablets.disk.layout import BLOCKS, LOG, METAS
from regionserver.tablets.disk.startup import Decision, Found, decide
from regionserver.tablets.offline.steady_points import StartingRows


class NoSlots:
    """A shared log that rejects all changes, because a stopped server's log is only read."""

    def write(self, changes: Sequence[Change]) -> None:
        """Raise AssertionError."""
        raise AssertionError(f"a stopped server's log is only read: {changes}")

    def contents(self, slot: int) -> RecoveredSlot | None:
        """Raise AssertionError."""
        raise AssertionError(f"slot {slot} of a stopped server is only read")


class StoppedServer(LockedDirectory):
    """One server's data directory with tablets."""

    def __init__(self, path: Path) -> None:
        """Lock `path`.

        Raises:
            ConfigError: It is not a server's data directory with tablets.
            ForeignDirectory: A server runs on it.
        """
        if not any((path / name).is_dir() for name in (BLOCKS, METAS)):
            raise ConfigError(f"{path} is not the data directory of a region server with tablets (no {BLOCKS})")
        super().__init__(path, "server")
        self.disk = ReadOnlyDisk(path)
        self.files = TabletFiles(self.disk, NoSlots())

    def server(self) -> str:
        """Return the server's uuid, or "" if the directory lacks it."""
        try:
            record = read_record(self.path)
        except ConfigError:
            return ""
        return "" if record is None else record.uuid

    def refusal(self, found: Sequence[Found]) -> str:
        """Return why a server does not start on this directory, "" if it does. A copy of a directory is judged like the
        original, because reading a copy is allowed."""
        try:
            record = read_record(self.path)
            if record is None:
                return f"{self.path}/instance.json is missing" if found else ""
            self.files.check(str(self.path), record.lock_inode or 0, record.lock_inode, is_accepted=True)
            check_tablets(str(self.path), record.uuid, found)
        except ConfigError as error:
            return str(error)
        return ""

    def log(self) -> RecoveredLog:
        """Return the contents of the shared log. Raise CorruptRecord, StorageError or OSError."""
        return recover(self.disk, LOG)

    def survey(self, log: RecoveredLog | None, judge: RowsJudge | None = None) -> list[Found]:
        """Return the files found of each tablet. Raise NewerFormat or ConfigError."""
        return self.files.survey(log.slots if log is not None else {}, judge or StartingRows(self.path)).tablets

    def decide(self, found: Found) -> Decision:
        """Return the decision of a start about a tablet."""
        return decide(found, self.server(), 0)
