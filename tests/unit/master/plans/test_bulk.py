"""A bulk plan that a new active master continues under the former one's id (X8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from coord.client.ops import Delete, SetData
from coord.errors import ConnectionLoss
from master.assignment.write_queue import steps_of_plans
from master.phases import BulkPlan
from master.plans.bulk import PLACED_AT_ONCE, PLANS_KEPT, BulkPlans
from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Server
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.records.model import (
    Incarnation,
    PlanRecord,
    PlanState,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import decode_plan
from regions.transitions.states import Cause

KEY = "t.0-0"


def test_former_transitions_do_not_finish_a_plan_before_its_rows_are_applied() -> None:
    """X8: DONE was stored first, and APPLYING after it, forever (simulation, master-during-bulk, seed 72)."""
    assigner = Assigner(2)
    opened = TransitionRecord("t.0", "t", 0, RegionState.OPENED, destination=Incarnation("s", 1), plan_id="p")
    assigner.load([(TableRecord("t", "t"), 0)], [(RegionRecord("t", "t.0"), 0)], [], [(opened, 3)], [], 0)
    active_master: Any = SimpleNamespace(assigner=assigner, fence=SimpleNamespace(epoch=2))
    planner: Any = SimpleNamespace(engine_for=lambda _count: ("greedy", ""))
    bulk_plans = BulkPlans(active_master, planner, lambda: 0, bytes)
    bulk_plans.load([PlanRecord("p", 1)])
    bulk = bulk_plans._new(fx.RequestPlan([KEY], Cause.ASSIGN.value))
    bulk_plans.running["p"] = bulk
    delete = fx.DeleteTransition(KEY, "t.0", 0, RegionState.OPENED, 3, Cause.DONE, former=opened)
    bulk_plans.count([(delete, ev.WriteDone(KEY, 0))])
    assert (bulk.assigned, bulk.record.state) == (0, PlanState.PLANNING)


def test_progress_of_plans_by_committed_writes() -> None:
    """Neither a later attempt nor a write that the store has refused counts, nor a transition of no plan."""
    record = TransitionRecord("t.0", "t", 0, RegionState.OFFLINE, plan_id="p")
    first = fx.WriteOffline(KEY, record, None, -1, Cause.ASSIGN)
    again = fx.WriteOffline(KEY, record, RegionState.OPENING, 2, Cause.DEADLINE)
    end = fx.DeleteTransition(KEY, "t.0", 0, RegionState.OPENED, 3, Cause.DONE, former=record)
    closed = fx.DeleteTransition(KEY, "t.0", 0, RegionState.CLOSED, 3, Cause.DO_NOT_REOPEN, former=record)
    taken = [(one, ev.WriteDone(KEY, 0)) for one in (first, first, again, end, closed)]
    refused = [(one, ev.WriteFailed(KEY)) for one in (first, end)]
    assert steps_of_plans([*taken, *refused]) == {"p": (2, 1)}


class Records:
    """The store of the plans' records; the connection breaks at the write `breaks_at`, which is done or not."""

    def __init__(self, plans: list[PlanRecord], breaks_at: int, is_done: bool) -> None:
        self.plans = {plan.plan_id: PlanState.APPLYING for plan in plans}
        self.layout = self.client = self
        self.epoch = 2
        self._left = breaks_at
        self._is_done = is_done

    def plan(self, plan_id: str) -> str:
        return plan_id

    async def exists(self, path: str) -> object:
        return path if path in self.plans else None

    async def write(self, ops: list[Any]) -> None:
        self._left -= 1
        for op in ops if self._left != 0 or self._is_done else ():
            if isinstance(op, Delete):
                del self.plans[op.path]
            else:
                assert isinstance(op, SetData)
                self.plans[op.path] = decode_plan(op.data, op.path).state
        if self._left == 0:
            raise ConnectionLoss("")


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("breaks_at", range(1, 6))
def test_a_lost_connection_leaves_no_plan_open(breaks_at: int, is_done: bool) -> None:
    """The plan whose last write was interrupted stayed APPLYING forever (simulation, random, seed 179537502555)."""
    unfinished = [PlanRecord(f"u{number}", 1, state=PlanState.APPLYING, created_ms=1000) for number in range(3)]
    ended = [PlanRecord(f"e{number}", 1, state=PlanState.DONE, created_ms=number) for number in range(PLANS_KEPT)]
    plans = unfinished + ended
    records: Any = Records(plans, breaks_at, is_done)
    active_master: Any = SimpleNamespace(fence=records)
    bulk_plans = BulkPlans(active_master, SimpleNamespace(), lambda: 5000, bytes)  # type: ignore[arg-type]
    bulk_plans.load(unfinished)
    failures: list[Any] = []
    for _ in range(2):
        ensureDeferred(bulk_plans.prune(plans)).addErrback(failures.append)
    assert [failure.type for failure in failures] == [ConnectionLoss]
    assert all(records.plans[plan.plan_id] is PlanState.DONE for plan in unfinished)
    assert len(records.plans) == PLANS_KEPT


