"""The items of the shared log as bytes. Pure.

A record is that of `coord.storage.records`: magic, length, checksum, sequence number. Its items are these. All numbers
are big-endian:

    record  := header row* | trail block*
    header  := 0x10 format:u16 segment:u64 copy:u8 next_slot:u64 rows:u32
    row     := 0x11 slot:u32 generation:u32 member:u64 written:u64 term:u64 vote:u64 last_index:u64 last_term:u64
               floor_index:u64 floor_term:u64 tablet_length:u16 damage_length:u16 tablet damage
    trail   := 0x12 since:u64 count:u32 (slot:u32 written:u64)*
    block   := 0x13 flags:u8 slot:u32 generation:u32 written:u64 length:u32 first:u64 count:u32 last_term:u64 crc:u32
               content                                  crc32c over the fields before it and the content
    content := [row] [hard_state] [floor] entry*        flags: 1 row, 2 hard state, 4 floor, 8 the slot ends here
    note    := length:u32 crc:u32 trail                 after a seal ; crc32c over the trail

Hard state, floor (a `base` there) and entry are those of `coord.storage.records`. `first`, `count` and `last_term`
state which entries the block holds, so that a reader need not look into the content.

`written` counts the blocks of a slot from 1. A block, a trail and a row all state the number of the slot's newest block
at that point. A reader that has passed damage therefore knows which slots have lost a block:

- A trail names the blocks of all records from `since` on. Every record begins with a trail for at least the record
  before it; the note after the last record's seal is the trail for that record.
- The header of a segment states every slot. It is written twice, as the first two records of the segment.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from coord.errors import StorageError
from coord.storage.records import (
    BASE,
    ENTRY,
    HARD_STATE,
    ITEM_BASE,
    ITEM_ENTRY,
    ITEM_HARD_STATE,
    LogItem,
)
from coord.storage.shared.items import EntryView, HardStateView, Position

#: Format of the shared log. A reader rejects a later one.
FORMAT: Final = 1

ITEM_HEADER: Final = 0x10
ITEM_ROW: Final = 0x11
ITEM_TRAIL: Final = 0x12
ITEM_BLOCK: Final = 0x13

#: Flags of a block: the items at the beginning of its content, and whether the slot ends here.
HAS_ROW: Final = 1
HAS_STATE: Final = 2
HAS_FLOOR: Final = 4
ENDS: Final = 8

#: Longest name of a tablet and longest line about damage, in bytes: a row stays below a page.
TABLET_BYTES_MAX: Final = 1024
DAMAGE_BYTES_MAX: Final = 1024

HEADER: Final = struct.Struct(">BHQBQI")
ROW: Final = struct.Struct(">BIIQQQQQQQQHH")
TRAIL: Final = struct.Struct(">BQI")
PIECE: Final = struct.Struct(">IQ")
BLOCK: Final = struct.Struct(">BBIIQIQIQ")
CRC: Final = struct.Struct(">I")
NOTE: Final = struct.Struct(">II")
#: A block without its content.
BLOCK_BYTES: Final = BLOCK.size + CRC.size


class SlotRow:
    """The state of one slot, as of the record that holds the row."""

    def __init__(
        self,
        slot: int,
        generation: int,
        member: int,
        written: int,
        hard_state: tuple[int, int],
        last: Position,
        floor: Position,
        tablet: str,
        damage: str = "",
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.member = member
        #: Number of the slot's newest block.
        self.written = written
        self.hard_state = hard_state
        self.last = last
        self.floor = floor
        self.tablet = tablet
        #: Description of the data that the slot has lost, "" if the slot is whole.
        self.damage = damage


class SegmentHeader:
    """The first item of a segment, without its rows."""

    def __init__(self, segment: int, copy: int, next_slot: int, rows: int) -> None:
        self.segment = segment
        self.copy = copy
        self.next_slot = next_slot
        self.rows = rows


class BlockHead:
    """One slot's writes of one turn, without the content."""

    def __init__(
        self,
        flags: int,
        slot: int,
        generation: int,
        written: int,
        length: int,
        first: int = 0,
        count: int = 0,
        last_term: int = 0,
    ) -> None:
        self.flags = flags
        self.slot = slot
        self.generation = generation
        self.written = written
        #: Bytes of the content.
        self.length = length
        #: Index of the first entry and number of entries; term of the last one.
        self.first = first
        self.count = count
        self.last_term = last_term

    @property
    def total(self) -> int:
        """Return the bytes of the block with its content."""
        return BLOCK_BYTES + self.length


