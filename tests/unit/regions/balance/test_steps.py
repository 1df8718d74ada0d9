"""A round of the balancer in steps: each has a bounded number of looks, and what changes in between stays."""

from __future__ import annotations

import pytest

from regions.balance.balancer import COUNTED_AT_ONCE, propose, proposing
from regions.balance.sizes import RegionSizes
from regions.balance.steps import result_of
from regions.cluster.entities import Region
from regions.messages.heartbeat import Measure
from regions.records.model import Incarnation
from tests.unit.regions.balance.test_balancer import WIDE, cluster, fill, server


class Counting(RegionSizes):
    """Counts how many sizes are asked for."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0

    def _measure(self, region: Region) -> Measure | None:
        self.asked += 1
        return super()._measure(region)


def test_a_step_of_a_round_looks_at_a_bounded_number_of_regions() -> None:
    """A round of 100,000 regions took 0.3 s in one turn of the master."""
    world = cluster(server("a"), server("b"), server("c"))
    for name in "tuv":
        fill(world, name, {"a": COUNTED_AT_ONCE, "b": COUNTED_AT_ONCE // 2})
    sizes = Counting()
    before, most = 0, 0
    steps = proposing(world, WIDE, sizes=sizes)
    for taken, _ in enumerate(steps):
        most, before = max(most, sizes.asked - before), sizes.asked
        if taken == 20:
            break
    assert taken == 20
    assert 0 < most <= 3 * COUNTED_AT_ONCE  # a move compares the replicas of its source for each receiver
    assert result_of(proposing(world)).moves == propose(world).moves


def test_replicas_that_change_between_two_steps_stay() -> None:
    world = cluster(server("a"), server("b"))
    fill(world, "t", {"a": COUNTED_AT_ONCE + 10})
    steps = proposing(world)
    next(steps)  # the mean of the sizes
    next(steps)  # all but some are counted on a
    for key in [key for key in world.replicas if not key.endswith("7-0")]:
        world.replicas[key].move = "b"
    moves = result_of(steps).moves
    assert moves
    assert all(move.key.endswith("7-0") for move in moves)


@pytest.mark.parametrize("now_on", [None, "a"])
def test_a_replica_of_another_pool_that_changes_between_two_steps_stays(now_on: str | None) -> None:
    """It closes, or moves to a server of its pool. An assertion ended the round, and a master's tenure."""
    world = cluster(server("a"), server("b"), server("z", group="other"))
    fill(world, "t", {"z": 1, "a": COUNTED_AT_ONCE + 10})
    replica = world.replicas["t-00000-0"]
    steps = proposing(world)
    next(steps)  # the mean of the sizes
    next(steps)  # all but some are counted
    world.set_home(replica, None if now_on is None else Incarnation(now_on, 1))
    moves = result_of(steps).moves
    assert moves
    assert replica.key not in {move.key for move in moves}
