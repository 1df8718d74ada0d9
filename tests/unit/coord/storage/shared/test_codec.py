"""The items of the shared log as bytes: encoded items are decoded again, and damage is noticed."""

from __future__ import annotations

import inspect
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.errors import StorageError
from coord.storage.records import LogItem
from coord.storage.shared import codec
from coord.storage.shared.codec import (
    DAMAGE_BYTES_MAX,
    HAS_FLOOR,
    HAS_ROW,
    HAS_STATE,
    PIECE,
    BlockHead,
    SlotRow,
    decode_block,
    decode_entries,
    decode_header,
    decode_note,
    decode_row,
    decode_start,
    decode_trail,
    encode_block,
    encode_floor,
    encode_header,
    encode_items,
    encode_note,
    encode_row,
    encode_trail,
    is_whole_block,
)
from coord.storage.shared.items import Position
from tests.unit.coord.storage.shared.model import items

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, U64, U64)
ROWS = st.builds(
    SlotRow, U32, U32, U64, U64, st.tuples(U64, U64), POSITIONS, POSITIONS, st.text(max_size=200), st.text(max_size=200)
)


def fields(one: SlotRow | BlockHead) -> dict[str, object]:
    """Return the fields; not vars(): compiled classes have no __dict__."""
    names = inspect.signature(type(one)).parameters
    return {name: getattr(one, name) for name in names}


@given(U64, U64, U32, st.integers(1, 2))
def test_headers_come_back(segment: int, next_slot: int, rows: int, copy: int) -> None:
    data = encode_header(segment, copy, next_slot, rows)
    header = decode_header("here", data, 0)
    assert (header.segment, header.copy, header.next_slot, header.rows) == (segment, copy, next_slot, rows)


def test_a_later_format_is_refused() -> None:
    """The message names the file and both formats."""
    data = bytearray(encode_header(1, 1, 0, 0))
    data[2] += 1
    with pytest.raises(StorageError, match=r"wals/1\.log: written in format 2, this program reads 1"):
        decode_header("wals/1.log", bytes(data), 0)


@given(ROWS)
def test_rows_come_back(row: SlotRow) -> None:
    data = encode_row(row)
    again, end = decode_row(b"before" + data, 6)
    assert fields(again) == fields(row)
    assert end == 6 + len(data)


