"""The policy of members under faults: it converges, does not flap, and never takes a majority away itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final
from unittest import mock

import pytest

from regions.messages.heartbeat import MemberHealth
from regions.records.members import Member
from regions.replication.policy import next_change as policy
from regions.replication.policy.situation import Situation
from tests.sim.policy.world import BrokenPolicyError, World

#: RK_SEEDS sets the number of seeds: `RK_SEEDS=5000 pytest tests/sim/policy`.
SEEDS: Final = int(os.environ.get("RK_SEEDS", "150"))
#: Number of seeds within which a planted bug must be found.
SEEDS_PLANTED: Final = 150
#: Situations that a run must reach: a simulation that never reaches a situation proves nothing about it.
RARE: Final = (
    "promoted", "refused", "add", "remove", "transfer leadership", "disk lost", "master died", "server died",
    "move",
)  # fmt: skip


def test_no_seed_breaks_an_invariant() -> None:
    """At rest: as many live voters as wanted, none on servers to be emptied, no move left, and no more changes."""
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met.update(World(seed).run().counts)
    assert [name for name in RARE if not met[name]] == []


def test_a_seed_is_one_history() -> None:
    """The seed that a failure prints repeats the failure."""
    first, second = World(7).run(), World(7).run()
    assert (first.counts, first.members, first.config) == (second.counts, second.members, second.config)


# --- planted bugs -----------------------------------------------------------------------------------------------------


@contextmanager
def _evicts_without_majority() -> Iterator[None]:
    with mock.patch.object(Situation, "unsafe", return_value=""):
        yield


@contextmanager
def _leader_is_unhealthy() -> Iterator[None]:
    def health(self: Situation, member: Member) -> MemberHealth:
        found = self._judged.get(member.number)
        return MemberHealth.UNKNOWN if found is None else found.health

    with mock.patch.object(Situation, "health", health):
        yield


@contextmanager
def _several_at_once() -> Iterator[None]:
    """Ignores newcomers and orders under way, and what the last report may not show yet."""

    def adds(facts: Situation) -> policy.Decision | None:
        joining, facts.joining = facts.joining, []
        try:
            return policy._too_few_voters(facts)
        finally:
            facts.joining = joining

    rows = tuple(
        row._replace(decide=adds) if row.decide is policy._too_few_voters else row
        for row in policy.CHECKS
        if row.decide is not policy._under_way
    )
    with mock.patch.object(policy, "CHECKS", rows):
        yield


@contextmanager
def _removes_first() -> Iterator[None]:
    """A failed or moving voter is removed before its successor exists, as in Kudu's 3-2-3."""

    def removes(facts: Situation) -> policy.Decision | None:
        gone = [one for one in facts.voters if one in facts.failed or one.number in facts.leaving]
        movable = [one for one in gone if one.number != facts.leader.number]
        return policy._remove(facts, movable[0], "first") if movable and len(facts.voters) > 1 else None

    rows = tuple(row._replace(decide=removes) if row.decide is policy._too_few_voters else row for row in policy.CHECKS)
    with mock.patch.object(policy, "CHECKS", rows):
        yield


Planted = tuple[Callable[[], AbstractContextManager[None]], dict[str, bool], str]

#: Name, way to plant the bug, the leader's bug, text of the broken invariant.
PLANTED: Final[dict[str, Planted]] = {
    "REMOVE without CAS": (nullcontext, {"has_cas": False}, "lives|no majority|came back|is removed|two newcomers"),
    "eviction without a healthy majority": (_evicts_without_majority, {}, "no majority of the rest"),
    "promotion that needs the newcomer": (nullcontext, {"promotes_at_once": True}, "a majority needs it"),
    "leader counted unhealthy": (_leader_is_unhealthy, {}, "voters are wanted"),
    "more than one change pending": (_several_at_once, {}, "two newcomers"),
    "removal before the successor": (_removes_first, {}, "lives|no majority|voters are wanted"),
}


def play(leader: dict[str, bool]) -> None:
    """Play seeds with that leader."""
    for seed in range(SEEDS_PLANTED):
        World(seed, **leader).run()


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    """Each breaks the invariant that it should break."""
    plant, leader, expected = PLANTED[name]
    with plant(), pytest.raises(BrokenPolicyError, match=expected):
        play(leader)
