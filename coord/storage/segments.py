"""Appending records to a log of segments. Subclasses define the contents of the records.

    segment := record* [seal] zeros     file `<number:016x>.log`, numbers ascending without gaps

`coord.storage.records` has the grammar of records and seals. One record is one write and one sync: it holds all batches
that wait. The next record is written only after the sync of this one has returned. So a reader can distinguish damage
from a torn write (`coord.storage.reading`), except in the last record, which no record follows.

A seal proves that the last record was durable. It is written once the sync has returned, before the write is reported,
and is not synced; the next record overwrites it. The seal may be lost if the power fails before the system has written
it back, some seconds after the last write. A log that was closed has its seal on the disk. Without seals, a node with
damage in its last record would lose entries that it has acknowledged. Together with a node that never had these
entries, it could then outvote the node that has them.

Segments grow by zeros written ahead (`RESERVE_BYTES`), so that most syncs need not flush a changed file size. A file
outside of the log (`coord.storage.extent`) states which segment is the last, and its least length. A missing or shorter
log counts as damaged.

Two logs use this module: that of a store node (`coord.storage.wal`), and the one that all groups of a region server
share (`coord.storage.shared`).
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final

from twisted.logger import Logger

from coord.env import Disk, DiskFile
from coord.errors import StorageError
from coord.storage.extent import NAME as EXTENT_NAME
from coord.storage.extent import ExtentFile
from coord.storage.records import encode_record, encode_seal

log = Logger(__name__)

#: A new segment begins once the current one has reached this size.
SEGMENT_BYTES: Final = 64 << 20
#: Zeros written ahead of the end of a segment.
RESERVE_BYTES: Final = 1 << 20
#: Errors of a full disk. EFBIG: the process may not make a file this long (`ulimit -f`, LimitFSIZE of systemd). Python
#: ignores the signal SIGXFSZ, so the write fails and the process goes on.
FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogSegment:
    """One file of the log."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        #: In a store's log, the highest index of the entries and bases in it.
        self.index_max = 0


