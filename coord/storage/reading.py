"""Reading the log's segments: whole records, torn tails, damage, and the resulting contents of the log.

One record is one write and one sync, and the next record is written only after the previous sync has returned. What
follows an invalid record decides whether it is damage:

- An invalid record with nothing valid after it, in the last segment, is a torn write. It was never acknowledged, and
  is truncated.
- An invalid record with a valid record or a seal after it was durable once. `CorruptRecord` names file and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

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
    PREFIX_BYTES,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
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
    """The contents of a log when it was opened. Of the entries up to `floor` only the last position is kept."""

    def __init__(self, floor: int = 0) -> None:
        self._floor = floor
        self.term = 0
        self.vote = 0
        #: The log begins after this position. A `base_term` of 0 with an index above 0 is unknown.
        self.base_index = 0
        self.base_term = 0
        #: Contiguous, ascending; the first has index `base_index + 1`.
        self.entries: list[LogItem] = []
        #: A line for the operator if a torn tail was cut, else "".
        self.cut = ""

    def validate(self) -> None:
        """Assert that the entries are contiguous and begin after the base."""
        for position, entry in enumerate(self.entries):
            assert entry.index == self.base_index + 1 + position, (
                f"{entry} at position {position} after {self.base_index}"
            )

    def last_index(self) -> int:
        """Return the index of the last entry, or of the base."""
        return self.base_index + len(self.entries)

    def last_term(self) -> int:
        """Return the term of the last entry, or of the base."""
        return self.entries[-1].term if self.entries else self.base_term

    def add(self, item: LogItem) -> None:
        """Append an entry in place of everything from its index on. Raise ValueError if it would leave a gap."""
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
        """Replay one item of the log. Raise ValueError if entries before it are missing."""
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
            return  # no entry below the floor is kept; the next entry shows where the log continues
        matches = (0 < position <= len(self.entries) and self.entries[position - 1].term == term) or (
            position == 0 and self.base_term in (0, term)
        )
        if matches:
            del self.entries[:position]
        else:
            self.entries.clear()
        self.base_index = index
        self.base_term = term


R = TypeVar("R")


class Gap:
    """Bytes `offset` to `end` of a segment that once held records, and hold no whole record now."""

    def __init__(self, path: str, offset: int, end: int) -> None:
        self.path = path
        self.offset = offset
        self.end = end


class RecordReader(Generic[R]):
    """Reads one segment without changing it; subclasses decode the records. `number`, `end` and `cut` are valid when
    all records were read."""

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
        #: Offset of the end of the last valid record.
        self.end = 0
        self._last = 0
        #: A line for the operator if a torn record follows `end`, else "".
        self.cut = ""
        #: True if damage reaches to the end of the segment.
        self.is_open_ended = False

    def size(self) -> int:
        """Return the size of the file in bytes, including the zeros written ahead."""
        return len(self._data)

    def last_record(self) -> tuple[int, bytes]:
        """Return offset and bytes of the last valid record."""
        return self._last, self._data[self._last : self.end]

    def records(self, sequence: int, *, is_first: bool, is_last: bool, start: int = 0) -> Iterator[R]:
        """Yield the records from offset `start` on. `sequence` is the previous record's number, unless `is_first`.

        Raise CorruptRecord at damage to a durable record, and StorageError for another format.
        """
        offset = start
        data = self._data
        self.sequence = sequence
        while offset < len(data):
            length = self._valid_record(offset)
            if length == 0:
                break
            found = SEQUENCE.unpack_from(data, offset + PREFIX_BYTES)[0]
            if not (is_first and offset == 0) and found != self.sequence + 1:
                raise CorruptRecord(self.path, offset, f"record {self.sequence + 1}", f"record {found}")
            record = self._record(offset, PREFIX_BYTES + length, found)
            self.sequence = found
            self._last = offset
            self.end = offset + PREFIX_BYTES + length
            yield record
            offset = self.end
        self._check_tail(offset, self.sequence, is_last=is_last)

    def stretches(self, sequence: int, *, is_first: bool, is_last: bool) -> Iterator[R | Gap]:
        """Yield records and the damage between them. Raise CorruptRecord for whole records that are out of sequence."""
        start = 0
        while True:
            try:
                yield from self.records(sequence, is_first=is_first, is_last=is_last, start=start)
            except CorruptRecord:
                offset = max(self.end, start)
                if self._valid_record(offset):
                    raise  # a gap in the sequence, or contents that no build writes
            else:
                return
            start = self._next_whole(offset, is_sequence_known=offset > 0 or not is_first)
            if start == 0:
                self.is_open_ended = True
                yield Gap(self.path, offset, max(offset + 1, len(self._data.rstrip(b"\0"))))
                return
            yield Gap(self.path, offset, start)
            sequence = self._sequence_at(start) - 1

    def bytes_between(self, start: int, end: int) -> bytes:
        """Return these bytes of the segment."""
        return self._data[start:end]

    def _record(self, offset: int, size: int, sequence: int) -> R:
        """Decode record `sequence`, of `size` bytes at `offset`. Raise CorruptRecord or StorageError."""
        raise NotImplementedError

    def _valid_record(self, offset: int) -> int:
        """Return the length of the body of the record at `offset`, 0 without a valid one."""
        data = self._data
        if len(data) - offset < RECORD_BYTES_MIN:
            return 0
        magic, length, crc = PREFIX.unpack_from(data, offset)
        end = offset + PREFIX_BYTES + length
        if magic != MAGIC or length < SEQUENCE.size or length > RECORD_BYTES_MAX or end > len(data):
            return 0
        body = memoryview(data)[offset + PREFIX_BYTES : end]
        return int(length) if crc32c(body, crc32c(data[offset + 4 : offset + 8])) == crc else 0

    def _check_tail(self, offset: int, sequence: int, *, is_last: bool) -> None:
        """Decide whether nothing, a torn write, or damage follows the last valid record. Raise CorruptRecord for
        damage."""
        data = self._data
        # A seal is not synced, so a crash may have left half of one.
        seal_end = min(offset + SEAL.size, len(data))
        is_seal = data[offset : offset + 4] == SEAL_MAGIC
        if is_zero(data, offset) or ((is_seal or not is_last) and is_zero(data, seal_end)):
            if not is_last and offset == 0:
                raise CorruptRecord(self.path, 0, "a segment header", "nothing")
            return
        if not is_last:
            raise CorruptRecord(self.path, offset, _expected(sequence), "damaged bytes")
        self._expect_nothing_later(offset, sequence)
        self.cut = f"{self.path}: cut a torn record at offset {offset}"

    def _expect_nothing_later(self, offset: int, sequence: int) -> None:
        """Raise CorruptRecord if a seal or a whole record after `offset` is later than record `sequence`."""
        data = self._data
        found = self._later_seal(offset, sequence)[0]
        if found:
            raise CorruptRecord(self.path, offset, _expected(sequence), f"damaged bytes: record {found} was durable")
        candidate = data.find(MAGIC, offset + 1)
        while candidate != -1:
            if self._valid_record(candidate) and self._sequence_at(candidate) > sequence:
                actual = f"damaged bytes before a whole record at {candidate}"
                raise CorruptRecord(self.path, offset, _expected(sequence), actual)
            candidate = data.find(MAGIC, candidate + 1)

    def _later_seal(self, offset: int, sequence: int) -> tuple[int, int]:
        """Return (sequence, offset) of the first seal after `offset` that proves a record later than `sequence`
        durable, (0, 0) without one."""
        candidate = self._data.find(SEAL_MAGIC, offset)
        while candidate != -1:
            found = sealed_at(self._data, candidate)
            if found > sequence:
                return found, candidate
            candidate = self._data.find(SEAL_MAGIC, candidate + 1)
        return 0, 0

    def _sequence_at(self, offset: int) -> int:
        return int.from_bytes(self._data[offset + PREFIX_BYTES : offset + RECORD_BYTES_MIN], "big")

    def _next_whole(self, offset: int, *, is_sequence_known: bool) -> int:
        """Return the offset of the next whole record after damage at `offset`, 0 if there is none.

        A record's data may look like a record itself. So the first candidate is the end of the damaged record by its
        own length field, and the sequence number must fit the number of records that the damage can have held.
        """
        for candidate in self._candidates(offset):
            if self._valid_record(candidate):
                lost = self._sequence_at(candidate) - self.sequence - 1
                room = (candidate - offset) // RECORD_BYTES_MIN
                if lost >= 1 and (lost <= room or not is_sequence_known):
                    return candidate
        return 0

    def _candidates(self, offset: int) -> Iterator[int]:
        data = self._data
        yield offset + PREFIX_BYTES + int.from_bytes(data[offset + 4 : offset + 8], "big")
        candidate = data.find(MAGIC, offset + 1)
        while candidate != -1:
            yield candidate
            candidate = data.find(MAGIC, candidate + 1)


class SegmentReader(RecordReader[LogRecord]):
    """Reads one segment of a store's log."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path)
        #: Highest index of the entries and bases in it.
        self.index_max = 0

    def _record(self, offset: int, size: int, sequence: int) -> LogRecord:
        """See `RecordReader`."""
        items = self._items(offset + RECORD_BYTES_MIN, offset + size, is_header=offset == 0)
        return LogRecord(offset, size, sequence, items)

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


def is_zero(data: bytes, offset: int) -> bool:
    """Return True if there are only zeros from `offset` on."""
    return data.count(0, offset) == len(data) - offset


def sealed_at(data: bytes, offset: int) -> int:
    """Return the sequence number of the record that the seal at `offset` proves durable, 0 without a valid seal."""
    if not offset or len(data) - offset < SEAL.size:  # no record precedes offset 0, whatever the bytes look like
        return 0
    _, sequence, _ = SEAL.unpack_from(data, offset)
    return int(sequence) if data[offset : offset + SEAL.size] == encode_seal(sequence, offset) else 0


def _expected(sequence: int) -> str:
    return f"record {sequence + 1} with a matching checksum"
