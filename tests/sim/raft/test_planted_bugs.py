"""The simulation finds every planted bug, and finds nothing without one.

The search for a bug begins at seed 1, with the suitable numbers of first members. The bug must be found within the
number of seeds stated here.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.raft import planted
from tests.sim.raft.faults import run_one
from tests.sim.raft.group import Bug
from tests.support.interpreted import needs_interpreted
from tests.support.planted import first_lately, hunt_at_sizes

#: Planted bug -> seeds within which it must be found (about twice the present number).
WITHIN: dict[type[Bug], int] = {
    planted.AckBeforeSync: 3,
    planted.AnyLogElected: 8,
    planted.CommitTakenAsTold: 20,
    planted.ConfigNotReverted: 20,
    planted.EarlyConfigChange: 440,
    planted.ForgottenCounted: 60,
    planted.LeaderCountsUnsynced: 5,
    planted.LearnerCounted: 10,
    planted.NextBelowSnapshot: 5,
    planted.OldAnswerCounted: 250,
    planted.OldTermCounted: 5,
    planted.ReadBeforeOwnCommit: 10,
    planted.ReadWithoutQuorum: 30,
    planted.RemovedDisturb: 10,
    planted.SecondVote: 20,
    planted.ShorterAppendTruncates: 20,
    planted.SnapshotWithoutConfig: 15,
    planted.StaleLeaderIgnored: 25,
    planted.TimerHeldByAnything: 20,
    planted.TwoConfigChanges: 15,
    planted.UnverifiedCommitted: 20,
    planted.VoteForgotten: 60,
}

#: The seed that last found the bug, tried first to save time. The claim is WITHIN.
LATELY: dict[type[Bug], int] = {
    planted.EarlyConfigChange: 218,
    planted.OldAnswerCounted: 89,
    planted.StaleLeaderIgnored: 9,
}

pytestmark = needs_interpreted


@pytest.mark.parametrize("bug", WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[Bug]) -> None:
    """An invariant, or an assertion of the core itself, stops the run."""
    seeds = first_lately(LATELY.get(bug, 0), WITHIN[bug])
    found = hunt_at_sizes(partial(run_one, bug=bug), bug.sizes, seeds)
    assert found is not None, f"{bug.__name__} not caught within {WITHIN[bug]} seeds"


@pytest.mark.parametrize("bug", [bug for bug in WITHIN if bug.favours], ids=lambda bug: bug.__name__)
def test_the_same_troubles_do_not_upset_the_sound_core(bug: type[Bug]) -> None:
    """The planted bug causes the violation, not the choice of faults that reveals it."""
    sound = type("Sound", (Bug,), {"favours": bug.favours})
    for seed in range(1, 11):
        run_one(seed, bug.sizes[0], bug=sound)
