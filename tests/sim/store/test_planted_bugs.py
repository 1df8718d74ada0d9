"""The simulation of whole stores finds every planted bug, and finds nothing without one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.sim.store import planted, planted_amnesia, planted_levels, planted_sessions, planted_storage
from tests.sim.store.faults import run_one
from tests.sim.store.log_alone import run_log
from tests.sim.store.world import Bug
from tests.support.interpreted import is_interpreted
from tests.support.planted import first_lately, hunt, violation_of

#: Planted bug -> seeds within which it must be found (about three times the number when it was planted).
WITHIN: dict[type[Bug], int] = {
    planted_storage.AckBeforeSync: 24,
    planted_sessions.AnsweredWithoutContact: 95,
    planted.AppliedTwice: 10,
    planted.AttachedLocally: 5,
    planted.ClaimsBelieved: 3,
    planted_storage.CleanPagesTrusted: 35,
    planted_storage.CounterlessSnapshot: 5,
    planted_sessions.EndedUnasked: 10,
    planted.EphemeralsLeft: 8,
    planted.EventBehindData: 5,
    planted.ExpiryNotRestarted: 10,
    planted_storage.FailedWriteIgnored: 10,
    planted_storage.FolderNotSynced: 40,
    planted.ForwardOfAnotherTerm: 15,
    planted.ForwardedTwice: 10,
    planted.JoinerNotAwaited: 10,
    planted.MissedNotTold: 45,
    planted.MultiNotRolledBack: 5,
    planted_storage.NothingSynced: 10,
    planted.OldOwnerHeard: 5,
    planted.OwnClock: 3,
    planted_storage.PartialSnapshot: 30,
    planted.ProposalsOutliveState: 100,
    planted.ReadDoesNotWait: 5,
    planted.ReapedUnchecked: 5,
    planted.RemoverDeaf: 30,
    planted.ResentAtOnce: 10,
    planted_storage.RightlessSnapshot: 5,
    planted.RightsNotReplicated: 3,
    planted_storage.SessionlessSnapshot: 5,
    planted.StaleNodeBuries: 150,
    planted.SyncWithoutQuorum: 100,
    planted.TermForgotten: 5,
    planted.TermLagsEntries: 25,
    planted.UncommittedApplied: 15,
    planted.VoteForgotten: 5,
    planted.WatchBeforeRead: 10,
    planted.WatchBlindToRights: 5,
    planted.WatchesOutliveConnection: 40,
    planted.WipedNodeVotes: 20,
    planted_amnesia.ShortLogTaken: 20,
    planted_levels.AbsentMemberIgnored: 80,
    planted_levels.LevelNotInSnapshot: 5,
    planted_levels.OlderStaysLinked: 55,
    planted_levels.PlansByOwnLevel: 20,
}
#: The seed that last found the bug, tried first to save time. The claim is WITHIN.
LATELY: dict[type[Bug], int] = {
    planted_storage.AckBeforeSync: 8,
    planted_sessions.AnsweredWithoutContact: 32,
    planted_sessions.EndedUnasked: 2,
    planted.AppliedTwice: 1,
    planted_storage.CleanPagesTrusted: 2,
    planted.EphemeralsLeft: 5,
    planted_storage.FailedWriteIgnored: 2,
    planted_storage.FolderNotSynced: 13,
    planted.ForwardOfAnotherTerm: 2,
    planted.ForwardedTwice: 1,
    planted_storage.NothingSynced: 2,
    planted.MissedNotTold: 9,
    planted_storage.PartialSnapshot: 8,
    planted.ProposalsOutliveState: 33,
    planted.StaleNodeBuries: 57,
    planted.TermLagsEntries: 3,
    planted.SyncWithoutQuorum: 46,
    planted.UncommittedApplied: 5,
    planted.WatchBeforeRead: 2,
    planted.WatchesOutliveConnection: 9,
    planted.WipedNodeVotes: 1,
    planted_amnesia.ShortLogTaken: 2,
    planted_levels.AbsentMemberIgnored: 12,
    planted_levels.OlderStaysLinked: 22,
    planted_levels.PlansByOwnLevel: 7,
}
#: The same for bugs of the log, which `log_alone` finds.
LOG_WITHIN: dict[type[Bug], int] = {planted_storage.TornTailKept: 230}

pytestmark = pytest.mark.skipif(not is_interpreted(), reason="bugs are planted by patches; compiled code takes none")


@pytest.mark.parametrize("bug", WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[Bug]) -> None:
    """A check, or an assertion of the store itself, stops the run."""
    found = hunt(
        lambda seed: violation_of(partial(run_one, seed, bug=bug)), first_lately(LATELY.get(bug, 0), WITHIN[bug])
    )
    assert found is not None, f"{bug.__name__} not caught within {WITHIN[bug]} seeds"


@pytest.mark.parametrize("bug", LOG_WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_of_the_log_is_caught(bug: type[Bug]) -> None:
    """A restart does not find the written entries. Without the bug the same seeds pass."""
    found = hunt(lambda seed: violation_of(partial(run_log, seed, bug)), range(1, LOG_WITHIN[bug] + 1))
    assert found is not None, f"{bug.__name__} not caught within {LOG_WITHIN[bug]} seeds"
    for seed in range(1, found.seed + 1):
        run_log(seed)


def test_the_table_in_the_documentation_is_that_of_the_code() -> None:
    """Every famous bug is planted, or its other test is named; `python -m tests.sim.raft.table` prints the table."""
    from tests.sim.raft import table

    planted_numbers = {row[0] for row in table.rows()}
    assert planted_numbers | set(table.ELSEWHERE) == set(table.FAMOUS)
    assert table.table() in (Path(__file__).resolve().parents[3] / "docs" / "simulation.md").read_text()


@pytest.mark.parametrize("favours", sorted({bug.favours for bug in WITHIN if bug.favours}), ids="+".join)
def test_the_same_troubles_do_not_upset_the_sound_store(favours: tuple[str, ...]) -> None:
    """The planted bug causes the violation, not the choice of faults that reveals it."""
    sound = type("Sound", (Bug,), {"favours": favours})
    for seed in range(1, 3):
        run_one(seed, bug=sound)