def encode_header(segment: int, copy: int, next_slot: int, rows: int) -> bytes:
    """Return the first item of a segment."""
    return HEADER.pack(ITEM_HEADER, FORMAT, segment, copy, next_slot, rows)


def decode_header(where: str, data: bytes, offset: int) -> SegmentHeader:
    """Return the header at `offset`. Raise StorageError for a later format, struct.error."""
    _, version, segment, copy, next_slot, rows = HEADER.unpack_from(data, offset)
    if version != FORMAT:
        raise StorageError(f"{where}: written in format {version}, this program reads {FORMAT}")
    return SegmentHeader(segment, copy, next_slot, rows)


def encode_row(row: SlotRow) -> bytes:
    """Return one row."""
    tablet = row.tablet.encode()
    damage = row.damage.encode()[:DAMAGE_BYTES_MAX].decode(errors="ignore").encode()
    fixed = ROW.pack(
        ITEM_ROW,
        row.slot,
        row.generation,
        row.member,
        row.written,
        *row.hard_state,
        row.last.index,
        row.last.term,
        row.floor.index,
        row.floor.term,
        len(tablet),
        len(damage),
    )
    return fixed + tablet + damage


def decode_row(data: bytes, offset: int) -> tuple[SlotRow, int]:
    """Return the row at `offset`, and the offset after it. Raise ValueError, struct.error."""
    tag, slot, generation, member, written, term, vote, last, last_term, floor, floor_term, names, damages = (
        ROW.unpack_from(data, offset)
    )
    if tag != ITEM_ROW:
        raise ValueError(f"tag {tag} instead of a row")
    offset += ROW.size
    end = offset + names + damages
    if end > len(data):
        raise ValueError("a row is cut short")
    tablet = data[offset : offset + names].decode()
    damage = data[offset + names : end].decode()
    return (
        SlotRow(
            slot,
            generation,
            member,
            written,
            (term, vote),
            Position(last, last_term),
            Position(floor, floor_term),
            tablet,
            damage,
        ),
        end,
    )


def encode_trail(since: int, pieces: Sequence[bytes]) -> bytes:
    """Return a trail of encoded pieces, see `PIECE`."""
    return TRAIL.pack(ITEM_TRAIL, since, len(pieces)) + b"".join(pieces)


def decode_trail(data: bytes, offset: int) -> tuple[int, list[tuple[int, int]], int]:
    """Return since, the (slot, written) pairs, and the offset after the trail. Raise ValueError, struct.error."""
    tag, since, count = TRAIL.unpack_from(data, offset)
    if tag != ITEM_TRAIL:
        raise ValueError(f"tag {tag} instead of a trail")
    offset += TRAIL.size
    end = offset + count * PIECE.size
    if end > len(data):
        raise ValueError("a trail is cut short")
    return since, list(PIECE.iter_unpack(data[offset:end])), end


def encode_note(since: int, pieces: Sequence[bytes]) -> bytes:
    """Return the note to write after a seal."""
    trail = encode_trail(since, pieces)
    return NOTE.pack(len(trail), crc32c(trail)) + trail


def decode_note(data: bytes, offset: int) -> tuple[int, list[tuple[int, int]]] | None:
    """Return since and the (slot, written) pairs of the note at `offset`, None if no whole note is there."""
    if len(data) - offset < NOTE.size + TRAIL.size:
        return None
    length, crc = NOTE.unpack_from(data, offset)
    trail = data[offset + NOTE.size : offset + NOTE.size + length]
    if len(trail) != length or crc32c(trail) != crc:
        return None
    try:
        since, pieces, end = decode_trail(trail, 0)
    except (ValueError, struct.error):
        return None
    return (since, pieces) if end == length else None


