"""A take-over of many regions: a part in each turn, and nothing that happens between two parts is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from master.catalog.store import IN_FLIGHT, PART_MAX, drained
from regions import messages as ms
from regions.assign.assigner import Assigner
from regions.assign.catalog.takeover import LOADED_AT_ONCE
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import encode
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore, lay_ground

REGIONS = 2 * LOADED_AT_ONCE + 100
S1, S2 = Incarnation("s1", 7), Incarnation("s2", 7)


class TakeOver(Bench):
    """A take-over of REGIONS regions on s1; s2 has none. `turn` is one turn of the reactor."""

    def __init__(self, folder: Path) -> None:
        store = LossyStore()
        lay_ground(store, servers=2)
        for number in range(1, REGIONS):
            region = RegionRecord("t", f"t.{number}", replicas=(ReplicaLocation(0, "s1", 7),))
            store.put(LAYOUT.region("t", region.region_id), encode(region))
        super().__init__(folder, store=store, answers=0)
        assert self.active_master is not None
        self.master = self.active_master
        self.hold_servers()

    def turn(self) -> int:
        """Let one turn pass. Return how many regions it has loaded."""
        before = len(self.master.world.regions)
        self.one_turn(answers=1)
        return len(self.master.world.regions) - before

    def until(self, holds: Callable[[], bool]) -> list[int]:
        """Return what `turn` returned, until `holds()`."""
        loaded = []
        while not holds():
            loaded.append(self.turn())
            assert len(loaded) < 1_000, "the take-over does not end"
        return loaded


@pytest.fixture
def young(tmp_path: Path) -> TakeOver:
    found = TakeOver(tmp_path)
    found.until(lambda: 0 < len(found.master.world.regions) < REGIONS)
    assert not found.master.is_open
    return found


def test_a_turn_loads_a_part(tmp_path: Path) -> None:
    young = TakeOver(tmp_path)
    loaded = young.until(lambda: young.master.is_open)
    assert sum(loaded) == REGIONS
    assert max(loaded) == LOADED_AT_ONCE
    assert len(young.master.world.servers["s1"].open) == REGIONS


def test_few_znodes_are_asked_for_at_once(tmp_path: Path) -> None:
    young = TakeOver(tmp_path)
    most = 0
    while not young.master.is_open:
        young.turn()
        most = max(most, len(young.store.waiting))
    assert most * PART_MAX < REGIONS
    assert most >= IN_FLIGHT


def test_a_server_that_ends_between_two_slices_has_ended(young: TakeOver) -> None:
    """Fails without the comparison of the registry's lists at the end: s1 would count as alive for ever."""
    young.store.drop(LAYOUT.server("s1"))
    young.until(lambda: young.master.is_open)
    young.go_on()
    assert list(young.master.world.servers) == ["s2"]
    for _ in range(20):
        young.go_on(0.1)
    assert len(young.master.world.servers["s2"].incoming) == REGIONS


def test_a_server_that_comes_between_two_slices_is_known(young: TakeOver) -> None:
    young.store.change(LAYOUT.server("s9"), encode(ServerRecord("s9", "h", 9, 7)))
    young.until(lambda: young.master.is_open)
    young.go_on()
    assert list(young.master.world.servers) == ["s1", "s2", "s9"]


@pytest.mark.parametrize("number", [0, REGIONS - 1], ids=["loaded", "not loaded"])
def test_a_transition_that_begins_between_two_slices_is_known(young: TakeOver, number: int) -> None:
    closing = TransitionRecord(f"t.{number}", "t", 0, RegionState.CLOSING, S1, S2)
    young.store.change(LAYOUT.transition(closing.region_id, 0), encode(closing))
    young.until(lambda: young.master.is_open)
    young.go_on()
    assert young.master.world.replicas[f"t.{number}-0"].transition == closing


def test_a_request_between_two_slices_is_refused(young: TakeOver) -> None:
    results: list[object] = []
    young.ask_into(ms.SetTableIntent("orders", TableIntent.DISABLED), results)
    assert results == [ms.BUSY]


def test_a_tenure_that_ends_between_two_slices_loads_nothing_more(young: TakeOver) -> None:
    young.master.end("stopping")
    loaded = [young.turn() for _ in range(5)]
    assert not any(loaded)
    assert not young.master.is_open
    assert young.ended == ["stopping"]


def test_the_beginning_of_decisions_takes_several_turns() -> None:
    """Fails if all replicas are decided about in one step."""
    assigner, count = Assigner(1), 1_000
    regions = [(RegionRecord("t", f"r{number}"), 0) for number in range(count)]
    steps = list(assigner.takeover.loading([(TableRecord("t", "orders"), 0)], regions, [], [], [], 1))
    assert len(steps) == count // LOADED_AT_ONCE
    waiting = []
    for _ in assigner.beginning(1):
        waiting.append(assigner.unplaced)
    assert len(waiting) >= 3
    assert max(after - before for before, after in zip([0, *waiting], waiting, strict=False)) <= 250
    assert assigner.unplaced == count


# Fails if the list keeps what was used: the release of a million records in one turn took 80 ms.
def test_a_loaded_list_is_released_item_by_item() -> None:
    items = ["a", "b", "c"]
    left = drained(items)
    assert next(left) == "a"
    assert sorted(items) == ["b", "c"]
    assert list(left) == ["b", "c"]
    assert items == []
