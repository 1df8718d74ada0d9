"""Splits of tablets under faults: no key without a region, no acknowledged row lost, and planted bugs are found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

import pytest

from regions.assign.resharding import book, tablets
from regions.assign.resharding.tablets import TabletParents
from regions.cluster import events as ev
from regions.replication import recovery
from regions.replication.policy.members import MemberPolicy
from tests.sim.keeper.model import BrokenInvariantError
from tests.sim.keeper.splitting import SplittingWorld

#: RK_SEEDS sets the number of seeds: `RK_SEEDS=2000 pytest tests/sim/keeper`.
SEEDS: Final = int(os.environ.get("RK_SEEDS", "25"))
#: Number of seeds within which a planted bug must be found.
SEEDS_PLANTED: Final = 120
#: Situations that a run must reach.
RARE: Final = (
    "prepared", "disk full", "sealed", "unsealed", "not ready", "late seal", "split CLOSING -> None", "parent lags",
    "takeover CLOSING", "takeover CLEANING", "master died", "server died", "power cut",
)  # fmt: skip


def play(seeds: int) -> Counter[str]:
    """Play seeds from 0 on. Return what happened."""
    met: Counter[str] = Counter()
    for seed in range(seeds):
        met.update(SplittingWorld(seed).run().counts)
    return met


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each limit pass within a run."""
    monkeypatch.setattr(tablets, "KEPT_MS", 3_000)
    monkeypatch.setattr(book, "SEAL_WITHIN_MS", 4_000)


def test_no_seed_breaks_an_invariant() -> None:
    """At rest each acknowledged row is in its region, no tablet is sealed, and nothing of the parents is left."""
    met = play(4 * SEEDS)
    assert [name for name in RARE if not met[name]] == []


def test_members_are_made_although_their_table_is_disabled() -> None:
    """The server died between OPENING and its files. The table was disabled then, so the member counted as made, and
    the parent's replicas were deleted."""
    SplittingWorld(17).run()


def test_a_seed_is_one_history() -> None:
    """The seed that a failure prints repeats the failure."""
    first, second = SplittingWorld(7).run(), SplittingWorld(7).run()
    assert (first.counts, first.regions, first.works) == (second.counts, second.regions, second.works)


# --- planted bugs -----------------------------------------------------------------------------------------------------


@contextmanager
def _parents_go_at_once() -> Iterator[None]:
    """A replaced parent's replicas are deleted as those of a region that could not be created."""
    with mock.patch.object(TabletParents, "mark"):
        yield


@contextmanager
def _not_sealed() -> Iterator[None]:
    """The daughters replace the parent as soon as they may, without a seal."""

    def handover(self: Any, work: Any, parents: Any, now_ms: int) -> Any:
        sealed = []
        for region_id in work.record.parents:
            leader = self._keeper.tablets[region_id].view.leader_now()
            if leader is None:
                return None
            sealed.append(ev.ParentSealed("", region_id, leader.server, 1, leader.report.members, leader.number))
        return self._daughters(work, sealed, now_ms)

    with mock.patch.object(TabletParents, "handover", handover):
        yield


@contextmanager
def _seal_stays() -> Iterator[None]:
    """Nobody ends the seal of a canceled split."""
    with mock.patch.object(MemberPolicy, "_canceled_seal", return_value=""):
        yield


@contextmanager
def _unsealed_at_work() -> Iterator[None]:
    """A seal is ended although its split goes on."""

    def canceled(_: object, tablet: Any) -> str:
        leader = tablet.view.leader_now()
        return "" if leader is None else str(tablet.view.replicas[leader.server.uuid].report.sealed)

    with mock.patch.object(MemberPolicy, "_canceled_seal", canceled), mock.patch.object(TabletParents, "mark"):
        yield


@contextmanager
def _forgets_heirs() -> Iterator[None]:
    """A daughter's member that is not made yet is treated as any first member."""
    with mock.patch.object(recovery, "_is_unmade_heir", return_value=False):
        yield


#: Name, how to put it in, what the broken invariant says.
PLANTED: Final[dict[str, tuple[Callable[[], AbstractContextManager[None]], str]]] = {
    "replicas of the parent go at once": (_parents_go_at_once, "goes before|has no leader"),
    "replaced without a seal": (_not_sealed, "rows"),
    "the seal of a canceled split stays": (_seal_stays, "sealed for ever|is still"),
    "unsealed while the split goes on": (_unsealed_at_work, "rows|goes before|has no leader"),
    "members of daughters are forgotten": (_forgets_heirs, "goes before|has no leader"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    """Each breaks the invariant that it should break."""
    plant, expected = PLANTED[name]
    with plant(), pytest.raises(BrokenInvariantError, match=expected):
        play(SEEDS_PLANTED)
