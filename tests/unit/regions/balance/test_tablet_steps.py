"""A round about members of tablets in steps: each copies a bounded number of tablets, and what changes stays."""

from __future__ import annotations

import pytest

from regions.balance import balancer, tablets
from regions.balance.steps import result_of
from regions.balance.tablets import deciding_round, tablet_round
from regions.cluster.limits import BalancerConfig
from tests.unit.regions.balance.tablets import Tablets

LIMITS = BalancerConfig(tablet_moves_max=10, tablets_per_server_max=10)
COUNT, AT_ONCE = 40, 4


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tablets, "ADDED_AT_ONCE", AT_ONCE)


def uneven() -> Tablets:
    """Return COUNT tablets on three of four servers."""
    found = Tablets("a", "b", "c")
    for number in range(COUNT):
        found.tablet(f"x{number:02}", "a", "b", "c")
    found.server("d")
    return found


def test_a_step_copies_some_tablets() -> None:
    """A round of 100,000 tablets took 2 s in one turn of the master. Fails if they are copied at once."""
    copied: list[str] = []

    def is_resharded(region_id: str) -> bool:
        copied.append(region_id)
        return False

    world = uneven()
    before, most, count = 0, 0, 0
    for _ in deciding_round(world.keeper, LIMITS, world.now, is_resharded):
        most, before, count = max(most, len(copied) - before), len(copied), count + 1
    assert most == AT_ONCE
    assert count >= COUNT // AT_ONCE - 1
    found = tablet_round(world.keeper, LIMITS, world.now)
    assert len(found.moves) == 10
    assert set(copied) == set(world.keeper.tablets)


def test_racks_are_compared_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the replicas of all servers are compared in one step."""
    monkeypatch.setattr(balancer, "COUNTED_AT_ONCE", COUNT)
    world = Tablets("a/1", "b/2", "c/3")
    for number in range(COUNT):
        world.tablet(f"x{number:02}", "a", "b", "c")
    looks: list[int] = []
    peers = balancer.ClusterState.peers
    monkeypatch.setattr(balancer.ClusterState, "peers", lambda *one: looks.append(1) or peers(*one))
    before, most = 0, 0
    for _ in deciding_round(world.keeper, LIMITS, world.now, lambda _: False):
        most, before = max(most, len(looks) - before), len(looks)
    assert len(looks) == 3 * COUNT
    assert most == COUNT


@pytest.mark.parametrize("what", ["forgotten", "other members", "split"])
def test_tablets_that_change_between_two_steps_stay(what: str) -> None:
    """Fails without the comparison at the end of the round."""
    world = uneven()
    expected = {region_id for region_id, _ in tablet_round(world.keeper, LIMITS, world.now).moves}
    split: set[str] = set()
    steps = deciding_round(world.keeper, LIMITS, world.now, split.__contains__)
    for _ in range(COUNT // AT_ONCE - 1):
        next(steps)
    for region_id in expected:
        if what == "forgotten":
            world.keeper.forget_region(region_id)
        elif what == "split":
            split.add(region_id)
        else:
            members = world.keeper.tablets[region_id].record.members
            world.again(region_id, members[:2])
    assert result_of(steps).moves == []


def test_a_round_begins_again_if_a_server_comes() -> None:
    """Fails if the round goes on with the shares of four servers."""
    world = uneven()
    steps = deciding_round(world.keeper, LIMITS, world.now, lambda _: False)
    next(steps)
    world.server("e")
    assert {move.target for _, move in result_of(steps).moves} == {"d", "e"}


def test_a_round_ends_if_a_server_goes() -> None:
    world = uneven()
    steps = deciding_round(world.keeper, LIMITS, world.now, lambda _: False)
    next(steps)
    world.keeper.server_down("a")
    found = result_of(steps)
    assert found.moves == []
    assert "are away: a" in found.blocking
