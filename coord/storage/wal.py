"""The write-ahead log: hard state and entries, durable before anything that depends on them is said.

On disk, all numbers big-endian:

    segment := record* [seal] zeros     file `<number:016x>.log`, numbers ascending without gaps
    seal    := magic "RKWS"  sequence:u64  crc:u32               crc32c over magic, sequence and where it lies (u64)
    record  := magic "RKW1"  length:u32  crc:u32  body          crc32c over length and body
    body    := sequence:u64  item*                               sequences ascend by one over all segments
    item    := 0x01 term:u64 vote:u64                            hard state
             | 0x02 kind:u8 term:u64 index:u64 length:u32 data   entry; replaces every entry from this index on
             | 0x03 index:u64 term:u64                           base: a snapshot stands for everything up to here
             | 0x04 version:u16 number:u64 term:u64 vote:u64 last_index:u64 last_term:u64    first item of a segment

One record is one write and one sync: everything that was waiting goes into it together, and the next record is
written only after the sync of this one has returned. From this follows the rule for damage found at `open`:

- an invalid record with nothing valid behind it, in the last segment, is a torn tail: never acknowledged, cut off;
- an invalid record with a valid one behind it was durable once: `CorruptRecord` names file and offset, and the node
  does not start on it.

The last record has no record behind it that would prove it durable; a seal does. It is written once the sync has
returned, before anybody is told, and takes no sync of its own: the next record goes over it. So damage of the last
record is told from a torn write as well, unless the power fails before the system has written the seal back (some
seconds, if nothing else is written) and takes the seal along; a log that was closed has it on the disk. Without this, a
node would forget what it has acknowledged, and with a second one that never had it outvote the one that has.

Segments grow by zeros written ahead (`RESERVE_BYTES`), so that most syncs need not flush a changed file size. Which
segment is the last, and how long it must be, stands in a file elsewhere (`coord.storage.extent`): a log that is missing
or shorter than that is damaged.

The log belongs to one thread at a time: first to whoever opens it, then to the writer (`coord.storage.writer`).
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c
from twisted.logger import Logger

from coord.env import Disk, DiskFile
from coord.errors import CorruptRecord, StorageError
from coord.storage.extent import NAME as EXTENT_NAME
from coord.storage.extent import ExtentFile, check_end, check_files, number_of, read_extent

log = Logger()

MAGIC: Final = b"RKW1"
SEAL_MAGIC: Final = b"RKWS"
VERSION: Final = 1
#: A new segment begins once the current one has reached this size.
SEGMENT_BYTES: Final = 64 << 20
#: Zeros written ahead of the end of a segment.
RESERVE_BYTES: Final = 1 << 20
#: What a full disk answers.
FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
#: No record is longer; a longer length field is damage.
RECORD_BYTES_MAX: Final = 1 << 30

ITEM_HARD_STATE: Final = 1
ITEM_ENTRY: Final = 2
ITEM_BASE: Final = 3
ITEM_SEGMENT: Final = 4

_PREFIX: Final = struct.Struct(">4sII")
_SEQUENCE: Final = struct.Struct(">Q")
_HARD_STATE: Final = struct.Struct(">BQQ")
_ENTRY: Final = struct.Struct(">BBQQI")
_BASE: Final = struct.Struct(">BQQ")
_SEGMENT: Final = struct.Struct(">BHQQQQQ")
_LENGTH: Final = struct.Struct(">I")
_SEAL: Final = struct.Struct(">4sQI")
_SEALED: Final = struct.Struct(">4sQQ")


def encode_seal(sequence: int, position: int) -> bytes:
    """What lies at `position` when the record `sequence`, which ends there, is durable."""
    return _SEAL.pack(SEAL_MAGIC, sequence, crc32c(_SEALED.pack(SEAL_MAGIC, sequence, position)))


def encode_record(sequence: int, parts: list[bytes]) -> bytes:
    """Return the record that holds these encoded items."""
    body_length = _SEQUENCE.size + sum(map(len, parts))
    assert body_length <= RECORD_BYTES_MAX, f"record of {body_length} bytes"
    covered = b"".join([_LENGTH.pack(body_length), _SEQUENCE.pack(sequence), *parts])
    return b"".join([MAGIC, covered[:4], _LENGTH.pack(crc32c(covered)), covered[4:]])


def encode_header(number: int, term: int, vote: int, last_index: int, last_term: int) -> bytes:
    """Return the first item of the segment `number`. See SegmentItem."""
    return _SEGMENT.pack(ITEM_SEGMENT, VERSION, number, term, vote, last_index, last_term)


class LogItem:
    """One entry as the log keeps it; what `kind` and `data` mean is Raft's business."""

    def __init__(self, term: int, index: int, kind: int, data: bytes) -> None:
        self.term = term
        self.index = index
        self.kind = kind
        self.data = data

    def __repr__(self) -> str:
        return f"LogItem({self.term}/{self.index} kind={self.kind} {len(self.data)}B)"


