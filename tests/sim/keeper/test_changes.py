"""Changes of members under faults: the tablets become as wanted and stay so, and planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest import mock

import pytest

from regions.messages.server import TabletOpening
from regions.replication import member_orders
from regions.replication.keeper import Keeper
from regions.replication.policy import next_change
from regions.replication.policy.members import MemberPolicy
from tests.sim.keeper.changing import ChangingWorld
from tests.sim.keeper.growing import GrowingWorld
from tests.sim.keeper.model import BrokenInvariantError
from tests.sim.keeper.world import play

#: RK_SEEDS sets the number of seeds: `RK_SEEDS=2000 pytest tests/sim/keeper`.
SEEDS: Final = int(os.environ.get("RK_SEEDS", "25"))
#: Seeds of the table whose number of replicas changes over and over: each of them plays ten minutes.
SEEDS_GROWING: Final = max(2, SEEDS // 4)
#: Number of seeds within which a planted bug must be found.
SEEDS_PLANTED: Final = 40
#: Situations that a run must reach.
RARE: Final = (
    "number for a PRE_VOTER", "added", "copied", "promoted", "removed", "handed over", "stale config",
    "master abandoned", "master not a member", "close tombstone: CLOSE", "disk lost", "master died", "server died",
    "drained", "another number", "power cut",
)  # fmt: skip


def test_no_seed_breaks_an_invariant() -> None:
    """At rest each tablet with a leader has three live voters, none of them on the server that is to be empty."""
    met = play(ChangingWorld, SEEDS)
    assert [name for name in RARE if not met[name]] == []


def test_a_removed_number_is_not_added_again() -> None:
    """The newcomer made no progress and was removed. Its transition had not ended, so its number was added again, and
    removed again, for ever."""
    ChangingWorld(174).run()


def test_a_newcomer_leads_before_a_master_knows_it() -> None:
    """The newcomer was promoted and elected while no master was active. Its report was of a number that the record did
    not have, so the record was read again, for ever."""
    ChangingWorld(287).run()


def test_the_number_of_copies_goes_up_and_down() -> None:
    """1 -> 3 -> 1 -> 5 -> 3, twice: each step takes the changes that it needs, and no more. Never are fewer voters left
    than wanted."""
    met = play(GrowingWorld, SEEDS_GROWING)
    assert min(met["added"], met["removed"], met["server died"], met["master died"]) > 0


def test_a_report_that_is_late_costs_a_number() -> None:
    """A copy is in the store before its leader's report arrives. Without the wait for the report the master gives the
    number up and assigns another one."""
    expected = r"wanted|voters"
    with mock.patch.object(next_change, "REPORT_LATE_MS", 0), pytest.raises(BrokenInvariantError, match=expected):
        play(GrowingWorld, SEEDS_PLANTED)


def test_a_seed_is_one_history() -> None:
    """The seed that a failure prints repeats the failure."""
    first, second = ChangingWorld(7).run(), ChangingWorld(7).run()
    assert (first.counts, first.regions, first.transitions) == (second.counts, second.regions, second.transitions)


# --- planted bugs -----------------------------------------------------------------------------------------------------


@contextmanager
def _newcomers_are_opened() -> Iterator[None]:
    """A newcomer is ordered to open, and to be made from nothing, as a first member is."""
    opening = mock.patch.object(member_orders, "TabletOpening", lambda initial, must_exist: TabletOpening(initial))
    with opening, mock.patch.object(MemberPolicy, "is_new", return_value=False):
        yield


@contextmanager
def _copied_for_ever() -> Iterator[None]:
    """A voter whose server restarted before its transition ended counts as a newcomer that is to be copied."""

    def is_new(self: MemberPolicy, tablet: object, work: object) -> bool:
        return work.transition is not None and work.transition.joins is not None  # type: ignore[attr-defined]

    with mock.patch.object(MemberPolicy, "is_new", is_new):
        yield


@contextmanager
def _nobody_looks() -> Iterator[None]:
    """Tablets that are at rest are not looked at when a server is to be emptied."""
    with mock.patch.object(Keeper, "_servers_differ"):
        yield


Planted = tuple[Callable[[], AbstractContextManager[None]], str]

#: Name, way to plant the bug, text of the broken invariant.
PLANTED: Final[dict[str, Planted]] = {
    "a newcomer is opened by an order": (_newcomers_are_opened, "made from nothing"),
    "a voter is copied for ever": (_copied_for_ever, "is still"),
    "a server that is to be emptied is not looked at": (_nobody_looks, "Member"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    """Each breaks the invariant that it should break."""
    plant, expected = PLANTED[name]
    with plant(), pytest.raises(BrokenInvariantError, match=expected):
        play(ChangingWorld, SEEDS_PLANTED)
