"""A tick looks at the orders that have a time, not at those that wait for a slot of their server (issue 20)."""

from __future__ import annotations

import msgspec

from regions.assign.assigner import ACTED_MAX, Assigner
from regions.assign.orders import is_one_short_of_orders
from regions.assign.selection import PLACED_MAX
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.records.model import RegionRecord, RegionState, TableRecord, TableState, TransitionRecord
from tests.unit.regions.model_cluster import ModelCluster, at, region, server

BUSY = 4
REGIONS = 20


def full_server() -> ModelCluster:
    """Return a server that accepts orders for all its slots and does nothing; the other regions wait."""
    cluster = ModelCluster(AssignerConfig(batch_max=2, busy_max=BUSY, bulk_min=1_000))
    cluster.put(*(region(f"r{number}") for number in range(REGIONS)))
    cluster.silent = {"a"}
    cluster.start(server("a"))
    return cluster


def test_orders_that_wait_for_a_slot_cost_nothing() -> None:
    """Edit that fails: `OrderBook.time` times every order."""
    cluster = full_server()
    orders = cluster.assigner._orders
    assert len(cluster.assigner.world.active) == REGIONS
    assert len(list(orders.timed(REGIONS))) == BUSY
    cluster.assigner.validate()


def test_each_order_has_its_turn_in_a_round() -> None:
    """Edit that fails: every call of `timed` begins a round."""
    orders = full_server().assigner._orders
    found = [one.key for _ in range(BUSY) for one in orders.timed(1)]
    assert len(set(found)) == BUSY
    assert [one.key for one in orders.timed(BUSY)] == found


def test_an_open_by_an_earlier_master_has_its_deadline_though_the_order_waits() -> None:
    """A server that works on a transition is late from the last change on, whether we have sent an order or not."""
    cluster = full_server()
    [waiting] = [one for one in cluster.assigner.world.active.values() if one.key == f"r{REGIONS - 1}-0"]
    assert waiting.order is not None
    assert waiting.order.first_sent_ms == 0
    record = waiting.transition
    assert record is not None
    assert record.state is RegionState.OFFLINE
    orders = cluster.assigner._orders
    assert waiting not in list(orders.timed(REGIONS))
    begun = msgspec.structs.replace(record, state=RegionState.OPENING)
    cluster.handle(ev.TransitionRead(f"{record.region_id}-0", begun, waiting.version + 1))
    assert waiting in list(orders.timed(REGIONS))


def of_server(state: RegionState, count: int, uuid: str) -> Assigner:
    """Return an assigner that has taken over that many transitions to a server; `a` and `b` live."""
    assigner = Assigner(5)
    bounds = [(f"{n:04}" if n else "", f"{n + 1:04}" if n < count - 1 else "") for n in range(count)]
    regions = [RegionRecord("t", f"t.{n:04}", *bounds[n]) for n in range(count)]
    moving = [TransitionRecord(one.region_id, "t", 0, state, destination=at(uuid)) for one in regions]
    assigner.load(
        [(TableRecord("t", "t", regions=count), 0)],
        [(one, 0) for one in regions],
        [server("a"), server("b")],
        [(one, 0) for one in moving],
        [],
        1_000,
    )
    assigner.begin(1_000)
    return assigner


def placed(assigner: Assigner) -> int:
    return sum(isinstance(one, fx.WriteOffline) for one in assigner.take(1_000_000))


# Fails without the comparison with ACTED_MAX: after a pause of the store the master did nothing else for seconds.
def test_orders_that_are_all_late_are_followed_up_a_part_in_each_turn() -> None:
    assigner = of_server(RegionState.OPENING, 2 * ACTED_MAX + 1, "a")
    assert placed(assigner) == 0
    assigner.tick(1_000_000)
    found = [placed(assigner)]
    while assigner.has_unchecked:
        assigner.check_orders(1_000_000)
        found.append(placed(assigner))
    assert found == [ACTED_MAX, ACTED_MAX, 1]


