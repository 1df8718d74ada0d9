"""Input of the shared log: the changes of a Raft group. Output: the slots of a log that is opened.

A **slot** is the place of one replica in the shared log. It belongs to one tablet in one generation, and no other
tablet or generation ever uses its number. `SharedLog.next_slot` returns the first number that was never used.

Every change of a slot names its generation. A change for another generation than that of the slot is rejected, so a
late `Drop` of a removed replica cannot reach its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from coord.errors import StorageError
from coord.storage.records import HardStateItem, LogItem

#: Highest number of a slot: it is a u32 on the disk.
SLOT_MAX: Final = (1 << 32) - 1


class EntryView(Protocol):
    """An entry of a Raft log: `coord.raft.messages.Entry`, or a LogItem that was read from the disk."""

    @property
    def term(self) -> int:
        """Term in which a leader appended the entry."""
        ...

    @property
    def index(self) -> int:
        """Place of the entry in the group's log, from 1."""
        ...

    @property
    def kind(self) -> int:
        """Kind of the entry. The log does not interpret it."""
        ...

    @property
    def data(self) -> bytes:
        """Payload. The log does not interpret it."""
        ...


class HardStateView(Protocol):
    """Term and vote of a group: `coord.raft.messages.HardState`, or a HardStateItem that was read from the disk."""

    @property
    def term(self) -> int:
        """Current term."""
        ...

    @property
    def vote(self) -> int:
        """Member that this replica voted for in the term, 0 for none."""
        ...


@dataclass(frozen=True, slots=True)
class Position:
    """Index and term of an entry. (0, 0) is the position before the first entry."""

    index: int
    term: int


#: The position before the first entry.
BEGINNING: Final = Position(0, 0)


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """Begin a slot for a replica: member `number` of `tablet`.

    The first replicas of a tablet begin at position (0, 0) in term 0. A copied replica begins with the term and the
    vote that it has kept, and at the position of its rows.
    """

    slot: int
    generation: int
    tablet: str
    number: int
    term: int = 0
    vote: int = 0
    floor: Position = BEGINNING


@dataclass(frozen=True, slots=True)
class SlotItems:
    """The writes of one group in one turn.

    `hard_state` is None if term and vote are unchanged. `entries` are contiguous. The first of them may have an index
    at or below the last one of the slot: it replaces the entry there and all entries after it.
    """

    slot: int
    generation: int
    hard_state: HardStateView | None
    entries: Sequence[EntryView]


@dataclass(frozen=True, slots=True)
class Floor:
    """State that the replica's rows hold every entry up to (index, term) durably. The log may drop those entries."""

    slot: int
    generation: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Drop:
    """End a slot: the replica was removed. The log may drop everything that the slot holds."""

    slot: int
    generation: int


#: One change of one slot.
Change = OpenSlot | SlotItems | Floor | Drop


class SlotError(StorageError):
    """Raised for a change that does not fit its slot. No change of the batch was accepted; the log remains usable."""

    def __init__(self, slot: int, why: str) -> None:
        super().__init__(f"slot {slot} of the shared log: {why}")
        self.slot = slot


class RecoveredSlot:
    """One slot of a log that was opened.

    `tablet` is "" if the record that opened the slot is damaged. `damage` is "" or a line for the operator. In the
    latter case the slot has lost durable data: the other fields hold only the readable part, and the replica must never
    again vote or acknowledge an entry under its number.
    """

    def __init__(
        self,
        tablet: str,
        number: int,
        generation: int,
        hard_state: HardStateItem,
        floor: Position,
        last: Position,
        damage: str | None = None,
        load: Callable[[], list[LogItem]] = list,
    ) -> None:
        self.tablet = tablet
        self.number = number
        self.generation = generation
        self.hard_state = hard_state
        self.floor = floor
        #: Position of the last entry, or the floor without entries.
        self.last = last
        self.damage = damage
        self._load = load

    @property
    def entries(self) -> list[LogItem]:
        """Read the entries above the floor from the disk, at each call. Raise StorageError or OSError."""
        return self._load()


class RecoveredLog:
    """The slots of a log that was opened, by their numbers."""

    def __init__(self, slots: dict[int, RecoveredSlot], next_slot: int, cut: str = "") -> None:
        self.slots = slots
        #: Lowest number that no slot has ever had.
        self.next_slot = next_slot
        #: A line for the operator if a torn record at the end was cut, else "".
        self.cut = cut
        #: A line for the operator for each damaged stretch of the log.
        self.damage: list[str] = []
