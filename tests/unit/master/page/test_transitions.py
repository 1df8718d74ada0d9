"""The list of transitions: real ages, in the order that was asked for, and all of them by pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from master.page import transitions
from master.page.transitions import PAGE, TransitionList, TransitionPage
from regions.cluster.state import ClusterState
from regions.records.model import RegionState, TransitionRecord
from tests.unit.master.page.fake_master import FakeMaster, cluster_of, pass_time
from tests.unit.regions.model_cluster import ModelCluster, region, server


class Sight:
    """The list of one cluster's transitions."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.clock = Clock()
        self.master: Any = FakeMaster(self.clock, cluster)
        self.list = TransitionList(self.clock, self.master)

    @property
    def world(self) -> ClusterState:
        return self.master.cluster.assigner.world

    def page(self, order: str = "-age", first: int = 0) -> TransitionPage:
        found: list[TransitionPage] = []
        ensureDeferred(self.list.page(self.world, order, first)).addCallback(found.append)
        pass_time(self.clock, 0.05)
        return found[0]


def moving(count: int) -> Sight:
    """Return the sight of a cluster in which so many regions are opening, a millisecond after each other."""
    sight = Sight(cluster_of(count))
    for number, replica in enumerate(sight.world.replicas.values()):
        record = replica.region.record
        state = RegionState.OPENING if number % 2 else RegionState.CLOSING
        attempt = number % 7
        step = TransitionRecord(
            record.region_id,
            record.table_id,
            0,
            state,
            replica.home,
            replica.home,
            attempt=attempt,
            since_ms=1 + number,
        )
        sight.world.set_transition(replica, step, 1, 0)
    return sight


def test_age_is_that_of_the_transition_and_not_of_its_state() -> None:
    """A region whose open fails again and again is as old as its first step, with attempt and error."""
    cluster = ModelCluster()
    cluster.failing = {"s1": "no such directory"}
    cluster.put(region("r1"))
    sight = Sight(cluster)
    began_ms = cluster.now
    cluster.start(server("s1"))
    cluster.pass_time(20_000)
    (found,) = sight.page().transitions
    assert found.began_ms == began_ms
    assert not found.began_at_least
    assert found.since_ms > began_ms
    assert found.attempt >= 2
    assert found.error == "no such directory"
    assert found.attempts_max == cluster.config.attempts_max


def test_a_parked_region_is_listed_when_the_page_is_opened_late() -> None:
    """A new master has no steps of it in memory: the age is then at least that of its state."""
    cluster = ModelCluster()
    cluster.failing = {"s1": "no such directory"}
    cluster.put(region("r1"))
    cluster.start(server("s1"))
    cluster.pass_time(600_000, 5_000)
    cluster.successor()
    cluster.pass_time(1_000)
    (found,) = Sight(cluster).page().transitions
    assert (found.parked, found.state, found.error) == (True, "PARKED", "no such directory")
    assert found.actor == "operator"
    assert found.began_at_least


def test_all_transitions_are_listed_by_pages_the_oldest_first() -> None:
    """Also those that are looked at in another slice. Fails if `merge` is not told that the slices are reversed."""
    count = transitions.SLICE + 120
    sight = moving(count)
    keys: list[str] = []
    for first in range(0, count, PAGE):
        page = sight.page(first=first)
        assert (page.total, page.first) == (count, first)
        keys += [one.key for one in page.transitions]
    assert keys == [f"r{number:05}-0" for number in range(count)]


def test_the_order_is_the_one_that_was_asked_for() -> None:
    """By attempts, by region, by state; an unknown one is that by age."""
    sight = moving(100)
    assert [one.attempt for one in sight.page("-attempt").transitions][:3] == [6, 6, 6]
    assert [one.key for one in sight.page("-region").transitions][:2] == ["r00099-0", "r00098-0"]
    assert {one.state for one in sight.page("state").transitions} == {"CLOSING"}
    assert [one.key for one in sight.page("nothing").transitions][:2] == ["r00000-0", "r00001-0"]


def test_a_page_beyond_the_end_is_the_last_one() -> None:
    """The list may have become shorter since the browser asked for it last."""
    sight = moving(PAGE + 10)
    assert (sight.page(first=10 * PAGE).first, len(sight.page(first=10 * PAGE).transitions)) == (PAGE, 10)
    assert Sight(cluster_of(1)).page(first=PAGE) == TransitionPage(0, 0, 0, [])


def test_what_has_ended_is_not_on_the_page() -> None:
    """The order is older than the rows. The total is that of the order."""
    sight = moving(3)
    sight.page()
    sight.clock.advance(transitions.KEPT_S)
    sight.list._orders["-age"].until_s += 1
    sight.world.set_transition(sight.world.replicas["r00001-0"], None, -1, 0)
    assert [one.key for one in sight.page().transitions] == ["r00000-0", "r00002-0"]


def test_many_browsers_cost_one_order() -> None:
    """Fails if `page` makes an order for each page."""
    sight = moving(PAGE + 5)
    orders: list[str] = []
    make = sight.list._ordered
    sight.list._ordered = lambda world, order: (orders.append(order), make(world, order))[1]  # type: ignore[method-assign]
    for first in (0, PAGE, 0):
        sight.page(first=first)
        sight.page("region", first=first)
    assert orders == ["-age", "region"]


def test_a_member_of_a_tablet_stands_where_its_age_puts_it() -> None:
    """By the begin of its transition, which is shown, too. Fails if `_of_member` shows the time of its state."""
    sight = moving(4)
    record = TransitionRecord("x.0", "x", 2, RegionState.OPENING, since_ms=10_000)
    work = SimpleNamespace(seen_ms=9_000, transition=record)
    keeper = sight.master.active_master.keeper
    keeper.keeper.tablets["x.0"] = SimpleNamespace(work={2: work})
    keeper.transition_of = lambda region_id, number: (9_000, record) if (region_id, number) == ("x.0", 2) else None
    sight.master.transition_times = SimpleNamespace(began_ms=lambda key: 2 if key == record.key else 0)
    found = sight.page().transitions
    assert [one.began_ms for one in found] == [1, 2, 2, 3, 4]
    assert [one.since_ms for one in found if one.key == record.key] == [10_000]
