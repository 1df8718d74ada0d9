"""Splits of tablets under faults: no key without a region, no acknowledged row lost, and planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

import msgspec
import pytest

from regions.assign.resharding import book, tablets
from regions.assign.resharding.tablets import TabletParents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.model import TableState
from regions.replication import recovery
from regions.replication.keeper import Keeper
from regions.replication.policy.members import MemberPolicy
from tests.sim.keeper.model import BrokenInvariantError
from tests.sim.keeper.splitting import SplittingWorld
from tests.sim.keeper.world import play

#: RK_SEEDS sets the number of seeds: `RK_SEEDS=2000 pytest tests/sim/keeper`.
SEEDS: Final = int(os.environ.get("RK_SEEDS", "25"))
#: Number of seeds within which a planted bug must be found.
SEEDS_PLANTED: Final = 120
#: Situations that a run must reach.
RARE: Final = (
    "prepared", "disk full", "sealed", "unsealed", "not ready", "late seal", "split CLOSING -> None", "parent lags",
    "takeover CLOSING", "takeover CLEANING", "master died", "server died", "power cut",
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each limit pass within a run."""
    monkeypatch.setattr(tablets, "KEPT_MS", 3_000)
    monkeypatch.setattr(book, "SEAL_WITHIN_MS", 4_000)


def test_no_seed_breaks_an_invariant() -> None:
    """At rest each acknowledged row is in its region, no tablet is sealed, and nothing of the parents is left."""
    met = play(SplittingWorld, 4 * SEEDS)
    assert [name for name in RARE if not met[name]] == []


def test_members_are_made_although_their_table_is_disabled() -> None:
    """The server died between OPENING and its files. The table was disabled then, so the member counted as made, and
    the parent's replicas were deleted."""
    SplittingWorld(17).run()


def test_a_seed_is_one_history() -> None:
    """The seed that a failure prints repeats the failure."""
    first, second = SplittingWorld(7).run(), SplittingWorld(7).run()
    assert (first.counts, first.regions, first.works) == (second.counts, second.regions, second.works)


class GoneWorld(SplittingWorld):
    """Three servers, of which one dies just when daughters have replaced their parent, before their members are made
    there. No other server can take its members."""

    gone = ""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, machines=3)
        self.loses_disks = False

    def _make_keeper(self, epoch: int, unused: object) -> Keeper:
        keeper = super()._make_keeper(epoch, unused)
        keeper.policy.has_reported = lambda _: self.calm
        return keeper

    def _replace_parents(self, effect: fx.ReplaceParents) -> bool:
        done = super()._replace_parents(effect)
        if done and not self.gone:
            leader = effect.record.daughters[0].leader
            self.gone = next(one.uuid for one in effect.record.daughters[0].members if one.number != leader)
            self.stop(self.machines[self.gone])
        return done

    def play(self) -> None:
        """Play without other faults until a server is gone and all others have done their part."""
        for machine in self.machines.values():
            self.start(machine)
        self.start_master()
        self.tick()
        self.after(3_000, self.splitter)
        self.after(1_000, self.writer)
        self.run_until(30_000)
        self.calm = True

    def parents_on(self, *uuids: str) -> list[str]:
        """Return the replaced regions that these servers have."""
        found = [one for uuid in uuids for one in self.machines[uuid].disk]
        return [one for one in found if self.is_replaced(self.regions[one][0])]


@pytest.mark.parametrize("seed", range(8))
def test_a_server_that_is_gone_for_ever_does_not_keep_the_parents(seed: int) -> None:
    """The others delete their replicas when the leaders call the member FAILED. The server's own are swept when it is
    back after all, and its members are made. Tried: without the exception for FAILED members the work never ends."""
    world = GoneWorld(seed)
    world.play()
    others = [one for one in world.machines if one != world.gone]
    world.run_until(60_000)
    assert world.works == {}
    assert world.parents_on(*others) == []
    assert world.parents_on(world.gone) != []
    world.start(world.machines[world.gone])
    world.run_until(240_000)
    assert world.parents_on(*world.machines) == []
    there = [one for one, _ in world.regions.values() if not world.is_replaced(one)]
    assert all(world.runs(one.region_id, member) for one in there for member in world.groups[one.region_id].members)
    assert {len(world.groups[one.region_id].members) for one in there} == {3}
    assert sum(len(world.rows.get(one.region_id, {})) for one in there) == len(world.acknowledged)


@pytest.mark.parametrize("seed", range(8))
def test_a_purge_amid_the_cleaning_leaves_nothing(seed: int) -> None:
    """Members of daughters that are not made yet are given up. Tried: without that a server that is back is ordered to
    make them, from parents that are being deleted."""
    world = GoneWorld(seed)
    world.play()
    made = world.made.copy()
    record, version = world.table
    world.table = (
        msgspec.structs.replace(record, state=TableState.REMOVED, removed_ms=1, purge_at_ms=1, purging_ms=world.now),
        version + 1,
    )
    if seed % 2:
        world.start(world.machines[world.gone])
    assert world.master is not None
    world.master.table_seen(*world.table)
    world.carry_out()
    world.run_until(world.now + 60_000)
    assert (world.works, world.transitions, world.made) == ({}, {}, made)
    away = () if seed % 2 else (world.gone,)
    assert [one.uuid for one in world.machines.values() if one.disk and one.uuid not in away] == []


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


#: Name, way to plant the bug, text of the broken invariant.
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
        play(SplittingWorld, SEEDS_PLANTED)
