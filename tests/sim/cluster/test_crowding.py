"""The simulation's check of new placements (DD-10): a server that no master can know yet does not count as idle."""

from __future__ import annotations

import pytest

from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TransitionRecord
from simulation.checks.crowding import KNOWN_AFTER_US, Crowding
from simulation.checks.observer import Shadow
from simulation.engine.timeline import SECOND

REGIONS = 8


class Table:
    """A table whose regions all go to server a and none to b; c registers when told."""

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
        """Create the table and assign it."""
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
    """Found by seed 7100324: after a freeze a master placed regions before it received the registration of a server
    that was a tenth of a second old."""
    table = Table()
    table.join("b")
    table.now += age
    table.place()
    assert bool(table.violations) is is_seen
    assert all(f"DD-10: t.{number:04}-0" in table.violations[number] for number in range(len(table.violations)))


def test_a_server_that_was_there_from_the_beginning_is_known() -> None:
    """KUDU-1358 concerns such servers."""
    table = Table()
    table.register("b")
    table.place()
    assert table.violations
