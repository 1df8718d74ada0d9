"""A dictionary model of the shared log, and a seeded history of changes for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import Change, Drop, Floor, OpenSlot, Position, RecoveredLog, SlotItems

#: (tablet, number, generation, (term, vote), floor, last, entries behind the floor as (term, index, kind, data)).
Shape = tuple[str, int, int, tuple[int, int], Position, Position, list[tuple[int, int, int, bytes]]]


@dataclass
class ModelSlot:
    """What one slot should hold."""

    tablet: str
    number: int
    generation: int
    state: tuple[int, int]
    floor: Position
    last: Position
    entries: list[tuple[int, int, int, bytes]] = field(default_factory=list)

    def shape(self) -> Shape:
        return (self.tablet, self.number, self.generation, self.state, self.floor, self.last, list(self.entries))


Model = dict[int, ModelSlot]


def apply(model: Model, change: Change) -> None:
    """Apply one change to the model."""
    if isinstance(change, OpenSlot):
        state = (change.term, change.vote)
        model[change.slot] = ModelSlot(
            change.tablet, change.number, change.generation, state, change.floor, change.floor
        )
        return
    slot = model[change.slot]
    if isinstance(change, Drop):
        del model[change.slot]
    elif isinstance(change, Floor):
        if change.index > slot.floor.index:
            slot.floor = Position(change.index, change.term)
            slot.entries = [entry for entry in slot.entries if entry[1] > change.index]
            if change.index >= slot.last.index:
                slot.last = slot.floor
    else:
        if change.hard_state is not None:
            slot.state = (change.hard_state.term, change.hard_state.vote)
        for entry in change.entries:
            slot.entries = [old for old in slot.entries if old[1] < entry.index]
            slot.entries.append((entry.term, entry.index, entry.kind, entry.data))
            slot.last = Position(entry.index, entry.term)


def copied(model: Model) -> Model:
    """Return an independent copy."""
    return {number: replace(slot, entries=list(slot.entries)) for number, slot in model.items()}


def shapes(model: Model) -> dict[int, Shape]:
    """Return the model in a form that can be compared."""
    return {number: slot.shape() for number, slot in model.items()}


def found(log: RecoveredLog, *, without: frozenset[int] | set[int] = frozenset()) -> dict[int, Shape]:
    """Return the slots of a recovered log in the same form, without the slots of these numbers."""
    return {
        number: (
            slot.tablet,
            slot.number,
            slot.generation,
            (slot.hard_state.term, slot.hard_state.vote),
            slot.floor,
            slot.last,
            [(entry.term, entry.index, entry.kind, entry.data) for entry in slot.entries],
        )
        for number, slot in log.slots.items()
        if number not in without
    }


def damaged(log: RecoveredLog) -> set[int]:
    """Return the slots with lost records."""
    return {number for number, slot in log.slots.items() if slot.damage}


def items(slot: int, *entries: tuple[int, int, bytes], state: tuple[int, int] | None = None) -> SlotItems:
    """Return the items of a group of generation 1: (term, index, data) entries."""
    hard_state = None if state is None else HardStateItem(*state)
    return SlotItems(slot, 1, hard_state, [LogItem(term, index, 0, data) for term, index, data in entries])


def some_changes(random: Random, model: Model, next_slot: int, *, most: int = 4, slots: int = 6) -> list[Change]:
    """Return the changes of one turn, and apply them to the model."""
    changes: list[Change] = []
    for _ in range(random.randint(1, most)):
        if not model or (len(model) < slots and random.random() < 0.15):
            floor = Position(7, 2) if random.random() < 0.2 else Position(0, 0)
            number = random.randint(1, 9)
            change: Change = OpenSlot(next_slot, 1, f"orders/{next_slot:04x}", number, floor.term, 0, floor)
            next_slot += 1
        else:
            change = _some_change(random, model)
        changes.append(change)
        apply(model, change)
    return changes


def _some_change(random: Random, model: Model) -> Change:
    number = random.choice(sorted(model))
    slot = model[number]
    what = random.random()
    if what < 0.05:
        return Drop(number, slot.generation)
    if what < 0.25 and slot.entries:
        term, index, *_ = random.choice(slot.entries)
        return Floor(number, slot.generation, index, term)
    if what < 0.28:
        return Floor(number, slot.generation, slot.last.index + 3, max(1, slot.state[0]))
    term = max(1, slot.state[0])
    state = None
    if random.random() < 0.4:
        term += random.randint(0, 1)
        vote = slot.state[1] if term == slot.state[0] and slot.state[1] else random.randint(0, 3)
        state = HardStateItem(term, vote)
    first = slot.last.index + 1
    if random.random() < 0.2:
        first = random.randint(slot.floor.index + 1, first)
    count = random.randint(0 if state is not None else 1, 3)
    data = random.choice([b"", b"RKW1RKWS as data", bytes(random.randint(0, 60)), b"%d" % random.getrandbits(200)])
    entries = [LogItem(term, first + place, random.randint(0, 3), data) for place in range(count)]
    return SlotItems(number, slot.generation, state, entries)
