"""The simulation's check of new places (DD-10): a server that no master can know of yet is not idle."""

from __future__ import annotations

import pytest

from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TransitionRecord
from simulation.checks.crowding import KNOWN_AFTER_US, Crowding
from simulation.checks.observer import Shadow
from simulation.engine.timeline import SECOND

REGIONS = 8


class Table:
    """A table of which every region goes to server a, and nothing to b; c has come when it says so."""

    def __init__(self) -> None:
        self.now = 100 * SECOND
        self.violations: list[str] = []
        self.shadow = Shadow()
        self.register("a")
        self.crowding = Crowding(self.shadow, self.violations.append, lambda: self.now)

    def register(self, uuid: str) -> None:
        self.shadow.servers[uuid] = ServerRecord(uuid, "h", 1, 7)

    def join(self, uuid: str) -> None:
        self.register(uuid)
        self.crowding.changed(f"servers/{uuid}")

    def place(self) -> None:
        """The table is made and assigned."""
        for number in range(REGIONS):
            region_id = f"t.{number:04}"
            self.shadow.regions[region_id] = RegionRecord("t", region_id)
            self.shadow.transitions[f"{region_id}-0"] = TransitionRecord(
                region_id, "t", 0, RegionState.OFFLINE, destination=Incarnation("a", 7), epoch=1
            )
        for number in range(REGIONS):
            self.crowding.changed(f"unassigned/00/t.{number:04}-0")


@pytest.mark.parametrize(("age", "is_seen"), [(0, False), (KNOWN_AFTER_US - 1, False), (KNOWN_AFTER_US, True)])
def test_a_server_counts_as_idle_once_every_master_must_have_heard_of_it(age: int, is_seen: bool) -> None:
    """Found by seed 7100324: a master that went on after a freeze placed regions before it was told of a server that
    had registered a tenth of a second before."""
    table = Table()
    table.join("b")
    table.now += age
    table.place()
    assert bool(table.violations) is is_seen
    assert all(f"DD-10: t.{number:04}-0" in table.violations[number] for number in range(len(table.violations)))


def test_a_server_that_was_there_from_the_beginning_is_known() -> None:
    """KUDU-1358 is about those."""
    table = Table()
    table.register("b")
    table.place()
    assert table.violations
