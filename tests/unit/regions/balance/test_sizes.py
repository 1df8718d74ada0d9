"""Sizes of regions: measured ones, estimates until then, and the balancer that uses them."""

from __future__ import annotations

from regions.balance.balancer import propose
from regions.balance.sizes import NOT_MEASURED, RegionSize, RegionSizes
from regions.messages.heartbeat import Measure
from tests.unit.regions.balance.test_balancer import cluster, fill, put, server


def test_a_measured_size_replaces_the_size_of_the_creation() -> None:
    """Also a measured size of 0; of several replicas the largest counts."""
    world = cluster(server("a"), server("b"))
    put(world, "t", "t-0", "a", "b", size=10**9)
    put(world, "u", "u-0", "a", size=10**9)
    sizes = RegionSizes({"t-0-0": Measure(3, 4096), "t-0-1": Measure(4, 8192), "u-0-0": Measure(0, 0)})
    assert sizes.of(world.regions["t-0"]) == RegionSize(8192, 4, is_measured=True)
    assert sizes.of(world.regions["u-0"]) == RegionSize(0, 0, is_measured=True)


def test_an_estimate_is_never_in_another_unit_than_its_table() -> None:
    """The mean of the measured regions, or without any the size from the creation."""
    world = cluster(server("a"))
    for number in range(3):
        put(world, "t", f"t-{number}", "a", size=10**9)
    assert NOT_MEASURED.of(world.regions["t-0"]) == RegionSize(10**9)
    sizes = RegionSizes({"t-1-0": Measure(1, 1000), "t-2-0": Measure(5, 3000)})
    assert sizes.of(world.regions["t-0"]) == RegionSize(2000)
    total = RegionSize.total(sizes.of(one) for one in world.regions.values())
    assert total == RegionSize(6000, None)


def test_the_balancer_evens_out_what_is_measured() -> None:
    """By the records the servers are uneven, by the measured sizes they are even, and the other way round."""
    world = cluster(server("a"), server("b"))
    fill(world, "t", {"a": 20, "b": 20})
    measured = {key: Measure(1, 4096) for key in world.replicas}
    assert propose(world, sizes=RegionSizes(measured)).moves == []
    large = [key for key, one in world.replicas.items() if one.open_on is world.servers["a"]][:10]
    measured |= {key: Measure(1000, 10**8) for key in large}
    assert propose(world).moves == []
    moves = propose(world, sizes=RegionSizes(measured)).moves
    assert {one.key for one in moves if one.source == "a"} <= set(large)
    assert moves
    put(world, "u", "u-0", "a", size=10**12)
    put(world, "u", "u-1", "b", size=1)
    assert RegionSizes({"u-0-0": Measure(0, 0), "u-1-0": Measure(0, 0)}).of(world.regions["u-0"]).size_bytes == 0
