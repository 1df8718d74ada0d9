"""A newcomer is given up as soon as its live server does not have it; see also testdata/policy/lost_newcomer.txt."""

from __future__ import annotations

from typing import Final

import pytest

from regions.messages.heartbeat import MemberHealth, MemberReport, ReplicaState, TabletReport
from regions.records.members import Member, MemberRole
from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.replication.effects import ChangeMembers
from regions.replication.policy.situation import REPORT_LATE_MS
from tests.unit.regions.balance.tablets import Tablets

#: The state and the number of the replica that the newcomer's server reports, if it has one; and whether it is lost.
CASES: Final[dict[str, tuple[ReplicaState | None, int, bool]]] = {
    "the server has nothing": (None, 0, True),
    "it copies": (ReplicaState.COPYING, 4, False),
    "its copy was cut short and begins again": (ReplicaState.TOMBSTONE, 4, False),
    "the number is burned": (ReplicaState.LOST, 4, True),
    "there is a former replica": (ReplicaState.TOMBSTONE, 2, True),
}


def newcomer_on(tablets: Tablets, state: ReplicaState | None, number: int) -> list[str]:
    """Return why members are removed, with a newcomer on d that its server began to copy."""
    voters = (Member(1, "a"), Member(2, "b"), Member(3, "c"))
    tablets.tablet("x", "a", "b", "c")
    tablets.health["x", 3] = MemberReport(3, MemberHealth.FAILED)
    opening = TransitionRecord(
        "x", "t", 4, RegionState.OPENING, destination=Incarnation("d", 1), joins=MemberRole.PRE_VOTER
    )
    tablets.keeper.transition_seen("x", 4, opening, 1, tablets.now)
    tablets.health["x", 4] = MemberReport(4, MemberHealth.UNKNOWN, 5_000)
    tablets.put("x", "t", (*voters, Member(4, "d", MemberRole.PRE_VOTER)), 1, 1, 2)
    if state is None:
        tablets.keeper.reported(Incarnation("d", 1), [], ["x-4"])
    else:
        tablets.keeper.reported(Incarnation("d", 1), [TabletReport("x", "t", number, state)], [])
    tablets.keeper.take(tablets.now)
    late = tablets.now + REPORT_LATE_MS
    tablets.keeper.tick(late)
    return [
        one.why for one in tablets.keeper.take(late) if isinstance(one, ChangeMembers) and not one.adds
    ]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_newcomer_without_a_copy_is_given_up(name: str) -> None:
    state, number, is_lost = CASES[name]
    found = newcomer_on(Tablets("a", "b", "c", "d"), state, number)
    assert [("is lost" in why) for why in found] == ([True] if is_lost else [])


def test_a_server_that_has_not_reported_may_have_it() -> None:
    tablets = Tablets("a", "b", "c", "d")
    tablets.silent.add("d")
    assert newcomer_on(tablets, None, 0) == []
