"""Operators' plans in a master: announced, sent in parts, followed, aborted, taken over. On a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from master.assignment.balancer import Balancing
from master.catalog import store as catalog
from master.leadership.fence import Deposed, Fence
from master.plans.applying import HANDOVER_MS, MOVES_MAX, Applying
from regions import messages as ms
from regions.assign.assigner import Assigner
from regions.balance import balancer
from regions.balance.steps import result_of
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import BalancerConfig
from regions.records.model import (
    ClusterRecord,
    PlanRecord,
    PlanState,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import Layout, decode_moves, decode_plan, encode
from tests.unit.master.fake_store import FakeStore

T = TypeVar("T")
LAYOUT = Layout("/rk")
SERVERS = [ServerRecord(f"s{number}", "h", number, 1) for number in (1, 2, 3)]
REGIONS = 6
PLAN = "plan-1"


class NoMembers:
    """A cluster without tablets."""

    @property
    def plan_moves(self) -> NoMembers:
        return self

    async def accept(self, moves: list[Any]) -> None:
        assert not moves

    def left(self, _plan_id: str) -> tuple[int, int]:
        return 0, 0

    async def withdraw(self, _plan_id: str) -> None:
        pass


class Ruler:
    """A tenure as plans use it, with servers that never answer, so that nothing begins by itself."""

    def __init__(self, store: FakeStore, *, epoch: int = 4) -> None:
        self.store = store
        self.fence = Fence(store, LAYOUT, epoch)  # type: ignore[arg-type]
        self.assigner = Assigner(epoch)
        self.keeper = NoMembers()
        self.now = 1_000
        self.applying = Applying(self, lambda: self.now)
        loaded = self.do(catalog.load(store, LAYOUT))  # type: ignore[arg-type]
        self.applying.load(loaded.plans)
        self.assigner.load(loaded.tables, loaded.regions, SERVERS, loaded.transitions, (), self.now, moves=loaded.moves)
        self.assigner.begin(self.now)
        self.assigner.take(self.now)

    def observe(self, event: ev.Event) -> None:
        self.assigner.handle(event, self.now)
        for effect in self.assigner.take(self.now):
            if isinstance(effect, fx.FinishMoves):
                path = LAYOUT.move_batch(effect.move_id)
                self.persist(partial(catalog.delete_if_there, self.fence, path))

    def persist(self, write: Callable[[], Any]) -> None:
        ensureDeferred(self.retry_write(write))

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        return await write()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the store answer until `work` is done."""
        results: list[Any] = []
        ensureDeferred(work).addBoth(results.append)
        self.store.answer()
        assert results, "it waits for something that nobody does"
        if isinstance(results[0], Failure):
            results[0].raiseException()
        result: T = results[0]
        return result

    def later(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.applying.tick()
        self.store.answer()

    def begin(self, moves: int, parts: int, epoch: int = 4, plan_id: str = PLAN) -> ms.PlanReport:
        return self.do(self.applying.begin(ms.BeginPlan(plan_id, epoch, parts, moves, "flow", "f", "d")))

    def add(self, part: int, *moves: ms.PlannedMove, plan_id: str = PLAN) -> ms.PlanReport:
        return self.do(self.applying.add(ms.AddPlanMoves(plan_id, part, list(moves))))

    def record(self) -> PlanRecord:
        return decode_plan(self.store.nodes[LAYOUT.plan(PLAN)][0])

    def batches(self) -> list[str]:
        return [path for path in self.store.nodes if path.startswith(f"{LAYOUT.moves}/")]

    def close(self, number: int) -> None:
        """Report the complete move of a region, as the store does."""
        key = f"r{number}"
        replica = self.assigner.world.replicas[f"{key}-0"]
        assert replica.move is not None
        self.observe(ev.TransitionRead(f"{key}-0", _closing(number, self.applying.running()), 0))


def _closing(number: int, plan_id: str) -> TransitionRecord:
    source, destination = SERVERS[0].incarnation, SERVERS[1].incarnation
    return TransitionRecord(f"r{number}", "t", 0, RegionState.CLOSING, source, destination, plan_id=plan_id)


def memory_store() -> FakeStore:
    """Return a store with a table of six regions, all open on s1."""
    found = FakeStore()
    for path in ("/rk", *LAYOUT.parents()):
        found.put(path)
    found.put(LAYOUT.epoch, b"", 4)
    found.put(LAYOUT.cluster, encode(ClusterRecord("c")))
    found.put(LAYOUT.table("t"), encode(TableRecord("t", "orders")))
    found.put(LAYOUT.name("orders"), b"t")
    found.put(LAYOUT.table_regions("t"))
    for number in range(REGIONS):
        start, end = f"{number:06d}" if number else "", f"{number + 1:06d}" if number + 1 < REGIONS else ""
        region = RegionRecord("t", f"r{number}", start, end, replicas=(ReplicaLocation(0, "s1", 1),))
        found.put(LAYOUT.region("t", f"r{number}"), encode(region))
    return found


@pytest.fixture
def store() -> FakeStore:
    return memory_store()


def move(number: int, destination: str = "s2", source: str = "s1") -> ms.PlannedMove:
    return ms.PlannedMove(f"r{number}", 0, source, destination)


def test_parts_of_a_plan_are_durable_and_counted_once(store: FakeStore) -> None:
    """FW-03: record and batch in one fenced multi; a part may be repeated; the plan ends when no move is left."""
    ruler = Ruler(store)
    assert ruler.begin(4, 2).record.state is PlanState.APPLYING
    store.multis.clear()
    assert ruler.add(0, move(0), move(1)).waiting == 2
    [written] = store.multis
    assert [type(op).__name__ for op in written] == ["Check", "SetData", "Create"]
    assert decode_moves(store.nodes[ruler.batches()[0]][0]).plan_id == PLAN
    assert ruler.add(0, move(0), move(1)).record.handed == 2, "a lost answer: the same part again"
    assert len(store.multis) == 1
    with pytest.raises(RpcError, match="expected part 1 of"):
        ruler.add(2, move(2))
    assert ruler.add(1, move(2)).record.parts_done == 2
    assert ruler.applying.running() == PLAN
    for number in range(3):
        ruler.close(number)
    ruler.later(100)
    assert ruler.applying.running() == PLAN, "they are under way"
    for number in range(3):
        ruler.observe(ev.TransitionRead(f"r{number}-0", None, -1))
    ruler.later(100)
    assert (ruler.record().state, ruler.record().assigned, ruler.applying.running()) == (PlanState.DONE, 3, "")
    assert ruler.batches() == []


def test_a_move_that_is_no_longer_possible_is_left_to_the_assigner(store: FakeStore) -> None:
    """The cluster may have changed between the check and the part; the plan records the reason."""
    ruler = Ruler(store)
    ruler.begin(5, 1)
    report = ruler.add(
        0,
        move(0),
        move(9),
        move(1, source="s3"),
        move(2, destination="s9"),
        ms.PlannedMove("r3", 0, "s1", "s2"),
    )
    assert report.record.skipped == {
        "the region is gone": 1,
        "no longer where the plan found it": 1,
        "its new server is gone": 1,
    }
    assert report.record.handed == 2


def test_an_abort_withdraws_all_pending_moves_in_one_write(store: FakeStore) -> None:
    """Record and batches change together: no later master carries out a move of the plan."""
    ruler = Ruler(store)
    ruler.begin(3, 1)
    ruler.add(0, move(0), move(1), move(2))
    ruler.close(0)
    report = ruler.do(ruler.applying.abort())
    assert (report.record.state, report.waiting, report.moving) == (PlanState.ABORTED, 2, 1)
    assert (ruler.record().state, ruler.batches(), ruler.assigner.moves_pending) == (PlanState.ABORTED, [], 0)
    assert all(one.move is None for one in ruler.assigner.world.replicas.values())
    with pytest.raises(RpcError, match="no plan is applied"):
        ruler.do(ruler.applying.abort())
    assert Ruler(store).assigner.moves_pending == 0
    assert ruler.begin(2, 1).record.state is PlanState.APPLYING, "resumed under its id"


def test_the_next_master_continues_a_plan(store: FakeStore) -> None:
    """X8: batches and record are all it needs; it accepts the parts still to come."""
    first = Ruler(store)
    first.begin(4, 2)
    first.add(0, move(0), move(1))
    second = Ruler(store)
    assert (second.applying.running(), second.assigner.moves_pending) == (PLAN, 2)
    assert second.add(0, move(0), move(1)).record.handed == 2
    assert second.add(1, move(2)).waiting == 3
    third = Ruler(store)
    third.applying.give_up("the cluster was started anew")
    store.answer()
    assert third.record().state is PlanState.ABORTED


def test_a_deposed_master_and_a_stale_check_are_rejected(store: FakeStore) -> None:
    """The plan's znode is written with the check of the epoch; a plan checked under another epoch is checked again."""
    ruler = Ruler(store)
    with pytest.raises(RpcError, match="checked under epoch 3"):
        ruler.begin(1, 1, epoch=3)
    ruler.begin(2, 1)
    with pytest.raises(RpcError, match="plan-1 is being applied"):
        ruler.begin(1, 1, plan_id="plan-2")
    with pytest.raises(RpcError, match="no valid plan name"):
        ruler.begin(1, 1, plan_id="a/b")
    with pytest.raises(RpcError, match="is not being applied"):
        ruler.add(0, move(0), plan_id="plan-2")
    store.put(LAYOUT.epoch, b"", 5)
    with pytest.raises(Deposed):
        ruler.add(0, move(0))
    assert ruler.batches() == []


def test_a_plan_and_its_parts_are_bounded(store: FakeStore) -> None:
    """At the limit they are accepted, beyond it rejected."""
    ruler = Ruler(store)
    assert ruler.begin(MOVES_MAX, MOVES_MAX // catalog.MOVES_PER_BATCH).record.regions == MOVES_MAX
    with pytest.raises(RpcError, match="at most 200000"):
        ruler.begin(MOVES_MAX + 1, 1)
    with pytest.raises(RpcError, match="at most 2000"):
        ruler.add(0, *(move(9) for _ in range(catalog.MOVES_PER_BATCH + 1)))
    assert ruler.add(0, *(move(9) for _ in range(catalog.MOVES_PER_BATCH))).record.parts_done == 1


def test_a_plan_whose_parts_do_not_arrive_is_given_up(store: FakeStore) -> None:
    """Otherwise the balancer would pause forever; the received moves have ended by then."""
    ruler = Ruler(store)
    ruler.begin(4, 2)
    ruler.later(HANDOVER_MS)
    assert ruler.applying.running() == PLAN
    ruler.later(1)
    assert (ruler.applying.running(), ruler.record().state) == ("", PlanState.ABORTED)
    assert "0 of 2 parts" in ruler.record().note


def test_the_balancer_pauses_while_a_plan_is_applied(store: FakeStore) -> None:
    """It would undo the pending moves."""
    ruler = Ruler(store)
    balancing = Balancing(
        ruler.fence, ruler.assigner, BalancerConfig(), 1_000, lambda: ruler.now, ruler.applying.running
    )
    ruler.begin(1, 1)
    ruler.now += 1_000
    assert (balancing.tick(), balancing.report().plan) == ([], PLAN)
    ruler.do(ruler.applying.abort())
    assert (len(balancing.tick()), balancing.report().plan) == (4, "")


def test_a_round_of_many_regions_is_decided_in_several_calls(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of 100,000 regions took 0.3 s in one turn. The round begins anew when a server has changed."""
    monkeypatch.setattr(balancer, "COUNTED_AT_ONCE", 2)
    ruler = Ruler(store)
    balancing = Balancing(ruler.fence, ruler.assigner, BalancerConfig(), 1_000, lambda: ruler.now)
    ruler.now += 1_000

    def calls() -> int:
        count = 1
        while not balancing.tick():
            assert balancing.is_counting
            count += 1
        assert not balancing.is_counting
        return count

    assert balancing.tick() == []
    assert balancing.tick() == []
    next(iter(ruler.assigner.world.servers.values())).weight = 1.5
    alone = calls()
    ruler.now += 1_000
    assert calls() == alone
    ruler.now += 1_000
    assert balancing.tick() == []
    assert balancing.decided(result_of(balancing.deciding()))
    assert not balancing.is_counting


def test_a_round_is_not_continued_after_a_plan_was_applied(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on with counts from before the plan, and moved regions away from where they were due."""
    monkeypatch.setattr(balancer, "COUNTED_AT_ONCE", 2)
    ruler, running = Ruler(store), [""]
    balancing = Balancing(ruler.fence, ruler.assigner, BalancerConfig(), 1_000, lambda: ruler.now, lambda: running[0])
    ruler.now += 1_000
    assert balancing.tick() == []
    assert balancing.is_counting
    running[0] = PLAN
    assert balancing.tick() == []
    running[0] = ""
    assert not balancing.is_counting, "the next call begins a round"
