"""Reading the entries of one slot back from the shared log."""

from __future__ import annotations

import struct

from coord.env import Disk, DiskFile
from coord.errors import CorruptRecord
from coord.storage.records import LogItem
from coord.storage.shared.codec import decode_block, decode_entries, decode_start, is_whole_block
from coord.storage.shared.index import LiveSlot, Span
from coord.storage.shared.items import Position


def load_entries(disk: Disk, folder: str, slot: LiveSlot) -> list[LogItem]:
    """Return the slot's entries above its floor. Entries of a damaged slot may begin later.

    Raise CorruptRecord if an entry cannot be read, OSError.
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


def load_range(
    disk: Disk, folder: str, slot: LiveSlot, first: int, bytes_max: int
) -> tuple[Position | None, list[LogItem]]:
    """Return entries from `first` on, at least one and about `bytes_max` bytes, and the position before them.

    Return None and no entries if the log lacks that position or has no entry after it. Raise CorruptRecord if an entry
    cannot be read, and OSError (FileNotFoundError if the log has dropped the entries meanwhile).
    """
    floor = slot.floor
    before = floor if floor.index == first - 1 else None
    found: list[LogItem] = []
    size = 0
    for span in list(slot.spans):
        if size >= bytes_max:
            break
        if span.first + span.entries <= first - 1:
            continue
        file = disk.open(_path(folder, span.segment))
        try:
            entries = _entries_of(disk, folder, file, span)
        finally:
            file.close()
        for entry in entries:
            if entry.index >= span.first + span.entries:
                break
            if entry.index == first - 1 and entry.index > floor.index:
                before = Position(entry.index, entry.term)
            elif entry.index == first + len(found) and before is not None and size < bytes_max:
                found.append(entry)
                size += len(entry.data)
    return (before, found) if before is not None and found else (None, [])


def _entries_of(disk: Disk, folder: str, file: DiskFile, span: Span) -> list[LogItem]:
    """Return the entries of one block. Raise CorruptRecord, OSError."""
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