def test_a_long_line_about_damage_is_cut_between_characters() -> None:
    row = SlotRow(1, 1, 1, 1, (0, 0), Position(0, 0), Position(0, 0), "t", "ä" * DAMAGE_BYTES_MAX)
    assert decode_row(encode_row(row), 0)[0].damage == "ä" * (DAMAGE_BYTES_MAX // 2)


@given(U64, st.lists(st.tuples(U32, U64)))
def test_trails_and_notes_come_back(since: int, pairs: list[tuple[int, int]]) -> None:
    pieces = [PIECE.pack(*pair) for pair in pairs]
    trail, note = encode_trail(since, pieces), encode_note(since, pieces)
    assert decode_trail(trail, 0) == (since, pairs, len(trail))
    assert decode_note(b"seal" + note + b"zeros", 4) == (since, pairs)


def test_a_damaged_note_says_nothing() -> None:
    """A flip at any byte, and any shorter part of the note."""
    note = encode_note(7, [PIECE.pack(1, 2), PIECE.pack(3, 4)])
    for at in range(len(note)):
        flipped = bytearray(note)
        flipped[at] ^= 4
        assert decode_note(bytes(flipped), 0) is None
        assert decode_note(note[:at], 0) is None


@given(
    st.booleans(),
    st.one_of(st.none(), st.tuples(U64, U64)),
    st.one_of(st.none(), POSITIONS),
    st.lists(st.binary(max_size=50), max_size=4),
    U32,
    U32,
    U64,
)
def test_blocks_come_back(
    has_row: bool,
    state: tuple[int, int] | None,
    floor: Position | None,
    payloads: list[bytes],
    slot: int,
    generation: int,
    written: int,
) -> None:
    """Head, the begin of the content, and entries."""
    row = SlotRow(slot, generation, 3, 1, (1, 2), Position(3, 4), Position(5, 6), "table/region")
    change = items(slot, *[(9, 5 + place, data) for place, data in enumerate(payloads)], state=state)
    parts = encode_items(change.hard_state, change.entries)
    if floor is not None:
        parts.insert(1 if state is not None else 0, encode_floor(floor))
    content = (encode_row(row) if has_row else b"") + b"".join(parts)
    flags = has_row * HAS_ROW | (state is not None) * HAS_STATE | (floor is not None) * HAS_FLOOR
    head = BlockHead(flags, slot, generation, written, len(content), 5, len(payloads), 9)
    data = b"before" + encode_block(head, content)
    assert is_whole_block(data, 6)
    again, at = decode_block(data, 6)
    assert fields(again) == fields(head)
    assert len(data) == 6 + again.total
    start = decode_start(again.flags, data, at)
    assert (start.hard_state, start.floor, start.row is not None) == (state, floor, has_row)
    entries = decode_entries(data, start.entries, at + again.length)
    assert [(e.term, e.index, e.data) for e in entries] == [(9, 5 + n, data) for n, data in enumerate(payloads)]


def test_a_flip_at_every_byte_of_a_block_is_noticed() -> None:
    change = items(4, (2, 7, b"data"), state=(2, 1))
    content = b"".join(encode_items(change.hard_state, change.entries))
    block = encode_block(BlockHead(HAS_STATE, 4, 1, 9, len(content), 7, 1, 2), content)
    assert is_whole_block(block, 0)
    for at in range(len(block)):
        flipped = bytearray(block)
        flipped[at] ^= 0x40
        assert not is_whole_block(bytes(flipped), 0)
        assert not is_whole_block(block[:at], 0)


@pytest.mark.parametrize("decode", [decode_row, decode_trail, decode_block])
def test_items_of_another_kind_and_short_ones_are_refused(decode: object) -> None:
    """Never an index error, never a half item."""
    whole = {
        decode_row: encode_row(SlotRow(1, 1, 1, 1, (0, 0), Position(0, 0), Position(0, 0), "name")),
        decode_trail: encode_trail(3, [PIECE.pack(1, 2)]),
        decode_block: encode_block(BlockHead(0, 1, 1, 1, 3), b"abc"),
    }[decode]
    assert callable(decode)
    for data in [bytes([whole[0] ^ 0x40]) + whole[1:], *[whole[:length] for length in range(len(whole))]]:
        with pytest.raises((ValueError, struct.error)):
            decode(data, 0)


def test_entries_that_leave_their_block_are_refused() -> None:
    [head, data] = encode_items(None, [LogItem(1, 1, 0, b"data")])
    with pytest.raises(ValueError, match="instead of an entry"):
        decode_entries(head + data, 0, len(head) + len(data) - 1)
    with pytest.raises((ValueError, struct.error)):
        decode_start(HAS_FLOOR | HAS_STATE, bytes(40), 0)


def test_the_format_of_this_version() -> None:
    """Byte for byte: a change of these bytes needs a new format number."""
    assert codec.FORMAT == 1
    assert encode_header(2, 1, 3, 4).hex() == "100001000000000000000201000000000000000300000004"
    assert encode_trail(5, [PIECE.pack(6, 7)]).hex() == "12000000000000000500000001000000060000000000000007"
    row = SlotRow(1, 2, 3, 4, (5, 6), Position(7, 8), Position(9, 10), "t", "d")
    numbers = "".join(f"{number:016x}" for number in range(3, 11))
    assert encode_row(row).hex() == "110000000100000002" + numbers + "000100017464"
    block = encode_block(BlockHead(8, 1, 2, 3, 0, 4, 5, 6), b"")
    assert block.hex() == (
        "130800000001000000020000000000000003000000000000000000000004000000050000000000000006" + block[-4:].hex()
    )
    assert block[-4:].hex() == "5dd94737"
