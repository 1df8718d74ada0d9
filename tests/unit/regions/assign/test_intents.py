"""Operators' requests are persisted and completed after any failover: moves, drains, disable, unassign, delete."""

from __future__ import annotations

import msgspec
import pytest

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.model import RegionState, TableIntent, TableState
from regions.transitions.states import Cause
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B, C = server("a"), server("b"), server("c")


def resting(*names: str, on: str = "a") -> ModelCluster:
    cluster = ModelCluster()
    cluster.put(*(region(name, on=at(on)) for name in names))
    return cluster


# --- moves (FW-03) ---------------------------------------------------------------------------------------------------


def test_accepted_moves_are_carried_out_and_their_batch_goes() -> None:
    cluster = resting("r1", "r2", "r3")
    cluster.start(A, B, C)
    cluster.accept(("r1", "a", "c"), ("r2", "a", "b"), ("r3", "a", ""))
    assert (cluster.where("r1"), cluster.where("r2")) == ("c", "b")
    assert cluster.where("r3") in ("b", "c")
    assert cluster.moves == {}
    assert cluster.assigner.moves_pending == 0


def test_moves_survive_the_master_between_acceptance_and_closing() -> None:
    """FW-03: named destinations are kept; moves that have begun or ended are not begun again."""
    cluster = resting("r1", "r2", "r3")
    cluster.silent = {"a"}
    cluster.start(A, B, C)
    cluster.accept(("r1", "a", "c"), ("r2", "a", "c"))
    assert cluster.where("r1") == "a", "the source has not answered"
    cluster.silent = set()
    cluster.successor()
    assert (cluster.where("r1"), cluster.where("r2"), cluster.where("r3")) == ("c", "c", "a")
    assert cluster.moves == {}
    closes = [order for sent in cluster.sent if isinstance(sent, fx.SendClose) for order in sent.orders]
    assert {order.destination for order in closes} == {at("c")}


def test_a_begun_move_keeps_its_destination_without_its_batch() -> None:
    """The batch is deleted once CLOSING is in the store: from then on the transition has the destination."""
    cluster = resting("r1")
    cluster.hanging = {"a"}
    cluster.start(A, B, C)
    cluster.accept(("r1", "a", "c"))
    assert cluster.state() is RegionState.CLOSING
    assert cluster.moves == {}
    cluster.hanging = set()
    cluster.successor()
    cluster.pass_time(5_000)
    assert cluster.where() == "c"


def test_a_dead_source_sends_the_region_to_the_moves_destination() -> None:
    """RF-02: the existing plan is followed."""
    cluster = resting("r1")
    cluster.silent = {"a"}
    cluster.start(A, B, C)
    cluster.accept(("r1", "a", "c"))
    cluster.kill("a")
    assert cluster.where() == "c"
    assert cluster.moves == {}


def test_a_move_of_a_region_that_is_elsewhere_by_now_is_over() -> None:
    cluster = resting("r1", on="b")
    cluster.start(A, B, C)
    cluster.accept(("r1", "a", "c"), ("gone", "a", "c"))
    assert cluster.where() == "b"
    assert cluster.moves == {}


def test_a_move_given_up_does_not_keep_its_batch() -> None:
    cluster = resting("r1", "r2")
    cluster.silent = {"a"}
    cluster.start(A, B)
    cluster.accept(("r1", "a", "b"), ("r2", "a", "b"))
    while cluster.moves:
        for sent in cluster.sent[-1:]:
            cluster.handle(ev.OrdersLost(sent.batch, "no answer"))
        cluster.pass_time(500)
        assert cluster.now < 2_000_000, "nothing is tried for ever"
    assert any("the move is canceled" in note for note in cluster.notes)


def test_a_cluster_startup_forgets_moves() -> None:
    cluster = resting("r1")
    cluster.accept(("r1", "a", "b"))
    cluster.assigner = type(cluster.assigner)(1, cluster.config)
    cluster.open.clear()
    cluster.servers = {"b": B}
    cluster.assigner.load(cluster.tables.values(), cluster.regions.values(), [B], [], [], cluster.now,
                          moves=list(cluster.moves.values()))  # fmt: skip
    cluster.assigner.begin(cluster.now, startup=True)
    cluster.run()
    assert (cluster.where(), cluster.moves) == ("b", {})


# --- drain -----------------------------------------------------------------------------------------------------------


def test_a_drain_goes_on_after_failover_and_stays() -> None:
    cluster = resting("r1", "r2", "r3")
    cluster.silent = {"a"}
    cluster.start(A, B, C)
    cluster.draining = ["a"]
    cluster.handle(ev.DrainingSeen(["a"]))
    cluster.silent = set()
    cluster.successor()
    assert "a" not in {cluster.where(name) for name in ("r1", "r2", "r3")}
    cluster.kill("b")
    assert {cluster.where(name) for name in ("r1", "r2", "r3")} == {"c"}, "a drained server gets nothing"


def test_a_drain_waits_for_a_server_that_may_have_the_regions() -> None:
    cluster = resting("r1", "r2")
    cluster.start(A)
    cluster.handle(ev.DrainingSeen(["a"]))
    assert (cluster.where("r1"), cluster.where("r2")) == ("a", "a"), "better served there than nowhere"
    problems = cluster.problems()
    assert problems == ["server a cannot be drained: no other server can take r1-0 and 1 more"]
    cluster.join(B)
    assert (cluster.where("r1"), cluster.where("r2")) == ("b", "b")
    assert cluster.problems() == []


