"""States of tables and of regions' records: exactly the rows of the tables, and the states shown to clients (X12, DD-01
to DD-07)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from regions.records.model import RegionRecord, ReplicaLocation, TableRecord, TableState, TabletState
from regions.transitions.table_states import (
    TABLE_STEPS,
    TABLET_STEPS,
    VISIBLE,
    InvalidTableStep,
    table_after,
    tablet_state,
)

EVENTS = sorted({step.event for step in TABLE_STEPS})


@pytest.mark.parametrize(("before", "event"), list(itertools.product([None, *TableState], EVENTS)))
def test_only_listed_steps_are_legal(before: TableState | None, event: str) -> None:
    """Every combination is a row, or is rejected with the table's name."""
    rows = [step for step in TABLE_STEPS if (step.before, step.event) == (before, event)]
    if rows:
        assert table_after(before, event, subject="orders") == rows[0].after
        assert len(rows) == 1
    else:
        with pytest.raises(InvalidTableStep, match="orders"):
            table_after(before, event, subject="orders")


def test_nothing_leaves_the_ends() -> None:
    """DD-06, MD-06: a replaced region stays replaced; a deleted table stays deleted unless an operator restores it."""
    left = {step.event: step.after for step in TABLE_STEPS if step.before is TableState.REMOVED}
    back = {left.pop("undelete"), left.pop("undelete altering")}
    assert back == {TableState.RUNNING, TableState.ALTERING}, "an operator brings the table back, and nothing else"
    assert set(left.values()) == {TableState.REMOVED}
    assert not [step for step in TABLET_STEPS if step.before is TabletState.REPLACED]
    revived = {step.event for step in TABLET_STEPS if step.before is TabletState.DELETED}
    assert revived == {"undelete, was opened", "undelete, never opened"}
    assert {step.after for step in TABLE_STEPS if step.event == "delete"} == {TableState.REMOVED}
    assert {step.before for step in TABLE_STEPS if step.event == "delete"} == set(VISIBLE)


P, R = TabletState.PREPARING, TabletState.RUNNING


@pytest.mark.parametrize(
    ("record", "is_open", "table", "in_transition", "told"),
    [
        (P, False, TableState.RUNNING, False, TabletState.PREPARING),
        (P, False, TableState.RUNNING, True, TabletState.CREATING),
        (P, True, TableState.RUNNING, False, TabletState.RUNNING),  # opened by a server of an older version
        (R, True, TableState.ALTERING, True, TabletState.RUNNING),
        (P, False, TableState.REMOVED, True, TabletState.DELETED),
        (R, True, TableState.REMOVED, False, TabletState.DELETED),
        (TabletState.REPLACED, False, TableState.REMOVED, False, TabletState.REPLACED),
    ],
)
def test_what_everybody_is_told(
    record: TabletState, is_open: bool, table: TableState, in_transition: bool, told: TabletState
) -> None:
    """A region is CREATING by its transition and DELETED by its table, in one write for any number of regions."""
    replicas = (ReplicaLocation(0, "s", 7),) if is_open else ()
    region = RegionRecord("t", "t.0", state=record, replicas=replicas)
    assert tablet_state(region, TableRecord("t", "orders", state=table), in_transition=in_transition) is told


def test_the_server_that_opens_a_region_makes_it_running() -> None:
    """DD-05: by the write of its location; closing it, and an old location, do not count."""
    region = RegionRecord("t", "t.0", state=TabletState.PREPARING)
    assert region.with_location(ReplicaLocation(0, "s", None)).state is TabletState.PREPARING
    opened = region.with_location(ReplicaLocation(0, "s", 7))
    assert opened.state is TabletState.RUNNING
    assert opened.with_location(ReplicaLocation(0, "s", None)).state is TabletState.RUNNING
    gone = msgspec.structs.replace(region, state=TabletState.REPLACED)
    assert gone.with_location(ReplicaLocation(0, "s", 7)).state is TabletState.REPLACED


@pytest.mark.parametrize(
    ("kind", "text", "state"),
    [
        (TableRecord, b'{"table_id":"t","name":"a","state":"DELETED"}', TableState.REMOVED),
        (TableRecord, b'{"table_id":"t","name":"a","state":"REMOVED"}', TableState.REMOVED),
        (RegionRecord, b'{"table_id":"t","region_id":"r","state":"REMOVED"}', TabletState.DELETED),
        (RegionRecord, b'{"table_id":"t","region_id":"r","state":"DELETED"}', TabletState.DELETED),
    ],
)
def test_both_spellings_are_read(kind: type[TableRecord | RegionRecord], text: bytes, state: str) -> None:
    """X12: the source uses REMOVED and DELETED in both meanings; ours is written, both are read."""
    assert msgspec.json.decode(text, type=kind).state is state


def test_other_states_are_refused() -> None:
    """An unknown word is rejected."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"table_id":"t","name":"a","state":"GONE"}', type=TableRecord)
