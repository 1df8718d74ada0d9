"""The files that a start finds of a tablet, and the resulting decision: one table (S2, TC-15). Pure.

The shared log has been read, and each tablet's superblock, consensus metadata and names of files (files.py). A file of
a newer format ends the start before any decision. `classify` describes the findings by the four columns of `TABLE`;
exactly one row fits. Its outcome becomes effects (steps.py) and a run state (life.py).

All rows follow two rules. **Nothing is deleted** except the files of an unfinished copy or daughter, whose rows another
replica has. **A
promise that cannot be proved is never made again**: if a superblock, a slot or the consensus metadata with the votes of
a number are damaged or missing, the number is burned.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.layout import block_path, meta_path
from regionserver.tablets.disk.life import DataState, RunState
from regionserver.tablets.disk.steps import (
    Effect,
    SlotName,
    burning,
    clearing,
    giving_up,
    set_aside,
    unclaimed,
    unmarked,
)
from regionserver.tablets.disk.superblock import RunIntent, Superblock, burned, burned_unknown

# --- what is found ----------------------------------------------------------------------------------------------------


class Unreadable(NamedTuple):
    """A file that cannot be read, and why."""

    why: str


class SlotFound(NamedTuple):
    """A slot of the shared log. `damage` describes its lost records; None if the slot is whole."""

    slot: int
    tablet: str
    number: int
    generation: int
    term: int
    vote: int
    floor_index: int
    last_term: int
    last_index: int
    damage: str | None = None

    @property
    def has_promised(self) -> bool:
        """Return False for a slot in the initial state of a first replica: no term, no vote, no entry.

        The slot of a daughter of a split begins after the parent's last entry, and also has no term of its own. Every
        other slot whose floor has risen has a term.
        """
        return self.damage is not None or (self.term, self.vote) != (0, 0) or self.last_index != self.floor_index

    @property
    def name(self) -> SlotName:
        """Slot and generation."""
        return SlotName(self.slot, self.generation)


class RowsFound(NamedTuple):
    """The rows of one generation.

    `damage` has the reason why they cannot be used. It is "" if the rows were closed cleanly, if they were written in
    the present boot of the machine, or if there is a steady point to restore. `applied_index` is the last entry that
    they hold, None before the file was read.
    """

    generation: int
    damage: str = ""
    applied_index: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All files and slots of one tablet on this server."""

    tablet: str
    block: Superblock | Unreadable | None
    meta: ConsensusMeta | Unreadable | None
    #: The tablet's slots. A slot with an unknown tablet belongs to the tablet whose superblock names the slot.
    slots: Sequence[SlotFound] = ()
    rows: Sequence[RowsFound] = ()
    #: Generations for which the quarantine has a folder of the tablet.
    quarantined: Sequence[int] = ()
    #: Generations whose rows are marked: they were made for a daughter of a split or merge, and no superblock named
    #: them when they were marked.
    unfinished: Sequence[int] = ()

    def highest_generation(self) -> int:
        """Return the highest generation in any file or slot of the tablet, 0 without any."""
        return max(
            self.block.generation if isinstance(self.block, Superblock) else 0,
            *(slot.generation for slot in self.slots),
            *(rows.generation for rows in self.rows),
            *self.quarantined,
            0,
        )

    def highest_number(self) -> int:
        """Return the highest member number in any file, 0 without any."""
        return max(
            self.block.highest_number if isinstance(self.block, Superblock) else 0,
            self.meta.number if isinstance(self.meta, ConsensusMeta) else 0,
            *(slot.number for slot in self.slots),
            0,
        )

    def own_slot(self) -> SlotFound | None:
        """Return the slot that the superblock names, None if the log does not have it."""
        if isinstance(self.block, Superblock):
            for slot in self.slots:
                if slot.slot == self.block.slot:
                    return slot
        return None

    def own_rows(self) -> RowsFound | None:
        """Return the rows of the superblock's generation, if there are any."""
        if isinstance(self.block, Superblock):
            for rows in self.rows:
                if rows.generation == self.block.generation:
                    return rows
        return None


