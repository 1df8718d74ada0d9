"""The start-up table, cell by cell: files that show each possible finding, and the outcome by rules of its own."""

from __future__ import annotations

from typing import Final

import pytest

from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.disk.startup import (
    BlockSeen,
    Found,
    LogSeen,
    MetaSeen,
    Outcome,
    RowsFound,
    RowsSeen,
    Seen,
    SlotFound,
    Unreadable,
    classify,
    decide,
    possible,
)
from regionserver.tablets.disk.superblock import RunIntent, Superblock
from tests.unit.regionserver.tablets.disk.examples import SERVER, TABLET, meta, ready, tombstone
from tests.unit.regionserver.tablets.disk.test_startup import (
    COPYING,
    DAMAGED,
    FIRST_COPY,
    LOST,
    ROWS,
    UNUSED,
    slot,
)

_B, _L, _M, _R, _O = BlockSeen, LogSeen, MetaSeen, RowsSeen, Outcome
#: A generation above that of every superblock here.
LATER: Final = 9
BLOCKS: Final[dict[BlockSeen, Superblock | Unreadable | None]] = {
    _B.NONE: None,
    _B.UNREADABLE: DAMAGED,
    _B.DELETED: tombstone(),
    _B.FORGETFUL: LOST,
    _B.COPYING: COPYING,
    _B.FIRST_COPY: FIRST_COPY,
    _B.READY: ready(),
    _B.RESTING: ready(run_intent=RunIntent.RESTING),
}
#: Run state after each outcome; that of a tombstone depends on its superblock.
RUNS: Final = {
    _O.ABSENT: None,
    _O.BURN: RunState.LOST,
    _O.GIVE_UP: RunState.TOMBSTONE,
    _O.RUN: RunState.ASLEEP,
    _O.FAIL: RunState.FAILED,
    _O.REST: RunState.RESTING,
}
_READY: Final = (_B.READY, _B.RESTING)


def slots_of(block: Superblock | Unreadable | None, log: LogSeen) -> list[SlotFound]:
    """Return slots that a start sees so."""
    if log is _L.NONE:
        return []
    if log is _L.UNUSED:
        return [UNUSED]
    if log is _L.BROKEN:
        return [slot(damage="a hole")]
    generation = block.generation if isinstance(block, Superblock) else 3
    own = slot(generation=generation)
    return [own, slot(slot=11, generation=LATER)] if log is _L.NEWER else [own]


def rows_of(block: Superblock | Unreadable | None, rows: RowsSeen) -> list[RowsFound]:
    """Return files of rows that a start sees so."""
    found = {
        _R.NONE: [],
        _R.LEFT: [RowsFound(block.generation if isinstance(block, Superblock) else 3)],
        _R.SOUND: [ROWS],
        _R.DAMAGED: [RowsFound(3, "no steady point")],
        _R.AHEAD: [RowsFound(3, applied_index=21)],
    }
    return found[rows]


def metas_of(block: Superblock | Unreadable | None, seen: MetaSeen) -> list[ConsensusMeta | Unreadable | None]:
    """Return all consensus metadata that a start sees so."""
    number = block.number if isinstance(block, Superblock) else 2
    if seen is _M.SOUND:
        return [meta(number=number)]
    # Without a superblock, nothing says whose metadata they must be.
    others: list[ConsensusMeta | Unreadable | None] = [meta(number=number + 1)] if isinstance(block, Superblock) else []
    return [None, DAMAGED, *others]


def outcome_of(block: BlockSeen, log: LogSeen, meta: MetaSeen, rows: RowsSeen) -> Outcome:
    """Return the outcome by the rules: what may have promised something that is lost never runs again."""
    if block is _B.NONE:
        return _O.BURN if log is _L.LIVE else _O.ABSENT
    if block is _B.UNREADABLE or log in (_L.NEWER, _L.BROKEN):
        return _O.BURN
    # A number that is burned, or has never been a member, has no votes that could be lost.
    if meta is _M.BAD and block not in (_B.FORGETFUL, _B.FIRST_COPY):
        return _O.BURN
    if block in (_B.COPYING, _B.FIRST_COPY):
        return _O.GIVE_UP
    if block in (_B.DELETED, _B.FORGETFUL):
        return _O.KEEP if (log, rows) == (_L.NONE, _R.NONE) else _O.FINISH
    if rows is _R.AHEAD:
        return _O.BURN
    if block is _B.RESTING:
        return _O.REST
    return _O.RUN if rows is _R.SOUND else _O.FAIL


@pytest.mark.parametrize("seen", sorted(possible()), ids="-".join)
def test_cell(seen: Seen) -> None:
    block = BLOCKS[seen[0]]
    for found_meta in metas_of(block, seen[2]):
        found = Found(TABLET, block, found_meta, slots_of(block, seen[1]), rows_of(block, seen[3]))
        assert classify(found) == seen
        decision = decide(found, SERVER, 5000)
        assert decision.row.outcome is outcome_of(*seen)
        is_lost = isinstance(block, Superblock) and block.is_lost
        kept = RunState.LOST if is_lost else RunState.TOMBSTONE
        assert decision.run is RUNS.get(decision.row.outcome, kept)


def test_every_column_of_every_cell_is_shown() -> None:
    """All values of all columns occur, and each superblock with each of its logs."""
    seen = set(possible())
    assert {one[0] for one in seen} == set(BLOCKS)
    for place, column in enumerate((BlockSeen, LogSeen, MetaSeen, RowsSeen)):
        assert {one[place] for one in seen} == set(column)  # type: ignore[call-overload]
