"""The records of the write-ahead log as bytes, and the batch of items that becomes one record. Pure.

All numbers are big-endian:

    seal    := magic "RKWS"  sequence:u64  crc:u32               crc32c over magic, sequence and the seal's offset (u64)
    record  := magic "RKW1"  length:u32  crc:u32  body          crc32c over length and body
    body    := sequence:u64  item*                               sequences ascend by one over all segments
    item    := 0x01 term:u64 vote:u64                            hard state
             | 0x02 kind:u8 term:u64 index:u64 length:u32 data   entry; replaces every entry from this index on
             | 0x03 index:u64 term:u64                           base: a snapshot holds everything up to this index
             | 0x04 version:u16 number:u64 term:u64 vote:u64 last_index:u64 last_term:u64    first item of a segment
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

MAGIC: Final = b"RKW1"
SEAL_MAGIC: Final = b"RKWS"
VERSION: Final = 1
#: Longest record; a greater length field is damage.
RECORD_BYTES_MAX: Final = 1 << 30
#: Magic, length and checksum in front of a record's body.
PREFIX_BYTES: Final = 12
#: Prefix and sequence number: the shortest record.
RECORD_BYTES_MIN: Final = 20

ITEM_HARD_STATE: Final = 1
ITEM_ENTRY: Final = 2
ITEM_BASE: Final = 3
ITEM_SEGMENT: Final = 4

PREFIX: Final = struct.Struct(">4sII")
SEQUENCE: Final = struct.Struct(">Q")
HARD_STATE: Final = struct.Struct(">BQQ")
ENTRY: Final = struct.Struct(">BBQQI")
BASE: Final = struct.Struct(">BQQ")
SEGMENT: Final = struct.Struct(">BHQQQQQ")
SEAL: Final = struct.Struct(">4sQI")
_LENGTH: Final = struct.Struct(">I")
_SEALED: Final = struct.Struct(">4sQQ")


def encode_seal(sequence: int, position: int) -> bytes:
    """Return the seal at `position`: the record `sequence`, which ends there, is durable."""
    assert position > 0, f"a seal without a record, after {sequence}"
    return SEAL.pack(SEAL_MAGIC, sequence, crc32c(_SEALED.pack(SEAL_MAGIC, sequence, position)))


def encode_record(sequence: int, parts: list[bytes]) -> bytes:
    """Return the record that holds these encoded items."""
    body_length = SEQUENCE.size + sum(map(len, parts))
    assert body_length <= RECORD_BYTES_MAX, f"record of {body_length} bytes"
    length = _LENGTH.pack(body_length)
    number = SEQUENCE.pack(sequence)
    crc = crc32c(number, crc32c(length))
    for part in parts:
        crc = crc32c(part, crc)
    # Joined once: entries may have many bytes.
    return b"".join([MAGIC, length, _LENGTH.pack(crc), number, *parts])


def encode_header(number: int, term: int, vote: int, last_index: int, last_term: int) -> bytes:
    """Return the first item of the segment `number`. See SegmentItem."""
    return SEGMENT.pack(ITEM_SEGMENT, VERSION, number, term, vote, last_index, last_term)


class LogItem:
    """One entry. The log does not interpret `kind` and `data`."""

    def __init__(self, term: int, index: int, kind: int, data: bytes) -> None:
        self.term = term
        self.index = index
        self.kind = kind
        self.data = data

    def __repr__(self) -> str:
        return f"LogItem({self.term}/{self.index} kind={self.kind} {len(self.data)}B)"


class HardStateItem:
    """Term and vote (0: no vote) from here on."""

    def __init__(self, term: int, vote: int) -> None:
        self.term = term
        self.vote = vote


class BaseItem:
    """A durable snapshot holds everything up to (term, index)."""

    def __init__(self, index: int, term: int) -> None:
        self.index = index
        self.term = term


class SegmentItem:
    """The header of a segment: its number, and the term, the vote and the last entry when it began."""

    def __init__(self, number: int, term: int, vote: int, last_index: int, last_term: int) -> None:
        self.number = number
        self.term = term
        self.vote = vote
        self.last_index = last_index
        self.last_term = last_term


Item = LogItem | HardStateItem | BaseItem | SegmentItem


class LogRecord:
    """One record, durable by one sync: `size` bytes at `offset` of a segment, and the items in them."""

    def __init__(self, offset: int, size: int, sequence: int, items: list[Item]) -> None:
        self.offset = offset
        self.size = size
        self.sequence = sequence
        self.items = items


class WriteBatch:
    """Encoded items that become durable together, and the positions by which old segments are pruned later."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        #: Highest and last index among the entries, 0 without any. `last_index` is lower after an overwrite.
        self.index_max = 0
        self.last_index = 0
        self.last_term = 0
        #: Term and vote, None if this batch does not change them.
        self.hard_state: tuple[int, int] | None = None

    def set_hard_state(self, term: int, vote: int) -> None:
        """Add the term and this node's vote in it (0: no vote). Raft §5.1."""
        assert self.hard_state is None or term >= self.hard_state[0], f"the term decreases to {term}"
        self.hard_state = (term, vote)
        self.parts.append(HARD_STATE.pack(ITEM_HARD_STATE, term, vote))

    def add_entry(self, term: int, index: int, kind: int, data: bytes) -> None:
        """Add an entry. It replaces the log from this index on."""
        is_next = not self.last_index or index <= self.last_index + 1
        assert is_next, f"entry {index} would leave a gap after {self.last_index}"
        self.parts.append(ENTRY.pack(ITEM_ENTRY, kind, term, index, len(data)))
        self.parts.append(data)
        self.index_max = max(self.index_max, index)
        self.last_index = index
        self.last_term = term

    def set_base(self, index: int, term: int) -> None:
        """Add that a durable snapshot holds everything up to `index`."""
        self.parts.append(BASE.pack(ITEM_BASE, index, term))
        self.index_max = max(self.index_max, index)
        if self.last_index < index:
            self.last_index = index
            self.last_term = term
