"""Splits of tablets under faults: every invariant after every event, rare states counted, planted bugs found."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from coord.compiled import PURE_VARIABLE, is_switched_on
from simulation.tablets.rare import SPLITS_MET
from simulation.tablets.run import run_one
from tests.sim.raft.rare import missed
from tests.sim.tablets import planted_splits
from tests.sim.tablets.planted_splits import SplitBug
from tests.support.interpreted import needs_interpreted
from tests.support.planted import first_lately, hunt_at_sizes

#: (servers, seeds). A violation names its seed and the command that shows it again.
RUNS = [(3, range(1, 41)), (4, range(1, 11)), (5, range(1, 51))]
if is_switched_on(PURE_VARIABLE):
    RUNS = [(3, range(1, 5)), (5, range(1, 5))]

#: Planted bug -> seeds within which it must be found (at least twice the present number).
WITHIN: dict[type[SplitBug], int] = {
    planted_splits.AnySealIsTakenAway: 20,
    planted_splits.BegunBeforeTheSeal: 5,
    planted_splits.CleanedTooEarly: 5,
    planted_splits.HorizonOfZero: 30,
    planted_splits.LastNotesNotCopied: 5,
    planted_splits.NotesOfFailedCommits: 30,
    planted_splits.PreparedByADeadProcess: 60,
    planted_splits.ReadsBehindTheSeal: 20,
    planted_splits.SealLostAtCopy: 20,
    planted_splits.SealMoves: 5,
    planted_splits.SealNotSteady: 5,
    planted_splits.WritesBehindTheSeal: 5,
}

#: The seed that last found the bug, tried first to save time. The claim is WITHIN.
LATELY: dict[type[SplitBug], int] = {
    planted_splits.CleanedTooEarly: 2,
    planted_splits.HorizonOfZero: 8,
    planted_splits.NotesOfFailedCommits: 9,
    planted_splits.PreparedByADeadProcess: 19,
    planted_splits.ReadsBehindTheSeal: 9,
    planted_splits.SealLostAtCopy: 4,
    planted_splits.SealNotSteady: 2,
}


def test_every_invariant_holds_on_every_seed() -> None:
    """No acknowledged row is missing, no write is carried out behind a seal, and the key space is whole; `run_one`
    raises otherwise."""
    counts: Counter[str] = Counter()
    for size, seeds in RUNS:
        for seed in seeds:
            counts.update(run_one(seed, size, splits=True).counts)
            counts["seeds"] += 1
    assert counts["split"] > counts["seeds"] // 3
    assert counts["split_ended"] == counts["split"]
    assert counts["write_sealed"] > counts["split"]
    if not is_switched_on(PURE_VARIABLE):
        assert missed(counts, SPLITS_MET) == []


def test_a_member_that_is_made_after_a_refusal_stays() -> None:
    """The small master asked its leader for ever to remove it, and woke the tablet each time."""
    run_one(19, 3, 12.0, splits=True)


@needs_interpreted
@pytest.mark.parametrize("bug", WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[SplitBug]) -> None:
    """An invariant stops the run."""
    seeds = first_lately(LATELY.get(bug, 0), WITHIN[bug])
    found = hunt_at_sizes(partial(run_one, bug=bug), bug.sizes, seeds)
    assert found is not None, f"{bug.__name__} not caught within {WITHIN[bug]} seeds"
    assert "replay: rk simulate --tablets --splits --seed" in found.violation


@needs_interpreted
def test_the_same_troubles_do_not_upset_the_sound_code() -> None:
    """The planted bug causes the violation, not the choice of faults that reveals it."""
    sound = type("Sound", (SplitBug,), {"favours": planted_splits.PreparedByADeadProcess.favours})
    for seed in (19, *range(1, 4)):
        run_one(seed, 5, bug=sound)


def test_every_planted_bug_is_looked_for() -> None:
    named = {one for one in vars(planted_splits).values() if isinstance(one, type) and issubclass(one, SplitBug)}
    assert named - {SplitBug} == set(WITHIN)
