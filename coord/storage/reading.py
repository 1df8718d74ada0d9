"""Reading the log's segments: whole records, torn tails, damage, and what the log says in the end.

One record is one write and one sync, and the next record is written only after the sync of the one before. Damage is
judged by what follows it:

- An invalid record with nothing valid behind it, in the last segment, is a torn write. It was never acknowledged, and
  is cut off.
- An invalid record with a valid record or a seal behind it was durable once. `CorruptRecord` names file and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from coord.env import Disk
from coord.errors import CorruptRecord, StorageError
from coord.storage.records import (
    BASE,
    ENTRY,
    HARD_STATE,
    ITEM_BASE,
    ITEM_ENTRY,
    ITEM_HARD_STATE,
    ITEM_SEGMENT,
    MAGIC,
    PREFIX,
    RECORD_BYTES_MAX,
    SEAL,
    SEAL_MAGIC,
    SEGMENT,
    SEQUENCE,
    VERSION,
    BaseItem,
    HardStateItem,
    Item,
    LogItem,
    LogRecord,
    SegmentItem,
    encode_seal,
)


class Recovered:
    """The contents of a log when it was opened. Entries up to `floor` are not kept, only the position of the last."""

    def __init__(self, floor: int = 0) -> None:
        self._floor = floor
        self.term = 0
        self.vote = 0
        #: The log begins behind this position. A `base_term` of 0 with an index above 0 is unknown.
        self.base_index = 0
        self.base_term = 0
        #: Contiguous, ascending; the first has index `base_index + 1`.
        self.entries: list[LogItem] = []
        #: A line for the operator if a torn tail was cut, else "".
        self.cut = ""

    def validate(self) -> None:
        """Assert that the entries are contiguous and begin behind the base."""
        for position, entry in enumerate(self.entries):
            assert entry.index == self.base_index + 1 + position, f"{entry} at {position} behind {self.base_index}"

    def last_index(self) -> int:
        """Index of the last entry, or of the base."""
        return self.base_index + len(self.entries)

    def last_term(self) -> int:
        """Term of the last entry, or of the base."""
        return self.entries[-1].term if self.entries else self.base_term

    def add(self, item: LogItem) -> None:
        """Append an entry in place of everything from its index on. Raises ValueError if it would leave a gap."""
        position = item.index - self.base_index - 1
        if position < 0:
            # It overwrites an entry of a pruned segment. That entry was above every snapshot of its time.
            self.entries.clear()
            self.base_index, self.base_term = item.index - 1, 0
            position = 0
        if position > len(self.entries):
            raise ValueError(f"entry {self.last_index() + 1} is missing")
        del self.entries[position:]
        if item.index <= self._floor:
            self.base_index, self.base_term = item.index, item.term
        else:
            self.entries.append(item)

    def take(self, item: Item) -> None:
        """Replay one item of the log. Raises ValueError if entries before it are missing."""
        if isinstance(item, LogItem):
            self.add(item)
        elif isinstance(item, BaseItem):
            self.rebase(item.index, item.term)
        else:
            self.term, self.vote = item.term, item.vote
            if isinstance(item, SegmentItem) and self.last_index() == 0 and not self.entries:
                self.base_index, self.base_term = item.last_index, item.last_term

    def rebase(self, index: int, term: int) -> None:
        """Drop what a snapshot at (term, index) covers. Drop every entry if the log does not continue the snapshot."""
        position = index - self.base_index
        if index < self.base_index <= self._floor:
            return  # No entry below the floor is kept. The next entry shows where the log goes on.
        matches = (0 < position <= len(self.entries) and self.entries[position - 1].term == term) or (
            position == 0 and self.base_term in (0, term)
        )
        if matches:
            del self.entries[:position]
        else:
            self.entries.clear()
        self.base_index = index
        self.base_term = term


class SegmentReader:
    """Reads one segment without changing it. `number`, `index_max`, `end` and `cut` are set once it is read."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = disk.where(path)
        file = disk.open(path)
        try:
            self._data = file.read_at(0, file.size())
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        finally:
            file.close()
        self.number = 0
        #: Sequence number of the last valid record.
        self.sequence = 0
        self.index_max = 0
        #: Offset behind the last valid record.
        self.end = 0
        self._last = 0
        #: A line for the operator if a torn record lies behind it, else "".
        self.cut = ""

    def size(self) -> int:
        """Return the size of the file in bytes, including the zeros written ahead."""
        return len(self._data)

    def last_record(self) -> tuple[int, bytes]:
        """Return offset and bytes of the last valid record."""
        return self._last, self._data[self._last : self.end]

    def records(self, sequence: int, *, is_first: bool, is_last: bool, start: int = 0) -> Iterator[LogRecord]:
        """Yield the records from offset `start` on. `sequence` is that of the record before, unless `is_first`.

        Raises CorruptRecord at damage to what was durable, StorageError for another format.
        """
        offset = start
        data = self._data
        self.sequence = sequence
        while offset < len(data):
            length = self._valid_record(offset)
            if length == 0:
                break
            found = SEQUENCE.unpack_from(data, offset + 12)[0]
            if not (is_first and offset == 0) and found != self.sequence + 1:
                raise CorruptRecord(self.path, offset, f"record {self.sequence + 1}", f"record {found}")
            items = self._items(offset + 20, offset + 12 + length, is_header=offset == 0)
            self.sequence = found
            self._last = offset
            self.end = offset + 12 + length
            yield LogRecord(offset, 12 + length, found, items)
            offset = self.end
        self._judge_tail(offset, self.sequence, is_last=is_last)

    def _valid_record(self, offset: int) -> int:
        """Return the length of the body of the record at `offset`, 0 without a valid one."""
        data = self._data
        if len(data) - offset < 20:
            return 0
        magic, length, crc = PREFIX.unpack_from(data, offset)
        end = offset + 12 + length
        if magic != MAGIC or length < SEQUENCE.size or length > RECORD_BYTES_MAX or end > len(data):
            return 0
        body = memoryview(data)[offset + 12 : end]
        return int(length) if crc32c(body, crc32c(data[offset + 4 : offset + 8])) == crc else 0

    def _judge_tail(self, offset: int, sequence: int, *, is_last: bool) -> None:
        """Decide what the bytes behind the last valid record are: nothing, a torn write, or damage. Raises
        CorruptRecord for damage."""
        data = self._data
        # A seal is not synced, so a crash may have left half of one.
        behind = min(offset + SEAL.size, len(data))
        is_seal = data[offset : offset + 4] == SEAL_MAGIC
        if _is_zero(data, offset) or ((is_seal or not is_last) and _is_zero(data, behind)):
            if not is_last and offset == 0:
                raise CorruptRecord(self.path, 0, "a segment header", "nothing")
            return
        expected = f"record {sequence + 1} with a matching checksum"
        if not is_last:
            raise CorruptRecord(self.path, offset, expected, "damaged bytes")
        candidate = data.find(SEAL_MAGIC, offset)
        while candidate != -1:
            found = _sealed_at(data, candidate)
            if found > sequence:
                raise CorruptRecord(self.path, offset, expected, f"damaged bytes: record {found} was durable")
            candidate = data.find(SEAL_MAGIC, candidate + 1)
        candidate = data.find(MAGIC, offset + 1)
        while candidate != -1:
            if self._valid_record(candidate) and SEQUENCE.unpack_from(data, candidate + 12)[0] > sequence:
                raise CorruptRecord(self.path, offset, expected, f"damaged bytes before a whole record at {candidate}")
            candidate = data.find(MAGIC, candidate + 1)
        self.cut = f"{self.path}: cut a torn record at offset {offset}"

    def _items(self, offset: int, end: int, *, is_header: bool) -> list[Item]:
        data = self._data
        start = offset
        items: list[Item] = []
        try:
            while offset < end:
                tag = data[offset]
                if tag == ITEM_ENTRY:
                    _, kind, term, index, length = ENTRY.unpack_from(data, offset)
                    offset += ENTRY.size
                    if offset + length > end:
                        raise CorruptRecord(self.path, start, "an entry inside its record", f"{length} bytes")
                    items.append(LogItem(term, index, kind, data[offset : offset + length]))
                    self.index_max = max(self.index_max, index)
                    offset += length
                elif tag == ITEM_HARD_STATE:
                    _, term, vote = HARD_STATE.unpack_from(data, offset)
                    items.append(HardStateItem(term, vote))
                    offset += HARD_STATE.size
                elif tag == ITEM_BASE:
                    _, index, term = BASE.unpack_from(data, offset)
                    items.append(BaseItem(index, term))
                    self.index_max = max(self.index_max, index)
                    offset += BASE.size
                elif tag == ITEM_SEGMENT and is_header:
                    items.append(self._header(offset))
                    offset += SEGMENT.size
                else:
                    raise CorruptRecord(self.path, start, "a known item", f"tag {tag}")
        except struct.error as error:
            raise CorruptRecord(self.path, start, "whole items", str(error)) from error
        return items

    def _header(self, offset: int) -> SegmentItem:
        _, version, number, term, vote, last_index, last_term = SEGMENT.unpack_from(self._data, offset)
        if version != VERSION:
            raise StorageError(f"{self.path}: written in format {version}, this program reads {VERSION}")
        self.number = number
        return SegmentItem(number, term, vote, last_index, last_term)


def _is_zero(data: bytes, offset: int) -> bool:
    """Return True if there are only zeros from `offset` on."""
    return data.count(0, offset) == len(data) - offset


def _sealed_at(data: bytes, offset: int) -> int:
    """Return the sequence number of the record that the seal at `offset` proves durable, 0 without a valid seal."""
    if len(data) - offset < SEAL.size:
        return 0
    _, sequence, _ = SEAL.unpack_from(data, offset)
    return int(sequence) if data[offset : offset + SEAL.size] == encode_seal(sequence, offset) else 0