# --- the columns of the table -----------------------------------------------------------------------------------------


class BlockSeen(enum.StrEnum):
    """The superblock."""

    NONE = "none"
    UNREADABLE = "unreadable"
    DELETED = "DELETED"  #: with the memory of its number
    FORGETFUL = "DELETED, no memory"  #: its number is burned, or was never a member
    COPYING = "COPYING"  #: with the memory of its number
    FIRST_COPY = "COPYING, no memory"
    READY = "READY"
    RESTING = "READY, RESTING"


class LogSeen(enum.StrEnum):
    """The tablet's slots, compared with the superblock."""

    NONE = "no slot"
    UNUSED = "unused slot"  #: Without a superblock: no term, no vote, no entry.
    LIVE = "live slot"  #: without a superblock: it has promised something
    LEFT = "older slot"  #: not READY: of the superblock's generation or a lower one
    NEWER = "newer slot"  #: of a higher generation than the superblock
    WHOLE = "whole"  #: READY: the slot that the superblock names is complete
    BROKEN = "broken"  #: READY: the slot is missing, has lost records, or belongs to another tablet


class MetaSeen(enum.StrEnum):
    """The consensus metadata."""

    SOUND = "sound"
    BAD = "missing or damaged"  #: or of another member


class RowsSeen(enum.StrEnum):
    """Files of rows."""

    NONE = "none"
    LEFT = "there"  #: not READY
    SOUND = "sound"  #: READY: the rows can be opened, or do not exist yet and the log has all entries
    DAMAGED = "damaged"  #: READY: the rows cannot be opened, or are missing
    AHEAD = "ahead of the log"  #: READY: the rows hold entries that the log has lost


class Outcome(enum.StrEnum):
    """The result of a start for one tablet."""

    ABSENT = "does not exist here; stray files to quarantine, an unfinished daughter's removed"
    BURN = "number burned, all files to quarantine: LOST"
    FINISH = "steps 5 and 6 of the deletion, then a tombstone"
    KEEP = "tombstone"
    GIVE_UP = "partial files removed, back to DELETED with the kept memory"
    RUN = "asleep; applies from its applied index on"
    FAIL = "FAILED: copied anew under its number"
    REST = "stays closed"


class StartRow(NamedTuple):
    """One case of a start. An empty column stands for every value."""

    block: tuple[BlockSeen, ...]
    log: tuple[LogSeen, ...]
    meta: tuple[MetaSeen, ...]
    rows: tuple[RowsSeen, ...]
    outcome: Outcome
    why: str


_B: Final = BlockSeen
_L: Final = LogSeen
_M: Final = MetaSeen
_R: Final = RowsSeen
_O: Final = Outcome

