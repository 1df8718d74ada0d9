"""The write-ahead log of a store node: hard state and entries, durable before the node sends anything that depends on
them.

`coord.storage.segments` writes the records, their seals and the segments. This module says what is in them, and which
segments are needed no more.

The log belongs to one thread at a time: first to the one that opens it, then to the writer (`coord.storage.writer`).
"""

from __future__ import annotations

from coord.env import Disk
from coord.errors import CorruptRecord
from coord.storage.extent import check_end, check_files, number_of, read_extent
from coord.storage.reading import Recovered, SegmentReader
from coord.storage.records import Batch, encode_header
from coord.storage.segments import SEGMENT_BYTES, SegmentLog, reopen_last


class Wal(SegmentLog):
    """The log of one node, open for appending. Call `open_wal` to make one."""

    def __init__(self, disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(disk, folder, segment_bytes=segment_bytes)
        #: Term and vote, index and term of the last entry: what the next segment's header states.
        self._hard_state = (0, 0)
        self._last = (0, 0)

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
        while len(self._segments) > 1 and self._segments[0].index_max <= index and self._remove_oldest():
            removed += 1
        return removed

    def _write_header(self, number: int) -> None:
        """See `SegmentLog`. The header states where the log stands."""
        last_index, last_term = self._last
        self._write_record([encode_header(number, *self._hard_state, last_index, last_term)])


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
    """Replay all records of a segment. Return the offset behind the last valid one, 0 without a header."""
    for record in reader.records(sequence, is_first=is_first, is_last=is_last):
        for item in record.items:
            try:
                recovered.take(item)
            except ValueError as error:
                raise CorruptRecord(reader.path, record.offset, error, item) from error
    return reader.end