class SegmentLog:
    """A log open for appending. A subclass writes the segments' headers and the contents of the records."""

    def __init__(self, disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments: list[LogSegment] = []
        self._file: DiskFile | None = None
        self._extent = ExtentFile(disk)
        #: Offset of the end of the last durable record. Changes when a sync has returned. At most `_reserved`.
        self._position = 0
        #: Size of the newest segment's file, zeros written ahead included.
        self._reserved = 0
        #: Sequence number of the last durable record.
        self._sequence = 0
        #: Bytes of records and number of syncs since this process opened the log. They never decrease.
        self.written_bytes = 0
        self.syncs = 0

    def _write_header(self, number: int) -> None:
        """Write and sync the header of the empty segment `number`. Raise OSError or SyncFailed."""
        raise NotImplementedError

    def _next_number(self) -> int:
        """Return the number of the next segment."""
        return self._segments[-1].number + 1 if self._segments else 1

    def _encode_seal(self) -> bytes:
        """Return the seal after the last record."""
        return encode_seal(self._sequence, self._position)

    def append_segment(self, number: int, name: str, sequence: int, end: int) -> LogSegment:
        """Take over a segment that was read: its last record is `sequence`, which ends at `end`."""
        assert not self._segments or number > self._segments[-1].number, f"segment {number} is taken over too late"
        assert sequence >= self._sequence, f"segment {number} ends with record {sequence}, before {self._sequence}"
        segment = LogSegment(number, name)
        self._segments.append(segment)
        self._sequence = sequence
        self._position = end
        return segment

    def _remove_oldest(self) -> bool:
        """Remove the oldest segment, durably. Return False if it cannot be removed. Raise SyncFailed."""
        assert len(self._segments) > 1, "the segment that is being written would be removed"
        path = f"{self._folder}/{self._segments[0].name}"
        try:
            self._disk.remove(path)
        except OSError as error:
            log.warn("cannot remove {path}, which is not needed any more: {error}", path=path, error=str(error))
            return False
        del self._segments[0]
        self._sync_names()
        return True

    def _sync_names(self) -> None:
        try:
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise SyncFailed(self._disk.where(self._folder), error) from error

    def newest_path(self) -> str:
        """Return the path of the newest segment. Safe in any thread: the name is added once the file is on the disk."""
        return self._where()

    def segment_count(self) -> int:
        """Return the number of the log's files."""
        return len(self._segments)

    def close(self) -> None:
        """Close the log. Sync the seal after the last record; all records were synced before."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.sync()
                # An older build may open the log next, and truncates the zeros written ahead.
                self._extent.set(self._segments[-1].number, self._position, self._position)
            self._file.close()
            self._extent.close()
            self._file = None

    def _write_record(self, parts: list[bytes]) -> None:
        """Write and sync one record. Raise OSError or SyncFailed."""
        file = self._file
        assert file is not None, "log is closed"
        record = encode_record(self._sequence + 1, parts)
        file.write_at(self._position, record)
        end = self._position + len(record)
        if end > self._reserved:
            self._reserve(file, end)
        try:
            file.sync()
        except OSError as error:
            raise SyncFailed(self._where(), error) from error
        assert end <= self._reserved, f"a record ends at byte {end} of a file of {self._reserved}"
        self._position = end
        self._sequence += 1
        self.written_bytes += len(record)
        self.syncs += 1

    def _state_extent(self, number: int) -> None:
        """Write a new extent if the last segment has outgrown the present one. Raise SyncFailed.

        A full disk is ignored: the record is durable already, and the next write tries again.
        """
        known = self._extent.current
        if known is not None and known.segment == number and known.size >= self._position:
            return
        try:
            self._extent.set(number, self._reserved, self._position)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise SyncFailed(self._disk.where(EXTENT_NAME), error) from error

    def _seal(self) -> None:
        """Write the seal after the last record. Ignore a full disk: the record itself is durable."""
        assert self._file is not None, "log is closed"
        with contextlib.suppress(OSError):
            self._file.write_at(self._position, self._encode_seal())

    def _reserve(self, file: DiskFile, end: int) -> None:
        """Write zeros ahead, only for speed. On a full disk the file grows record by record."""
        self._reserved = end
        room = min(RESERVE_BYTES, self._segment_bytes - end)
        if room > 0:
            try:
                file.write_at(end, bytes(room))
            except OSError:
                return
            self._reserved = end + room

    def _rotate(self) -> None:
        """Begin the next segment. Its header and its name are durable before the first record goes into it."""
        number = self._next_number()
        assert not self._segments or number > self._segments[-1].number, f"segment {number} exists already"
        segment = LogSegment(number, f"{number:016x}.log")
        old = (self._file, self._position, self._reserved, self._sequence)
        path = f"{self._folder}/{segment.name}"
        if segment.name in self._disk.names(self._folder):
            self._disk.remove(path)  # left by a rotation that failed on a full disk
        self._file = self._disk.open(path, create=True)
        self._position = self._reserved = 0
        try:
            self._write_header(number)
        except OSError:
            self._file.close()
            self._file, self._position, self._reserved, self._sequence = old
            raise
        # If this fails, the header is on the disk, but the name may not be: the node stops.
        self._sync_names()
        self._state_extent(number)
        if old[0] is not None:
            old[0].close()
        self._segments.append(segment)

    def _where(self) -> str:
        name = self._segments[-1].name if self._segments else ""
        return self._disk.where(f"{self._folder}/{name}")


class SyncFailed(StorageError):  # noqa: N818
    """Raised when a sync fails. The contents of the disk are unknown: the node must stop without another sync."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"{path}: sync failed: {error.strerror or error}")
        self.error = error


def reopen_last(wal: SegmentLog, disk: Disk, folder: str, offset: int, record: bytes) -> None:
    """Continue the last segment. Erase the bytes that a torn write left after its end: they could look valid later.

    Bytes that were read need not be on the disk: an earlier process may have ended during a sync, or after a failed
    sync. The system marks pages as written even if their sync fails, and no later sync writes them. Only the last
    record can be affected. So it is written once more, and the segment's name is made durable with it.

    Until then the extent stays as it is. It does not state the end of a record that may not be durable yet. But it
    states a size that covers every acknowledged record, so the file keeps this size: a file that is truncated while
    this function is interrupted is still detected.
    """
    assert wal._file is None, f"{wal._where()} is open already"
    assert offset + len(record) == wal._position, f"the last record ends at byte {offset + len(record)}"
    file = disk.open(f"{folder}/{wal._segments[-1].name}")
    number = wal._segments[-1].number
    known = wal._extent.current
    stated = known.size if known is not None and known.segment == number else 0
    wal._reserved = max(wal._position, stated)
    file.truncate(wal._reserved)
    if wal._reserved > wal._position:
        file.write_at(wal._position, bytes(wal._reserved - wal._position))
    file.write_at(offset, record)
    file.sync()
    disk.sync_folder(folder)
    wal._extent.set(number, wal._reserved, wal._position)
    wal._file = file
    if offset:
        # A header alone holds nothing that a node has acknowledged.
        wal._seal()
