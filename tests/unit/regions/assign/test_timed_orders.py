"""A tick looks at the orders that have a time, not at those that wait for a slot of their server (issue 20)."""

from __future__ import annotations

import msgspec

from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.records.model import RegionState
from tests.unit.regions.model_cluster import ModelCluster, region, server

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
    assert len(orders.timed(REGIONS)) == BUSY
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
    assert waiting not in orders.timed(REGIONS)
    begun = msgspec.structs.replace(record, state=RegionState.OPENING)
    cluster.handle(ev.TransitionRead(record.region_id, 0, begun, waiting.version + 1))
    assert waiting in orders.timed(REGIONS)
