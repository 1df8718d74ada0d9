"""Reading the shared log: the contents of each slot, and which slots have lost data to damage.

The log is read once, from its oldest segment on. One segment is in memory at a time; entries stay on the disk.

A torn record at the end was never acknowledged and is cut, by the rules of `coord.storage.reading`. Anything else that
is not whole is a **stretch** of damage: bytes between records, a last record that is followed only by its seal, a
segment that is missing, or one shorter than `log.extent` says. Reading continues after the stretch. The following
statements show what was lost:

- A block that does not continue its slot: the slot has lost the blocks in between.
- A trail with a higher number for a slot than was read. A trail that goes back to the first lost record names every
  slot of the stretch.
- A row of a later header. The row replaces the lost state of the slot: term, vote and floor. If the slot's floor
  reaches the last entry in the row, at once or later, the slot has lost nothing.

A slot without any statement after a stretch may have lost a block, and counts as damaged. This happens only if the
damage is longer than a window of trails in the newest segment, or if the end of the log is missing.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from coord.env import Disk
from coord.errors import CorruptRecord
from coord.storage.extent import Extent, check_files, number_of, read_extent
from coord.storage.reading import Gap, RecordReader, is_zero
from coord.storage.records import ITEM_SEGMENT, RECORD_BYTES_MIN, SEAL, SEAL_MAGIC, HardStateItem, LogItem
from coord.storage.shared.codec import (
    HAS_FLOOR,
    HAS_ROW,
    HAS_STATE,
    HEADER,
    ITEM_HEADER,
    ITEM_TRAIL,
    PIECE,
    TRAIL,
    BlockHead,
    BlockStart,
    SlotRow,
    decode_block,
    decode_header,
    decode_note,
    decode_row,
    decode_start,
    decode_trail,
)
from coord.storage.shared.index import LiveSlot, SlotIndex
from coord.storage.shared.items import BEGINNING, Position, RecoveredLog, RecoveredSlot
from coord.storage.shared.loading import load_entries

#: The folder of the log in a server's data directory.
FOLDER: Final = "wals"
#: Flags of a block whose content begins with something else than entries.
_HAS_START: Final = HAS_ROW | HAS_STATE | HAS_FLOOR
_NAME: Final = re.compile(r"[0-9a-f]{16}\.log")


class SharedRecord:
    """The place of one record in its segment."""

    def __init__(self, offset: int, size: int, sequence: int) -> None:
        self.offset = offset
        self.size = size
        self.sequence = sequence


class SharedReader(RecordReader[SharedRecord]):
    """Reads one segment of the shared log."""

    def record_bytes(self, record: SharedRecord) -> bytes:
        """Return the items of a record."""
        return self._data[record.offset + RECORD_BYTES_MIN : record.offset + record.size]

    def last_note(self) -> tuple[int, int, list[tuple[int, int]]]:
        """Read the seal and the note after a damaged end. Return the sequence number of the last record by its seal,
        and `since` and the pieces of the note. Return (0, 0, []) without a seal; `since` is 0 without a note."""
        sequence, at = self._later_seal(max(self.end, 0), self.sequence)
        if not sequence:
            return 0, 0, []
        note = decode_note(self._data, at + SEAL.size)
        return (sequence, 0, []) if note is None else (sequence, *note)

    def seal_position(self) -> int:
        """Return the offset of the seal of a damaged last record, 0 without one."""
        return self._later_seal(max(self.end, 0), self.sequence)[1]

    def _record(self, offset: int, size: int, sequence: int) -> SharedRecord:
        return SharedRecord(offset, size, sequence)

    def _check_tail(self, offset: int, sequence: int, *, is_last: bool) -> None:
        """See `RecordReader`. The sequence number of the next segment's header shows whether a record is missing at the
        end of an older segment."""
        if is_zero(self._data, offset):
            return
        self._expect_nothing_later(offset, sequence)
        if is_last and self._data[offset : offset + len(SEAL_MAGIC)] != SEAL_MAGIC:
            self.cut = f"{self.path}: cut a torn record at offset {offset}"


class Stretch:
    """A part of the log that is lost."""

    def __init__(self, text: str, first_lost: int) -> None:
        self.text = text
        #: Sequence number of the first lost record, 0 if it is unknown.
        self.first_lost = first_lost
        #: Sequence number of the first record after the stretch, 0 if there is none.
        self.first_after = 0
        #: True once every slot of the stretch is known.
        self.is_named = False


class LogReading:
    """The result of reading the log."""

    def __init__(self) -> None:
        self.index = SlotIndex()
        #: Number, name, and the end of the last whole record of each segment.
        self.segments: list[tuple[int, str, int]] = []
        #: Sequence number of the last record, whole or not.
        self.sequence = 0
        #: Offset and bytes of the last whole record.
        self.tail = (0, b"")
        #: The first number that no segment has had.
        self.next_number = 1
        #: Name of a last segment whose header was never durable, "" without one.
        self.unfinished = ""
        self.cut = ""
        self.stretches: list[Stretch] = []

    def lost_end(self) -> bool:
        """Return True if the end of the log is damaged."""
        return any(not stretch.first_after for stretch in self.stretches)

    def has_news(self) -> bool:
        """Return True for damage that no header on the disk states."""
        return self.lost_end() or any(slot.damage and not slot.is_stated for slot in self.index.slots.values())


def recover(disk: Disk, folder: str = FOLDER) -> RecoveredLog:
    """Return the contents of the log in `folder`. Change nothing.

    Raise CorruptRecord if the whole log is missing or holds records that no server writes, StorageError for a later
    format, or OSError.
    """
    return recovered(disk, folder, read_log(disk, folder))


def recovered(disk: Disk, folder: str, reading: LogReading) -> RecoveredLog:
    """Return the slots of a log that was read."""
    slots = {number: recovered_slot(disk, folder, slot) for number, slot in reading.index.slots.items()}
    found = RecoveredLog(slots, reading.index.next_slot, reading.cut)
    found.damage = [stretch.text for stretch in reading.stretches]
    return found


def recovered_slot(disk: Disk, folder: str, slot: LiveSlot) -> RecoveredSlot:
    """Return the contents of one slot on the disk."""

    def load() -> list[LogItem]:
        return load_entries(disk, folder, slot)

    hard_state = HardStateItem(slot.term, slot.vote)
    last = Position(slot.last_index, slot.last_term)
    return RecoveredSlot(
        slot.tablet, slot.member, slot.generation, hard_state, slot.floor, last, slot.damage or None, load
    )


def segment_names(disk: Disk, folder: str) -> list[str]:
    """Return the names of the log's segments, oldest first. Raise OSError."""
    return [name for name in disk.names(folder) if _NAME.fullmatch(name)]


