"""Merges of tablets under faults, beside splits: every invariant after every event, and planted bugs are found."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from coord.compiled import PURE_VARIABLE, is_switched_on
from simulation.tablets.rare import MERGES_MET
from simulation.tablets.run import run_one
from tests.sim.raft.rare import missed
from tests.sim.tablets import planted_merges
from tests.sim.tablets.planted_merges import MergeBug
from tests.support.interpreted import needs_interpreted
from tests.support.planted import first_lately, hunt_at_sizes

#: (servers, seeds). A violation names its seed and the command that shows it again.
RUNS = [(3, range(1, 13)), (5, range(1, 9))]
if is_switched_on(PURE_VARIABLE):
    RUNS = [(3, range(1, 4))]

#: Planted bug -> seeds within which it must be found (at least twice the present number).
WITHIN: dict[type[MergeBug], int] = {
    planted_merges.ClockOfTheFirstParent: 20,
    planted_merges.MergedHalfSealed: 5,
    planted_merges.NotesOfTheSecondParent: 5,
    planted_merges.RowsOfTheFirstParent: 5,
    planted_merges.SecondParentGoesAtOnce: 5,
}

#: The seed that last found the bug, tried first to save time. The claim is WITHIN.
LATELY: dict[type[MergeBug], int] = {planted_merges.ClockOfTheFirstParent: 4}


def test_every_invariant_holds_on_every_seed() -> None:
    """The daughter of two tablets has the rows of both, and each write happens once; `run_one` raises otherwise."""
    counts: Counter[str] = Counter()
    for size, seeds in RUNS:
        for seed in seeds:
            counts.update(run_one(seed, size, merges=True).counts)
    assert counts["merge_ended"] == counts["merged"]
    if not is_switched_on(PURE_VARIABLE):
        assert missed(counts, MERGES_MET) == []


def test_a_tombstone_without_its_superblock_is_not_made_again() -> None:
    """A daughter's member was burned, and its superblock was lost later. A repeated order made it from the parents."""
    run_one(24, 5, 12.0, merges=True)


@needs_interpreted
@pytest.mark.parametrize("bug", WITHIN, ids=lambda bug: bug.__name__)
def test_planted_bug_is_caught(bug: type[MergeBug]) -> None:
    """An invariant stops the run."""
    seeds = first_lately(LATELY.get(bug, 0), WITHIN[bug])
    found = hunt_at_sizes(partial(run_one, bug=bug), bug.sizes, seeds)
    assert found is not None, f"{bug.__name__} not caught within {WITHIN[bug]} seeds"
    assert "replay: rk simulate --tablets --merges --seed" in found.violation


@needs_interpreted
def test_the_same_troubles_do_not_upset_the_sound_code() -> None:
    """The planted bug causes the violation, not the late copies that reveal it."""
    sound = type("Sound", (MergeBug,), {"favours_late_copies": True})
    for seed in range(1, 4):
        run_one(seed, 5, bug=sound)


def test_every_planted_bug_is_looked_for() -> None:
    named = {one for one in vars(planted_merges).values() if isinstance(one, type) and issubclass(one, MergeBug)}
    assert named - {MergeBug} == set(WITHIN)
