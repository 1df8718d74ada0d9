"""Steps on a tablet's files, as lists of effects. Pure; files.py carries them out.

A crash between two effects, or in the middle of one, leaves a state from which a start continues (startup.py). Each
effect is durable before the next one begins. Repeating an effect does nothing.

    creation    consensus metadata -> slot -> superblock READY
    deletion    folder in the quarantine -> copy of the superblock -> superblock DELETED (the point of no return)
                -> copy of the consensus metadata -> log exported, slot dropped -> rows moved              (TC-11)
    burning     as a deletion; the superblock keeps no memory
    copying     superblock COPYING -> consensus metadata merged -> rows received, checked and synced -> consensus
                metadata of the rows' entry (if they differ), slot begun there, log behind the rows
                -> superblock READY                                                                         (TC-13)
    giving up   partial files removed -> superblock DELETED with the kept memory
    forgetting  superblock removed -> consensus metadata removed

The superblock comes last in a creation and in a copy, so a superblock READY proves that the slot is in the log. So a
missing slot is always a loss, never a fresh replica.

Rows and slot of a copy have the generation of the superblock COPYING, which no earlier file of the tablet has. An
interrupted copy is given up at the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from coord.storage.shared.items import EntryView
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.layout import (
    DATABASE,
    DATABASE_LOCK,
    DATABASE_USED,
    SAVED_BLOCK,
    SAVED_LOG,
    SAVED_META,
    SAVED_ROWS,
    STEADY,
    block_path,
    meta_path,
    quarantine_path,
    rows_path,
    slot_quarantine_path,
    unfinished_path,
)
from regionserver.tablets.disk.life import DataEvent, DataState, data_after
from regionserver.tablets.disk.superblock import Memory, Superblock, deleted, given_up


class MakeFolder(NamedTuple):
    """Make a folder and its parents."""

    path: str


class CopyFile(NamedTuple):
    """Copy a small file, replacing an earlier copy. A missing source is ignored."""

    source: str
    target: str


class MoveFile(NamedTuple):
    """Move a file. A missing source is ignored. A file at the target is kept under another name."""

    source: str
    target: str


class RemoveFile(NamedTuple):
    """Remove a file if it is there."""

    path: str


class WriteBlock(NamedTuple):
    """Replace the superblock of the tablet."""

    block: Superblock


class WriteMeta(NamedTuple):
    """Replace the consensus metadata of the tablet."""

    meta: ConsensusMeta


class BeginSlot(NamedTuple):
    """Begin a slot in the shared log. A first replica has term 0, no vote, and no floor. A copied replica has the
    merged term and vote, and its floor is the last durable entry of its rows."""

    slot: int
    generation: int
    tablet: str
    number: int
    term: int = 0
    vote: int = 0
    floor_index: int = 0
    floor_term: int = 0


class FillSlot(NamedTuple):
    """Append entries of a copied log to its slot."""

    slot: int
    generation: int
    entries: Sequence[EntryView]


class ExportSlot(NamedTuple):
    """Write the contents of the slot to a separate file, replacing an earlier export."""

    slot: int
    target: str


class DropSlot(NamedTuple):
    """Drop the slot."""

    slot: int
    generation: int


Effect = (
    MakeFolder
    | CopyFile
    | MoveFile
    | RemoveFile
    | WriteBlock
    | WriteMeta
    | BeginSlot
    | FillSlot
    | ExportSlot
    | DropSlot
)


class SlotName(NamedTuple):
    """A slot of the shared log and its generation."""

    slot: int
    generation: int


class Beginning(NamedTuple):
    """Position of the entry after which the log of a first replica begins. The rows include this entry.

    The slot has no term, so a start recognizes that it has promised nothing (`startup.SlotFound.has_promised`).
    """

    entry_term: int = 0
    entry_index: int = 0


#: Without rows.
NOTHING: Final = Beginning()


def creation(block: Superblock, meta: ConsensusMeta, beginning: Beginning = NOTHING) -> list[Effect]:
    """Return the steps that make the first replica of a tablet on this server. Rows that it begins with are durable."""
    assert data_after(block.tablet, None, DataEvent.CREATE) is block.data_state, f"created as {block.data_state}"
    assert block.slot is not None
    assert (block.tablet, block.number) == (meta.tablet, meta.number), "superblock and metadata of two members"
    return [
        WriteMeta(meta),
        BeginSlot(
            block.slot,
            block.generation,
            block.tablet,
            block.number,
            floor_index=beginning.entry_index,
            floor_term=beginning.entry_term,
        ),
        WriteBlock(block),
    ]


def copy_begun(after: Superblock) -> list[Effect]:
    """Return step 1 of a copy. `after` is COPYING; a former replica is a tombstone, whose memory `after` keeps."""
    assert after.data_state is DataState.COPYING, f"tablet {after.tablet} is {after.data_state}"
    return [WriteBlock(after)]


def copy_merged(block: Superblock, meta: ConsensusMeta) -> list[Effect]:
    """Return step 2 of a copy: the merged consensus metadata (`copying/merge.py`)."""
    assert (block.tablet, block.number) == (meta.tablet, meta.number), "superblock and metadata of two members"
    return [WriteMeta(meta)]


def copy_slot(
    block: Superblock, slot: int, meta: ConsensusMeta, written: ConsensusMeta, floor_index: int, floor_term: int
) -> list[Effect]:
    """Return the effects at the beginning of step 4 of a copy. The rows are durable and checked, and include all
    entries up to the floor. `meta` has the configuration in force there, `written` is the metadata of step 2."""
    assert block.data_state is DataState.COPYING, f"tablet {block.tablet} is {block.data_state}"
    begun = BeginSlot(slot, block.generation, block.tablet, block.number, meta.term, meta.vote, floor_index, floor_term)
    return [begun] if meta == written else [*copy_merged(block, meta), begun]


def copy_ended(after: Superblock) -> list[Effect]:
    """Return step 5 of a copy, after which the replica may start. The log behind the rows is durable in its slot."""
    assert after.data_state is DataState.READY, f"tablet {after.tablet} is {after.data_state}"
    return [WriteBlock(after)]


def deletion(block: Superblock, memory: Memory, reason: str, at_ms: int) -> list[Effect]:
    """Return the steps that remove a stopped replica. `memory` is the durable memory in its slot."""
    assert block.slot is not None, f"tablet {block.tablet} has no slot"
    after = deleted(block, memory, reason, at_ms)
    return [*_replacing(after), *clearing(after, [SlotName(block.slot, block.generation)], [block.generation])]


def burning(after: Superblock, slots: Sequence[SlotName], rows: Sequence[int]) -> list[Effect]:
    """Return the steps that write the superblock `after`, whose memory is lost, and move all other files to
    quarantine."""
    assert after.is_lost, f"tablet {after.tablet} has a memory"
    return [*_replacing(after), *clearing(after, slots, rows)]


def clearing(after: Superblock, slots: Sequence[SlotName], rows: Sequence[int]) -> list[Effect]:
    """Return steps 5 and 6 of a deletion: consensus metadata, logs and rows go to the quarantine.

    Args:
        after: The superblock, DELETED.
        slots: The tablet's slots that live.
        rows: Generations of which there are files of rows.
    """
    assert after.data_state is DataState.DELETED, f"tablet {after.tablet} is {after.data_state}"
    effects: list[Effect] = []
    if after.quarantine:
        effects.append(MakeFolder(after.quarantine))
        effects.append(CopyFile(meta_path(after.tablet), f"{after.quarantine}/{SAVED_META}"))
    return effects + set_aside(after.tablet, slots, rows)


def set_aside(tablet: str, slots: Sequence[SlotName], rows: Sequence[int]) -> list[Effect]:
    """Return the steps that move logs and rows of former generations to the quarantine."""
    effects: list[Effect] = []
    for name in slots:
        folder = quarantine_path(tablet, name.generation)
        effects += [MakeFolder(folder), ExportSlot(name.slot, f"{folder}/{SAVED_LOG}"), DropSlot(*name)]
    for generation in rows:
        folder = quarantine_path(tablet, generation)
        effects.append(MakeFolder(folder))
        for suffix in (DATABASE_LOCK, DATABASE_USED):
            effects.append(RemoveFile(rows_path(tablet, generation, suffix)))
        for suffix in (STEADY, DATABASE):
            effects.append(MoveFile(rows_path(tablet, generation, suffix), f"{folder}/{SAVED_ROWS}{suffix}"))
    return effects


def giving_up(
    block: Superblock, slots: Sequence[SlotName], rows: Sequence[int], reason: str, at_ms: int
) -> list[Effect]:
    """Return the steps that end an unfinished copy. The files of the copy are removed: another replica has them.

    Args:
        block: The superblock, COPYING.
        slots: The tablet's slots that live.
        rows: Generations of which there are files of rows.
        reason: Why the copy ends.
        at_ms: Now.
    """
    effects: list[Effect] = []
    for name in slots:
        if name.generation == block.generation:
            effects.append(DropSlot(*name))
    if block.generation in rows:
        effects += _rows_removed(block.tablet, block.generation)
    effects += set_aside(
        block.tablet,
        [name for name in slots if name.generation != block.generation],
        [generation for generation in rows if generation != block.generation],
    )
    return [*effects, WriteBlock(given_up(block, reason, at_ms))]


def _rows_removed(tablet: str, generation: int) -> list[Effect]:
    """Return the steps that remove the rows of a generation. The database is the last of the files: its name shows that
    files are left to remove."""
    suffixes = (DATABASE_LOCK, DATABASE_USED, STEADY, DATABASE)
    return [RemoveFile(rows_path(tablet, generation, suffix)) for suffix in suffixes]


def forgetting(block: Superblock) -> list[Effect]:
    """Return the steps that remove a tombstone, after the store has the whole tablet as DELETED or REPLACED."""
    assert data_after(block.tablet, block.data_state, DataEvent.FORGET) is None
    return [RemoveFile(block_path(block.tablet)), RemoveFile(meta_path(block.tablet))]


def unclaimed(
    tablet: str,
    generation: int,
    slots: Sequence[SlotName],
    rows: Sequence[int],
    *,
    has_meta: bool,
    unfinished: Sequence[int] = (),
) -> list[Effect]:
    """Return the steps that move the files of a tablet without a superblock aside.

    The files of an unfinished daughter of a split or merge are removed: other replicas, and the parents, have the rows.

    Args:
        tablet: The tablet.
        generation: A generation that no folder in the quarantine has.
        slots: Its slots that live. They have promised nothing.
        rows: Generations of which there are files of rows.
        has_meta: There are consensus metadata.
        unfinished: Generations whose rows are marked as unfinished.
    """
    effects: list[Effect] = [DropSlot(*name) for name in slots]
    if has_meta and unfinished:
        effects.append(RemoveFile(meta_path(tablet)))
    elif has_meta:
        folder = quarantine_path(tablet, generation)
        effects += [MakeFolder(folder), MoveFile(meta_path(tablet), f"{folder}/{SAVED_META}")]
    for one in unfinished:
        effects += _rows_removed(tablet, one)
    effects += unmarked(tablet, unfinished)
    return effects + set_aside(tablet, [], [one for one in rows if one not in unfinished])


def unmarked(tablet: str, unfinished: Sequence[int]) -> list[Effect]:
    """Return the steps that remove the marks of rows which a superblock named in the end."""
    return [RemoveFile(unfinished_path(tablet, one)) for one in unfinished]


def unclaimed_slot(name: SlotName) -> list[Effect]:
    """Return the steps that end a slot without a known tablet."""
    folder = slot_quarantine_path(name.slot)
    return [MakeFolder(folder), ExportSlot(name.slot, f"{folder}/{SAVED_LOG}"), DropSlot(*name)]


def _replacing(after: Superblock) -> list[Effect]:
    """Return steps 2 to 4 of a deletion."""
    return [
        MakeFolder(after.quarantine),
        CopyFile(block_path(after.tablet), f"{after.quarantine}/{SAVED_BLOCK}"),
        WriteBlock(after),
    ]
