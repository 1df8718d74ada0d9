"""The superblock: the state of one tablet's files on a server. Pure.

    content := envelope "RKSB" format 1 (sealed.py) around a JSON object with the fields of Superblock

A superblock is replaced as a whole for each move of `life.DATA_LIFE`. Only the functions below make the next superblock
of a move.

**Numbers never go back.** `highest_number` is the highest member number that this server ever had of the tablet. The
generation rises with DELETE, BURN and GIVE_UP, so files of a former replica, or of an unfinished copy, have a lower
generation than the superblock and are never mistaken for the replica's.

**Memory.** While a replica is READY, its term, vote and last entry are in the shared log, and `memory` is None. A
tombstone keeps them here; `last_index` is the index of the last *appended* entry, not of the last committed one
(KUDU-1796). A tombstone that votes later writes its consensus metadata, so both files together are its memory
(`memory_of`).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.layout import GENERATION_MAX, is_tablet, quarantine_path
from regionserver.tablets.disk.life import DataEvent, DataState, data_after
from regionserver.tablets.disk.sealed import SealedFile

MAGIC: Final = b"RKSB"
FORMAT: Final = 1
#: Highest number of a slot: the shared log has 32 bits for it.
SLOT_MAX: Final = (1 << 32) - 1
#: Longest reason that a superblock keeps; the rest is in the server's log.
REASON_MAX: Final = 500


class RunIntent(enum.StrEnum):
    """The intended run state of a READY replica."""

    RUN = "RUN"
    RESTING = "RESTING"  #: The table is disabled. The replica stays closed, with its files.


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The promises of a voter: the term, its vote in that term (0: none), and the end of its log."""

    term: int
    vote: int
    last_term: int
    last_index: int

    def __post_init__(self) -> None:
        """Raise ValueError for contents that no build writes."""
        if min(self.term, self.vote, self.last_term, self.last_index) < 0:
            raise ValueError("a term, a vote or an index is negative")
        if self.last_term > self.term:
            raise ValueError(f"the last entry is of term {self.last_term}, the term is {self.term}")


class Superblock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of `tablet-meta/<tablet>`."""

    #: Uuid of the server that has written the superblock.
    server: str
    tablet: str
    data_state: DataState
    #: The member that this server is, or was; 0 if no file on the disk names it.
    number: int
    highest_number: int
    generation: int
    #: The replica's slot in the shared log.
    slot: int | None = None
    table: str = ""
    start_key: str = ""
    end_key: str = ""
    hash_buckets: int = 0
    run_intent: RunIntent = RunIntent.RUN
    memory: Memory | None = None
    #: The memory of `number` and of all lower numbers is lost: they are burned.
    is_lost: bool = False
    #: Folder with the files of the former replica, relative to the data directory; "": none.
    quarantine: str = ""
    #: Server from which the files were copied; "": they were made here.
    copied_from: str = ""
    #: The reason for the state, for operators.
    reason: str = ""
    #: Times of this server's wall clock, for operators: first and latest superblock of the tablet here.
    created_ms: int = 0
    changed_ms: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for contents that no build writes."""
        why = _objection(self)
        if why:
            raise ValueError(why)


def _objection(block: Superblock) -> str:
    """Return why the fields of a superblock contradict each other, "" if they do not."""
    if not is_tablet(block.tablet):
        return f"{block.tablet!r} is not the name of a tablet"
    if not 0 <= block.number <= block.highest_number:
        return f"number {block.number}, and the highest ever is {block.highest_number}"
    if not 1 <= block.generation <= GENERATION_MAX:
        return f"generation {block.generation}"
    if block.slot is not None and not 0 <= block.slot <= SLOT_MAX:
        return f"slot {block.slot}"
    if min(block.hash_buckets, block.created_ms, block.changed_ms) < 0:
        return "a time or the number of buckets is negative"
    if block.number == 0 and not block.is_lost:
        return "no number, and its memory is not lost"
    if block.is_lost and (block.memory is not None or block.data_state is not DataState.DELETED):
        return f"its memory is lost, and it is {block.data_state} or has one"
    if block.data_state is DataState.READY and (block.memory is not None or block.slot is None):
        return "READY with the memory of a tombstone, or without a slot"
    if block.run_intent is RunIntent.RESTING and block.data_state is not DataState.READY:
        return f"RESTING and {block.data_state}"
    return ""


_FILE: Final = SealedFile(MAGIC, FORMAT, Superblock)


def encode_block(block: Superblock) -> bytes:
    """Return the content of the file."""
    return _FILE.encode(block)


def decode_block(content: bytes, tablet: str, path: str) -> Superblock:
    """Return the superblock of `tablet`.

    Raises:
        DamagedFile: The content is damaged, or belongs to another tablet.
        NewerFormat: A newer build has written it.
    """
    return _FILE.decode(content, tablet, path)


def memory_of(block: Superblock, meta: ConsensusMeta | None) -> Memory | None:
    """Return the memory of a tombstone: the superblock's, with the later term or vote of the consensus metadata."""
    memory = block.memory
    if memory is None or meta is None or meta.number != block.number:
        return memory
    if meta.term > memory.term or (meta.term == memory.term and memory.vote == 0):
        return msgspec.structs.replace(memory, term=meta.term, vote=meta.vote)
    return memory


