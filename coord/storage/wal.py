"""The write-ahead log: hard state and entries, durable before the node sends anything that depends on them.

    segment := record* [seal] zeros     file `<number:016x>.log`, numbers ascending without gaps

`coord.storage.records` has the grammar of records and seals. One record is one write and one sync: everything that
waits goes into it together. The next record is written only after the sync of this one has returned. So damage can be
told from a torn write (`coord.storage.reading`), but for the last record, which has none behind it.

A seal proves that the last record was durable. It is written once the sync has returned, before the write is reported,
and takes no sync of its own; the next record overwrites it. The seal itself may get lost if the power fails before the
system has written it back: some seconds after the last write. A log that was closed has its seal on the disk. Without
seals, a node with damage in its last record would forget what it has acknowledged. Such a node and one that never had
the entry could then outvote the one that has it.

Segments grow by zeros written ahead (`RESERVE_BYTES`), so that most syncs need not flush a changed file size. A file
elsewhere (`coord.storage.extent`) states which segment is the last, and how long it must be. A log that is missing or
shorter is damaged.

The log belongs to one thread at a time: first to the one that opens it, then to the writer (`coord.storage.writer`).
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final

from twisted.logger import Logger

from coord.env import Disk, DiskFile
from coord.errors import CorruptRecord, StorageError
from coord.storage.extent import NAME as EXTENT_NAME
from coord.storage.extent import ExtentFile, check_end, check_files, number_of, read_extent
from coord.storage.reading import Recovered, SegmentReader
from coord.storage.records import Batch, encode_header, encode_record, encode_seal

log = Logger()

#: A new segment begins once the current one has reached this size.
SEGMENT_BYTES: Final = 64 << 20
#: Zeros written ahead of the end of a segment.
RESERVE_BYTES: Final = 1 << 20
#: Errors of a full disk.
FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)


class _Segment:
    """One file of the log."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        #: Highest index of the entries and bases in it: the segment may go once a snapshot covers this index.
        self.index_max = 0


