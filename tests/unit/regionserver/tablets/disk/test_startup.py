"""The start-up table: one test for each row, and every possible finding has a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from regionserver.tablets.disk import superblock
from regionserver.tablets.disk.life import DataState, RunState
from regionserver.tablets.disk.startup import (
    TABLE,
    BlockSeen,
    Found,
    LogSeen,
    MetaSeen,
    Outcome,
    RowsFound,
    RowsSeen,
    SlotFound,
    StartRow,
    Unreadable,
    classify,
    decide,
    possible,
)
from regionserver.tablets.disk.steps import DropSlot, ExportSlot, MoveFile, RemoveFile, WriteBlock
from regionserver.tablets.disk.superblock import RunIntent, Superblock
from tests.unit.regionserver.tablets.disk.examples import MEMORY, SERVER, TABLET, meta, ready, tombstone

DAMAGED: Final = Unreadable("its checksum is wrong")


def slot(**changes: Any) -> SlotFound:
    """Return the slot of `ready`: 20 entries, of which the rows have 10 durably."""
    fields = {
        "slot": 9,
        "tablet": TABLET,
        "number": 2,
        "generation": 3,
        "term": 5,
        "vote": 2,
        "floor_index": 10,
        "last_term": 4,
        "last_index": 20,
    }
    return SlotFound(**{**fields, **changes})


#: The slot at the beginning of a creation.
UNUSED: Final = slot(term=0, vote=0, floor_index=0, last_term=0, last_index=0)
ROWS: Final = RowsFound(3, applied_index=15)
WHOLE: Final = Found(TABLET, ready(), meta(), [slot()], [ROWS])
COPYING: Final = superblock.copying(tombstone(), 2, "peer", 2000)
FIRST_COPY: Final = superblock.copying(tombstone(), 7, "peer", 2000)
LOST: Final = superblock.burned(ready(), 2, 3, "", 2000)

#: The rows of ROWS, and their mark.
ROWS_OF_3: Final = f"data/{TABLET}.3.mdb"
MARK_OF_3: Final = f"data/.unfinished-{TABLET}.3.mdb"
#: (findings, outcome of the row, run state, data state, None without a superblock).
CASES: Final[dict[str, tuple[Found, Outcome, RunState | None, DataState | None]]] = {
    "nothing but rows": (Found(TABLET, None, None, [], [ROWS]), Outcome.ABSENT, None, None),
    "a daughter cut short": (Found(TABLET, None, meta(), [UNUSED], [ROWS], [], [3]), Outcome.ABSENT, None, None),
    "creation cut short before its slot": (Found(TABLET, None, meta()), Outcome.ABSENT, None, None),
    "creation cut short before its superblock": (Found(TABLET, None, meta(), [UNUSED]), Outcome.ABSENT, None, None),
    "lost superblock": (replace(WHOLE, block=None), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "lost superblock, a vote and no entry": (
        Found(TABLET, None, meta(), [UNUSED._replace(term=1, vote=2)]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "lost superblock, a damaged slot": (
        Found(TABLET, None, meta(), [UNUSED._replace(damage="a hole")]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "unreadable superblock": (replace(WHOLE, block=DAMAGED), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "unreadable superblock alone": (Found(TABLET, DAMAGED, None), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "unreadable superblock of a creation": (
        Found(TABLET, DAMAGED, meta(), [UNUSED]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "tombstone": (Found(TABLET, tombstone(), meta()), Outcome.KEEP, RunState.TOMBSTONE, DataState.DELETED),
    "deletion cut short, log and rows": (
        Found(TABLET, tombstone(), meta(), [slot()], [ROWS]),
        Outcome.FINISH,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "deletion cut short, log": (
        Found(TABLET, tombstone(), meta(), [slot()]),
        Outcome.FINISH,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "deletion cut short, rows": (
        Found(TABLET, tombstone(), meta(), [], [ROWS]),
        Outcome.FINISH,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "deletion cut short, damaged slot": (
        Found(TABLET, tombstone(), meta(), [slot(damage="a hole")]),
        Outcome.FINISH,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "tombstone without its votes": (Found(TABLET, tombstone(), None), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "tombstone with damaged votes": (
        Found(TABLET, tombstone(), DAMAGED, [slot()]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "tombstone with another member's votes": (
        Found(TABLET, tombstone(), meta(number=1)),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "copy with damaged votes": (
        Found(TABLET, COPYING, DAMAGED, [], [ROWS]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "burned": (Found(TABLET, LOST, None), Outcome.KEEP, RunState.LOST, DataState.DELETED),
    "copy of a new number that was given up": (
        Found(TABLET, superblock.given_up(FIRST_COPY, "", 3000), DAMAGED),
        Outcome.KEEP,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "burning cut short, log": (
        Found(TABLET, LOST, DAMAGED, [slot(damage="a hole")], [ROWS]),
        Outcome.FINISH,
        RunState.LOST,
        DataState.DELETED,
    ),
    "burning cut short, rows": (
        Found(TABLET, LOST, None, [], [ROWS]),
        Outcome.FINISH,
        RunState.LOST,
        DataState.DELETED,
    ),
    "copy": (
        Found(TABLET, COPYING, meta(), [slot(slot=12, generation=4)], [RowsFound(4)]),
        Outcome.GIVE_UP,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "copy just begun": (Found(TABLET, COPYING, meta()), Outcome.GIVE_UP, RunState.TOMBSTONE, DataState.DELETED),
    "first copy just begun": (Found(TABLET, FIRST_COPY, None), Outcome.GIVE_UP, RunState.TOMBSTONE, DataState.DELETED),
    "first copy over the votes of another number": (
        Found(TABLET, FIRST_COPY, meta(), [], [RowsFound(4)]),
        Outcome.GIVE_UP,
        RunState.TOMBSTONE,
        DataState.DELETED,
    ),
    "tombstone of a backup": (
        Found(TABLET, tombstone(), meta(), [slot(generation=5)]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "whole": (WHOLE, Outcome.RUN, RunState.ASLEEP, DataState.READY),
    "whole, never applied anything": (
        Found(TABLET, ready(), meta(), [slot(floor_index=0)]),
        Outcome.RUN,
        RunState.ASLEEP,
        DataState.READY,
    ),
    "whole, just created": (Found(TABLET, ready(), meta(), [UNUSED]), Outcome.RUN, RunState.ASLEEP, DataState.READY),
    "whole, rows not looked at": (
        replace(WHOLE, rows=[RowsFound(3)]),
        Outcome.RUN,
        RunState.ASLEEP,
        DataState.READY,
    ),
    "damaged rows": (
        replace(WHOLE, rows=[RowsFound(3, "no steady point")]),
        Outcome.FAIL,
        RunState.FAILED,
        DataState.READY,
    ),
    "no rows behind a floor": (replace(WHOLE, rows=[]), Outcome.FAIL, RunState.FAILED, DataState.READY),
    "rows that end before the floor": (
        replace(WHOLE, rows=[RowsFound(3, applied_index=9)]),
        Outcome.FAIL,
        RunState.FAILED,
        DataState.READY,
    ),
    "rows of another generation alone": (
        replace(WHOLE, rows=[RowsFound(2, applied_index=15)]),
        Outcome.FAIL,
        RunState.FAILED,
        DataState.READY,
    ),
    "resting": (
        replace(WHOLE, block=ready(run_intent=RunIntent.RESTING)),
        Outcome.REST,
        RunState.RESTING,
        DataState.READY,
    ),
    "resting, damaged rows": (
        replace(WHOLE, block=ready(run_intent=RunIntent.RESTING), rows=[RowsFound(3, "damaged")]),
        Outcome.REST,
        RunState.RESTING,
        DataState.READY,
    ),
    "log shorter than the rows": (
        replace(WHOLE, rows=[RowsFound(3, applied_index=21)]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "lost configuration": (replace(WHOLE, meta=None), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "damaged configuration": (replace(WHOLE, meta=DAMAGED), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "resting, damaged configuration": (
        replace(WHOLE, block=ready(run_intent=RunIntent.RESTING), meta=DAMAGED),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "lost slot": (replace(WHOLE, slots=[]), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "damaged slot": (replace(WHOLE, slots=[slot(damage="a hole")]), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "damaged slot that has lost its name": (
        replace(WHOLE, slots=[slot(tablet="", number=0, generation=0, damage="a hole")]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "slot of another member": (replace(WHOLE, slots=[slot(number=1)]), Outcome.BURN, RunState.LOST, DataState.DELETED),
    "slot of an older generation": (
        replace(WHOLE, slots=[slot(generation=2)]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
    "superblock of a backup": (
        replace(WHOLE, slots=[slot(generation=5)]),
        Outcome.BURN,
        RunState.LOST,
        DataState.DELETED,
    ),
}


def row_of(found: Found) -> StartRow:
    return decide(found, SERVER, 5000).row


@pytest.mark.parametrize("name", CASES)
def test_a_start_does_what_its_row_says(name: str) -> None:
    found, outcome, run, data = CASES[name]
    decision = decide(found, SERVER, 5000)
    assert (decision.row.outcome, decision.run) == (outcome, run)
    block = found.block if isinstance(found.block, Superblock) else None
    for effect in decision.effects:
        if isinstance(effect, WriteBlock):
            block = effect.block
    assert (block.data_state if block else None) is data


def test_every_row_has_a_case() -> None:
    assert [row for row in TABLE if row not in {row_of(found) for found, *_ in CASES.values()}] == []


def test_every_possible_finding_has_one_row() -> None:
    """`_index` asserts this at import; this test shows that the number of findings is not trivial."""
    assert len(set(possible())) == 4 * 12 + 2 * 12 + 2 * 18
    assert {classify(found) for found, *_ in CASES.values()} <= set(possible())


def test_nothing_is_removed_but_an_unfinished_copy_or_daughter() -> None:
    """LMDB's lock file means nothing without its process."""
    for found, outcome, *_ in CASES.values():
        removed = [e.path for e in decide(found, SERVER, 5000).effects if isinstance(e, RemoveFile)]
        if outcome is not Outcome.GIVE_UP and not found.unfinished:
            assert [path for path in removed if not path.endswith((".mdb-lock", ".mdb.used"))] == []


