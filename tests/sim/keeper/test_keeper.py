"""The keeper under faults: seeds without a violation, every rare state met, and every planted bug found."""

from __future__ import annotations

import os
from typing import Final

import pytest

from regions.replication.keeper import Keeper
from tests.sim.keeper.planted import PLANTED, with_keeper
from tests.sim.keeper.world import BrokenInvariantError, World, play

#: RK_SEEDS sets the number of seeds: `RK_SEEDS=2000 pytest tests/sim/keeper`.
SEEDS: Final = int(os.environ.get("RK_SEEDS", "40"))
#: Number of seeds within which a planted bug must be found.
SEEDS_PLANTED: Final = 60
#: Situations that a run must reach: a simulation that never reaches one proves nothing about it.
RARE: Final = (
    "open: MAKE", "open: WAKE", "open: AMNESIA", "close rest: CLOSE", "close tombstone: CLOSE", "close delete: CLOSE",
    "master server death", "master abandoned", "master not a member", "master replaced", "master replan",
    "master move continues", "master do not reopen", "master open failed", "server open done", "server close done",
    "plan: never", "plan: late", "begun by plan-whole", "begun by plan-half", "begun by plan-dead servers",
    "begun by plan-one server",
    "replaced", "voter removed", "leader cut off", "power cut", "disk lost", "master died", "server died",
)  # fmt: skip


def test_no_seed_breaks_an_invariant() -> None:
    """Numbers, configurations, RUNNING, legal steps; and the cluster comes to rest when the faults have stopped."""
    met = play(World, SEEDS)
    assert [name for name in RARE if not met[name]] == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    """Each breaks the invariant that it should break."""
    plant, expected = PLANTED[name]
    with plant() as found, pytest.raises(BrokenInvariantError, match=expected):
        play(with_keeper(found), SEEDS_PLANTED)


def test_five_replicas_of_seven_servers() -> None:
    """The same with other sizes."""
    for seed in range(5):
        World(seed, machines=7, regions=3, replicas=5).run()


def test_a_seed_is_one_history() -> None:
    """The seed that a failure prints repeats the failure."""
    first, second = World(7).run(), World(7).run()
    assert (first.counts, first.regions, first.transitions) == (second.counts, second.regions, second.transitions)
    assert World.keeper_type is Keeper
