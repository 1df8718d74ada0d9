"""The assigner on a model cluster: startup, moves, failures, deadlines, intents. Docstrings name the requirements."""

from __future__ import annotations

import msgspec
import pytest

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.messages import OpenOrder, OrderOutcome, OrderResult
from regions.records.model import (
    Intent,
    RegionState,
    ReplicaLocation,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.transitions.states import Actor, Cause
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B, C = server("a"), server("b"), server("c")


def test_new_regions_are_opened_evenly() -> None:
    """RT-08, RT-09, RT-10, RT-18, RT-19: OFFLINE, OPEN in batches, OPENED, deleted."""
    cluster = ModelCluster()
    cluster.put(*(region(f"r{n}") for n in range(9)))
    cluster.start(A, B, C)
    assert cluster.unassigned == {}
    assert sorted(cluster.open.values()) == sorted([at("a")] * 3 + [at("b")] * 3 + [at("c")] * 3)
    assert len(cluster.sent) == 3
    table = cluster.assigner.world.tables["t1"]
    assert (table.replicas, table.open_replicas) == (9, 9)


def test_many_new_regions_ask_for_a_bulk_plan_once() -> None:
    """RT-06, RT-07: the plan's placements are used; a region without one, or with a dead server, is placed singly."""
    cluster = ModelCluster(AssignerConfig(bulk_min=4))
    cluster.put(*(region(f"r{n}") for n in range(4)))
    cluster.start(A, B)
    assert [len(plan.keys) for plan in cluster.plans] == [4]
    assert cluster.writes == []
    cluster.handle(ev.PlanReady("p1", cluster.plans[0].keys, {"r0-0": "b", "r1-0": "b", "r2-0": "gone"}))
    assert (cluster.where("r0"), cluster.where("r1")) == ("b", "b")
    assert cluster.where("r2") is not None
    assert cluster.where("r3") is not None
    assert {write.record.plan_id for write in cluster.writes if isinstance(write, fx.WriteOffline)} == {"p1"}


def test_system_tables_go_first_and_do_not_wait_for_a_plan() -> None:
    """RT-05."""
    cluster = ModelCluster(AssignerConfig(bulk_min=2))
    cluster.tables["sys"] = (TableRecord("sys", "system", system=True), 0)
    cluster.put(region("r1"), region("r2"), region("r3"), region("s1", table_id="sys"))
    cluster.start(A)
    assert cluster.where("s1") == "a"
    assert [plan.keys for plan in cluster.plans] == [["r1-0", "r2-0", "r3-0"]]


def test_system_tables_are_placed_before_the_others() -> None:
    """RT-05: also among regions that are placed one by one, in any order."""
    cluster = ModelCluster()
    cluster.tables["sys"] = (TableRecord("sys", "system", system=True), 0)
    cluster.put(region("r1"), region("s1", table_id="sys"), region("r2"), region("s2", table_id="sys"))
    cluster.start(A)
    placed = [write.key for write in cluster.writes if isinstance(write, fx.WriteOffline)]
    assert placed == ["s1-0", "s2-0", "r1-0", "r2-0"]


def test_system_tables_are_placed_before_those_that_the_plan_leaves_out() -> None:
    """RT-05: new regions wait for the plan, those of a dead server do not; system tables come before both."""
    cluster = ModelCluster(AssignerConfig(bulk_min=2))
    cluster.tables["sys"] = (TableRecord("sys", "system", system=True), 0)
    cluster.put(region("r1", on=at("b")), region("r2"), region("r3"), region("s1", table_id="sys"))
    cluster.open.clear()
    cluster.start(A)
    placed = [write.key for write in cluster.writes if isinstance(write, fx.WriteOffline)]
    assert placed == ["s1-0", "r1-0"]
    assert [plan.keys for plan in cluster.plans] == [["r2-0", "r3-0"]]


def test_system_tables_overtake_the_orders_that_wait_for_a_slot() -> None:
    """RT-05: a later region of a system table is the next that its server gets."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, batch_max=1, busy_max=1))
    cluster.silent = {"a"}
    cluster.put(region("r1"), region("r2"), region("r3"))
    cluster.start(A)
    assert [order.transition.key for order in _opens(cluster)] == ["r1-0"]
    cluster.tables["sys"] = (TableRecord("sys", "system", system=True), 0)
    cluster.handle(ev.TableSeen(*cluster.tables["sys"]))
    cluster.put(region("s1", table_id="sys"))
    cluster.handle(ev.RegionSeen(*cluster.regions["s1"]))
    cluster.silent = set()
    first = cluster.sent[0]
    cluster._answer(first)
    cluster.run()
    assert [order.transition.key for order in _opens(cluster)] == ["r1-0", "s1-0", "r2-0", "r3-0"]


def _opens(cluster: ModelCluster) -> list[OpenOrder]:
    return [order for sent in cluster.sent if isinstance(sent, fx.SendOpen) for order in sent.orders]


def test_no_server_strands_until_one_comes() -> None:
    cluster = ModelCluster()
    cluster.put(region())
    cluster.start()
    assert cluster.problems() == ["r1-0 has no eligible server: there is no live server"]
    cluster.join(A)
    assert cluster.where() == "a"
    assert cluster.assigner.unplaced == 0


def test_move_goes_through_close_offline_and_open() -> None:
    """RT-15 to RT-19 and X2."""
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.start(A, B, C)
    assert cluster.writes == []
    cluster.handle(ev.MoveRequested("r1-0", "c"))
    assert cluster.where() == "c"
    causes = [write.cause for write in cluster.writes]
    assert causes == [Cause.MOVE_CONTINUES, Cause.DONE]
    seen = [(step.actor, step.after) for step in cluster.assigner.history]
    assert seen == [
        (Actor.SERVER, RegionState.CLOSED),
        (Actor.MASTER, RegionState.OFFLINE),
        (Actor.SERVER, RegionState.OPENED),
        (Actor.MASTER, None),
    ]


def test_move_anywhere_leaves_the_server() -> None:
    cluster = ModelCluster()
    cluster.put(region(on=at("a")), region("r2", on=at("b")))
    cluster.start(A, B, C)
    cluster.handle(ev.MoveRequested("r1-0"))
    assert cluster.where() == "c"


def test_move_is_given_up_when_the_server_refuses() -> None:
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.open.clear()
    cluster.start(A, B)
    cluster.handle(ev.MoveRequested("r1-0", "b"))
    assert any("refused to close" in note for note in cluster.notes)
    assert cluster.assigner.world.active == {}


def test_a_refused_close_of_a_disabled_table_is_asked_for_again() -> None:
    """X6, X10: the intent remains, whatever a single answer was."""
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.open.clear()
    cluster.start(A, B)
    cluster.set_intent(TableIntent.DISABLED)
    assert any("repeating the order" in note for note in cluster.notes)
    order = cluster.assigner.world.replicas["r1-0"].order
    assert order is not None
    assert order.next_ms > cluster.now


def test_dead_server_is_emptied_to_the_others() -> None:
    """RF-01, RF-02, RF-03, RT-12."""
    cluster = ModelCluster()
    cluster.put(*(region(f"r{n}", on=at("a")) for n in range(4)), region("other", on=at("b")))
    cluster.start(A, B, C)
    cluster.kill("a")
    assert {cluster.where(f"r{n}") for n in range(4)} == {"b", "c"}
    assert cluster.where("other") == "b"


def test_restarted_server_gets_its_regions_back() -> None:
    """A new start of the same uuid: the old one is dead, and retained placement brings the regions back."""
    cluster = ModelCluster()
    cluster.put(region("r1", on=at("a")), region("r2", on=at("a")), region("r3", on=at("b")))
    cluster.start(A, B, C)
    cluster.open = {"r3-0": at("b")}
    cluster.join(server("a", 2))
    assert (cluster.where("r1"), cluster.where("r2")) == ("a", "a")
    assert cluster.open["r1-0"] == at("a", 2)


def test_silent_destination_is_replaced_by_a_different_server() -> None:
    """RT-11: the server that did not begin is not chosen again, although it has the fewest orders."""
    cluster = ModelCluster()
    cluster.silent = {"a"}
    cluster.put(region(), *(region(f"b{n}", on=at("b")) for n in range(4)))
    cluster.start(A, B)
    assert cluster.state() is RegionState.OFFLINE
    cluster.pass_time(cluster.config.start_timeout_ms + 2_000)
    assert cluster.where() == "b"
    step = [one for one in cluster.assigner.history if one.cause is Cause.DEADLINE]
    assert [one.attempt for one in step] == [1]


def test_an_order_carries_the_time_that_its_master_gives_the_open() -> None:
    """X11: from this time the server derives how often to report progress; a default could be too late for a shorter
    time."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, open_timeout_ms=7_000))
    cluster.put(region())
    cluster.start(A)
    assert [order.open_timeout_ms for order in _opens(cluster)] == [7_000]


def test_lost_answers_are_asked_about_again() -> None:
    """X10, RT-20: the order is repeated with growing pauses."""
    cluster = ModelCluster()
    cluster.silent = {"a"}
    cluster.put(region(on=at("a")))
    cluster.start(A, B)
    cluster.handle(ev.MoveRequested("r1-0", "b"))
    for _ in range(3):
        batch = cluster.sent[-1].batch
        cluster.handle(ev.OrdersLost(batch, "no answer"))
        cluster.pass_time(2_000)
    assert len(cluster.sent) >= 3
    cluster.silent = set()
    cluster.handle(ev.OrdersLost(cluster.sent[-1].batch, "no answer"))
    cluster.pass_time(5_000)
    assert cluster.where() == "b"


def test_what_a_new_master_finds_is_no_step() -> None:
    """`rk history`: the steps were recorded by the masters that took them, or the znode keeps them."""
    cluster = ModelCluster()
    cluster.put(region())
    found = TransitionRecord("r1", "t1", 0, RegionState.OPENED, None, at("a"), took=(1, 2))
    cluster.unassigned["r1-0"] = (found, 2)
    cluster.start(A)
    assert [(step.actor, step.after) for step in cluster.assigner.history] == [(Actor.MASTER, None)]
    [write] = cluster.writes
    assert (write.former, write.version) == (found, 2), "the multi that deletes it tells the server's steps"


def test_a_forced_step_says_which_version_it_has_led_to() -> None:
    """The steps kept by the znode are counted from that version."""
    cluster = ModelCluster()
    cluster.failing = {"a": "disk on fire"}
    cluster.put(region())
    cluster.start(A, B)
    cluster.pass_time(2_000)
    created, forced = (one for one in cluster.writes if isinstance(one, fx.WriteOffline))
    assert (created.record.base, created.former) == (0, None)
    assert forced.former is not None
    assert forced.former.state is RegionState.OPENING
    assert forced.record.base == forced.version + 1 == 2


def test_failed_open_is_tried_elsewhere() -> None:
    """X11: with the error and the attempt in the payload."""
    cluster = ModelCluster()
    cluster.failing = {"a": "disk on fire"}
    cluster.put(region())
    cluster.start(A, B)
    cluster.pass_time(2_000)
    assert cluster.where() == "b"
    forced = [one for one in cluster.assigner.history if one.cause is Cause.OPEN_FAILED]
    assert [(one.attempt, one.error) for one in forced] == [(1, "disk on fire")]


def test_poison_region_is_parked_and_can_be_retried() -> None:
    """X11: attempts are bounded, the reason stays in the payload, other regions continue, and an operator's retry
    works."""
    cluster = ModelCluster()
    cluster.failing = {"a": "poison", "b": "poison"}
    cluster.put(region())
    cluster.start(A, B)
    cluster.pass_time(300_000)
    record = cluster.unassigned["r1-0"][0]
    assert (record.state, record.parked, record.last_error) == (RegionState.OFFLINE, True, "poison")
    assert record.attempt == cluster.config.attempts_max
    assert cluster.assigner.world.tables["t1"].parked == 1
    assert "parked after 8 attempts: poison" in cluster.problems()[0].replace("is ", "")
    sent = len(cluster.sent)
    cluster.successor()
    cluster.pass_time(60_000)
    assert len(cluster.sent) == sent
    cluster.failing = {}
    cluster.handle(ev.RetryRequested("r1-0"))
    assert cluster.where() in ("a", "b")


def test_opening_without_progress_is_forced_offline_and_progress_extends() -> None:
    """RT-11 for OPENING: a step from OPENING to OPENING counts as progress."""
    cluster = ModelCluster()
    cluster.silent = {"a", "b"}
    cluster.put(region())
    cluster.put_transition(transition(RegionState.OPENING, None, at("a")))
    cluster.start(A, B)
    cluster.pass_time(50_000)
    record, version = cluster.unassigned["r1-0"]
    cluster.unassigned["r1-0"] = (record, version + 1)
    cluster.see()
    cluster.pass_time(50_000)
    assert cluster.state() is RegionState.OPENING
    cluster.pass_time(15_000)
    record = cluster.unassigned["r1-0"][0]
    assert (record.state, record.destination) == (RegionState.OFFLINE, at("b"))


def test_late_close_is_never_forced_while_the_source_lives() -> None:
    """X1, X10: the order is repeated, the close is shown as a problem, and the region is never forced OFFLINE."""
    cluster = ModelCluster()
    cluster.silent = {"a"}
    cluster.put(region(on=at("a")))
    cluster.put_transition(transition(RegionState.CLOSING, at("a"), at("b")))
    cluster.start(A, B)
    cluster.pass_time(200_000)
    assert cluster.state() is RegionState.CLOSING
    assert "s late" in cluster.problems()[0]
    assert cluster.sent


def test_disable_closes_everything_and_enable_opens_it_where_it_was() -> None:
    """ED-01, ED-02, X3: CLOSED is deleted with a check of the intent, the location is removed from the record."""
    cluster = ModelCluster()
    cluster.put(region("r1", on=at("a")), region("r2", on=at("b")))
    cluster.start(A, B, C)
    cluster.set_intent(TableIntent.DISABLED)
    assert cluster.open == {}
    assert cluster.unassigned == {}
    assert all(record.location(0).incarnation is None for record, _ in cluster.regions.values())
    deletes = [one for one in cluster.writes if isinstance(one, fx.DeleteTransition)]
    assert [one.table_check for one in deletes] == [("t1", 1), ("t1", 1)]
    cluster.set_intent(TableIntent.ENABLED)
    assert (cluster.where("r1"), cluster.where("r2")) == ("a", "b")


@pytest.mark.parametrize("state", list(RegionState))
def test_disable_rides_over_failover_in_every_state(state: RegionState) -> None:
    """X6: in whatever state the new master loads a transition, a disabled table ends closed."""
    cluster = ModelCluster()
    record = TableRecord("t1", "orders", intent=TableIntent.DISABLED)
    cluster.tables["t1"] = (record, 7)
    cluster.put(region(on=at("a")))
    if state in (RegionState.OFFLINE, RegionState.OPENING, RegionState.CLOSED):
        cluster.open.clear()
    holder = at("a")
    source = holder if state in (RegionState.CLOSING, RegionState.CLOSED) else None
    cluster.put_transition(transition(state, source, None if source else holder, intent=Intent.CLOSE))
    cluster.start(A, B)
    if state is RegionState.OPENING:
        given = cluster.unassigned["r1-0"][0]
        opened = transition(RegionState.OPENED, None, given.destination)
        cluster.step(Actor.SERVER, opened, 3, Cause.OPEN_DONE)
        cluster.open["r1-0"] = holder
        cluster.see()
        cluster.run()
    cluster.pass_time(10_000)
    assert cluster.unassigned == {}
    assert cluster.open == {}
    assert cluster.regions["r1"][0].location(0).incarnation is None


def test_disable_while_the_holder_dies_ends_closed() -> None:
    """X6 with RF-05: CLOSING on a dead source is set to OFFLINE and deleted, not reopened."""
    cluster = ModelCluster()
    cluster.silent = {"a"}
    cluster.tables["t1"] = (TableRecord("t1", "orders", intent=TableIntent.DISABLED), 7)
    cluster.put(region(on=at("a")))
    cluster.put_transition(transition(RegionState.CLOSING, at("a"), None, intent=Intent.CLOSE))
    cluster.start(A, B)
    cluster.kill("a")
    assert cluster.unassigned == {}
    assert cluster.open == {}


def test_draining_server_is_emptied() -> None:
    cluster = ModelCluster()
    cluster.put(region("r1", on=at("a")), region("r2", on=at("a")), region("r3", on=at("b")))
    cluster.start(A, B)
    cluster.handle(ev.DrainingSeen(["a"]))
    assert {cluster.where(f"r{n}") for n in (1, 2, 3)} == {"b"}


def test_a_replica_leaves_a_draining_server_when_its_peer_has_made_room() -> None:
    """A moving peer occupies both its servers. A replica without a possible server is tried again when the peer has
    arrived."""
    cluster = ModelCluster()
    cluster.tables["t1"] = (msgspec.structs.replace(cluster.tables["t1"][0], replication=2), 0)
    places = (ReplicaLocation(0, "b", 1, 1), ReplicaLocation(1, "a", 1, 1))
    cluster.put(msgspec.structs.replace(region(), replicas=places))
    cluster.put_transition(transition(RegionState.CLOSING, at("b"), at("c")))
    cluster.silent = {"b"}
    cluster.start(A, B, C)
    cluster.handle(ev.DrainingSeen(["a"]))
    assert cluster.open == {"r1-0": at("b"), "r1-1": at("a")}
    cluster.silent = set()
    cluster.pass_time(60_000)
    assert cluster.open == {"r1-0": at("c"), "r1-1": at("b")}


def test_orders_are_throttled_per_server() -> None:
    """A server never works on more than `busy_max` orders, in batches of at most `batch_max`."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, batch_max=3, busy_max=5))
    cluster.silent = {"a"}
    cluster.put(*(region(f"r{n}") for n in range(12)))
    cluster.start(A)
    assert [len(one.orders) for one in cluster.sent] == [3, 2]
    record = cluster.sent[0].orders[0]
    assert not isinstance(record, str)
    cluster.silent = set()
    for sent in list(cluster.sent):
        results = [cluster.obey(A, order) for order in sent.orders]
        cluster.assigner.handle(ev.OrdersAnswered(sent.batch, results), cluster.now)
        for result in results:
            cluster.see(result.region_id)
    cluster.run()
    assert len(cluster.open) == 12
    assert max(len(one.orders) for one in cluster.sent) == 3


def test_lost_race_is_read_again_and_decided_again() -> None:
    """RT-30: our write names an old version; the winner's state is read, and the next decision is based on it."""
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.start(A, B)
    cluster.silent = {"b"}
    cluster.put_transition(transition(RegionState.CLOSED, at("a"), at("b")), 1)
    cluster.open.clear()
    cluster.kill("a", run=False)
    cluster.run()
    assert cluster.unassigned["r1-0"][0].state is RegionState.OFFLINE
    assert cluster.unassigned["r1-0"][0].destination == at("b")
    assert [write.before for write in cluster.writes] == [None, RegionState.CLOSED]


def test_refused_open_that_the_store_does_not_explain_counts_as_failed() -> None:
    cluster = ModelCluster()
    cluster.put(region())
    cluster.silent = {"a"}
    cluster.start(A, B)
    refused = OrderResult("r1", 0, OrderOutcome.REFUSED, error="no lease")
    cluster.handle(ev.OrdersAnswered(cluster.sent[0].batch, [refused]))
    cluster.pass_time(2_000)
    assert cluster.where() == "b"


def test_suspended_assigner_replaces_nothing() -> None:
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.start(A, B)
    cluster.assigner.suspend()
    cluster.kill("a")
    assert cluster.writes == []


def test_successor_finishes_what_the_predecessor_began() -> None:
    """RT-13: after any write of the first master, a second one finishes the work from the store alone."""
    for stop_after in range(1, 9):
        cluster = ModelCluster()
        cluster.put(region("r1", on=at("a")), region("r2"), region("r3"))
        cluster.start(A, B, C, run=False)
        cluster.assigner.handle(ev.MoveRequested("r1-0", "b"), cluster.now)
        carried = 0
        while carried < stop_after:
            effects = cluster.assigner.take(cluster.now)
            if not effects:
                break
            for effect in effects[: stop_after - carried]:
                cluster._carry_out(effect)
                carried += 1
        cluster.successor()
        cluster.pass_time(120_000)
        assert cluster.unassigned == {}, stop_after
        assert len(cluster.open) == 3, stop_after


def test_drain_closes_a_bounded_number_at_a_time() -> None:
    """Moving regions are not served meanwhile, so a drain moves its regions in portions."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, closes_max=2))
    cluster.put(*(region(f"r{n}", on=at("a")) for n in range(7)))
    cluster.start(A, B)
    cluster.silent = {"a"}
    cluster.handle(ev.DrainingSeen(["a"]))
    assert [len(one.orders) for one in cluster.sent] == [2]
    cluster.silent = set()
    cluster.handle(ev.OrdersLost(cluster.sent[0].batch, "no answer"))
    cluster.pass_time(3_000)
    assert {cluster.where(f"r{n}") for n in range(7)} == {"b"}


def test_startup_plans_all_regions_whoever_had_them() -> None:
    """RT-06: regions with dead locations are not placed one by one; the locations still count as last places."""
    cluster = ModelCluster(AssignerConfig(bulk_min=2))
    cluster.put(region("r1", on=at("a", 9)), region("r2", on=at("b", 9)))
    cluster.open.clear()
    cluster.assigner.load(cluster.tables.values(), cluster.regions.values(), [A, B], [], [], cluster.now)
    cluster.servers = {"a": A, "b": B}
    cluster.assigner.begin(cluster.now, startup=True)
    cluster.run()
    assert [plan.keys for plan in cluster.plans] == [["r1-0", "r2-0"]]
    cluster.handle(ev.PlanReady("p", cluster.plans[0].keys, {}))
    assert (cluster.where("r1"), cluster.where("r2")) == ("a", "b")


@pytest.mark.parametrize("returns", [False, True], ids=["dies", "starts again"])
def test_a_removed_table_ends_with_the_server_that_had_its_last_region(returns: bool) -> None:
    """DD-06: no server is left to close the region; the table is still marked as finished."""
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.start(A, B)
    cluster.silent.add("a")
    cluster.change_table(state=TableState.REMOVED)
    assert not cluster.tables["t1"][0].finished_ms
    if returns:
        cluster.open.clear()
        cluster.join(server("a", 2))
    else:
        cluster.kill("a")
    assert cluster.tables["t1"][0].finished_ms


def test_a_refused_write_is_not_repeated_before_the_transition_was_read() -> None:
    """X6, DD-06: a table is deleted while a server begins to open its region; the region's record is read first, which
    says nothing about the transition. If the write were repeated with the rejected version, it would be repeated
    forever."""
    cluster = ModelCluster()
    cluster.put(region())
    cluster.silent.add("a")
    cluster.start(A)
    offline, version = cluster.unassigned["r1-0"]
    cluster.unassigned["r1-0"] = (msgspec.structs.replace(offline, state=RegionState.OPENING), version + 1)
    removed = msgspec.structs.replace(cluster.tables["t1"][0], state=TableState.REMOVED)
    cluster.assigner.handle(ev.TableSeen(removed, 1), cluster.now)
    (delete,) = cluster.assigner.take(cluster.now)
    assert isinstance(delete, fx.DeleteTransition)
    cluster.assigner.handle(ev.WriteFailed("r1-0"), cluster.now)
    assert [type(one) for one in cluster.assigner.take(cluster.now)] == [fx.ReadTransition, fx.ReadRegion]
    cluster.assigner.handle(ev.RegionSeen(*cluster.regions["r1"]), cluster.now)
    assert cluster.assigner.take(cluster.now) == []
    cluster.see()
    assert cluster.assigner.world.replicas["r1-0"].transition is not None
    cluster.unassigned["r1-0"] = (msgspec.structs.replace(offline, state=RegionState.OPENED), version + 2)
    cluster.silent.clear()
    cluster.open["r1-0"] = at("a")
    opened = cluster.regions["r1"][0].with_location(ReplicaLocation(0, "a", 1))
    cluster.regions["r1"] = (opened, cluster.regions["r1"][1] + 1)
    cluster.tables["t1"] = (removed, 1)
    cluster.handle(ev.TransitionRead("r1-0", *cluster.unassigned["r1-0"]))
    assert cluster.unassigned == {}
    assert cluster.open == {}
