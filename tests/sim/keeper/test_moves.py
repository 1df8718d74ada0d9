"""Moves of members under faults: each comes true or ends, whoever is master, and no tablet suffers."""

from __future__ import annotations

import os
from typing import Final
from unittest import mock

import pytest

from regions.replication.keeper import Keeper
from tests.sim.keeper.model import BrokenInvariantError
from tests.sim.keeper.moving import MovingWorld
from tests.sim.keeper.world import play

SEEDS: Final = int(os.environ.get("RK_SEEDS", "25"))
SEEDS_PLANTED: Final = 40
#: Situations that a run must reach.
RARE: Final = (
    "move accepted", "move refused", "move withdrawn", "move ended", "takeover with a move", "master died",
    "handed over", "server died",
)  # fmt: skip


def test_moves_come_true() -> None:
    """TC-19. At rest no move is left, and all tablets are as wanted."""
    met = play(MovingWorld, SEEDS)
    assert [name for name in RARE if not met[name]] == []


def test_a_master_that_forgets_moves_is_found() -> None:
    """Planted bug: a new master reads no intents, so a move that was accepted never comes true."""

    def forget(self: Keeper, region_id: str, intents: object) -> None:
        if self.policy.decisions or getattr(self, "_is_deciding", False):
            original(self, region_id, intents)  # type: ignore[arg-type]

    original = Keeper.intents_seen
    with mock.patch.object(Keeper, "intents_seen", forget), pytest.raises(BrokenInvariantError):
        play(MovingWorld, SEEDS_PLANTED)