def test_marked_rows_are_removed_only_without_a_superblock_and_promises() -> None:
    """The mark goes last. Rows of another generation are set aside."""
    cut_short = Found(TABLET, None, meta(), [UNUSED], [RowsFound(2), ROWS], unfinished=[3])
    effects = decide(cut_short, SERVER, 5000).effects
    removed = [one.path for one in effects if isinstance(one, RemoveFile)]
    names = [f"{ROWS_OF_3}-lock", f"{ROWS_OF_3}.used", f"{ROWS_OF_3}.steady", ROWS_OF_3]
    assert removed[:6] == [f"consensus-meta/{TABLET}", *names, MARK_OF_3]
    assert [one.source for one in effects if isinstance(one, MoveFile)] == [
        f"data/{TABLET}.2.mdb.steady",
        f"data/{TABLET}.2.mdb",
    ]
    for claimed in (WHOLE, replace(WHOLE, block=None)):
        effects = decide(replace(claimed, unfinished=[3]), SERVER, 5000).effects
        removed = [one.path for one in effects if isinstance(one, RemoveFile)]
        assert removed[-1] == MARK_OF_3
        assert ROWS_OF_3 not in removed


def test_a_slot_is_exported_before_it_is_dropped() -> None:
    for found, outcome, *_ in CASES.values():
        exported = set()
        for effect in decide(found, SERVER, 5000).effects:
            if isinstance(effect, ExportSlot):
                exported.add(effect.slot)
            if isinstance(effect, DropSlot):
                unused = [one for one in found.slots if one.slot == effect.slot and not one.has_promised]
                assert effect.slot in exported or unused or outcome is Outcome.GIVE_UP


