"""The write-ahead log of a store node: hard state and entries, durable before the node sends anything that depends on
them.

`coord.storage.segments` writes the records, their seals and the segments. This module defines their contents, and
removes segments that a snapshot covers.

The log belongs to one thread at a time: first to the one that opens it, then to the writer (`coord.storage.writer`).
"""

from __future__ import annotations

from coord.env import Disk
from coord.errors import CorruptRecord
from coord.storage.extent import check_end, check_files, number_of, read_extent
from coord.storage.reading import Recovered, SegmentReader
from coord.storage.records import WriteBatch, encode_header
from coord.storage.segments import SEGMENT_BYTES, SegmentLog, reopen_last


class Wal(SegmentLog):
    """The log of one node, open for appending. Call `open_wal` to make one."""

    def __init__(self, disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(disk, folder, segment_bytes=segment_bytes)
        #: (term, vote), and (index, term) of the last entry: the contents of the next segment's header.
        self._hard_state = (0, 0)
        self._last = (0, 0)

    def write(self, batches: list[WriteBatch]) -> None:
        """Make `batches` durable as one record.

        Raise OSError for a failed write, which leaves the log unchanged: the caller may retry (disk full). Raise
        SyncFailed for a failed sync: the contents of the disk are unknown, and the caller must stop the node.
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
        """Remove the oldest segments without entries above `index`, which a durable snapshot covers. Return how many.

        Each removal is synced before the next one, so that a crash leaves no gap. A segment that cannot be removed
        stays until the next call. Raise SyncFailed for a failed sync.
        """
        removed = 0
        while len(self._segments) > 1 and self._segments[0].index_max <= index and self._remove_oldest():
            removed += 1
        return removed

    def _write_header(self, number: int) -> None:
        """See `SegmentLog`. The header states the hard state and the last entry."""
        last_index, last_term = self._last
        self._write_record([encode_header(number, *self._hard_state, last_index, last_term)])


def open_wal(
    disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES, floor: int = 0, is_expected: bool = False
) -> tuple[Wal, Recovered]:
    """Open the log in `folder` (created if absent), repair a torn tail, and return the contents after entry `floor`.

    `is_expected`: a snapshot exists, so a log must exist too. This matters only in a directory of an older build, which
    has no extent.

    Raise CorruptRecord (a durable record is damaged or missing), StorageError (a newer format) or OSError.
    """
    disk.make_folder(folder)
    recovered = Recovered(floor)
    tail = (0, b"")
    names = [name for name in disk.names(folder) if name.endswith(".log")]
    extent = read_extent(disk)
    if is_expected and extent is None and not names:
        raise CorruptRecord(disk.where(folder), 0, "the log after a snapshot", "no segments")
    check_files(disk, folder, names, extent)
    wal = Wal(disk, folder, segment_bytes=segment_bytes)
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        reader = SegmentReader(disk, f"{folder}/{name}")
        previous = wal._segments[-1] if wal._segments else None
        used = _replay(reader, recovered, wal._sequence, is_first=previous is None, is_last=is_last)
        check_end(reader.path, number_of(name), used, extent)
        if used == 0:
            # A rotation was interrupted: the file exists, its header never became durable, and no record followed.
            disk.remove(f"{folder}/{name}")
            disk.sync_folder(folder)
            recovered.cut = f"{disk.where(f'{folder}/{name}')}: removed a segment without a header"
            break
        if previous is not None and reader.number != previous.number + 1:
            raise CorruptRecord(disk.where(f"{folder}/{name}"), 0, f"segment {previous.number + 1}", f"{reader.number}")
        wal.append_segment(reader.number, name, reader.sequence, used).index_max = reader.index_max
        tail = reader.last_record()
        if reader.cut:
            recovered.cut = reader.cut
    wal._hard_state = (recovered.term, recovered.vote)
    wal._last = (recovered.last_index(), recovered.last_term())
    if wal._segments:
        reopen_last(wal, disk, folder, *tail)
    else:
        wal._rotate()
    recovered.validate()
    return wal, recovered


def _replay(reader: SegmentReader, recovered: Recovered, sequence: int, *, is_first: bool, is_last: bool) -> int:
    """Replay all records of a segment. Return the end of the last valid one, 0 without a header."""
    for record in reader.records(sequence, is_first=is_first, is_last=is_last):
        for item in record.items:
            try:
                recovered.take(item)
            except ValueError as error:
                raise CorruptRecord(reader.path, record.offset, error, item) from error
    return reader.end
