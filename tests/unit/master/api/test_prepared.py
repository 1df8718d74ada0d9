"""Reads about all regions: a part in each turn, and regions that come and go between two turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from master.api import prepared
from master.api.prepared import KeyOrder, Prepared, sizes_of_servers, sizes_of_tables
from regions import messages as ms
from regions.balance.sizes import NOT_MEASURED, RegionSize, RegionSizes
from regions.balance.steps import result_of
from regions.cluster.entities import Region
from regions.cluster.state import ClusterState
from regions.messages.heartbeat import Measure
from regions.records.model import RegionRecord
from tests.unit.regions.balance.test_balancer import cluster, put, server

COUNT, AT_ONCE = 40, 5


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "AT_ONCE", AT_ONCE)


class Counting(RegionSizes):
    """Counts the looks at a region, for the mean of its table and for a sum."""

    def __init__(self, measured: dict[str, Measure] | None = None) -> None:
        super().__init__(measured or {})
        self.looks = 0

    def _measure(self, region: Region) -> Measure | None:
        self.looks += 1
        return super()._measure(region)


def world_of(count: int = COUNT) -> ClusterState:
    """Return regions of 10 bytes in two tables, on two servers, with keys in another order than they were added."""
    world = cluster(server("a"), server("b"))
    for name in "tu":
        for number in range(count):
            put(world, name, f"{name}-{number:03}", "ab"[number % 2], size=10)
            region = world.regions[f"{name}-{number:03}"]
            at = (number * 7) % count
            start, end = f"{at:03}" if at else "", f"{at + 1:03}" if at + 1 < count else ""
            region.record = msgspec.structs.replace(region.record, start_key=start, end_key=end)
    return world


@pytest.mark.parametrize("steps_of", [sizes_of_tables, sizes_of_servers])
def test_a_step_looks_at_some_regions(steps_of: Any) -> None:
    """The sums of 300,000 regions took 0.4 s in one turn. Fails if all are summed up in one step."""
    sizes = Counting()
    before, most = 0, 0
    for _ in steps_of(world_of(), sizes):
        most, before = max(most, sizes.looks - before), sizes.looks
    assert sizes.looks >= 2 * COUNT
    assert most <= 2 * AT_ONCE
    totals = result_of(steps_of(world_of(), sizes))
    assert sum(one.size_bytes for one in totals.values()) == 2 * COUNT * 10


def test_regions_that_come_and_go_between_two_steps() -> None:
    world = world_of()
    steps = sizes_of_tables(world, NOT_MEASURED)
    for _ in range(3):
        next(steps)
    world.drop_region(world.regions["t-039"])
    put(world, "t", "t-new", "a", size=10)
    put(world, "v", "v-0", "a", size=10)
    assert set(result_of(steps)) == {"t", "u"}


# --- the order of keys ---


def keys(found: list[Region]) -> list[str]:
    return [one.record.start_key for one in found]


def test_regions_are_put_in_order_in_steps() -> None:
    """Fails if the regions are sorted in one step."""
    world, order = world_of(), KeyOrder()
    table = world.tables["t"]
    assert sum(1 for _ in order.ordering(table)) >= 2 * (COUNT // AT_ONCE) - 2
    assert not list(order.ordering(table)), "it is kept"
    expected = ["", *(f"{at:03}" for at in range(1, COUNT))]
    assert keys(order.from_key(table, "", 0)) == expected
    assert keys(order.from_key(table, "0075", 3)) == ["007", "008", "009"]
    assert keys(order.from_key(table, "008", 1)) == ["008"]
    assert keys(order.from_key(table, "zzz", 5)) == ["039"]


@pytest.mark.parametrize("kept", ["kept before", "made meanwhile"])
def test_regions_that_change_are_listed_as_they_are(kept: str) -> None:
    """A split between two requests, and between two steps. Fails if an order is used without a look at the table."""
    world, order = world_of(), KeyOrder()
    table = world.tables["t"]
    steps = order.ordering(table)
    if kept == "kept before":
        list(steps)
    else:
        next(steps)
    parent = next(one for one in table.regions.values() if one.record.start_key == "008")
    world.drop_region(parent)
    for number, (start, end) in enumerate((("008", "0085"), ("0085", "009"))):
        world.put_region(RegionRecord("t", f"t-split-{number}", start, end), 0)
    list(steps)
    assert keys(order.from_key(table, "0081", 3)) == ["008", "0085", "009"]
    assert parent not in order.from_key(table, "", 0)
    whole = table.regions["t-split-0"]
    before, after = order.neighbors(whole)
    assert before is not None
    assert after is not None
    assert keys([before, after]) == ["007", "0085"]
    world.drop_region(whole)
    assert keys(order.from_key(table, "0081", 1)) == ["0085"], "a hole"


def test_few_orders_are_kept() -> None:
    world, order = cluster(server("a")), KeyOrder()
    for number in range(2 * prepared.ORDERS_MAX):
        put(world, f"t{number}", f"t{number}-0", "a")
        order.from_key(world.tables[f"t{number}"], "", 0)
    assert len(order._orders) == prepared.ORDERS_MAX


def test_orders_of_tables_that_are_gone_are_not_kept() -> None:
    """An order keeps the regions of a deleted table, or of a former tenure, in memory."""
    world, reads = world_of(4), Prepared()
    for name in "tu":
        reads.order.from_key(world.tables[name], "", 0)

    def ask(now: ClusterState) -> list[str]:
        ensureDeferred(reads.prepare(ms.DescribeRegion("x"), now, NOT_MEASURED, Turns()))
        return list(reads.order._orders)

    assert ask(world) == ["t", "u"]
    for region in list(world.tables["t"].regions.values()):
        world.drop_region(region)
    world.drop_table(world.tables["t"])
    assert ask(world) == ["u"]
    assert ask(world_of(4)) == []


# --- requests ---


class Turns:
    """Pauses that end when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Deferred[None]] = []

    def __call__(self) -> Deferred[None]:
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def go_on(self) -> None:
        """Let all requests take a step."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.callback(None)


def test_callers_that_come_during_a_walk_share_it() -> None:
    """Ten `rk status` at a time cost one walk. Fails if each walks over all regions."""
    world, turns, now = world_of(), Turns(), [0]

    class Slow(Counting):
        def _measure(self, region: Region) -> Measure | None:
            now[0] += 20
            return super()._measure(region)

    reads, sizes, found = Prepared(lambda: now[0]), Slow(), list[Any]()
    for _ in range(10):
        asked = reads.prepare(ms.ListTables(), world, sizes, turns)
        ensureDeferred(asked).addCallback(found.append)
    while len(found) < 10:
        turns.go_on()
    assert sizes.looks == 4 * COUNT, "the mean of the sizes, and the sum"
    assert found == [{"t": RegionSize(COUNT * 10), "u": RegionSize(COUNT * 10)}] * 10


def test_the_size_of_a_table_is_not_that_of_a_deleted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python gives the address of a deleted object to another one. Fails if the sum is kept for `id(table)`."""
    monkeypatch.setattr(prepared, "id", lambda _one: 1, raising=False)
    monkeypatch.setattr(prepared, "AT_ONCE", 100)
    world, now, found = world_of(4), [0], list[Any]()
    put(world, "u", "u-more", "a", size=10)

    class Slow(Counting):
        def _measure(self, region: Region) -> Measure | None:
            now[0] += 20
            return super()._measure(region)

    reads = Prepared(lambda: now[0])
    for name in "tut":
        ensureDeferred(reads.of_table(world.tables[name], Slow(), Turns())).addCallback(found.append)
    assert [one.size_bytes for one in found] == [40, 50, 40]


@pytest.mark.parametrize("request_", [ms.DescribeTable("t", limit=3), ms.DescribeRegion("t-001")])
@pytest.mark.parametrize("are_measured", [True, False])
def test_a_reply_with_estimates_computes_the_mean_in_steps(request_: Any, are_measured: bool) -> None:
    """Fails if a page of regions without measured sizes walks over the table in one turn, and if each page walks."""
    world, turns, found = world_of(), Turns(), list[Any]()
    measured = {key: Measure(1, 30) for key in world.replicas} if are_measured else {}
    sizes = Counting(measured)
    ensureDeferred(Prepared().prepare(request_, world, sizes, turns)).addCallback(found.append)
    most = 0
    while not found:
        before = sizes.looks
        turns.go_on()
        most = max(most, sizes.looks - before)
    assert most <= AT_ONCE + 3
    assert (sizes.looks > COUNT) is not are_measured
    before = sizes.looks
    sizes.of(world.regions["t-001"])
    assert sizes.looks == before + 1, "the mean is known"
