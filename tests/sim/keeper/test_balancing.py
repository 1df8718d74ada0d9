"""Leaders and members of tablets even out under faults, and then nothing moves any more; planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest import mock

import pytest

from regions.balance import leader_rounds, tablets
from regions.balance.leader_rounds import LeaderSpreading
from regions.replication.policy import leaders
from regions.replication.policy.members import MemberPolicy
from tests.sim.keeper.balancing import BalancingWorld
from tests.sim.keeper.model import BrokenInvariantError
from tests.sim.keeper.world import play

SEEDS: Final = int(os.environ.get("RK_SEEDS", "40"))
SEEDS_PLANTED: Final = 30
#: Situations that a run must reach.
RARE: Final = (
    "leader spread", "move of the balancer", "balancing blocked", "move of the balancer withdrawn", "master died",
    "server died", "drained", "move ended",
)  # fmt: skip


def test_leaders_and_members_even_out_and_stay() -> None:
    """RT-14. At rest no server leads two tablets more than another one, nor has two members more."""
    met = play(BalancingWorld, SEEDS)
    assert [name for name in RARE if not met[name]] == []


# --- planted bugs -----------------------------------------------------------------------------------------------------


@contextmanager
def _lagging_heirs() -> Iterator[None]:
    """The entries that an heir lacks do not matter."""
    with mock.patch.object(leader_rounds, "CAUGHT_UP_ENTRIES", 1 << 40):
        yield


@contextmanager
def _in_an_outage() -> Iterator[None]:
    """Members are moved while servers are away."""
    with mock.patch.object(tablets, "objection_to_round", return_value=""):
        yield


@contextmanager
def _back_and_forth() -> Iterator[None]:
    """A handover pays if the source leads as many as the target, and a tablet may be asked again at once."""

    def pays(self: leaders._Spread, source: str, target: str) -> bool:
        return self._leaders[source] >= self._leaders[target]

    with mock.patch.object(leaders._Spread, "_pays", pays), mock.patch.object(leader_rounds, "AGAIN_MS", 0):
        yield


@contextmanager
def _during_repairs() -> Iterator[None]:
    """Tablets whose members change are handed over, too."""
    with mock.patch.object(MemberPolicy, "is_at_rest", return_value=True):
        yield


@contextmanager
def _to_starting_servers() -> Iterator[None]:
    """A server that has just started gets leaders."""
    with mock.patch.object(LeaderSpreading, "_may_lead", return_value=True):
        yield


Planted = tuple[Callable[[], AbstractContextManager[None]], str]

#: Name, way to plant the bug, text of the broken invariant.
PLANTED: Final[dict[str, Planted]] = {
    "a lagging heir": (_lagging_heirs, "which lags"),
    "members move in an outage": (_in_an_outage, "are away"),
    "leaders go back and forth": (_back_and_forth, "back and forth|still move"),
    "handovers during repairs": (_during_repairs, "during a repair|and moves"),
    "leaders for servers that start or leave": (_to_starting_servers, "just started|to be empty"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    """Each breaks the invariant that it should break."""
    plant, expected = PLANTED[name]
    with plant(), pytest.raises(BrokenInvariantError, match=expected):
        play(BalancingWorld, SEEDS_PLANTED)
