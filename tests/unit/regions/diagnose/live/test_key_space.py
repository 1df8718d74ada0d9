"""The check of the key space by a master's copy: holes and overlaps are found, splits in progress are not (X11).

Taking the second look away makes `test_a_split_in_progress_is_no_fault` fail; leaving out the sum, the first test;
leaving the ends out of the sum, the second one.
"""

from __future__ import annotations

import itertools

import pytest

from regions.cluster.state import ClusterState
from regions.diagnose.live import key_space
from regions.diagnose.live.key_space import CONFIRM_MS, KeySpaceCheck
from regions.records.model import RegionRecord, TableRecord, TableState

Span = tuple[str, str]


def world_of(*spans: Span, state: TableState = TableState.RUNNING) -> ClusterState:
    """Return a copy with one table of regions with these bounds."""
    world = ClusterState()
    regions = [(RegionRecord("t", f"t.{number}", *span), 0) for number, span in enumerate(spans)]
    world.put_table(TableRecord("t", "rows", state=state), 1, regions)
    return world


def faults(world: ClusterState) -> list[str]:
    """Return what two rounds find."""
    check = KeySpaceCheck()
    assert check.step(world, 0) == []
    return [one.text for one in check.step(world, CONFIRM_MS)]


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([("", "g"), ("p", "")], "no region holds the keys from 'g' to 'p'"),
        ([("b", "")], "from '' to 'b'"),
        ([("", "g"), ("g", "p")], "from 'p' on"),
        ([], "all keys"),
        ([("", "g"), ("g", ""), ("g", "")], "two regions"),
        ([("", "p"), ("g", "")], "two regions"),
        ([("", ""), ("", "")], "two regions"),
        ([("", "d"), ("f", "h"), ("k", "")], "and 1 more holes"),
    ],
)
def test_holes_and_overlaps_are_found(spans: list[Span], words: str) -> None:
    [text] = faults(world_of(*spans))
    assert words in text


@pytest.mark.parametrize("spans", [[("", "")], [("g", "p"), ("p", ""), ("", "g")]])
def test_whole_tables_are_right(spans: list[Span]) -> None:
    assert faults(world_of(*spans)) == []


def test_deleted_tables_are_not_looked_at() -> None:
    assert faults(world_of(("b", ""), state=TableState.REMOVED)) == []


def test_a_split_in_progress_is_no_fault() -> None:
    """A standby's copy has the daughters a little after the end of the parent."""
    world, check = world_of(("", "g"), ("g", "")), KeySpaceCheck()
    world.drop_region(world.regions["t.1"])
    assert check.step(world, 0) == []
    world.put_region(RegionRecord("t", "t.1A", "g", "p"), 0)
    world.put_region(RegionRecord("t", "t.1B", "p", ""), 0)
    world.put_table(TableRecord("t", "rows", regions=3), 2)
    assert check.step(world, CONFIRM_MS) == []
    assert check.checked == 2


def test_a_large_table_is_walked_through_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_space, "SLICE", 10)
    bounds = ["", *(f"{number:03}" for number in range(1, 35)), ""]
    world, check = world_of(*itertools.pairwise(bounds)), KeySpaceCheck()
    for number in range(3):
        check.step(world, number)
        assert check.checked == 0
    check.step(world, 4)
    assert check.checked == 1
