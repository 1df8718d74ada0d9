"""Every cell of the checks of a ChangeConfig: the answer, and its place before the later rows."""

from __future__ import annotations

import pytest

from regions.messages.tablets import ChangeAnswer, ChangeConfig, ConfigChange
from regions.records.members import ConfigId, Member, MemberRole
from regions.replication.guards import CHANGE_CHECKS, ChangeFacts, check_of_change, is_already_so, wanted_members

CONFIG = ConfigId(3, 40)
VOTERS = (Member(1, "a"), Member(2, "b"), Member(5, "c"))
PRE_VOTER, LEARNER = MemberRole.PRE_VOTER, MemberRole.LEARNER
GROUP = (*VOTERS, Member(6, "d", PRE_VOTER), Member(7, "e", LEARNER))


def change(
    kind: ConfigChange = ConfigChange.ADD,
    number: int = 9,
    uuid: str = "z",
    *,
    expect: ConfigId = CONFIG,
    role: MemberRole = MemberRole.VOTER,
    port: int = 7000,
) -> ChangeConfig:
    return ChangeConfig(4, "me", 1, "t.1", expect, kind, number, uuid, "host", port, role)


def facts(asked: ChangeConfig | None = None, members: tuple[Member, ...] = GROUP, **more: object) -> ChangeFacts:
    return ChangeFacts(asked or change(), leads=True, number=1, config_id=CONFIG, members=members)._replace(**more)


#: Facts in which one row applies, and the row's place.
ROWS = [
    facts(leads=False),
    facts(change(ConfigChange.ADD, 6, "d")),
    facts(change(expect=ConfigId(3, 39))),
    facts(is_pending=True),
    facts(is_settled=False),
    facts(change(ConfigChange.PROMOTE, 7, "another")),
    facts(change(ConfigChange.PROMOTE, 9)),
    facts(change(number=4)),
    facts(change(uuid="c")),
    facts(change(port=0)),
    facts(change(ConfigChange.REMOVE, 1, "a"), (Member(1, "a"), Member(6, "d", PRE_VOTER))),
    facts(change(ConfigChange.REMOVE, 1, "a")),
    facts(is_safe=False),
    facts(),
]


@pytest.mark.parametrize("place", range(len(CHANGE_CHECKS)), ids=[check.when for check in CHANGE_CHECKS])
def test_each_row_decides_where_it_is_the_first_that_applies(place: int) -> None:
    assert len(ROWS) == len(CHANGE_CHECKS)
    assert check_of_change(ROWS[place]) is CHANGE_CHECKS[place]


def test_the_rows_are_checked_in_their_order() -> None:
    """A follower answers NOT_LEADER whatever else is wrong; a leader says DONE before it compares anything."""
    bad = {"is_pending": True, "is_settled": False, "is_safe": False}
    stale = change(ConfigChange.REMOVE, 1, "a", expect=ConfigId(1, 1))
    answers = [
        facts(stale, leads=False, **bad),
        facts(change(ConfigChange.REMOVE, 8, expect=ConfigId(1, 1)), **bad),
        facts(stale, **bad),
        facts(change(ConfigChange.REMOVE, 1, "a"), **bad),
        facts(change(ConfigChange.REMOVE, 1, "a"), is_settled=False, is_safe=False),
        facts(change(ConfigChange.REMOVE, 1, "a"), is_safe=False),
        facts(change(ConfigChange.REMOVE, 2, "b"), is_safe=False),
    ]
    assert [check_of_change(one).answer for one in answers] == [
        ChangeAnswer.NOT_LEADER,
        ChangeAnswer.DONE,
        ChangeAnswer.STALE_CONFIG,
        ChangeAnswer.PENDING,
        ChangeAnswer.NOT_SETTLED,
        ChangeAnswer.LEADS,
        ChangeAnswer.UNSAFE,
    ]


def _already(kind: ConfigChange, number: int, uuid: str, role: MemberRole = MemberRole.VOTER) -> bool:
    return is_already_so(facts(change(kind, number, uuid, role=role)))


def test_what_a_repetition_finds_done() -> None:
    """An ADD is done from the moment at which the member is there: the leader promotes it by itself."""
    add, remove, promote, demote = ConfigChange
    done = [
        (add, 6, "d"), (add, 5, "c"), (add, 7, "e", LEARNER), (add, 5, "c", LEARNER),
        (remove, 9, "z"), (promote, 5, "c"), (promote, 6, "d"), (demote, 7, "e"),
    ]  # fmt: skip
    open_ = [
        (add, 9, "z"), (add, 7, "e"), (add, 6, "another"),
        (remove, 5, "c"), (promote, 7, "e"), (demote, 5, "c"), (demote, 6, "d"),
    ]  # fmt: skip
    assert [one for one in done if not _already(*one)] == []
    assert [one for one in open_ if _already(*one)] == []


@pytest.mark.parametrize(
    ("asked", "role"),
    [
        (change(), PRE_VOTER),
        (change(role=PRE_VOTER), PRE_VOTER),
        (change(role=LEARNER), LEARNER),
        (change(ConfigChange.PROMOTE, 7, "e"), PRE_VOTER),
        (change(ConfigChange.DEMOTE, 5, "c"), LEARNER),
        (change(ConfigChange.DEMOTE, 6, "d"), LEARNER),
        (change(ConfigChange.REMOVE, 5, "c"), None),
    ],
)
def test_no_member_becomes_a_voter_at_once(asked: ChangeConfig, role: MemberRole | None) -> None:
    """FW-08: a new member is a PRE_VOTER first. The other members stay as they are."""
    wanted = wanted_members(facts(asked))
    assert [one.role for one in wanted if one.number == asked.number] == ([] if role is None else [role])
    assert [one for one in wanted if one.number != asked.number] == [one for one in GROUP if one.number != asked.number]