# fmt: off
TABLE: Final[tuple[StartRow, ...]] = (
    StartRow((_B.NONE,), (_L.NONE, _L.UNUSED), (), (), _O.ABSENT,
        "it was never here, or a creation was cut short and has promised nothing"),
    StartRow((_B.NONE,), (_L.LIVE,), (), (), _O.BURN,
        "the superblock is lost, and with it the highest number"),
    StartRow((_B.UNREADABLE,), (), (), (), _O.BURN,
        "it may have been a tombstone with votes"),
    StartRow((_B.DELETED,), (_L.NONE,), (_M.SOUND,), (_R.NONE,), _O.KEEP,
        ""),
    StartRow((_B.DELETED,), (_L.LEFT,), (_M.SOUND,), (), _O.FINISH,
        "the deletion was cut short after its point of no return"),
    StartRow((_B.DELETED,), (_L.NONE,), (_M.SOUND,), (_R.LEFT,), _O.FINISH,
        "the same, later"),
    StartRow((_B.DELETED, _B.COPYING), (_L.NONE, _L.LEFT), (_M.BAD,), (), _O.BURN,
        "a tombstone's votes are in the consensus metadata"),
    StartRow((_B.FORGETFUL,), (_L.NONE,), (), (_R.NONE,), _O.KEEP,
        ""),
    StartRow((_B.FORGETFUL,), (_L.LEFT,), (), (), _O.FINISH,
        "a burning was cut short"),
    StartRow((_B.FORGETFUL,), (_L.NONE,), (), (_R.LEFT,), _O.FINISH,
        "the same, later"),
    StartRow((_B.COPYING,), (_L.NONE, _L.LEFT), (_M.SOUND,), (), _O.GIVE_UP,
        "the leader asks for the copy again"),
    StartRow((_B.FIRST_COPY,), (_L.NONE, _L.LEFT), (), (), _O.GIVE_UP,
        "the leader asks for the copy again"),
    StartRow((_B.DELETED, _B.FORGETFUL, _B.COPYING, _B.FIRST_COPY), (_L.NEWER,), (), (), _O.BURN,
        "the superblock is older than the log: it came from elsewhere"),
    StartRow((_B.READY,), (_L.WHOLE,), (_M.SOUND,), (_R.SOUND,), _O.RUN,
        ""),
    StartRow((_B.READY,), (_L.WHOLE,), (_M.SOUND,), (_R.DAMAGED,), _O.FAIL,
        "term, vote and log are sound"),
    StartRow((_B.RESTING,), (_L.WHOLE,), (_M.SOUND,), (_R.SOUND, _R.DAMAGED), _O.REST,
        "its table is disabled"),
    StartRow((_B.READY, _B.RESTING), (_L.WHOLE,), (_M.SOUND,), (_R.AHEAD,), _O.BURN,
        "the log has lost entries that were acknowledged"),
    StartRow((_B.READY, _B.RESTING), (_L.WHOLE,), (_M.BAD,), (), _O.BURN,
        "the configuration is lost"),
    StartRow((_B.READY, _B.RESTING), (_L.BROKEN, _L.NEWER), (), (), _O.BURN,
        "term, vote or acknowledged entries are lost"),
)
# fmt: on

#: The cases that can occur: the superblock determines which values the other columns can have.
_WITHOUT_BLOCK: Final = ((_L.NONE, _L.UNUSED, _L.LIVE), (_R.NONE, _R.LEFT))
_NOT_READY: Final = ((_L.NONE, _L.LEFT, _L.NEWER), (_R.NONE, _R.LEFT))
_IS_READY: Final = ((_L.WHOLE, _L.BROKEN, _L.NEWER), (_R.SOUND, _R.DAMAGED, _R.AHEAD))
POSSIBLE: Final = {
    _B.NONE: _WITHOUT_BLOCK,
    _B.UNREADABLE: _WITHOUT_BLOCK,
    _B.DELETED: _NOT_READY,
    _B.FORGETFUL: _NOT_READY,
    _B.COPYING: _NOT_READY,
    _B.FIRST_COPY: _NOT_READY,
    _B.READY: _IS_READY,
    _B.RESTING: _IS_READY,
}

Seen = tuple[BlockSeen, LogSeen, MetaSeen, RowsSeen]


def possible() -> Iterable[Seen]:
    """Return every case that a start can find."""
    for block, (logs, rows) in POSSIBLE.items():
        yield from itertools.product((block,), logs, MetaSeen, rows)


def _index(table: Iterable[StartRow]) -> dict[Seen, StartRow]:
    """Return the row for each possible case."""
    cases = set(possible())
    found: dict[Seen, StartRow] = {}
    for row in table:
        columns = (row.block or BlockSeen, row.log or LogSeen, row.meta or MetaSeen, row.rows or RowsSeen)
        for seen in cases.intersection(itertools.product(*columns)):
            assert seen not in found, f"two rows of the start-up table decide {seen}"
            found[seen] = row
    assert not cases.difference(found), f"no row of the start-up table decides {sorted(cases.difference(found))}"
    return found


_DECIDED_BY: Final = _index(TABLE)


# --- the decision -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a tablet at a start."""

    tablet: str
    row: StartRow
    #: Run state of the replica; None if the tablet does not exist on this server.
    run: RunState | None
    #: Effects on the files, carried out first.
    effects: list[Effect] = field(default_factory=list)
    #: The fault, for the operator; "" without one.
    story: str = ""