class HardStateItem:
    """Term and vote (0: nobody) from here on."""

    def __init__(self, term: int, vote: int) -> None:
        self.term = term
        self.vote = vote


class BaseItem:
    """A durable snapshot stands for everything up to (term, index)."""

    def __init__(self, index: int, term: int) -> None:
        self.index = index
        self.term = term


class SegmentItem:
    """The header of a segment: its number, and where term, vote and log stood when it began."""

    def __init__(self, number: int, term: int, vote: int, last_index: int, last_term: int) -> None:
        self.number = number
        self.term = term
        self.vote = vote
        self.last_index = last_index
        self.last_term = last_term


Item = LogItem | HardStateItem | BaseItem | SegmentItem


class LogRecord:
    """What became durable with one sync: where it lies in its segment, and its items."""

    def __init__(self, offset: int, size: int, sequence: int, items: list[Item]) -> None:
        self.offset = offset
        self.size = size
        self.sequence = sequence
        self.items = items


class Batch:
    """Encoded items that are to become durable together, and what is needed to find old segments later."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        #: Highest and last index among the entries (0: none); the last one is lower after an overwrite.
        self.index_max = 0
        self.last_index = 0
        self.last_term = 0
        #: Term and vote if this batch changes them.
        self.hard_state: tuple[int, int] | None = None

    def set_hard_state(self, term: int, vote: int) -> None:
        """Remember the term and whom this node voted for in it (0: nobody). Raft §5.1."""
        self.hard_state = (term, vote)
        self.parts.append(_HARD_STATE.pack(ITEM_HARD_STATE, term, vote))

    def add_entry(self, term: int, index: int, kind: int, data: bytes) -> None:
        """Append an entry; entries at and behind this index are gone."""
        self.parts.append(_ENTRY.pack(ITEM_ENTRY, kind, term, index, len(data)))
        self.parts.append(data)
        self.index_max = max(self.index_max, index)
        self.last_index = index
        self.last_term = term

    def set_base(self, index: int, term: int) -> None:
        """Say that a durable snapshot holds everything up to `index`."""
        self.parts.append(_BASE.pack(ITEM_BASE, index, term))
        self.index_max = max(self.index_max, index)
        if self.last_index < index:
            self.last_index = index
            self.last_term = term


class Recovered:
    """What a log held when it was opened; of the entries up to `floor` only where the last one was."""

    def __init__(self, floor: int = 0) -> None:
        self._floor = floor
        self.term = 0
        self.vote = 0
        #: The log begins behind this position. `base_term` 0 with an index above 0: the term is not known.
        self.base_index = 0
        self.base_term = 0
        #: Contiguous, ascending; the first has index `base_index + 1`.
        self.entries: list[LogItem] = []
        #: A line for the operator if a torn tail was cut, else "".
        self.cut = ""

    def last_index(self) -> int:
        """Index of the last entry, or of the base."""
        return self.base_index + len(self.entries)

    def last_term(self) -> int:
        """Term of the last entry, or of the base."""
        return self.entries[-1].term if self.entries else self.base_term

    def add(self, item: LogItem) -> None:
        """Take an entry, which replaces everything from its index on. Raises ValueError when it would leave a gap."""
        position = item.index - self.base_index - 1
        if position < 0:
            # Overwrites what the pruned segments held; only possible above every snapshot's index at that time.
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
        """Replay one item of the log. Raises ValueError when an entry would leave a gap."""
        if isinstance(item, LogItem):
            self.add(item)
        elif isinstance(item, BaseItem):
            self.rebase(item.index, item.term)
        else:
            self.term, self.vote = item.term, item.vote
            if isinstance(item, SegmentItem) and self.last_index() == 0 and not self.entries:
                self.base_index, self.base_term = item.last_index, item.last_term

    def rebase(self, index: int, term: int) -> None:
        """Forget what a snapshot at (term, index) covers, and everything if the log does not continue it."""
        position = index - self.base_index
        if index < self.base_index <= self._floor:
            return  # Below the floor nobody asks what is left; the next entry says where the log goes on.
        matches = (0 < position <= len(self.entries) and self.entries[position - 1].term == term) or (
            position == 0 and self.base_term in (0, term)
        )
        if matches:
            del self.entries[:position]
        else:
            self.entries.clear()
        self.base_index = index
        self.base_term = term


class _Segment:
    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.index_max = 0


class Wal:
    """The log of one node, open for appending. `open_wal` makes it."""

    def __init__(self, disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._file: DiskFile | None = None
        self._extent = ExtentFile(disk)
        self._position = 0
        self._reserved = 0
        self._sequence = 0
        self._hard_state = (0, 0)
        self._last = (0, 0)
        #: Bytes of records written since this process opened the log, and syncs done.
        self.written_bytes = 0
        self.syncs = 0

    def write(self, batches: list[Batch]) -> None:
        """Make `batches` durable as one record.

        Raises OSError. A failed write leaves the log as it was: the same call may be tried again (disk full). A failed
        sync leaves nobody knowing what is on the disk: the caller must stop the node (`SyncFailed`).
        """
        if self._position >= self._segment_bytes:
            self._rotate()
        parts: list[bytes] = []
        for batch in batches:
            parts += batch.parts
        assert parts, "a record of nothing"
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
        """Remove leading segments with nothing above `index`, which a durable snapshot covers. Returns how many.

        One after the other: a crash must not leave a gap, which a later removal without an earlier one would be. A
        segment that cannot be removed stays until the next time; a failed sync raises SyncFailed.
        """
        removed = 0
        while len(self._segments) > 1 and self._segments[0].index_max <= index:
            path = f"{self._folder}/{self._segments[0].name}"
            try:
                self._disk.remove(path)
            except OSError as error:
                log.warn("{path} is not needed any more and cannot be removed: {error}", path=path, error=str(error))
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
        """How many files the log has."""
        return len(self._segments)

    def close(self) -> None:
        """Close the current segment; nothing is lost, everything but the seal was synced."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.sync()
                # An older build that opens the log next cuts the reserve.
                self._extent.set(self._segments[-1].number, self._position, self._position)
            self._file.close()
            self._extent.close()
            self._file = None

    def _write_record(self, parts: list[bytes]) -> None:
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
        """Say outside of the log how far its last segment reaches, if that is more than is known. Raises SyncFailed.

        Without room for that the record is durable all the same; the next write tries again.
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
        """Say behind the last record that it is durable. Without room for that the log is as good as it can be."""
        assert self._file is not None, "log is closed"
        with contextlib.suppress(OSError):
            self._file.write_at(self._position, encode_seal(self._sequence, self._position))

    def _reserve(self, file: DiskFile, end: int) -> None:
        """Write zeros ahead. Only a gain in speed: without room for them the log goes on growing record by record."""
        self._reserved = end
        room = min(RESERVE_BYTES, self._segment_bytes - end)
        if room > 0:
            try:
                file.write_at(end, bytes(room))
            except OSError:
                return
            self._reserved = end + room

    def _rotate(self) -> None:
        """Begin the next segment. It is on disk, header and name, before the first record goes into it."""
        number = self._segments[-1].number + 1 if self._segments else 1
        segment = _Segment(number, f"{number:016x}.log")
        old = (self._file, self._position, self._reserved)
        path = f"{self._folder}/{segment.name}"
        if segment.name in self._disk.names(self._folder):
            self._disk.remove(path)  # left by a rotation that found the disk full
        self._file = self._disk.open(path, create=True)
        self._position = self._reserved = 0
        try:
            last_index, last_term = self._last
            self._write_record([encode_header(number, *self._hard_state, last_index, last_term)])
        except OSError:
            self._file.close()
            self._file, self._position, self._reserved = old
            raise
        # Should this fail: the header is on the disk, so its number is taken; whether its name is nobody knows.
        self._sync_names()
        self._state_extent(number)
        if old[0] is not None:
            old[0].close()
        self._segments.append(segment)

    def _where(self) -> str:
        name = self._segments[-1].name if self._segments else ""
        return self._disk.where(f"{self._folder}/{name}")


class SyncFailed(StorageError):  # noqa: N818
    """The disk did not confirm a write; what it holds is unknown, so the node must stop (never: sync again)."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"{path}: sync failed: {error.strerror or error}")
        self.error = error