def test_a_large_plan_is_handed_over_part_by_part_as_the_store_takes_it() -> None:
    """Each part waits for room among the writes, and for a server of the plan. Each part has regions of all servers.

    Edits that make this fail: `parts = 1` in `_hand_over`, or parts of neighbors.
    """
    handed: list[list[str]] = []
    rooms: list[Deferred[None]] = []

    async def room_for_placements(are_wanted: object) -> None:
        rooms.append(Deferred())
        await rooms[-1]

    active_master: Any = SimpleNamespace(
        observe=lambda event: handed.append(event.keys), room_for_placements=room_for_placements
    )
    plans = BulkPlans(active_master, SimpleNamespace(), lambda: 5000, bytes)  # type: ignore[arg-type]
    keys = [f"t.{number}-0" for number in range(2 * PLACED_AT_ONCE + 1)]
    bulk = BulkPlan(PlanRecord("p", 1, state=PlanState.APPLYING), keys, lambda: 0.0)
    ensureDeferred(plans._hand_over(bulk, dict.fromkeys(keys, "s")))
    for parts in (1, 2):
        assert len(handed) == len(rooms) == parts
        rooms[-1].callback(None)
    assert handed == [keys[::3], keys[1::3], keys[2::3]]


def test_the_next_part_is_wanted_when_a_server_of_the_plan_is_short_of_orders() -> None:
    """Edits that make this fail: more parts are always wanted, or servers without placements count."""
    wanted: list[Callable[[], bool]] = []

    async def room_for_placements(are_wanted: Callable[[], bool]) -> None:
        wanted.append(are_wanted)
        await Deferred()

    world, limits = ClusterState(), AssignerConfig(batch_max=2)
    for uuid in ("full", "other"):
        world.servers[uuid] = Server(ServerRecord(uuid, "h", 1, 1), False)
    waiting: Any = deque(range(limits.batch_max))
    world.servers["full"].opens = waiting
    active_master: Any = SimpleNamespace(
        observe=lambda _: None,
        room_for_placements=room_for_placements,
        assigner=SimpleNamespace(world=world, config=limits),
    )
    plans = BulkPlans(active_master, SimpleNamespace(), lambda: 5000, bytes)  # type: ignore[arg-type]
    keys = [f"t.{number}-0" for number in range(PLACED_AT_ONCE + 1)]
    bulk = BulkPlan(PlanRecord("p", 1, state=PlanState.APPLYING), keys, lambda: 0.0)
    ensureDeferred(plans._hand_over(bulk, dict.fromkeys(keys, "full")))
    [are_wanted] = wanted
    assert not are_wanted()
    waiting.pop()
    assert are_wanted()


def test_a_plan_of_which_parts_are_missing_is_not_stuck() -> None:
    """The regions of the missing parts count as unplaced. The regions of the first part may all be parked meanwhile.

    Edit that makes this fail: `finish_stuck` does not ask for `unplaced`.
    """
    assigner = Assigner(2, AssignerConfig(bulk_min=2))
    regions = [(RegionRecord("t", f"t.{number}"), 0) for number in range(3)]
    assigner.load([(TableRecord("t", "t"), 0)], regions, [ServerRecord("s", "h", 1, 1)], [], [], 0)
    assigner.begin(0)
    [request] = [one for one in assigner.take(0) if isinstance(one, fx.RequestPlan)]
    finished: list[BulkPlan] = []
    active_master: Any = SimpleNamespace(assigner=assigner)
    plans = BulkPlans(active_master, SimpleNamespace(), lambda: 5000, bytes)  # type: ignore[arg-type]
    plans._finish = finished.append  # type: ignore[method-assign]
    bulk = plans.running["p"] = BulkPlan(PlanRecord("p", 1, state=PlanState.APPLYING), request.keys, lambda: 0.0)
    bulk.is_handed_over = True
    plans.finish_stuck()
    assert not finished
    assigner.handle(ev.TableSeen(TableRecord("t", "t", intent=TableIntent.DISABLED), 1), 0)
    assigner.handle(ev.PlanReady("p", request.keys[:2], {}), 0)
    plans.finish_stuck()
    assert not finished
    assigner.handle(ev.PlanReady("p", request.keys[2:], {}), 0)
    plans.finish_stuck()
    assert finished == [bulk]