def classify(found: Found) -> Seen:
    """Return the columns of the table that describe the findings."""
    block, log = _block_seen(found.block), _log_seen(found)
    meta = MetaSeen.SOUND if isinstance(found.meta, ConsensusMeta) else MetaSeen.BAD
    if _other_member(found):
        meta = MetaSeen.BAD
    return block, log, meta, _rows_seen(found)


def decide(found: Found, server: str, at_ms: int) -> Decision:
    """Return the decision of the start about a tablet.

    Args:
        found: The tablet's files and slots.
        server: This server's uuid.
        at_ms: Now, for the superblocks that are written.
    """
    row = _DECIDED_BY[classify(found)]
    if row.outcome is Outcome.ABSENT:
        slots, rows = [slot.name for slot in found.slots], [one.generation for one in found.rows]
        has_meta = found.meta is not None
        generation = found.highest_generation() + 1
        effects = unclaimed(found.tablet, generation, slots, rows, has_meta=has_meta, unfinished=found.unfinished)
        return Decision(found.tablet, row, None, effects)
    decision = _decide_claimed(found, row, server, at_ms)
    return replace(decision, effects=[*decision.effects, *unmarked(found.tablet, found.unfinished)])


def _decide_claimed(found: Found, row: StartRow, server: str, at_ms: int) -> Decision:
    """Return the decision about a tablet that has a superblock, or needs one because its slot is in use."""
    slots, rows = [slot.name for slot in found.slots], [one.generation for one in found.rows]
    block = found.block if isinstance(found.block, Superblock) else None
    if row.outcome is Outcome.BURN:
        story = _story(found, row)
        number, generation = found.highest_number(), found.highest_generation()
        if block is None:
            # A separate folder: the generation of these files is unknown.
            after = burned_unknown(server, found.tablet, number, generation + 1, story, at_ms)
        else:
            after = burned(block, number, generation, story, at_ms)
        return Decision(found.tablet, row, RunState.LOST, burning(after, slots, rows), story)
    assert block is not None, f"tablet {found.tablet}: {row.outcome} without a superblock"
    if row.outcome is Outcome.FINISH:
        return Decision(found.tablet, row, _deleted_run(block), clearing(block, slots, rows))
    if row.outcome is Outcome.KEEP:
        return Decision(found.tablet, row, _deleted_run(block))
    if row.outcome is Outcome.GIVE_UP:
        reason = "the server stopped during the copy"
        return Decision(found.tablet, row, RunState.TOMBSTONE, giving_up(block, slots, rows, reason, at_ms))
    former = set_aside(
        found.tablet,
        [slot.name for slot in found.slots if slot.slot != block.slot],
        [generation for generation in rows if generation != block.generation],
    )
    if row.outcome is Outcome.REST:
        return Decision(found.tablet, row, RunState.RESTING, former)
    if row.outcome is Outcome.FAIL:
        return Decision(found.tablet, row, RunState.FAILED, former, _story(found, row))
    return Decision(found.tablet, row, RunState.ASLEEP, former)


def _other_member(found: Found) -> str:
    """Return the fault if superblock and metadata name two members, else "". A copy writes its superblock first."""
    if not isinstance(found.meta, ConsensusMeta) or not isinstance(found.block, Superblock):
        return ""
    if found.meta.number == found.block.number:
        return ""
    return f"{meta_path(found.tablet)} is of member {found.meta.number}, the superblock of {found.block.number}"


def _deleted_run(block: Superblock) -> RunState:
    return RunState.LOST if block.is_lost else RunState.TOMBSTONE


def _block_seen(block: Superblock | Unreadable | None) -> BlockSeen:
    if block is None:
        return BlockSeen.NONE
    if isinstance(block, Unreadable):
        return BlockSeen.UNREADABLE
    if block.data_state is DataState.READY:
        return BlockSeen.RESTING if block.run_intent is RunIntent.RESTING else BlockSeen.READY
    if block.data_state is DataState.COPYING:
        return BlockSeen.FIRST_COPY if block.memory is None else BlockSeen.COPYING
    return BlockSeen.FORGETFUL if block.memory is None else BlockSeen.DELETED


