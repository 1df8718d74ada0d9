"""The records of one slot in the shared log, as text for operators. Read-only."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from coord.env import Disk
from coord.errors import CorruptRecord
from coord.storage.reading import Gap
from coord.storage.records import RECORD_BYTES_MIN, LogItem
from coord.storage.shared.codec import (
    ENDS,
    HEADER,
    ITEM_HEADER,
    PIECE,
    TRAIL,
    SlotRow,
    decode_block,
    decode_entries,
    decode_header,
    decode_row,
    decode_start,
)
from coord.storage.shared.items import Position, RecoveredLog
from coord.storage.shared.recovery import FOLDER, SharedReader, SharedRecord, segment_names


class SlotRecord:
    """One record's content for one slot: a block, or the row of a segment's header."""

    def __init__(self, path: str, record: SharedRecord, offset: int, generation: int, written: int) -> None:
        self.path = path
        #: Sequence number of the record, and offset of the block or row in the file.
        self.sequence = record.sequence
        self.offset = offset
        self.generation = generation
        #: Number of the block; in a header, number of the newest block before it.
        self.written = written
        #: The state of the slot, in a header.
        self.stated: SlotRow | None = None
        #: The slot begins, or ends, with this block.
        self.opened: SlotRow | None = None
        self.is_end = False
        self.hard_state: tuple[int, int] | None = None
        self.floor: Position | None = None
        self.entries: list[LogItem] = []

    def text(self) -> str:
        """Return the record as a line, without file and offset."""
        if self.stated is not None:
            return f"a segment begins: {_state(self.stated)}"
        parts = []
        if self.opened is not None:
            parts.append(f"opened: {_state(self.opened)}")
        if self.hard_state is not None:
            parts.append(f"term {self.hard_state[0]}, vote {self.hard_state[1] or 'none'}")
        if self.floor is not None:
            parts.append(f"rows are durable up to entry {self.floor.index} of term {self.floor.term}")
        if self.entries:
            first, last = self.entries[0], self.entries[-1]
            size = sum(len(entry.data) for entry in self.entries)
            parts.append(f"entries {first.index} to {last.index} of terms {first.term} to {last.term}, {size} bytes")
        if self.is_end:
            parts.append("dropped")
        return "; ".join(parts) or "nothing"

    def fields(self) -> dict[str, Any]:
        """Return the record as a JSON object, without the payloads of entries."""
        found: dict[str, Any] = {
            "file": self.path,
            "offset": self.offset,
            "record": self.sequence,
            "generation": self.generation,
            "block": self.written,
        }
        for name, row in (("state", self.stated), ("opened", self.opened)):
            if row is not None:
                found[name] = _row_fields(row)
        if self.hard_state is not None:
            found["term"], found["vote"] = self.hard_state
        if self.floor is not None:
            found["floor"] = {"index": self.floor.index, "term": self.floor.term}
        if self.entries:
            found["entries"] = [
                {"index": entry.index, "term": entry.term, "kind": entry.kind, "bytes": len(entry.data)}
                for entry in self.entries
            ]
        if self.is_end:
            found["dropped"] = True
        return found


class LostPart:
    """A part of the log that cannot be read. It may have held records of any slot."""

    def __init__(self, line: str) -> None:
        self.line = line

    def text(self) -> str:
        """Return the part as a line."""
        return self.line

    def fields(self) -> dict[str, Any]:
        """Return the part as a JSON object."""
        return {"lost": self.line}


def slots_of(log: RecoveredLog, tablet: str) -> list[int]:
    """Return the slots of a tablet, the oldest generation first."""
    return sorted(number for number, slot in log.slots.items() if slot.tablet == tablet)


def list_slot(disk: Disk, slot: int, folder: str = FOLDER) -> Iterator[SlotRecord | LostPart]:
    """Yield the contents of a slot, oldest first, and the damaged parts in between.

    A dropped slot is listed as long as its segments exist. Raise CorruptRecord for contents that no server has written,
    StorageError (a later format), OSError.
    """
    sequence = previous = 0
    names = segment_names(disk, folder)
    for name in names:
        number = int(name[:16], 16)
        if previous and number != previous + 1:
            yield LostPart(f"{disk.where(folder)}: segments before {name} are missing")
        previous = number
        reader = SharedReader(disk, f"{folder}/{name}")
        for part in reader.stretches(sequence, is_first=True, is_last=name == names[-1]):
            if isinstance(part, Gap):
                yield LostPart(f"{part.path}: bytes {part.offset} to {part.end - 1} are damaged")
                continue
            try:
                yield from _records_of(slot, reader, part)
            except (ValueError, struct.error) as error:
                raise CorruptRecord(reader.path, part.offset, "items of a shared log", error) from error
        sequence = max(sequence, reader.sequence)
        if reader.cut:
            yield LostPart(reader.cut.replace(": cut a torn record", ": a torn record, never acknowledged,"))


def _records_of(slot: int, reader: SharedReader, record: SharedRecord) -> Iterator[SlotRecord]:
    """Yield the contents of one record for the slot. Raise ValueError, struct.error, StorageError."""
    data = reader.record_bytes(record)
    base = record.offset + RECORD_BYTES_MIN
    if data[:1] == bytes([ITEM_HEADER]):
        header, offset = decode_header(reader.path, data, 0), HEADER.size
        for _ in range(header.rows if header.copy == 1 else 0):
            row, end = decode_row(data, offset)
            if row.slot == slot:
                found = SlotRecord(reader.path, record, base + offset, row.generation, row.written)
                found.stated = row
                yield found
            offset = end
        return
    offset = TRAIL.size + TRAIL.unpack_from(data, 0)[2] * PIECE.size
    while offset < len(data):
        head, content = decode_block(data, offset)
        end = content + head.length
        if head.slot == slot:
            start = decode_start(head.flags, data, content)
            found = SlotRecord(reader.path, record, base + offset, head.generation, head.written)
            found.opened, found.hard_state, found.floor = start.row, start.hard_state, start.floor
            found.entries = decode_entries(data, start.entries, end)
            found.is_end = bool(head.flags & ENDS)
            yield found
        offset = end


def _state(row: SlotRow) -> str:
    term, vote = row.hard_state
    damage = f"; damaged: {row.damage}" if row.damage else ""
    return (
        f"member {row.member} of {row.tablet or 'an unknown tablet'}, term {term}, vote {vote or 'none'}, last entry"
        f" {row.last.index} of term {row.last.term}, rows durable up to entry {row.floor.index}{damage}"
    )


def _row_fields(row: SlotRow) -> dict[str, Any]:
    term, vote = row.hard_state
    found: dict[str, Any] = {
        "tablet": row.tablet,
        "number": row.member,
        "term": term,
        "vote": vote,
        "last": {"index": row.last.index, "term": row.last.term},
        "floor": {"index": row.floor.index, "term": row.floor.term},
    }
    if row.damage:
        found["damage"] = row.damage
    return found