def test_undrain_stops_what_has_not_begun() -> None:
    cluster = resting("r1")
    cluster.silent = {"a"}
    cluster.start(A, B)
    cluster.handle(ev.DrainingSeen(["a"]))
    assert cluster.assigner.world.active
    cluster.handle(ev.DrainingSeen([]))
    cluster.pass_time(30_000)
    assert cluster.where() == "a"
    assert cluster.assigner.world.active == {}


# Fails if `MoveBook.drop` keeps the plan: the drain then counted as a step of the plan whose move was canceled.
def test_a_drain_after_a_canceled_move_is_no_step_of_its_plan() -> None:
    cluster = resting("r1")
    cluster.open.clear()  # so the server refuses to close the region, and the move is canceled
    cluster.start(A, B)
    cluster.handle(ev.MoveRequested("r1-0", "b", plan_id="p1", reason="plan"))
    cluster.handle(ev.DrainingSeen(["a"]))
    orders = [order for sent in cluster.sent if isinstance(sent, fx.SendClose) for order in sent.orders]
    assert [(order.reason, order.plan_id) for order in orders] == [("plan", "p1"), ("drain", "")]


def test_a_leaving_server_is_emptied_like_a_drained_one() -> None:
    """A clean stop: the server's registration says so, and its regions move while it still serves."""
    cluster = resting("r1", "r2")
    cluster.start(A, B)
    leaving = msgspec.structs.replace(A, leaving=True)
    cluster.servers["a"] = leaving
    cluster.handle(ev.ServerUp(leaving))
    assert (cluster.where("r1"), cluster.where("r2")) == ("b", "b")
    orders = [order for sent in cluster.sent if isinstance(sent, fx.SendClose) for order in sent.orders]
    assert {order.reason for order in orders} == {"server stops"}
    cluster.kill("a")
    assert all(write.cause is not Cause.SERVER_DEATH for write in cluster.writes)


# --- disable, unassign, delete ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, *RegionState])
def test_a_disabled_table_stays_disabled_through_failover(state: RegionState | None) -> None:
    """X6, ED-01 to ED-03, FW-04: in whatever state the new master finds a region, it ends closed; enable opens it."""
    cluster = ModelCluster()
    open_at = {None: at("a"), RegionState.CLOSING: at("a"), RegionState.OPENED: at("b")}.get(state)
    cluster.put(region(on=open_at))
    if state is not None:
        cluster.put_transition(transition(state, at("a"), at("b")))
    record, version = cluster.tables["t1"]
    cluster.tables["t1"] = (msgspec.structs.replace(record, intent=TableIntent.DISABLED), version + 1)
    cluster.start(A, B)
    if state is RegionState.OPENING:
        cluster.kill("b")  # a region that was being opened there is not reopened anywhere
    cluster.pass_time(40_000)
    assert (cluster.open, cluster.unassigned) == ({}, {})
    cluster.set_intent(TableIntent.ENABLED)
    assert len(cluster.open) == 1


def test_an_unassigned_region_stays_closed_through_death_and_failover() -> None:
    """FW-04 for one region; its neighbours are served."""
    cluster = resting("r1", "r2")
    cluster.start(A, B)
    cluster.set_unassigned("r1", True)
    assert (cluster.where("r1"), cluster.where("r2")) == (None, "a")
    assert cluster.unassigned == {}
    cluster.successor()
    cluster.kill("a")
    assert (cluster.where("r1"), cluster.where("r2")) == (None, "b")
    cluster.set_intent(TableIntent.DISABLED)
    cluster.set_intent(TableIntent.ENABLED)
    assert cluster.where("r1") is None, "enabling the table does not overrule it"
    cluster.set_unassigned("r1", False)
    assert cluster.where("r1") == "b"


def test_a_close_is_not_deleted_after_the_region_is_wanted_again() -> None:
    """X3: the delete names the version of the record that has the region's own intent, in the same multi."""
    cluster = ModelCluster()
    record = msgspec.structs.replace(region(), unassigned=True)
    cluster.put(record)
    cluster.put_transition(transition(RegionState.CLOSED, at("a")))
    cluster.start(A, B, run=False)
    [effect] = cluster.assigner.take(cluster.now)
    assert isinstance(effect, fx.DeleteTransition)
    assert effect.region is not None
    assert effect.region_version == 0
    assert effect.table_check == ("t1", 0)


def test_a_deleted_table_is_closed_and_forgotten() -> None:
    """DD-06: the table is REMOVED, its regions are closed, and the completion is recorded for later masters."""
    cluster = resting("r1", "r2")
    cluster.put_transition(transition(RegionState.OPENING, at("a"), at("b"), "r3"))
    cluster.put(region("r3"))
    cluster.start(A, B)
    cluster.change_table(state=TableState.REMOVED)
    assert cluster.tables["t1"][0].finished_ms == 0, "r3 is still being opened"
    cluster.kill("b")
    assert cluster.open == {}
    assert cluster.unassigned == {}
    assert cluster.tables["t1"][0].finished_ms > 0
    world = cluster.assigner.world
    assert not any(map(len, (world.tables, world.names, world.regions, world.replicas, world.active)))


def test_a_new_master_finishes_a_delete() -> None:
    cluster = resting("r1")
    cluster.silent = {"a"}
    cluster.start(A, B)
    cluster.change_table(state=TableState.REMOVED)
    cluster.silent = set()
    cluster.successor()
    assert cluster.open == {}
    assert cluster.tables["t1"][0].finished_ms > 0


def test_a_renamed_table_is_found_by_its_new_name_only() -> None:
    """DD-07 for regions: nothing moves."""
    cluster = resting("r1")
    cluster.start(A)
    cluster.change_table(name="orders2", schema_version=1)
    world = cluster.assigner.world
    assert list(world.names) == ["orders2"]
    assert cluster.where() == "a"
    assert cluster.writes == []