def open_wal(
    disk: Disk, folder: str, *, segment_bytes: int = SEGMENT_BYTES, floor: int = 0, is_expected: bool = False
) -> tuple[Wal, Recovered]:
    """Open the log in `folder` (created if absent), repair a torn tail, and return what it holds behind entry `floor`.

    `is_expected`: there is a snapshot, so there was a log; only a directory of an older build does not say which.

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
            # A rotation was cut short: the file exists, its header never became durable, nothing was put into it.
            disk.remove(f"{folder}/{name}")
            disk.sync_folder(folder)
            recovered.cut = f"{disk.where(f'{folder}/{name}')}: removed, it was never finished"
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
    return wal, recovered


def _reopen_last(wal: Wal, disk: Disk, folder: str, offset: int, record: bytes) -> None:
    """Take up the last segment; whatever a torn write left behind its end goes first, or it could look valid later.

    What was read need not be on the disk: the process may have died, or stopped, because a sync did not come to an end
    or failed. After a failed one the system takes the pages for written, and no later sync writes them. So the last
    record, the only one that can be concerned, is written once more, and the segment's name is made durable with it.
    """
    file = disk.open(f"{folder}/{wal._segments[-1].name}")
    # What is cut now is not expected any more.
    wal._extent.set(wal._segments[-1].number, wal._position, wal._position)
    file.truncate(wal._position)
    file.write_at(offset, record)
    file.sync()
    disk.sync_folder(folder)
    wal._file = file
    wal._reserved = wal._position
    if offset:
        # A header alone holds nothing that a node would miss.
        wal._seal()


def _replay(reader: SegmentReader, recovered: Recovered, sequence: int, *, is_first: bool, is_last: bool) -> int:
    """Replay all records of a segment; returns the offset behind the last valid one (0: not even its header)."""
    for record in reader.records(sequence, is_first=is_first, is_last=is_last):
        for item in record.items:
            try:
                recovered.take(item)
            except ValueError as error:
                raise CorruptRecord(reader.path, record.offset, error, item) from error
    return reader.end


class SegmentReader:
    """Reads one segment without changing it. `number`, `index_max`, `end` and `cut` are known once it has been read."""

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
        """Bytes of the file, reserved ones included."""
        return len(self._data)

    def last_record(self) -> tuple[int, bytes]:
        """Offset and bytes of the last valid record."""
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
            found = _SEQUENCE.unpack_from(data, offset + 12)[0]
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
        """Length of the body of the record at `offset`, 0 if there is no valid one."""
        data = self._data
        if len(data) - offset < 20:
            return 0
        magic, length, crc = _PREFIX.unpack_from(data, offset)
        end = offset + 12 + length
        if magic != MAGIC or length < _SEQUENCE.size or length > RECORD_BYTES_MAX or end > len(data):
            return 0
        body = memoryview(data)[offset + 12 : end]
        return int(length) if crc32c(body, crc32c(data[offset + 4 : offset + 8])) == crc else 0

    def _judge_tail(self, offset: int, sequence: int, *, is_last: bool) -> None:
        """Decide what the bytes behind the last valid record are: nothing, a torn write, or damage."""
        data = self._data
        # Behind a seal, which a crash may have left half written: it is not synced.
        behind = min(offset + _SEAL.size, len(data))
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
            if self._valid_record(candidate) and _SEQUENCE.unpack_from(data, candidate + 12)[0] > sequence:
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
                    _, kind, term, index, length = _ENTRY.unpack_from(data, offset)
                    offset += _ENTRY.size
                    if offset + length > end:
                        raise CorruptRecord(self.path, start, "an entry inside its record", f"{length} bytes")
                    items.append(LogItem(term, index, kind, data[offset : offset + length]))
                    self.index_max = max(self.index_max, index)
                    offset += length
                elif tag == ITEM_HARD_STATE:
                    _, term, vote = _HARD_STATE.unpack_from(data, offset)
                    items.append(HardStateItem(term, vote))
                    offset += _HARD_STATE.size
                elif tag == ITEM_BASE:
                    _, index, term = _BASE.unpack_from(data, offset)
                    items.append(BaseItem(index, term))
                    self.index_max = max(self.index_max, index)
                    offset += _BASE.size
                elif tag == ITEM_SEGMENT and is_header:
                    items.append(self._header(offset))
                    offset += _SEGMENT.size
                else:
                    raise CorruptRecord(self.path, start, "a known item", f"tag {tag}")
        except struct.error as error:
            raise CorruptRecord(self.path, start, "whole items", str(error)) from error
        return items

    def _header(self, offset: int) -> SegmentItem:
        _, version, number, term, vote, last_index, last_term = _SEGMENT.unpack_from(self._data, offset)
        if version != VERSION:
            raise StorageError(f"{self.path}: written in format {version}, this program reads {VERSION}")
        self.number = number
        return SegmentItem(number, term, vote, last_index, last_term)


def _is_zero(data: bytes, offset: int) -> bool:
    """Whether there is nothing from `offset` on."""
    return data.count(0, offset) == len(data) - offset


def _sealed_at(data: bytes, offset: int) -> int:
    """The sequence number of the record that the seal at `offset` stands for; 0 if there is none."""
    if len(data) - offset < _SEAL.size:
        return 0
    _, sequence, _ = _SEAL.unpack_from(data, offset)
    return int(sequence) if data[offset : offset + _SEAL.size] == encode_seal(sequence, offset) else 0