def test_the_superblock_is_deleted_before_anything_moves() -> None:
    for found, outcome, *_ in CASES.values():
        if outcome is Outcome.BURN:
            effects = decide(found, SERVER, 5000).effects
            first = next(i for i, effect in enumerate(effects) if isinstance(effect, WriteBlock))
            moved = [i for i, effect in enumerate(effects) if isinstance(effect, MoveFile | DropSlot)]
            assert all(i > first for i in moved)


def test_a_burned_number_is_the_highest_that_anything_names() -> None:
    found = Found(TABLET, DAMAGED, meta(number=4), [slot(number=6)], [RowsFound(8)], quarantined=[11])
    blocks = [effect.block for effect in decide(found, SERVER, 5000).effects if isinstance(effect, WriteBlock)]
    assert [(b.number, b.highest_number, b.generation, b.is_lost, b.memory) for b in blocks] == [(6, 6, 13, True, None)]
    assert blocks[0].quarantine == f"quarantine/{TABLET}.12"


def test_a_kept_memory_survives_a_copy_that_was_cut_short() -> None:
    blocks = [e.block for e in decide(CASES["copy"][0], SERVER, 5000).effects if isinstance(e, WriteBlock)]
    assert [(block.memory, block.number) for block in blocks] == [(MEMORY, 2)]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lost superblock", "tablet-meta/t1.r7 is missing, and slot 9 of the log is in use"),
        ("unreadable superblock", "tablet-meta/t1.r7: its checksum is wrong"),
        ("tombstone without its votes", "consensus-meta/t1.r7 is missing"),
        ("tombstone with another member's votes", "consensus-meta/t1.r7 is of member 1, the superblock of 2"),
        ("tombstone of a backup", "tablet-meta/t1.r7 has generation 4, slot 9 of the log has 5"),
        ("damaged rows", "no steady point"),
        ("no rows behind a floor", "there are no rows, and the log begins after entry 10"),
        ("rows that end before the floor", "the rows end at entry 9, the log begins after entry 10"),
        ("log shorter than the rows", "the rows hold entry 21, the log ends at entry 20"),
        ("lost slot", "slot 9 of the log is not this tablet's"),
        ("damaged slot", "a hole"),
        ("slot of another member", "slot 9 of the log is of member 1, generation 3; the superblock is of member 2"),
    ],
)
def test_people_are_told_what_is_wrong(name: str, told: str) -> None:
    assert decide(CASES[name][0], SERVER, 5000).story.startswith(told)


def test_what_is_well_is_not_talked_about() -> None:
    for found, outcome, *_ in CASES.values():
        assert bool(decide(found, SERVER, 5000).story) == (outcome in (Outcome.BURN, Outcome.FAIL))


def test_files_of_other_generations_are_set_aside_when_a_replica_runs() -> None:
    found = replace(WHOLE, slots=[slot(slot=4, generation=2), slot()], rows=[RowsFound(2), ROWS])
    decision = decide(found, SERVER, 5000)
    assert decision.run is RunState.ASLEEP
    assert [e for e in decision.effects if isinstance(e, DropSlot)] == [DropSlot(4, 2)]
    moved = [e.source for e in decision.effects if isinstance(e, MoveFile)]
    assert moved == [f"data/{TABLET}.2.mdb.steady", f"data/{TABLET}.2.mdb"]


def test_columns_have_words() -> None:
    """The page shows a word for each column."""
    for column in (BlockSeen, LogSeen, MetaSeen, RowsSeen, Outcome):
        assert all(value.value for value in column)
