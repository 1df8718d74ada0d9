"""The simulation of whole stores finds the bugs that are planted in them, and finds nothing where there is none."""

from __future__ import annotations

import pytest

from tests.sim.store import planted
from tests.sim.store.faults import is_interpreted, run_one
from tests.sim.store.world import Bug

#: Planted bug -> seeds within which it must be caught (about three times what it takes today).
WITHIN: dict[type[Bug], int] = {
    planted.AckBeforeSync: 25,
    planted.AppliedTwice: 5,
    planted.AttachedLocally: 5,
    planted.CleanPagesTrusted: 40,
    planted.CounterlessSnapshot: 5,
    planted.EphemeralsLeft: 5,
    planted.EventBehindData: 3,
    planted.ExpiryNotRestarted: 20,
    planted.FolderNotSynced: 60,
    planted.ForwardedTwice: 10,
    planted.MultiNotRolledBack: 3,
    planted.NothingSynced: 5,
    planted.PartialSnapshot: 30,
    planted.ReadDoesNotWait: 3,
    planted.ResentAtOnce: 10,
    planted.SessionlessSnapshot: 5,
    planted.SnapshotNotInLog: 80,
    planted.SyncWithoutQuorum: 15,
    planted.TermForgotten: 10,
    planted.WatchBeforeRead: 5,
    planted.WatchesOutliveConnection: 60,
    planted.WipedNodeVotes: 70,
}

#: Faults of a planted bug itself.
MISFITS = ("AttributeError", "NameError", "TypeError", "ImportError")

pytestmark = pytest.mark.skipif(not is_interpreted(), reason="bugs are planted by patches; compiled code takes none")


@pytest.mark.parametrize("bug", WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[Bug]) -> None:
    """Some check, or an assertion of the store itself, stops the run."""
    for seed in range(1, WITHIN[bug] + 1):
        violation = _violation(seed, bug)
        if violation:
            # A patch that no longer fits the code it stands in for would be "caught" as well.
            assert not any(name in violation for name in MISFITS), violation
            return
    pytest.fail(f"{bug.__name__} not caught within {WITHIN[bug]} seeds")


def _violation(seed: int, bug: type[Bug]) -> str:
    try:
        run_one(seed, bug=bug)
    except AssertionError as found:
        return str(found)
    return ""


@pytest.mark.parametrize("favours", sorted({bug.favours for bug in WITHIN if bug.favours}), ids="+".join)
def test_the_same_troubles_do_not_upset_the_sound_store(favours: tuple[str, ...]) -> None:
    """What catches a bug is the bug, not the choice of faults that brings it out."""
    sound = type("Sound", (Bug,), {"favours": favours})
    for seed in range(1, 7):
        run_one(seed, bug=sound)
