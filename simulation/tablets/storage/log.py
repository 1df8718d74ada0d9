"""A server's shared log. Writes are durable only after the next sync.

A kill leaves a prefix of the unsynced records in the operating system; the next start finds and syncs them. A power cut
leaves any subset of the unsynced records. A record that survives after a lost one is not part of the log: recovery
stops at the first missing record, because each record carries the seal of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import CONFIG, Entry, HardState
from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import Change, Drop, Floor, OpenSlot, Position, RecoveredSlot, SlotError, SlotItems
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation


class SimSlot:
    """The durable state of one replica."""

    def __init__(self, opened: OpenSlot) -> None:
        self.tablet = opened.tablet
        self.number = opened.number
        self.generation = opened.generation
        self.hard_state = HardState(opened.term, opened.vote)
        self.floor = opened.floor
        self.entries: list[LogItem] = []
        self.damage: str | None = None
        #: The entries before the damage: entries that were durable once were acknowledged correctly.
        self.before_damage: list[LogItem] | None = None

    def has_promised(self) -> bool:
        """Return False in the initial state of a first replica: no term, no vote, no entry."""
        return self.hard_state != HardState(0, 0) or bool(self.entries)

    def last(self) -> Position:
        """Return the position of the last entry, or the floor."""
        return Position(self.entries[-1].index, self.entries[-1].term) if self.entries else self.floor

    def newest_config(self) -> Configuration | None:
        """Return the newest configuration among the entries, None without one."""
        found = next((one for one in reversed(self.entries) if one.kind == CONFIG), None)
        return None if found is None else decode_configuration(found.data)

    def holds(self, index: int, term: int) -> bool:
        """Return True if the entry (index, term) is here, or below the floor, or was here until it was damaged."""
        if index <= self.floor.index:
            return True
        entries = self.entries if self.before_damage is None else self.before_damage
        place = index - self.floor.index - 1
        return place < len(entries) and entries[place].term == term

    def perform(self, items: SlotItems) -> None:
        """Make the items part of the slot. Raise Violation if they do not fit, or take a promise back."""
        if items.hard_state is not None:
            old, new = self.hard_state, items.hard_state
            if new.term < old.term or (new.term == old.term and old.vote not in (0, new.vote)):
                raise Violation(
                    f"{self.number} of {self.tablet} goes from term {old.term}, vote {old.vote} to term {new.term},"
                    f" vote {new.vote}"
                )
            self.hard_state = HardState(new.term, new.vote)
        if items.entries:
            first = items.entries[0].index
            if not self.floor.index < first <= self.last().index + 1:
                raise Violation(f"entry {first} of {self.tablet} does not follow {self.last()} behind {self.floor}")
            kept = self.entries[: first - self.floor.index - 1]
            self.entries = [*kept, *(LogItem(e.term, e.index, e.kind, e.data) for e in items.entries)]

    def entries_from(self, first: int, count: int) -> tuple[Position | None, list[Entry]]:
        """Return entries from `first` on, and the position before them."""
        place = first - self.floor.index - 1
        if place < 0 or place >= len(self.entries):
            return None, []
        before = self.floor if place == 0 else Position(first - 1, self.entries[place - 1].term)
        return before, [Entry(e.term, e.index, e.kind, e.data) for e in self.entries[place : place + count]]

    def move_floor(self, floor: Floor) -> None:
        """Drop the entries up to the floor."""
        if floor.index > self.floor.index:
            self.entries = self.entries[floor.index - self.floor.index :]
            self.floor = Position(floor.index, floor.term)

    def recovered(self) -> RecoveredSlot:
        """Return the contents that a start finds."""
        return RecoveredSlot(
            self.tablet,
            self.number,
            self.generation,
            HardStateItem(self.hard_state.term, self.hard_state.vote),
            self.floor,
            self.last(),
            self.damage,
            lambda: list(self.entries),
        )


class SimLog:
    """The shared log of one server: durable slots, and records that are not synced yet."""

    def __init__(self) -> None:
        self.slots: dict[int, SimSlot] = {}
        #: Slots that were dropped, or lost with their disk, by tablet and number: the former contents of replicas.
        self.former: dict[tuple[str, int], SimSlot] = {}
        #: (number of the turn's write, changes), oldest first.
        self.queue: list[tuple[int, Sequence[Change]]] = []
        #: Records that were passed to the operating system, and those of them that are durable, since the last start.
        self.passed = 0
        self.synced = 0
        self._next_slot = 1

    def next_slot(self) -> int:
        """Return the first slot that was never used."""
        return self._next_slot

    def write_now(self, changes: Sequence[Change]) -> None:
        """Make changes durable at once, as steps on files do (`files.SlotLog.write`)."""
        self._perform(changes)

    def contents(self, slot: int) -> RecoveredSlot | None:
        """See `files.SlotLog.contents`."""
        found = self.slots.get(slot)
        return None if found is None else found.recovered()

    def recovered(self) -> dict[int, RecoveredSlot]:
        """Return the slots that a start finds."""
        return {number: slot.recovered() for number, slot in self.slots.items()}

    def write(self, number: int, changes: Sequence[Change]) -> None:
        """Pass a record to the operating system."""
        self.queue.append((number, changes))
        self.passed += 1

    def begin(self, span_us: int) -> int:
        """Begin to write and sync the queue. Return how long that takes."""
        return span_us

    def sync(self, count: int) -> int:
        """Make the first `count` records durable. Return the number of the last write in them, 0 for floors alone."""
        done, self.queue = self.queue[:count], self.queue[count:]
        self.synced += len(done)
        for _, changes in done:
            self._perform(changes)
        return max((number for number, _ in done), default=0)

    def lose(self) -> None:
        """Replace the disk by an empty one."""
        for slot in self.slots.values():
            self._keep(slot)
        self.slots = {}
        self._forget_queue()

    def _keep(self, slot: SimSlot) -> None:
        """Keep the former contents of a member. An interrupted copy had less than the replica before."""
        before = self.former.get((slot.tablet, slot.number))
        ends = slot.last()
        if before is None or (ends.term, ends.index) >= (before.last().term, before.last().index):
            self.former[slot.tablet, slot.number] = slot

    def _forget_queue(self) -> None:
        self.queue = []
        self.passed = self.synced = 0

    def kill(self, chance: SeededRandom) -> None:
        """Kill the process."""
        self.sync(chance.below(len(self.queue) + 1))
        self._forget_queue()

    def power_cut(self, chance: SeededRandom, counts: Counter[str]) -> None:
        """Cut the power of the machine."""
        survived = [chance.happens(0.5) for _ in self.queue]
        whole = survived.index(False) if False in survived else len(survived)
        if any(survived[whole:]):
            counts["hole_in_log"] += 1
        if whole < len(survived):
            counts["unsynced_lost"] += 1
        self.sync(whole)
        self._forget_queue()

    def damage(self, slot: int) -> None:
        """Damage the slot: everything durable from some entry on is unreadable."""
        it = self.slots[slot]
        it.damage = "a record of the log is damaged"
        if it.before_damage is None:
            it.before_damage = it.entries
        it.entries = it.entries[: len(it.entries) // 2]
        it.hard_state = HardState(it.last().term, 0)

    def _perform(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, OpenSlot):
                assert change.slot not in self.slots, f"slot {change.slot} is used twice"
                self.slots[change.slot] = SimSlot(change)
                self._next_slot = max(self._next_slot, change.slot + 1)
                continue
            slot = self.slots.get(change.slot)
            assert slot is not None, f"slot {change.slot} was never opened"
            if slot.generation != change.generation:
                raise SlotError(change.slot, f"generation {change.generation} does not live")
            if isinstance(change, Drop):
                self._keep(self.slots.pop(change.slot))
            elif isinstance(change, SlotItems):
                slot.perform(change)
            elif isinstance(change, Floor):
                slot.move_floor(change)