class Wal:
    """The log of one node, open for appending. Call `open_wal` to make one."""

    def __init__(self, disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._file: DiskFile | None = None
        self._extent = ExtentFile(disk)
        #: Offset behind the last durable record. Moves when a sync has returned. Never above `_reserved`.
        self._position = 0
        #: Size of the newest segment's file, zeros written ahead included.
        self._reserved = 0
        #: Sequence number of the last durable record.
        self._sequence = 0
        #: Term and vote, index and term of the last entry: what the next segment's header states.
        self._hard_state = (0, 0)
        self._last = (0, 0)
        #: Bytes of records and number of syncs since this process opened the log. They never fall.
        self.written_bytes = 0
        self.syncs = 0

    def write(self, batches: list[Batch]) -> None:
        """Make `batches` durable as one record.

        Raises OSError for a failed write, which leaves the log as it was: the caller may try again (disk full). Raises
        SyncFailed for a failed sync: what is on the disk is unknown, and the caller must stop the node.
        """
        if self._position >= self._segment_bytes:
            self._rotate()
        parts: list[bytes] = []
        for batch in batches:
            parts += batch.parts
        assert parts, "a record without items"
        self._write_record(parts)
        self._state_extent(self._segments[-1].number)
        self._seal()
        segment = self._segments[-1]
        for batch in batches:
            segment.index_max = max(segment.index_max, batch.index_max)
            if batch.hard_state is not None:
                self._hard_state = batch.hard_state
            if batch.last_index:
                self._last = (batch.last_index, batch.last_term)

    def prune(self, index: int) -> int:
        """Remove the oldest segments with nothing above `index`, which a durable snapshot covers. Return how many.

        Each removal is synced before the next one, so that a crash leaves no gap. A segment that cannot be removed
        stays until the next call. Raises SyncFailed for a failed sync.
        """
        removed = 0
        while len(self._segments) > 1 and self._segments[0].index_max <= index:
            path = f"{self._folder}/{self._segments[0].name}"
            try:
                self._disk.remove(path)
            except OSError as error:
                log.warn("cannot remove {path}, which is not needed any more: {error}", path=path, error=str(error))
                break
            del self._segments[0]
            self._sync_names()
            removed += 1
        return removed

    def _sync_names(self) -> None:
        try:
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise SyncFailed(self._disk.where(self._folder), error) from error

    def newest_path(self) -> str:
        """Return the path of the newest segment. Any thread: the name is added once the file is on the disk."""
        return self._where()

    def segment_count(self) -> int:
        """Return the number of the log's files."""
        return len(self._segments)

    def close(self) -> None:
        """Close the log. Sync the seal behind the last record; everything else was synced before."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.sync()
                # An older build that opens the log next cuts the reserve.
                self._extent.set(self._segments[-1].number, self._position, self._position)
            self._file.close()
            self._extent.close()
            self._file = None

    def _write_record(self, parts: list[bytes]) -> None:
        """Write and sync one record. Raises OSError, SyncFailed."""
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
        self._position = end
        self._sequence += 1
        self.written_bytes += len(record)
        self.syncs += 1

    def _state_extent(self, number: int) -> None:
        """Write down outside of the log how far its last segment reaches, if that is news. Raises SyncFailed.

        On a full disk the record is durable all the same; the next write tries again.
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
        """Write the seal behind the last record. A full disk is no error: the record itself is durable."""
        assert self._file is not None, "log is closed"
        with contextlib.suppress(OSError):
            self._file.write_at(self._position, encode_seal(self._sequence, self._position))

    def _reserve(self, file: DiskFile, end: int) -> None:
        """Write zeros ahead, for speed only. On a full disk the file grows record by record."""
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
        number = self._segments[-1].number + 1 if self._segments else 1
        segment = _Segment(number, f"{number:016x}.log")
        old = (self._file, self._position, self._reserved)
        path = f"{self._folder}/{segment.name}"
        if segment.name in self._disk.names(self._folder):
            self._disk.remove(path)  # left by a rotation that failed on a full disk
        self._file = self._disk.open(path, create=True)
        self._position = self._reserved = 0
        try:
            last_index, last_term = self._last
            self._write_record([encode_header(number, *self._hard_state, last_index, last_term)])
        except OSError:
            self._file.close()
            self._file, self._position, self._reserved = old
            raise
        # If this fails, the header is on the disk, and it is unknown whether the name is: the node stops.
        self._sync_names()
        self._state_extent(number)
        if old[0] is not None:
            old[0].close()
        self._segments.append(segment)

    def _where(self) -> str:
        name = self._segments[-1].name if self._segments else ""
        return self._disk.where(f"{self._folder}/{name}")


class SyncFailed(StorageError):  # noqa: N818
    """Raised when a sync fails. What the disk holds is unknown: the node must stop, and never sync again."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"{path}: sync failed: {error.strerror or error}")
        self.error = error


def open_wal(
    disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES, floor: int = 0, is_expected: bool = False
) -> tuple[Wal, Recovered]:
    """Open the log in `folder` (created if absent), repair a torn tail, and return the contents behind entry `floor`.

    `is_expected`: there is a snapshot, so there must be a log. Only the directory of an older build has no extent that
    says so.

    Raises CorruptRecord (a record that was durable is damaged or missing), StorageError (a newer format), OSError.
    """
    disk.make_folder(folder)
    recovered = Recovered(floor)
    tail = (0, b"")
    names = [name for name in disk.names(folder) if name.endswith(".log")]
    extent = read_extent(disk)
    if is_expected and extent is None and not names:
        raise CorruptRecord(disk.where(folder), 0, "the log behind a snapshot", "no segments")
    check_files(disk, folder, names, extent)
    wal = Wal(disk, folder, segment_bytes=segment_bytes)
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        reader = SegmentReader(disk, f"{folder}/{name}")
        previous = wal._segments[-1] if wal._segments else None
        used = _replay(reader, recovered, wal._sequence, is_first=previous is None, is_last=is_last)
        check_end(reader.path, number_of(name), used, extent)
        if used == 0:
            # A rotation broke off: the file exists, its header never became durable, and no record followed.
            disk.remove(f"{folder}/{name}")
            disk.sync_folder(folder)
            recovered.cut = f"{disk.where(f'{folder}/{name}')}: removed a segment without a header"
            break
        if previous is not None and reader.number != previous.number + 1:
            raise CorruptRecord(disk.where(f"{folder}/{name}"), 0, f"segment {previous.number + 1}", f"{reader.number}")
        segment = _Segment(reader.number, name)
        segment.index_max = reader.index_max
        wal._segments.append(segment)
        wal._sequence = reader.sequence
        wal._position = used
        tail = reader.last_record()
        if reader.cut:
            recovered.cut = reader.cut
    wal._hard_state = (recovered.term, recovered.vote)
    wal._last = (recovered.last_index(), recovered.last_term())
    if wal._segments:
        _reopen_last(wal, disk, folder, *tail)
    else:
        wal._rotate()
    recovered.validate()
    return wal, recovered


def _reopen_last(wal: Wal, disk: Disk, folder: str, offset: int, record: bytes) -> None:
    """Continue the last segment. Cut what a torn write left behind its end, or it could look valid later.

    What was read need not be on the disk: an earlier process may have ended during a sync, or after one that failed.
    The system marks pages as written even if their sync fails, and no later sync writes them. Only the last record can
    be concerned. So it is written once more, and the segment's name is made durable with it.
    """
    file = disk.open(f"{folder}/{wal._segments[-1].name}")
    number = wal._segments[-1].number
    known = wal._extent.current
    if known is not None and known.segment == number:
        # The extent first: it must not demand the zeros that are cut now, nor a record that may not be on the disk yet.
        wal._extent.set(number, known.end, known.end)
    file.truncate(wal._position)
    file.write_at(offset, record)
    file.sync()
    disk.sync_folder(folder)
    wal._extent.set(number, wal._position, wal._position)
    wal._file = file
    wal._reserved = wal._position
    if offset:
        # A header alone holds nothing that a node has acknowledged.
        wal._seal()


def _replay(reader: SegmentReader, recovered: Recovered, sequence: int, *, is_first: bool, is_last: bool) -> int:
    """Replay all records of a segment. Return the offset behind the last valid one, 0 without a header."""
    for record in reader.records(sequence, is_first=is_first, is_last=is_last):
        for item in record.items:
            try:
                recovered.take(item)
            except ValueError as error:
                raise CorruptRecord(reader.path, record.offset, error, item) from error
    return reader.end
