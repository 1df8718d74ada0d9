"""Changes of slots, checked and encoded before they are queued for the log. Pure.

`SlotTable` holds each slot's state after everything queued has become durable. A change that does not fit its slot is
rejected here, on the thread of the groups: the error affects its tablet and never the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coord.storage.shared.codec import (
    BLOCK_BYTES,
    ENDS,
    HAS_FLOOR,
    HAS_ROW,
    HAS_STATE,
    PIECE,
    TABLET_BYTES_MAX,
    BlockHead,
    BlockStart,
    SlotRow,
    encode_block,
    encode_floor,
    encode_items,
    encode_row,
)
from coord.storage.shared.index import SlotIndex
from coord.storage.shared.items import SLOT_MAX, Change, Drop, Floor, OpenSlot, Position, SlotError, SlotItems

#: Longest batch. A server keeps at most 256 MB of requests in flight, so the batches of a full disk fit one record.
BATCH_BYTES_MAX: Final = 256 << 20


class SlotBatch:
    """Encoded blocks that become durable together."""

    def __init__(self, bytes_max: int = BATCH_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.parts: list[bytes] = []
        self.bytes = 0
        #: Head and start of each block, and its offset in this batch.
        self.blocks: list[tuple[BlockHead, BlockStart | None, int]] = []
        #: For the next record's trail: the piece of each slot.
        self.pieces: dict[int, bytes] = {}

    def add(self, head: BlockHead, start: BlockStart | None, content: bytes) -> None:
        """Add one block."""
        block = encode_block(head, content)
        assert len(block) == head.total, f"a block of {len(block)} bytes states {head.total}"
        self.blocks.append((head, start, self.bytes))
        self.parts.append(block)
        self.bytes += len(block)
        self.pieces[head.slot] = PIECE.pack(head.slot, head.written)


class _QueuedSlot:
    """State of a slot after everything queued has become durable."""

    __slots__ = ("floor", "generation", "is_damaged", "last", "term", "vote", "written")

    def __init__(
        self, generation: int, written: int, term: int, vote: int, last: int, floor: int, is_damaged: bool = False
    ) -> None:
        self.generation = generation
        self.written = written
        self.term = term
        self.vote = vote
        self.last = last
        self.floor = floor
        self.is_damaged = is_damaged


class SlotTable:
    """Checks changes against their slots, and numbers the blocks."""

    def __init__(self, index: SlotIndex, bytes_max: int = BATCH_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._slots = {
            slot.slot: _QueuedSlot(
                slot.generation,
                slot.written,
                slot.term,
                slot.vote,
                slot.last_index,
                slot.floor.index,
                bool(slot.damage),
            )
            for slot in index.slots.values()
        }
        self._used_below = index.next_slot
        self._opened: set[int] = set()
        #: Lowest number that no slot has ever had.
        self.next_slot = index.next_slot

    def batch(self, changes: Iterable[Change]) -> SlotBatch:
        """Return the changes as a batch, to be submitted before the next one is made.

        Raise SlotError for the first change that does not fit its slot; then no change is accepted.
        """
        batch = SlotBatch(self._bytes_max)
        undo: list[tuple[int, _QueuedSlot | None]] = []
        try:
            for change in changes:
                before = self._slots.get(change.slot)
                after = self._take(batch, change, before)
                undo.append((change.slot, before))
                if after is None:
                    del self._slots[change.slot]
                else:
                    self._slots[change.slot] = after
                if batch.bytes > batch.bytes_max:
                    raise SlotError(change.slot, f"a batch of more than {batch.bytes_max} bytes")
        except SlotError:
            for slot, before in reversed(undo):
                if before is not None:
                    self._slots[slot] = before
                else:
                    self._slots.pop(slot, None)
                    self._opened.discard(slot)
            raise
        return batch

    def _take(self, batch: SlotBatch, change: Change, before: _QueuedSlot | None) -> _QueuedSlot | None:
        """Add the change to the batch. Return the slot's state after it, None if the change ends the slot."""
        if isinstance(change, OpenSlot):
            return self._open(batch, change)
        if before is None:
            raise SlotError(change.slot, "not open")
        if before.generation != change.generation:
            raise SlotError(change.slot, f"of generation {before.generation}, not {change.generation}")
        if isinstance(change, Drop):
            batch.add(BlockHead(ENDS, change.slot, change.generation, before.written + 1, 0), None, b"")
            return None
        if before.is_damaged:
            raise SlotError(change.slot, "has lost records on the disk: only a drop is accepted")
        if isinstance(change, Floor):
            return _raise_floor(batch, change, before)
        return _append(batch, change, before)

    def _open(self, batch: SlotBatch, change: OpenSlot) -> _QueuedSlot:
        slot, floor = change.slot, change.floor
        if slot in self._opened or not self._used_below <= slot <= SLOT_MAX:
            raise SlotError(slot, f"used before, or above {SLOT_MAX}")
        if len(change.tablet.encode()) > TABLET_BYTES_MAX:
            raise SlotError(slot, f"the tablet's name is longer than {TABLET_BYTES_MAX} bytes")
        row = SlotRow(
            slot, change.generation, change.number, 1, (change.term, change.vote), floor, floor, change.tablet
        )
        content = encode_row(row)
        start = BlockStart()
        start.row = row
        batch.add(BlockHead(HAS_ROW, slot, change.generation, 1, len(content)), start, content)
        self._opened.add(slot)
        self.next_slot = max(self.next_slot, slot + 1)
        assert slot not in self._slots, f"slot {slot} is open, and was opened again"
        return _QueuedSlot(change.generation, 1, change.term, change.vote, floor.index, floor.index)


