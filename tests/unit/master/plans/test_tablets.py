"""Bulk plans of tablets' first members: the planner's input, and progress by the tablets' records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from master.plans.bulk import BulkPlans
from master.plans.planner import _greedy
from master.plans.tablets import is_of_tablets, progress_of, snapshot_of_tablets
from master.runs import Runs
from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.plan import Params
from regions.records.kinds import KV, TABLETS_ALONE
from regions.records.members import Storage
from regions.records.model import (
    PlanState,
    RegionRecord,
    RunRecord,
    ServerRecord,
    TableIntent,
    TableRecord,
    TabletState,
)
from regions.transitions.states import Cause

TABLE = TableRecord("t", "orders", replication=3, storage=Storage.TABLET, kind=KV)
KEYS = [f"t.{region}-{at}" for region in range(4) for at in range(3)]


@pytest.fixture
def assigner() -> Assigner:
    """A table of four new tablets; five servers in three racks, of which one takes none and one is leaving."""
    made = Assigner(2)
    regions = [RegionRecord("t", f"t.{number}", state=TabletState.PREPARING, next_number=1) for number in range(4)]
    made.load([(TABLE, 0)], [(one, 0) for one in regions], [], [], [], 0)
    for number, uuid in enumerate("abcdefg"):
        kind = TABLETS_ALONE if uuid == "b" else KV
        server = ServerRecord(uuid, uuid, 1, 1, kind=kind, rack=f"r{number % 3}", tablets=uuid != "f")
        made.handle(ev.ServerUp(msgspec.structs.replace(server, leaving=uuid == "g")), 0)
    return made


def put(assigner: Assigner, number: int, state: TabletState) -> None:
    """Write a region's record."""
    former = assigner.world.regions[f"t.{number}"]
    assigner.world.put_region(msgspec.structs.replace(former.record, state=state), former.version + 1)


def test_the_planner_gets_tablets_and_the_servers_that_take_them(assigner: Assigner) -> None:
    """Its plan has distinct servers and racks for each tablet."""
    world = assigner.world
    assert is_of_tablets(KEYS, world)
    assert is_of_tablets(["gone.1-0", *KEYS], world)
    assert not is_of_tablets([], world)
    made = _greedy(snapshot_of_tablets([*KEYS, "gone.1-0"], world), Params(), 100.0)
    assert sorted(made.placements) == KEYS
    assert set(made.placements.values()) == set("abcde")
    racks = {uuid: world.servers[uuid].rack for uuid in "abcde"}
    for region in range(4):
        servers = [made.placements[f"t.{region}-{at}"] for at in range(3)]
        assert len({racks[uuid] for uuid in servers}) == 3


def test_a_plan_of_tablets_is_done_when_each_has_a_leader(assigner: Assigner) -> None:
    """A plan is done when each of its tablets has a leader or is no longer to be open. The assigner plays no part."""
    world = assigner.world
    written: list[Any] = []
    phases = SimpleNamespace(begin=lambda _: None, end=lambda: None, report=list)
    runs = Runs(Any, RunRecord(2, "m1", "h:1", "", 0, ()))  # type: ignore[arg-type]
    master: Any = SimpleNamespace(
        assigner=assigner, world=world, fence=SimpleNamespace(epoch=2), phases=phases, persist=written.append, runs=runs
    )
    planner: Any = SimpleNamespace(engine_for=lambda _count: ("greedy", ""))
    plans = BulkPlans(master, planner, lambda: 0, bytes)
    bulk = plans.latest = plans._new(fx.RequestPlan(KEYS, Cause.ASSIGN.value))
    plans.running[bulk.record.plan_id] = bulk
    bulk.is_of_tablets = True
    plans.finish_stuck()
    assert bulk.record.state is PlanState.PLANNING
    bulk.is_handed_over = True
    for number, state in enumerate((TabletState.RUNNING, TabletState.REPLACED, TabletState.CREATING)):
        put(assigner, number, state)
    plans.finish_stuck()
    assert (bulk.offline, bulk.assigned, written) == (9, 6, [])
    put(assigner, 2, TabletState.RUNNING)
    put(assigner, 3, TabletState.RUNNING)
    plans.finish_stuck()
    assert (bulk.assigned, bulk.record.state, plans.running) == (12, PlanState.DONE, {})
    assert len(written) == 2


def test_tablets_that_nobody_wants_open_do_not_hold_a_plan_up(assigner: Assigner) -> None:
    assert progress_of(KEYS, assigner.world) == (0, 0)
    disabled = msgspec.structs.replace(TABLE, intent=TableIntent.DISABLED)
    assigner.handle(ev.TableSeen(disabled, 1), 0)
    assert progress_of(KEYS, assigner.world) == (12, 12)
