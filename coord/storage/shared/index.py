"""The durable contents of the shared log: the state of every slot, and the places of its entries. Pure.

Entries stay on the disk. The index keeps a span for each block with entries above the slot's floor: file, offset and
length of the block. A segment without spans is not needed any more, because the header of the next segment states every
slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coord.storage.shared.codec import ENDS, BlockHead, BlockStart, SlotRow
from coord.storage.shared.items import Position


class Span(NamedTuple):
    """A block with entries: `length` bytes at `offset` of a segment. Its first entry has index `first`. Only the first
    `entries` entries count; a later block has replaced the others."""

    segment: int
    offset: int
    length: int
    first: int
    entries: int


class LiveSlot:
    """One slot: the fields of a row, and the spans of its entries."""

    __slots__ = (
        "damage",
        "floor",
        "generation",
        "is_stated",
        "last_index",
        "last_term",
        "member",
        "slot",
        "spans",
        "start",
        "stated",
        "tablet",
        "term",
        "vote",
        "written",
    )

    def __init__(self, row: SlotRow) -> None:
        self.slot = row.slot
        self.generation = row.generation
        self.member = row.member
        self.tablet = row.tablet
        self.written = row.written
        self.term, self.vote = row.hard_state
        self.last_index = row.last.index
        self.last_term = row.last.term
        self.floor = row.floor
        #: Entries up to this index are not in the spans.
        self.start = row.last.index
        #: Ascending and contiguous.
        self.spans: list[Span] = []
        #: Description of the data that the slot has lost, "" if the slot is whole.
        self.damage = row.damage
        #: True if a header on the disk states the damage.
        self.is_stated = bool(row.damage)
        #: Sequence number of the last record that stated `written`. Only kept while a log is read.
        self.stated = 0

    def row(self) -> SlotRow:
        """Return the state of the slot for a header."""
        hard_state = (self.term, self.vote)
        return SlotRow(
            self.slot,
            self.generation,
            self.member,
            self.written,
            hard_state,
            Position(self.last_index, self.last_term),
            self.floor,
            self.tablet,
            self.damage,
        )


class SlotIndex:
    """All slots, and how many spans each segment holds."""

    def __init__(self) -> None:
        self.slots: dict[int, LiveSlot] = {}
        #: Lowest number that no slot has ever had.
        self.next_slot = 0
        #: Last block of each slot that has ended since the log was opened, or in the part of the log that was read.
        self.ended: dict[int, int] = {}
        self._spans: dict[int, int] = {}

    def spans_in(self, segment: int) -> int:
        """Return how many blocks of this segment hold entries above their slot's floor."""
        return self._spans.get(segment, 0)

    def pinning(self, segment: int) -> list[int]:
        """Return the slots whose oldest entry is in this segment."""
        # A copy: the thread that writes the log may open a slot meanwhile.
        return [slot.slot for slot in list(self.slots.values()) if slot.spans and slot.spans[0].segment == segment]

    def open(self, row: SlotRow) -> LiveSlot:
        """Begin a slot."""
        assert row.slot not in self.slots, f"slot {row.slot} is open already"
        slot = self.slots[row.slot] = LiveSlot(row)
        self.next_slot = max(self.next_slot, row.slot + 1)
        return slot

    def end(self, slot: LiveSlot) -> None:
        """End a slot."""
        assert self.slots.get(slot.slot) is slot, f"slot {slot.slot} is not open"
        self._release(slot.spans)
        del self.slots[slot.slot]
        self.ended[slot.slot] = slot.written

    def restate(self, slot: LiveSlot, row: SlotRow) -> LiveSlot:
        """Set a slot's state from a row, because blocks before the row are lost. Return the new state."""
        assert row.slot == slot.slot, f"a row of slot {row.slot} for slot {slot.slot}"
        self._release(slot.spans)
        self.slots[row.slot] = new = LiveSlot(row)
        return new

    def take(self, slot: LiveSlot, head: BlockHead, start: BlockStart | None, segment: int, offset: int) -> None:
        """Add a block to the slot; `offset` is the block's offset in the segment's file."""
        assert head.slot == slot.slot, f"a block of slot {head.slot} for slot {slot.slot}"
        assert head.written >= slot.written, f"block {head.written} of slot {slot.slot} after {slot.written}"
        slot.written = head.written
        if start is not None:
            if start.hard_state is not None:
                slot.term, slot.vote = start.hard_state
            if start.floor is not None:
                self._raise_floor(slot, start.floor)
        if head.count:
            self._append(slot, head, segment, offset)
        if head.flags & ENDS:
            self.end(slot)

    def _append(self, slot: LiveSlot, head: BlockHead, segment: int, offset: int) -> None:
        first, spans = head.first, slot.spans
        if first > slot.last_index + 1:
            # Only after damage: the entries in between are lost.
            self._release(spans)
            slot.spans = spans = []
            slot.start = first - 1
        elif first <= slot.last_index:
            replaced = len(spans)
            while replaced and spans[replaced - 1].first >= first:
                replaced -= 1
            self._release(spans[replaced:])
            del spans[replaced:]
            if spans and spans[-1].first + spans[-1].entries > first:
                spans[-1] = spans[-1]._replace(entries=first - spans[-1].first)
            slot.start = min(slot.start, first - 1)
        spans.append(Span(segment, offset, head.total, first, head.count))
        self._spans[segment] = self._spans.get(segment, 0) + 1
        slot.last_index = first + head.count - 1
        assert slot.last_index >= first, f"a block of slot {slot.slot} at {first} without entries"
        slot.last_term = head.last_term

    def _raise_floor(self, slot: LiveSlot, floor: Position) -> None:
        if floor.index <= slot.floor.index:
            return
        slot.floor = floor
        spans = slot.spans
        done = 0
        while done < len(spans) and spans[done].first + spans[done].entries - 1 <= floor.index:
            done += 1
        self._release(spans[:done])
        # A new list: another thread may be reading the entries of the old one.
        slot.spans = spans[done:]
        if floor.index >= slot.last_index:
            slot.last_index, slot.last_term = floor.index, floor.term
        assert floor.index <= slot.last_index, f"floor {floor.index} of slot {slot.slot} after {slot.last_index}"

    def _release(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._spans[span.segment] -= 1
            # With a count too low, `prune` would remove a segment that a slot needs.
            assert self._spans[span.segment] >= 0, f"segment {span.segment} has {self._spans[span.segment]} spans"