def encode_block(head: BlockHead, content: bytes) -> bytes:
    """Return a block. `head.length` is that of the content."""
    fixed = BLOCK.pack(
        ITEM_BLOCK,
        head.flags,
        head.slot,
        head.generation,
        head.written,
        head.length,
        head.first,
        head.count,
        head.last_term,
    )
    return b"".join([fixed, CRC.pack(crc32c(content, crc32c(fixed))), content])


def decode_block(data: bytes, offset: int) -> tuple[BlockHead, int]:
    """Return the head of the block at `offset`, and the offset of its content. The checksum is not compared.

    Raise ValueError, struct.error.
    """
    tag, flags, slot, generation, written, length, first, count, last_term = BLOCK.unpack_from(data, offset)
    if tag != ITEM_BLOCK:
        raise ValueError(f"tag {tag} instead of a block")
    offset += BLOCK_BYTES
    if offset + length > len(data):
        raise ValueError("a block is cut short")
    return BlockHead(flags, slot, generation, written, length, first, count, last_term), offset


def is_whole_block(data: bytes, offset: int) -> bool:
    """Return True if the block at `offset` of `data` has its checksum."""
    try:
        head, content = decode_block(data, offset)
    except (ValueError, struct.error):
        return False
    [crc] = CRC.unpack_from(data, content - CRC.size)
    fixed = data[offset : offset + BLOCK.size]
    return bool(crc32c(data[content : content + head.length], crc32c(fixed)) == crc)


class BlockStart:
    """The beginning of a block's content, and the offset of its entries."""

    def __init__(self) -> None:
        self.row: SlotRow | None = None
        self.hard_state: tuple[int, int] | None = None
        self.floor: Position | None = None
        #: Offset of the first entry.
        self.entries = 0


def decode_start(flags: int, data: bytes, offset: int) -> BlockStart:
    """Decode the beginning of the content at `offset`. Raise ValueError, struct.error."""
    found = BlockStart()
    if flags & HAS_ROW:
        found.row, offset = decode_row(data, offset)
    if flags & HAS_STATE:
        tag, term, vote = HARD_STATE.unpack_from(data, offset)
        if tag != ITEM_HARD_STATE:
            raise ValueError(f"tag {tag} instead of a hard state")
        found.hard_state = (term, vote)
        offset += HARD_STATE.size
    if flags & HAS_FLOOR:
        tag, index, term = BASE.unpack_from(data, offset)
        if tag != ITEM_BASE:
            raise ValueError(f"tag {tag} instead of a floor")
        found.floor = Position(index, term)
        offset += BASE.size
    found.entries = offset
    return found


def encode_items(hard_state: HardStateView | None, entries: Sequence[EntryView]) -> list[bytes]:
    """Return the parts of a content: term and vote if they change, and entries."""
    parts: list[bytes] = []
    if hard_state is not None:
        parts.append(HARD_STATE.pack(ITEM_HARD_STATE, hard_state.term, hard_state.vote))
    for entry in entries:
        data = entry.data
        parts.append(ENTRY.pack(ITEM_ENTRY, entry.kind, entry.term, entry.index, len(data)))
        parts.append(data)
    return parts


def encode_floor(floor: Position) -> bytes:
    """Return the item that moves a slot's floor."""
    return BASE.pack(ITEM_BASE, floor.index, floor.term)


def decode_entries(data: bytes, offset: int, end: int) -> list[LogItem]:
    """Return the entries between these offsets. Raise ValueError, struct.error."""
    entries: list[LogItem] = []
    while offset < end:
        tag, kind, term, index, length = ENTRY.unpack_from(data, offset)
        offset += ENTRY.size
        if tag != ITEM_ENTRY or offset + length > end:
            raise ValueError(f"tag {tag} with {length} bytes instead of an entry")
        entries.append(LogItem(term, index, kind, data[offset : offset + length]))
        offset += length
    return entries