def read_log(disk: Disk, folder: str) -> LogReading:
    """Read the log without changing it. Raise as `recover` does."""
    names = segment_names(disk, folder)
    extent = read_extent(disk)
    if not names:
        check_files(disk, folder, names, extent)
    return _Pass(disk, folder, names, extent).read()


class _Pass:
    """One pass over the log."""

    def __init__(self, disk: Disk, folder: str, names: list[str], extent: Extent | None) -> None:
        self._disk = disk
        self._folder = folder
        self._names = names
        self._extent = extent
        self._found = LogReading()
        self._index = self._found.index
        #: Stretches with slots that are still unknown.
        self._open: list[Stretch] = []

    def read(self) -> LogReading:
        """Read all segments. Raise as `recover` does."""
        found, extent = self._found, self._extent
        for name in self._names:
            number = number_of(name)
            if number > found.next_number and found.segments:
                self._lose(f"{self._disk.where(self._folder)}: segments before {name} are missing")
            found.next_number = number + 1
            self._segment(number, name, is_last=name == self._names[-1])
        if extent is not None and extent.segment >= found.next_number:
            self._lose(f"{self._disk.where(self._folder)}: segment {extent.segment:016x}.log is missing")
            found.next_number = extent.segment + 1
        self._conclude()
        return found

    def _segment(self, number: int, name: str, *, is_last: bool) -> None:
        found = self._found
        reader = SharedReader(self._disk, f"{self._folder}/{name}")
        before = len(found.stretches)
        for part in reader.stretches(found.sequence, is_first=True, is_last=is_last):
            if isinstance(part, Gap):
                self._lose(f"{part.path}: bytes {part.offset} to {part.end - 1} are damaged")
            else:
                self._take_record(reader, number, part)
        reached = reader.end
        if reader.is_open_ended:
            reached = max(reached, reader.seal_position())
            self._take_note(reader)
        extent = self._extent
        if extent is not None and extent.segment == number:
            if reader.size() < extent.size:
                self._lose(f"{reader.path}: {reader.size()} bytes instead of {extent.size} at least")
            elif reached < extent.end:
                self._lose(f"{reader.path}: records end at byte {reached}, they once reached {extent.end}")
        if is_last:
            found.cut = reader.cut
        if is_last and reader.end == 0 and len(found.stretches) == before:
            # An interrupted rotation: the file exists, its header never became durable, and no record followed.
            found.unfinished = name
            found.cut = f"{reader.path}: removed a segment without a header"
            return
        found.segments.append((number, name, reader.end))
        if reader.end:
            found.tail = reader.last_record()
        else:
            found.tail = (0, b"")

    # --- damage -----------------------------------------------------------------------------------------------------

    def _lose(self, text: str) -> None:
        sequence = self._found.sequence
        stretch = Stretch(text, sequence + 1 if sequence else 0)
        self._found.stretches.append(stretch)
        self._open.append(stretch)

    def _take_note(self, reader: SharedReader) -> None:
        """Use the seal after a damaged last record, and its note."""
        sequence, since, pieces = reader.last_note()
        if sequence:
            self._found.sequence = sequence
            if since:
                self._state_pieces(since, pieces, sequence)

    def _state_pieces(self, since: int, pieces: list[tuple[int, int]], sequence: int) -> None:
        """Use a trail while slots of a stretch are unknown."""
        slots, used_below = self._index.slots, self._index.next_slot
        for number, written in pieces:
            slot = slots.get(number)
            if slot is None:
                if number in self._index.ended or number < used_below:
                    continue
                slot = self._unknown(number, 0)
            if slot.written < written:
                self._damage(slot, written)
                slot.written = written
            slot.stated = sequence
        for stretch in self._open:
            stretch.is_named = 0 < since <= stretch.first_lost
        self._open = [stretch for stretch in self._open if not stretch.is_named]

    def _damage(self, slot: LiveSlot, written: int) -> None:
        """Record that the blocks after the known one, up to `written`, are lost."""
        if not slot.damage:
            stretches = self._found.stretches
            where = stretches[-1].text if stretches else "the log contradicts itself"
            slot.damage = f"lost blocks {slot.written + 1} to {written} of the slot: {where}"

    def _unknown(self, number: int, generation: int) -> LiveSlot:
        """Begin a slot whose opening record is lost."""
        slot = self._index.open(SlotRow(number, generation, 0, 0, (0, 0), BEGINNING, BEGINNING, ""))
        self._damage(slot, 1)
        return slot

    def _conclude(self) -> None:
        """Decide which slots have lost something."""
        for slot in self._index.slots.values():
            for stretch in self._open:
                if not slot.damage and (not stretch.first_after or slot.stated < stretch.first_after):
                    slot.damage = f"may have lost a block: {stretch.text}"
            if slot.floor.index < slot.start and not slot.damage:
                slot.damage = f"entries {slot.floor.index + 1} to {slot.start} of the slot are lost"

    # --- records ----------------------------------------------------------------------------------------------------

    def _take_record(self, reader: SharedReader, number: int, record: SharedRecord) -> None:
        found = self._found
        if record.sequence <= found.sequence:
            actual = f"record {record.sequence}"
            raise CorruptRecord(reader.path, record.offset, f"a record after {found.sequence}", actual)
        is_gap = found.sequence and record.sequence != found.sequence + 1
        if is_gap and all(stretch.first_after for stretch in found.stretches):
            self._lose(f"{reader.path}: records between {found.sequence} and {record.sequence} are missing")
        found.sequence = record.sequence
        for stretch in found.stretches:
            stretch.first_after = stretch.first_after or record.sequence
        data = reader.record_bytes(record)
        try:
            if data[:1] == bytes([ITEM_HEADER]):
                self._take_header(reader.path, number, data)
            elif data[:1] == bytes([ITEM_SEGMENT]):
                raise ValueError("it is the log of a store node")
            else:
                self._take_blocks(number, record, data)
        except (ValueError, struct.error) as error:
            raise CorruptRecord(reader.path, record.offset, "items of a shared log", error) from error

    def _take_header(self, path: str, number: int, data: bytes) -> None:
        """Set the state of all slots from a header."""
        header = decode_header(path, data, 0)
        if header.segment != number:
            raise ValueError(f"segment {header.segment} under the name of {number}")
        index, offset = self._index, HEADER.size
        stated: set[int] = set()
        for _ in range(header.rows):
            row, offset = decode_row(data, offset)
            stated.add(row.slot)
            slot = index.slots.get(row.slot)
            if slot is None:
                slot = index.open(row)
            elif slot.written != row.written or slot.generation != row.generation or (slot.damage and not row.damage):
                slot = index.restate(slot, row)
            slot.damage = row.damage
            slot.is_stated = bool(row.damage)
            slot.stated = self._found.sequence
        for slot in [slot for slot in index.slots.values() if slot.slot not in stated]:
            index.end(slot)
        index.next_slot = max(index.next_slot, header.next_slot)
        for stretch in self._open:
            stretch.is_named = True
        self._open = []

    def _take_blocks(self, number: int, record: SharedRecord, data: bytes) -> None:
        """Apply a record of blocks."""
        offset = 0
        if data[:1] == bytes([ITEM_TRAIL]):
            if self._open:
                since, pieces, offset = decode_trail(data, 0)
                self._state_pieces(since, pieces, record.sequence)
            else:
                offset = TRAIL.size + TRAIL.unpack_from(data, 0)[2] * PIECE.size
        index, slots = self._index, self._index.slots
        base = record.offset + RECORD_BYTES_MIN
        while offset < len(data):
            head, content = decode_block(data, offset)
            start = decode_start(head.flags, data, content) if head.flags & _HAS_START else None
            slot = slots.get(head.slot)
            if slot is None or head.written != slot.written + 1 or head.generation != slot.generation:
                slot = self._restart(slot, head, start)
            slot.stated = record.sequence
            index.take(slot, head, start, number, base + offset)
            offset = content + head.length

    def _restart(self, slot: LiveSlot | None, head: BlockHead, start: BlockStart | None) -> LiveSlot:
        """Return the slot of a block that does not continue a slot: it opens one, or blocks before it are lost."""
        row = start.row if start is not None else None
        if row is not None and slot is None:
            if row.slot != head.slot or row.written != head.written:
                raise ValueError(f"block {head.written} of slot {head.slot} opens slot {row.slot} at {row.written}")
            return self._index.open(row)
        if slot is None and head.slot not in self._index.ended:
            return self._unknown(head.slot, head.generation)
        if slot is None:
            raise ValueError(f"block {head.written} of slot {head.slot}, which has ended")
        if head.written <= slot.written:
            raise ValueError(f"block {head.written} of slot {slot.slot} after block {slot.written}")
        self._damage(slot, head.written - 1)
        return slot
