"""The simulation of tablets finds every planted bug, and finds nothing without one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from simulation.tablets.run import run_one
from tests.sim.tablets import planted
from tests.sim.tablets.bug import Bug
from tests.support.interpreted import needs_interpreted
from tests.support.planted import first_lately, hunt_at_sizes

#: Planted bug -> seeds within which it must be found (at least twice the present number).
WITHIN: dict[type[Bug], int] = {
    planted.AgeCountedFromReceipt: 400,
    planted.AnsweredWhenAppended: 5,
    planted.BehindTheFloorForever: 5,
    planted.ChangeWithoutCompare: 5,
    planted.CompareIgnored: 5,
    planted.ConfigTakenForNoted: 1000,
    planted.DamageIgnored: 5,
    planted.DropOfWrongGeneration: 5,
    planted.FloorBeforeSteady: 5,
    planted.GoneLeaderKept: 5,
    planted.LogLeftBehind: 400,
    planted.MergeForgetsVote: 5,
    planted.MergeTakesRemoteVote: 10,
    planted.NumberBegunTwice: 20,
    planted.NumberReused: 5,
    planted.OneTabletEndsAll: 5,
    planted.ParkedTabletForgetsClients: 5,
    planted.ProbedWhereTheLogIsGone: 20,
    planted.PromiseWithoutWriteLeaves: 5,
    planted.PromisesLeaveAtOnce: 5,
    planted.PromotionNeedsNewcomer: 20,
    planted.ProofBeforeApplied: 10,
    planted.QuietBehindTheLeader: 40,
    planted.QuietFollowerHearsLostLeader: 5,
    planted.ReadBeforeApplied: 5,
    planted.ReadBeforeOwnCommit: 5,
    planted.ReadUnconfirmed: 10,
    planted.ReadyBeforeSynced: 5,
    planted.RestartNotSeen: 5,
    planted.ResultsLostAtCopy: 5,
    planted.ResultsNotSteady: 5,
    planted.RowsAheadOfLog: 10,
    planted.SeenReplicaIgnored: 25,
    planted.SteadyMixesStates: 5,
    planted.TermCheckedAfterDeletion: 5,
    planted.TermWithoutEntries: 5,
    planted.TombstoneForgotten: 30,
    planted.TombstoneRemembersCommitted: 5,
    planted.TombstoneVoteNotKept: 5,
    planted.TombstoneVotesTwice: 20,
    planted.VoterCopiedFromNothing: 5,
    planted.VoterVivified: 5,
    planted.WrittenTwice: 5,
}

#: The seed that last found the bug, tried first to save time. The claim is WITHIN.
LATELY: dict[type[Bug], int] = {
    planted.AgeCountedFromReceipt: 156,
    planted.ProofBeforeApplied: 3,
    planted.ConfigTakenForNoted: 499,
    planted.TombstoneVotesTwice: 8,
    planted.BehindTheFloorForever: 2,
    planted.LogLeftBehind: 196,
    planted.MergeTakesRemoteVote: 2,
    planted.NumberBegunTwice: 8,
    planted.ProbedWhereTheLogIsGone: 9,
    planted.PromotionNeedsNewcomer: 8,
    planted.QuietBehindTheLeader: 12,
    planted.ReadBeforeOwnCommit: 2,
    planted.ReadUnconfirmed: 3,
    planted.RowsAheadOfLog: 4,
    planted.SeenReplicaIgnored: 11,
    planted.TombstoneForgotten: 14,
    planted.TombstoneRemembersCommitted: 2,
    planted.VoterCopiedFromNothing: 2,
}

pytestmark = needs_interpreted


@pytest.mark.parametrize("bug", WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[Bug]) -> None:
    """An invariant, or an assertion of the code itself, stops the run."""
    seeds = first_lately(LATELY.get(bug, 0), WITHIN[bug])
    found = hunt_at_sizes(partial(run_one, bug=bug), bug.sizes, seeds)
    assert found is not None, f"{bug.__name__} not caught within {WITHIN[bug]} seeds"
    assert "replay: rk simulate --tablets --seed" in found.violation


def test_every_planted_bug_is_looked_for() -> None:
    named = {one for one in vars(planted).values() if isinstance(one, type) and issubclass(one, Bug)} - {Bug}
    assert named == set(WITHIN)


@pytest.mark.parametrize("favours", sorted({bug.favours for bug in WITHIN if bug.favours}), ids="-".join)
def test_the_same_troubles_do_not_upset_the_sound_hosts(favours: tuple[str, ...]) -> None:
    """The planted bug causes the violation, not the choice of faults that reveals it."""
    sound = type("Sound", (Bug,), {"favours": favours})
    for seed in range(1, 5):
        run_one(seed, 3, bug=sound)


def test_the_page_has_the_tables_of_planted_bugs() -> None:
    from tests.sim.tablets.table import tables

    page = (Path(__file__).resolve().parents[3] / "docs" / "simulation.md").read_text()
    assert all(one in page for one in tables()), "docs/simulation.md: python -m tests.sim.tablets.table"