# --- the next superblock ----------------------------------------------------------------------------------------------


def _next(block: Superblock, event: DataEvent, at_ms: int, **changes: object) -> Superblock:
    after = data_after(block.tablet, block.data_state, event)
    assert after is not None, f"{event} leaves no superblock"
    return msgspec.structs.replace(block, data_state=after, changed_ms=at_ms, **changes)


def deleted(block: Superblock, memory: Memory, reason: str, at_ms: int) -> Superblock:
    """Return the tombstone of a READY replica that has stopped with this memory."""
    return _next(
        block,
        DataEvent.DELETE,
        at_ms,
        generation=block.generation + 1,
        slot=None,
        memory=memory,
        run_intent=RunIntent.RUN,
        quarantine=quarantine_path(block.tablet, block.generation),
        reason=reason[:REASON_MAX],
    )


def burned(block: Superblock, number: int, generation: int, reason: str, at_ms: int) -> Superblock:
    """Return the superblock of a replica whose memory is lost.

    Args:
        block: The present superblock.
        number: The highest member number that any file of the tablet names.
        generation: The highest generation of any file of the tablet on this server.
        reason: The finding.
        at_ms: Now.
    """
    former = max(generation, block.generation)
    highest = max(number, block.highest_number)
    return _next(
        block,
        DataEvent.BURN,
        at_ms,
        number=highest,
        highest_number=highest,
        generation=former + 1,
        slot=None,
        memory=None,
        is_lost=True,
        run_intent=RunIntent.RUN,
        quarantine=quarantine_path(block.tablet, former),
        reason=reason[:REASON_MAX],
    )


def burned_unknown(server: str, tablet: str, number: int, generation: int, reason: str, at_ms: int) -> Superblock:
    """Return the superblock of a tablet whose superblock is missing or unreadable.

    Args:
        server: This server's uuid.
        tablet: The tablet.
        number: The highest member number that any file names, 0 if none does.
        generation: The highest generation of any file of the tablet on this server, 0 if there is none.
        reason: The finding.
        at_ms: Now.
    """
    after = data_after(tablet, None, DataEvent.BURN)
    assert after is DataState.DELETED
    former = max(generation, 1)
    return Superblock(
        server=server,
        tablet=tablet,
        data_state=after,
        number=number,
        highest_number=number,
        generation=former + 1,
        is_lost=True,
        quarantine=quarantine_path(tablet, former),
        reason=reason[:REASON_MAX],
        created_ms=at_ms,
        changed_ms=at_ms,
    )


def copying(block: Superblock, number: int, source: str, at_ms: int) -> Superblock:
    """Return the superblock of a tombstone that is copied over. The memory is kept while the number stays.

    Raise ValueError if this server has had a higher number, or if the number is burned.
    """
    if number < block.highest_number:
        raise ValueError(f"tablet {block.tablet}: number {number} is below {block.highest_number}, which was here")
    if block.is_lost and number == block.highest_number:
        raise ValueError(f"tablet {block.tablet}: the memory of number {number} is lost")
    return _next(
        block,
        DataEvent.COPY,
        at_ms,
        number=number,
        highest_number=number,
        slot=None,
        memory=block.memory if number == block.number else None,
        is_lost=False,
        quarantine="",
        copied_from=source,
        reason="",
    )


def first_copy(block: Superblock, generation: int) -> Superblock:
    """Return the superblock of a copy onto a server that has nothing of the tablet. `block` has all other fields."""
    after = data_after(block.tablet, None, DataEvent.COPY)
    assert after is not None, "a copy leaves no superblock"
    return msgspec.structs.replace(block, data_state=after, generation=generation, slot=None, memory=None)


def given_up(block: Superblock, reason: str, at_ms: int) -> Superblock:
    """Return the tombstone after a failed copy."""
    return _next(
        block, DataEvent.GIVE_UP, at_ms, generation=block.generation + 1, slot=None, reason=reason[:REASON_MAX]
    )


def copied(block: Superblock, slot: int, at_ms: int) -> Superblock:
    """Return the superblock of a complete and durable copy; its term and vote are in `slot`."""
    return _next(block, DataEvent.COPIED, at_ms, slot=slot, memory=None, reason="")


def resting(block: Superblock, at_ms: int) -> Superblock:
    """Return the superblock of a replica whose table is disabled."""
    assert block.data_state is DataState.READY, f"tablet {block.tablet} is {block.data_state}"
    return msgspec.structs.replace(block, run_intent=RunIntent.RESTING, changed_ms=at_ms)


def enabled(block: Superblock, at_ms: int) -> Superblock:
    """Return the superblock of a replica whose table is enabled again."""
    assert block.data_state is DataState.READY, f"tablet {block.tablet} is {block.data_state}"
    return msgspec.structs.replace(block, run_intent=RunIntent.RUN, changed_ms=at_ms)