# Fails without PLACED_MAX in `Selection.take`.
def test_the_regions_of_dead_servers_are_placed_a_part_in_each_turn() -> None:
    assigner = of_server(RegionState.OFFLINE, 2 * PLACED_MAX + 1, "dead")
    found = [placed(assigner)]
    while assigner.has_selected:
        assigner.validate()
        found.append(placed(assigner))
    assert found == [PLACED_MAX, PLACED_MAX, 1]
    assert assigner.unplaced == 0


# Fails if `_select` appends the regions of system tables.
def test_a_region_of_a_system_table_goes_before_those_that_are_selected_already() -> None:
    assigner = of_server(RegionState.OFFLINE, 2 * PLACED_MAX, "dead")
    placed(assigner)
    assigner.handle(ev.TableSeen(TableRecord("s", "s", system=True), 0, [(RegionRecord("s", "s.0"), 0)]), 1_000_000)
    [first, *_] = [one for one in assigner.take(1_000_000) if isinstance(one, fx.WriteOffline)]
    assert first.record.region_id == "s.0"


def test_placements_wait_until_one_of_their_servers_is_short_of_orders() -> None:
    """A server that opens nothing does not keep the others from their regions, and a dead one counts for nothing.

    Edits that make this fail: all servers must be short of orders, or none of them living is not enough.
    """
    cluster = full_server()
    world, waiting = cluster.assigner.world, REGIONS - BUSY
    assert not is_one_short_of_orders(world, ["a"], waiting)
    assert is_one_short_of_orders(world, ["a"], waiting + 1)
    assert not is_one_short_of_orders(world, ["a", "dead"], waiting)
    assert is_one_short_of_orders(world, ["dead"], waiting)
    cluster.handle(ev.ServerUp(server("b")))
    assert is_one_short_of_orders(world, ["a", "b"], waiting)


def test_a_suspended_assigner_asks_for_no_further_turn() -> None:
    """The active master would begin one turn after the other until the cluster has stopped.

    Edits that make this fail: `has_selected` or `has_unchecked` does not ask whether the assigner is suspended.
    """
    placing = of_server(RegionState.OFFLINE, PLACED_MAX + 1, "dead")
    placed(placing)
    late = of_server(RegionState.OPENING, ACTED_MAX + 1, "a")
    placed(late)
    late.tick(1_000_000)
    assert (placing.has_selected, late.has_unchecked) == (True, True)
    for assigner in (placing, late):
        assigner.suspend()
        assert not assigner.has_selected
        assert not assigner.has_unchecked


def test_regions_that_come_again_while_their_plan_is_computed_are_placed() -> None:
    """A table may be dropped and undeleted before a plan has placed its regions.

    Edit that makes this fail: `Selection.add` ignores every replica whose key waits for a plan.
    """
    assigner = Assigner(5, AssignerConfig(bulk_min=2))
    record = TableRecord("t", "t", regions=2)
    regions = [(RegionRecord("t", "t.0", "", "m"), 0), (RegionRecord("t", "t.1", "m", ""), 0)]
    assigner.load([(record, 0)], regions, [server("a")], [], [], 1_000)
    assigner.begin(1_000)
    [asked] = [one for one in assigner.take(1_000) if isinstance(one, fx.RequestPlan)]
    assigner.handle(ev.TableSeen(msgspec.structs.replace(record, state=TableState.REMOVED), 1), 2_000)
    assigner.handle(ev.FinishAnswered("t", True), 2_000)
    assigner.handle(ev.TableSeen(record, 2, regions), 3_000)
    assigner.validate()
    assigner.handle(ev.PlanReady("p", asked.keys, dict.fromkeys(asked.keys, "a")), 4_000)
    [again] = [one for one in assigner.take(5_000) if isinstance(one, fx.RequestPlan)]
    assert again.keys == asked.keys
