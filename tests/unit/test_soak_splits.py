"""The checks of `tests.soak_splits` find what they are for."""

from __future__ import annotations

import types
from typing import Any

import msgspec
import pytest

from coord.tree.machine import CommandOutcome
from regions.assign.resharding.daughters import split_at, with_parents
from regions.records.model import RegionRecord, RegionState, TableRecord, TabletState, TransitionRecord
from regions.records.znodes import Layout, encode
from tests.soak_splits.clients import Expected
from tests.soak_splits.key_space import KeySpace

LAYOUT = Layout()
PARENT = RegionRecord("t", "t.0", "", "", state=TabletState.RUNNING)
REPLACED = RegionRecord("t", "t.0", "", "", state=TabletState.REPLACED)
LOW, HIGH = (with_parents(one, (PARENT,)) for one in split_at(PARENT, "m"))


class Commands:
    """Applies writes of records one after the other."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, Any] = {}
        self.seen = KeySpace(LAYOUT)
        self.apply(0, (LAYOUT.table("t"), TableRecord("t", "rows", regions=1)), (LAYOUT.region("t", "t.0"), PARENT))

    def apply(self, time_ms: int, *records: tuple[str, Any]) -> None:
        """Apply one command that writes these records."""
        outcome = CommandOutcome(self.seen.commands + 1, 1, 1, 1, 14)
        outcome.events = []
        for path, record in records:
            self.nodes[path.encode()] = types.SimpleNamespace(data=encode(record))
            outcome.events.append((3, path.encode(), ()))
        machine: Any = types.SimpleNamespace(tree=types.SimpleNamespace(nodes=self.nodes))
        self.seen.applied(machine, outcome, time_ms)

    def transition(self, time_ms: int, region_id: str, state: RegionState) -> None:
        """Apply a step of a region."""
        self.apply(time_ms, (LAYOUT.transition(region_id, 0), TransitionRecord(region_id, "t", 0, state)))


def replacing(*regions: RegionRecord, count: int) -> list[tuple[str, Any]]:
    """Return the records of a write that replaces the parent."""
    written: list[tuple[str, Any]] = [(LAYOUT.region("t", one.region_id), one) for one in (REPLACED, *regions)]
    return [*written, (LAYOUT.table("t"), TableRecord("t", "rows", regions=count))]


def test_a_whole_split_has_no_fault_and_a_time() -> None:
    commands = Commands()
    commands.transition(1_000, "t.0", RegionState.CLOSING)
    commands.apply(1_020, *replacing(LOW, HIGH, count=2))
    for at, region in ((1_050, LOW), (1_070, HIGH)):
        commands.transition(at, region.region_id, RegionState.OPENED)
    # Moved later: the split is long over.
    commands.transition(9_000, LOW.region_id, RegionState.OPENED)
    assert commands.seen.faults == []
    assert [(one.daughter, one.ended_ms - one.began_ms) for one in commands.seen.gaps()] == [
        (LOW.region_id, 50),
        (HIGH.region_id, 70),
    ]


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        # The parent is replaced one command before its second daughter exists.
        ([replacing(LOW, count=1), replacing(HIGH, count=2)], "cover the whole key space"),
        ([replacing(msgspec.structs.replace(LOW, end_key="k"), HIGH, count=2)], "'k'"),
        # Two regions hold the same keys.
        ([[(LAYOUT.region("t", LOW.region_id), LOW)]], "cover the whole key space"),
        ([replacing(LOW, HIGH, count=1)], "2 regions, 1 by the table's record"),
    ],
    ids=["too-late", "hole", "overlap", "count"],
)
def test_a_fault_of_one_zxid_is_found(steps: list[list[tuple[str, Any]]], word: str) -> None:
    """Also if the next command mends it."""
    commands = Commands()
    for records in steps:
        commands.apply(0, *records)
    assert word in " ".join(commands.seen.faults)


def test_rows_may_be_only_what_was_acknowledged_or_is_unknown() -> None:
    expected = Expected()
    assert expected.objection("k", None) == ""
    assert "not None" in expected.objection("k", b"1")
    expected.acknowledged("k", b"1")
    expected.unknown("k", b"2")
    assert [expected.objection("k", value) == "" for value in (b"1", b"2", None)] == [True, True, False]
    expected.acknowledged("k", None)
    assert [expected.objection("k", value) == "" for value in (b"1", b"2", None)] == [False, False, True]
