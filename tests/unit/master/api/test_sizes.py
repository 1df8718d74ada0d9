"""Sums of sizes visit every region, so answers to lists in a loop repeat a sum that took long."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import ensureDeferred

from master.api.pacing import REPEATED_FOR
from master.api.prepared import Prepared
from master.api.reads import ReadView, read
from regions import messages as ms
from regions.balance.sizes import NOT_MEASURED, RegionSize, RegionSizes
from regions.cluster.entities import Region, Server
from regions.cluster.history import StepLog
from regions.cluster.limits import AssignerConfig
from tests.unit.regions.balance.test_balancer import cluster, fill, put, server

T = TypeVar("T")


class Clock:
    """Time that passes with each region that is visited."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class Counting(RegionSizes):
    """Sizes that count the visits."""

    def __init__(self, clock: Clock) -> None:
        super().__init__({})
        self.clock = clock
        self.visits = 0

    def of(self, region: Region) -> RegionSize:
        """Return the size; takes a second."""
        self.visits += 1
        self.clock.now_ms += 1_000
        return NOT_MEASURED.of(region)


async def no_pause() -> None:
    """Go on at once."""


def at_once(awaited: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing."""
    found: list[T] = []
    ensureDeferred(awaited).addCallback(found.append)
    return found[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("request_", [ms.ListTables(), ms.ListServers()])
def test_a_list_in_a_loop_visits_regions_a_tenth_of_the_time(clock: Clock, request_: ms.ListTables) -> None:
    """The counts beside the sums are always new; a table or server more makes new sums."""
    world = cluster(server("a"), server("b"))
    fill(world, "t", {"a": 3, "b": 2}, size=10)
    sizes, prepared = Counting(clock), Prepared(clock)

    def bytes_now() -> int:
        totals = at_once(prepared.prepare(request_, world, sizes, no_pause))
        view = ReadView(world, AssignerConfig(), StepLog(0), 0, sizes=sizes, totals=totals)
        found = read(view, request_)
        if isinstance(found, ms.Servers):
            return sum(one.bytes for one in found.servers)
        assert isinstance(found, ms.Tables)
        return sum(one.size_bytes for one in found.tables)

    assert (bytes_now(), sizes.visits) == (50, 5)
    for _ in range(20):
        assert bytes_now() == 50
    assert sizes.visits == 5
    clock.now_ms += 5_000 * REPEATED_FOR
    assert (bytes_now(), sizes.visits) == (50, 10)
    put(world, "u", "u-0", "a", size=7)
    world.servers["c"] = Server(server("c"), False)
    assert bytes_now() == 57
