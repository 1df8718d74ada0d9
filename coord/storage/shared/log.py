"""The shared log of a region server, open for appending.

One turn of the server is one batch, one record and one sync, however many groups write in the turn:

    batch = log.batch([SlotItems(...), Floor(...), ...])    on the groups' thread; a bad change is rejected here
    number = writer.submit(batch)                           `coord.storage.writer`, as in a store node
    writer.flush()                                          once per turn; on_persisted(number) reports it durable

Batches become durable in the order in which they were made. So every batch must be submitted before the next one is
made.

`SEGMENTS_MAX` bounds the log as long as floors rise. From `SEGMENTS_CHECKPOINT` segments on the owner calls `pinning`,
makes the rows of these slots durable and raises their floors, or drops the slots. The log itself never rejects a write
because of its size: the floors that shorten the log are written to it as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twisted.logger import Logger

from coord.env import Disk
from coord.storage.records import RECORD_BYTES_MIN, LogItem
from coord.storage.segments import SegmentLog, reopen_last
from coord.storage.shared.batch import SlotBatch, SlotTable
from coord.storage.shared.codec import PIECE, encode_header, encode_row
from coord.storage.shared.index import SlotIndex
from coord.storage.shared.items import Change, Position, RecoveredLog, RecoveredSlot
from coord.storage.shared.loading import load_entries, load_range
from coord.storage.shared.recovery import FOLDER, LogReading, read_log, recovered, recovered_slot
from coord.storage.shared.trails import WINDOW_BYTES, Trails

log = Logger(__name__)

#: Size of the current segment at which a new one begins. Larger segments slow down the start, which reads whole
#: segments into memory. Smaller segments repeat the rows of all slots more often: a header of 10,000 slots takes 2 MB.
SEGMENT_BYTES: Final = 64 << 20
#: Limit of segments while the owner raises the floors that pin the oldest one: 1 GB, which is read at a start.
SEGMENTS_MAX: Final = 16

#: With this many segments the owner begins to raise those floors: making a tablet's rows durable may take a while.
SEGMENTS_CHECKPOINT: Final = 12
#: Added to the sequence number after a damaged end: more records than the lost part can have held.
LOST_RECORDS_MAX: Final = 1 << 32


class SharedLog(SegmentLog):
    """The log of one server. Call `open_shared_log` to make one."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        index: SlotIndex,
        sequence: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        super().__init__(disk, folder, segment_bytes=segment_bytes)
        self._index = index
        self._table = SlotTable(index)
        written = {**index.ended, **{slot.slot: slot.written for slot in index.slots.values()}}
        pieces = {slot: PIECE.pack(slot, number) for slot, number in written.items()}
        self._trails = Trails(sequence, pieces, window_bytes=window_bytes)
        self._sequence = sequence
        self._number = 0

    def resume(self, reading: LogReading) -> None:
        """Continue after the part that was read. Raise OSError."""
        disk, folder = self._disk, self._folder
        for number, name, end in reading.segments:
            self.append_segment(number, name, reading.sequence, end)
        self._number = reading.next_number
        if reading.unfinished:
            disk.remove(f"{folder}/{reading.unfinished}")
            disk.sync_folder(folder)
            self._number = 0
        if self._segments and not reading.has_news():
            reopen_last(self, disk, folder, *reading.tail)
            return
        if self._segments and reading.tail[1]:
            _rewrite(disk, f"{folder}/{self._segments[-1].name}", *reading.tail)
        if reading.lost_end():
            self._sequence += LOST_RECORDS_MAX
        self._rotate()

    # --- on the groups' thread --------------------------------------------------------------------------------------

    def batch(self, changes: Iterable[Change]) -> SlotBatch:
        """Return the changes of one turn as a batch, to be submitted before the next one is made.

        Raise SlotError for the first change that does not fit its slot; then no change is accepted.
        """
        return self._table.batch(changes)

    def next_slot(self) -> int:
        """Return the lowest number that no slot has ever had. It changes when a slot of this number is opened."""
        return self._table.next_slot

    def entries(self, slot: int) -> list[LogItem]:
        """Read the durable entries of a slot above its floor from the disk.

        Raise KeyError for a slot that is not open, StorageError for damage, OSError.
        """
        return load_entries(self._disk, self._folder, self._index.slots[slot])

    def entries_from(self, slot: int, first: int, bytes_max: int) -> tuple[Position | None, list[LogItem]]:
        """Return durable entries of a slot from `first` on, at least one and about `bytes_max` bytes, and the position
        before them. Return None and no entries if the log lacks that position or has no entry after it.

        Safe on any thread. Raise KeyError for a slot that is not open, StorageError for damage, OSError.
        """
        return load_range(self._disk, self._folder, self._index.slots[slot], first, bytes_max)

    def contents(self, slot: int) -> RecoveredSlot | None:
        """Return the durable contents of a slot, None for a slot that is not open."""
        found = self._index.slots.get(slot)
        return None if found is None else recovered_slot(self._disk, self._folder, found)

    def pinning(self) -> list[int]:
        """Return the slots that need the oldest segment: their floors must rise, or the slots must be dropped.

        Return [] if the log has only one segment.
        """
        segments = self._segments
        return self._index.pinning(segments[0].number) if len(segments) > 1 else []

    # --- on the thread that writes the log --------------------------------------------------------------------------

    def write(self, batches: list[SlotBatch]) -> None:
        """Make `batches` durable as one record. Raise as `Wal.write` does.

        Raise OSError for a failed write, which leaves the log unchanged: the caller may retry (disk full). Raise
        SyncFailed for a failed sync: the contents of the disk are unknown, and the caller must stop the server.
        """
        if self._position >= self._segment_bytes:
            self._rotate()
            self._warn_of_pins()
        parts = [self._trails.encode()]
        at = self._position + RECORD_BYTES_MIN + len(parts[0])
        for batch in batches:
            parts += batch.parts
        start = self._position
        self._write_record(parts)
        number = self._segments[-1].number
        self._state_extent(number)
        pieces: dict[int, bytes] = {}
        for batch in batches:
            self._take(batch, number, at)
            at += batch.bytes
            pieces.update(batch.pieces)
        assert at == self._position, f"blocks end at byte {at}, their record at {self._position}"
        self._trails.took(self._sequence, pieces, self._position - start)
        self._seal()

    def prune(self, index: int) -> int:
        """Remove the oldest segments that no slot needs. Return how many.

        `index` is any number that rises: `ThreadWriter` calls this once for each. The number of the batch with the
        floors is such a number. Raise SyncFailed for a failed sync.
        """
        del index
        removed = 0
        segments = self._segments
        while len(segments) > 1 and not self._index.spans_in(segments[0].number) and self._remove_oldest():
            removed += 1
        return removed

    def _take(self, batch: SlotBatch, number: int, at: int) -> None:
        index = self._index
        for head, start, offset in batch.blocks:
            row = start.row if start is not None else None
            slot = index.open(row) if row is not None else index.slots[head.slot]
            index.take(slot, head, start, number, at + offset)

    def _write_header(self, number: int) -> None:
        """See `SegmentLog`. Write all slots twice: damage to one header must not lose the slots that it states."""
        rows = [encode_row(slot.row()) for slot in self._index.slots.values()]
        for copy in (1, 2):
            self._write_record([encode_header(number, copy, self._index.next_slot, len(rows)), *rows])

    def _next_number(self) -> int:
        """See `SegmentLog`. The number of a lost segment is not used again."""
        return max(super()._next_number(), self._number)

    def _encode_seal(self) -> bytes:
        """See `SegmentLog`. A note after the seal names the slots of the last record."""
        return super()._encode_seal() + self._trails.encode_note()

    def _warn_of_pins(self) -> None:
        if len(self._segments) <= SEGMENTS_MAX:
            return
        pinning = self.pinning()
        tablets = ", ".join(self._index.slots[slot].tablet for slot in pinning[:5])
        log.warn(
            "the shared log has {count} segments, the limit is {most}: {tablets} and {more} other tablets"
            " need the oldest one; make their rows durable",
            count=len(self._segments),
            most=SEGMENTS_MAX,
            tablets=tablets or "no tablet",
            more=max(0, len(pinning) - 5),
        )


def open_shared_log(
    disk: Disk, folder: str = FOLDER, *, segment_bytes: int = SEGMENT_BYTES, window_bytes: int = WINDOW_BYTES
) -> tuple[SharedLog, RecoveredLog]:
    """Open the log in `folder` (created if absent), cut a torn tail, and return the contents.

    Damage is reported per slot, and the log continues after it in a new segment. That segment's header states the
    damage, so the next start finds it again even if the old segments are removed.

    Raise CorruptRecord if the whole log is missing or holds records that no server writes, StorageError for a later
    format, or OSError.
    """
    disk.make_folder(folder)
    reading = read_log(disk, folder)
    shared = SharedLog(
        disk, folder, reading.index, reading.sequence, segment_bytes=segment_bytes, window_bytes=window_bytes
    )
    shared.resume(reading)
    return shared, recovered(disk, folder, reading)


def _rewrite(disk: Disk, path: str, offset: int, record: bytes) -> None:
    """Write the last whole record once more (see `reopen_last`). Keep the bytes after it. Raise OSError."""
    file = disk.open(path)
    try:
        file.write_at(offset, record)
        file.sync()
    finally:
        file.close()
