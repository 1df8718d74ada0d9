"""The number of members, the first configuration, and valid reports of leaders."""

from __future__ import annotations

import pytest

from regions.records.members import REPLICAS_MAX, ConfigId, Member, MemberRole
from regions.records.model import RegionRecord
from regions.replication.config import (
    first_members,
    objection_to_change,
    objection_to_count,
    objection_to_report,
    objection_to_servers,
)

THREE = first_members(["a", "b", "c"])
REGION = RegionRecord("t", "r", members=THREE, next_number=4).with_configuration(ConfigId(1, 5), THREE)


def test_counts_are_odd_and_bounded() -> None:
    """At the limits: 1 and 7 are valid, 0, 2 and 9 are not."""
    fine = [count for count in range(-1, REPLICAS_MAX + 3) if not objection_to_count(count)]
    assert fine == [1, 3, 5, 7]
    assert "odd" in objection_to_count(4)
    assert objection_to_count(9) == "a tablet has 1 to 7 replicas, not 9"


def test_too_few_servers_are_named_with_their_count() -> None:
    """An operator may begin with a majority, but not with less."""
    assert objection_to_servers(3, 3, allow_under_replicated=False) == ""
    refused = objection_to_servers(3, 2, allow_under_replicated=False)
    assert refused.startswith("3 replicas need 3 servers that take tablets, and 2 can be used")
    assert "--allow-under-replicated" in refused
    assert objection_to_servers(3, 2, allow_under_replicated=True) == ""
    assert "a majority of 2" in objection_to_servers(3, 1, allow_under_replicated=True)
    assert "a majority of 3" in objection_to_servers(5, 2, allow_under_replicated=True)


def test_the_first_configuration_counts_from_one() -> None:
    """All are voters; the next number is one above the last."""
    assert [(one.number, one.uuid, one.role) for one in THREE] == [
        (1, "a", MemberRole.VOTER),
        (2, "b", MemberRole.VOTER),
        (3, "c", MemberRole.VOTER),
    ]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (THREE, ""),
        (THREE[:2], ""),
        ((Member(1, "a", MemberRole.LEARNER),), "no voter"),
        ((), "no voter"),
        ((Member(1, "a"), Member(1, "a")), "the same number"),
        ((Member(4, "d"),), "never assigned: the next one is 4"),
        ((Member(0, "d"),), "never assigned"),
        ((Member(2, "d"),), "number 2 was given to b, not to d"),
    ],
)
def test_a_configuration_that_cannot_be(members: tuple[Member, ...], reason: str) -> None:
    """Such a configuration comes from another cluster, or from a bug, and is not written."""
    found = objection_to_report(REGION, members)
    assert reason in found
    assert bool(found) is bool(reason)


def test_one_voter_at_a_time() -> None:
    """An added PRE_VOTER or learner does not change the quorum."""
    four = (*THREE, Member(4, "d"))
    newcomer = (*THREE, Member(4, "d", MemberRole.PRE_VOTER), Member(5, "e", MemberRole.LEARNER))
    assert objection_to_change(THREE, four) == ""
    assert objection_to_change(THREE, newcomer) == ""
    assert objection_to_change(newcomer, four) == ""
    assert objection_to_change(THREE, four[1:]) == "it changes the voters [1, 4] at once"
    assert "no voter" in objection_to_change(THREE[:1], ())