def _raise_floor(batch: SlotBatch, change: Floor, before: _QueuedSlot) -> _QueuedSlot:
    """Add a floor. A floor at or below the present one is accepted and has no effect."""
    content = encode_floor(Position(change.index, change.term))
    start = BlockStart()
    start.floor = Position(change.index, change.term)
    written = before.written + 1
    batch.add(BlockHead(HAS_FLOOR, change.slot, change.generation, written, len(content)), start, content)
    last, floor = max(before.last, change.index), max(before.floor, change.index)
    assert floor <= last, f"slot {change.slot} ends at entry {last}, its floor is {floor}"
    return _QueuedSlot(before.generation, written, before.term, before.vote, last, floor)


def _append(batch: SlotBatch, change: SlotItems, before: _QueuedSlot) -> _QueuedSlot:
    """Add term and vote, and entries."""
    hard_state, entries = change.hard_state, change.entries
    if hard_state is None and not entries:
        return before
    written = before.written + 1
    term, vote, last = before.term, before.vote, before.last
    start = None
    flags = first = last_term = 0
    if hard_state is not None:
        if hard_state.term < term or (hard_state.term == term and vote not in (0, hard_state.vote)):
            raise SlotError(
                change.slot, f"term {hard_state.term} with vote {hard_state.vote} after term {term} with vote {vote}"
            )
        term, vote = hard_state.term, hard_state.vote
        flags = HAS_STATE
        start = BlockStart()
        start.hard_state = (term, vote)
    if entries:
        first = entries[0].index
        if not before.floor < first <= last + 1:
            raise SlotError(change.slot, f"entry {first} after floor {before.floor} and last entry {last}")
        last = first + len(entries) - 1
        last_term = entries[-1].term
    for index, entry in enumerate(entries, first):
        if entry.index != index:
            raise SlotError(change.slot, f"entry {entry.index} instead of {index}")
    parts = encode_items(hard_state, entries)
    size = sum(map(len, parts))
    if batch.bytes + size + BLOCK_BYTES > batch.bytes_max:
        raise SlotError(change.slot, f"a batch of more than {batch.bytes_max} bytes")
    assert before.floor <= last, f"slot {change.slot} ends at entry {last}, its floor is {before.floor}"
    head = BlockHead(flags, change.slot, change.generation, written, size, first, len(entries), last_term)
    batch.add(head, start, b"".join(parts))
    return _QueuedSlot(before.generation, written, term, vote, last, before.floor)
