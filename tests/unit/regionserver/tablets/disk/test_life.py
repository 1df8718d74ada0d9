"""The tables of a replica's states agree with each other."""

from __future__ import annotations

import itertools

import pytest

from coord.errors import InvalidTransition
from regionserver.tablets.disk.life import (
    DATA_LIFE,
    DATA_OF,
    RUN_LIFE,
    DataEvent,
    DataState,
    RunEvent,
    RunRow,
    RunState,
    data_after,
    run_after,
)


@pytest.mark.parametrize("row", RUN_LIFE, ids=lambda row: f"{row.before}-{row.event}")
def test_a_run_state_changes_with_its_files_or_keeps_them(row: RunRow) -> None:
    before = DATA_OF[row.before] if row.before else None
    after = DATA_OF[row.after] if row.after else None
    if row.event in set(DataEvent):
        assert data_after("t", before, DataEvent(row.event)) is after
    else:
        assert before is after


def test_every_move_of_the_files_is_a_move_of_the_replica() -> None:
    made = {(DATA_OF[row.before] if row.before else None, row.event.value) for row in RUN_LIFE}
    assert {(row.before, row.event.value) for row in DATA_LIFE} <= made


def test_only_listed_steps_are_legal() -> None:
    listed = {(row.before, row.event) for row in DATA_LIFE}
    for before, event in itertools.product((None, *DataState), DataEvent):
        if (before, event) in listed:
            data_after("t", before, event)
        else:
            with pytest.raises(InvalidTransition, match="files of tablet t: no transition from"):
                data_after("t", before, event)
    listed_runs = {(row.before, row.event) for row in RUN_LIFE}
    for run, happened in itertools.product((None, *RunState), RunEvent):
        if (run, happened) not in listed_runs:
            with pytest.raises(InvalidTransition):
                run_after("t", run, happened)


def test_files_that_are_complete_are_set_aside_before_a_copy_and_only_they_are_deleted() -> None:
    """The steps that S2 demands, and the ones that would lose a memory or a good replica."""
    removed = data_after("t", DataState.READY, DataEvent.DELETE)
    copying = data_after("t", removed, DataEvent.COPY)
    assert (removed, copying) == (DataState.DELETED, DataState.COPYING)
    assert data_after("t", copying, DataEvent.COPIED) is DataState.READY
    assert data_after("t", copying, DataEvent.GIVE_UP) is DataState.DELETED
    assert data_after("t", None, DataEvent.COPY) is DataState.COPYING
    assert data_after("t", None, DataEvent.CREATE) is DataState.READY
    for before, event in (
        (DataState.READY, DataEvent.COPY),
        (DataState.READY, DataEvent.FORGET),
        (DataState.READY, DataEvent.CREATE),
        (DataState.COPYING, DataEvent.DELETE),
        (DataState.COPYING, DataEvent.FORGET),
        (DataState.DELETED, DataEvent.CREATE),
        (DataState.DELETED, DataEvent.COPIED),
    ):
        with pytest.raises(InvalidTransition):
            data_after("t", before, event)


def test_every_state_is_reached_and_left() -> None:
    assert {row.after for row in RUN_LIFE} == {None, *RunState}
    assert {row.before for row in RUN_LIFE} == {None, *RunState}
    assert set(DATA_OF) == set(RunState)


def test_a_lost_memory_never_comes_back() -> None:
    """LOST ends only with a new number."""
    assert {(row.event, row.after) for row in RUN_LIFE if row.before is RunState.LOST} == {
        (RunEvent.COPY, RunState.COPYING),
        (RunEvent.FORGET, None),
    }


def test_a_failed_replica_does_not_run_before_it_was_copied() -> None:
    assert {row.after for row in RUN_LIFE if row.before is RunState.FAILED} == {RunState.STOPPING, RunState.LOST}