def _log_seen(found: Found) -> LogSeen:
    block = found.block
    if not isinstance(block, Superblock):
        if any(slot.has_promised for slot in found.slots):
            return LogSeen.LIVE
        return LogSeen.UNUSED if found.slots else LogSeen.NONE
    if any(slot.generation > block.generation for slot in found.slots):
        return LogSeen.NEWER
    if block.data_state is not DataState.READY:
        return LogSeen.LEFT if found.slots else LogSeen.NONE
    return LogSeen.BROKEN if _slot_objection(found, block) else LogSeen.WHOLE


def _slot_objection(found: Found, block: Superblock) -> str:
    """Return why the slot of a READY superblock cannot be used, "" if it can."""
    own = found.own_slot()
    if own is None:
        return f"slot {block.slot} of the log is not this tablet's"
    if own.damage is not None:
        return own.damage
    if (own.number, own.generation) != (block.number, block.generation):
        return (
            f"slot {block.slot} of the log is of member {own.number}, generation {own.generation}; the superblock is of"
            f" member {block.number}, generation {block.generation}"
        )
    return ""


def _rows_seen(found: Found) -> RowsSeen:
    block = found.block
    if not isinstance(block, Superblock) or block.data_state is not DataState.READY:
        return RowsSeen.LEFT if found.rows else RowsSeen.NONE
    own_rows, own_slot = found.own_rows(), found.own_slot()
    if own_slot is None:
        return RowsSeen.SOUND  # the log has all entries, so it decides
    if own_rows is None:
        # Without a floor the log has all entries from the first one on.
        return RowsSeen.DAMAGED if own_slot.floor_index else RowsSeen.SOUND
    if own_rows.applied_index is not None and own_rows.applied_index > own_slot.last_index:
        return RowsSeen.AHEAD
    return RowsSeen.DAMAGED if _rows_objection(own_rows, own_slot) else RowsSeen.SOUND


def _rows_objection(rows: RowsFound, slot: SlotFound) -> str:
    """Return why the rows cannot be used with the log, "" if they can."""
    if rows.damage:
        return rows.damage
    if rows.applied_index is not None and rows.applied_index < slot.floor_index:
        return f"the rows end at entry {rows.applied_index}, the log begins after entry {slot.floor_index}"
    return ""


def _story(found: Found, row: StartRow) -> str:
    """Return the fault in words for the operator."""
    causes = []
    if isinstance(found.block, Unreadable):
        causes.append(f"{block_path(found.tablet)}: {found.block.why}")
    elif found.block is None:
        causes.append(f"{block_path(found.tablet)} is missing, and slot {found.slots[0].slot} of the log is in use")
    else:
        newer = [slot for slot in found.slots if slot.generation > found.block.generation]
        if newer:
            causes.append(
                f"{block_path(found.tablet)} has generation {found.block.generation}, slot {newer[0].slot} of the log"
                f" has {newer[0].generation}"
            )
        if found.block.data_state is DataState.READY:
            causes.append(_slot_objection(found, found.block))
    if isinstance(found.meta, Unreadable):
        causes.append(f"{meta_path(found.tablet)}: {found.meta.why}")
    elif found.meta is None:
        causes.append(f"{meta_path(found.tablet)} is missing")
    else:
        causes.append(_other_member(found))
    own_rows, own_slot = found.own_rows(), found.own_slot()
    if own_slot is not None:
        causes.append(_rows_story(own_rows, own_slot))
    return "; ".join(filter(None, causes)) or row.why


def _rows_story(rows: RowsFound | None, slot: SlotFound) -> str:
    if rows is None:
        return f"there are no rows, and the log begins after entry {slot.floor_index}" if slot.floor_index else ""
    if rows.applied_index is not None and rows.applied_index > slot.last_index:
        return f"the rows hold entry {rows.applied_index}, the log ends at entry {slot.last_index}"
    return _rows_objection(rows, slot)
