"""Reading the entries of one slot back from the shared log."""

from __future__ import annotations

import struct

from coord.env import Disk, DiskFile
from coord.errors import CorruptRecord
from coord.storage.records import LogItem
from coord.storage.shared.codec import decode_block, decode_entries, decode_start, is_whole_block
from coord.storage.shared.index import LiveSlot, Span


def load_entries(disk: Disk, folder: str, slot: LiveSlot) -> list[LogItem]:
    """Return the slot's entries behind its floor. Those of a slot that has lost something may begin later.

    Raises CorruptRecord if an entry cannot be read, OSError.
    """
    floor = slot.floor.index
    entries: list[LogItem] = []
    files: dict[int, DiskFile] = {}
    try:
        for span in slot.spans:
            if span.segment not in files:
                files[span.segment] = disk.open(_path(folder, span.segment))
            for entry in _entries_of(disk, folder, files[span.segment], span):
                if floor < entry.index < span.first + span.entries:
                    entries.append(entry)
    finally:
        for file in files.values():
            file.close()
    expected = entries[0].index if slot.damage and entries else floor + 1
    for entry in entries:
        if entry.index != expected:
            raise CorruptRecord(disk.where(folder), 0, f"entry {expected} of slot {slot.slot}", f"entry {entry.index}")
        expected += 1
    if not slot.damage and expected != slot.last_index + 1:
        raise CorruptRecord(disk.where(folder), 0, f"entry {slot.last_index} of slot {slot.slot}", "no such entry")
    return entries


def _entries_of(disk: Disk, folder: str, file: DiskFile, span: Span) -> list[LogItem]:
    """Return the entries of one block. Raises CorruptRecord, OSError."""
    data = file.read_at(span.offset, span.length)
    where = disk.where(_path(folder, span.segment))
    if not is_whole_block(data, 0):
        raise CorruptRecord(where, span.offset, "a block with a matching checksum", "damaged bytes")
    try:
        head, content = decode_block(data, 0)
        return decode_entries(data, decode_start(head.flags, data, content).entries, content + head.length)
    except (ValueError, struct.error) as error:
        raise CorruptRecord(where, span.offset, "a block", error) from error


def _path(folder: str, segment: int) -> str:
    return f"{folder}/{segment:016x}.log"
