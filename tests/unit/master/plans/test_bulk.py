"""A bulk plan that a new reign goes on with under the former one's id (X8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from master.plans.bulk import Bulks
from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.records.model import (
    Incarnation,
    PlanRecord,
    PlanState,
    RegionRecord,
    RegionState,
    TableRecord,
    TransitionRecord,
)
from regions.transitions.states import Cause

KEY = "t.0-0"


def test_the_former_masters_transitions_do_not_finish_a_plan_that_is_not_handed_over() -> None:
    """X8: DONE was stored first, and APPLYING after it, for ever (simulation, master-during-bulk, seed 72)."""
    assigner = Assigner(2)
    opened = TransitionRecord("t.0", "t", 0, RegionState.OPENED, destination=Incarnation("s", 1), plan_id="p")
    assigner.load([(TableRecord("t", "t"), 0)], [(RegionRecord("t", "t.0"), 0)], [], [(opened, 3)], [], 0)
    active_master: Any = SimpleNamespace(assigner=assigner, fence=SimpleNamespace(epoch=2))
    planner: Any = SimpleNamespace(engine_for=lambda _count: ("greedy", ""))
    bulks = Bulks(active_master, planner, lambda: 0, bytes)
    bulks.load([PlanRecord("p", 1)])
    bulk = bulks._new(fx.RequestPlan([KEY], Cause.ASSIGN.value))
    bulks._running["p"] = bulk
    bulks.count(fx.DeleteTransition(KEY, "t.0", 0, RegionState.OPENED, 3, Cause.DONE))
    assert (bulk.assigned, bulk.record.state) == (0, PlanState.PLANNING)
