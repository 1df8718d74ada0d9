"""Rounds that spread leaders: who takes part, how many at a time, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from regions.balance.leader_rounds import AGAIN_MS, ROUND_MS, LeaderSpreading, leaders_of
from regions.messages.heartbeat import MemberHealth, MemberReport
from regions.records.intents import TabletMove
from regions.records.model import NO_ROOM
from regions.replication.effects import HandOver
from regions.replication.policy.situation import CAUGHT_UP_ENTRIES
from tests.unit.regions.balance.tablets import LIMITS, Tablets

FEW: Final = msgspec.structs.replace(LIMITS, leader_transfers_max=4)


def uneven(count: int = 12) -> tuple[Tablets, LeaderSpreading]:
    """Return tablets that a leads, and b and c do not."""
    tablets = Tablets("a", "b", "c")
    for number in range(count):
        tablets.tablet(f"x{number:02}", "a", "b", "c")
    return tablets, LeaderSpreading(tablets.keeper, FEW)


def test_rounds_spread_the_leaders_and_then_do_nothing() -> None:
    """At most so many at once; the next ones when the reports show these."""
    tablets, spreading = uneven()
    for _ in range(3):
        found = spreading.tick(tablets.now)
        assert spreading.tick(tablets.now) == [], "a round is not due again"
        sent = [one for one in tablets.keeper.take(tablets.now) if isinstance(one, HandOver)]
        assert [(one.region_id, one.to) for one in sent] == [(one.region_id, one.heir.number) for one in found]
        assert len(sent) <= 4
        for one in sent:
            tablets.keeper.change_answered(one.ask)
            tablets.again(one.region_id, leader=one.to)
        tablets.now += ROUND_MS
    assert set(leaders_of(tablets.keeper).values()) == {4}
    assert spreading.tick(tablets.now + AGAIN_MS) == []


def test_handovers_under_way_count() -> None:
    tablets, spreading = uneven()
    assert len(spreading.tick(tablets.now)) == 4
    tablets.keeper.take(tablets.now)
    assert spreading.tick(tablets.now + ROUND_MS) == []


def test_a_leader_that_does_not_hand_over_is_not_asked_again_at_once() -> None:
    """Others are asked meanwhile."""
    tablets, spreading = uneven()
    asked: set[str] = set()
    for _ in range(3):
        spreading.tick(tablets.now)
        sent = [one for one in tablets.keeper.take(tablets.now) if isinstance(one, HandOver)]
        assert not asked & {one.region_id for one in sent}
        asked |= {one.region_id for one in sent}
        for one in sent:
            tablets.keeper.change_answered(one.ask)
        tablets.now += ROUND_MS
    assert len(asked) == 12
    tablets.now += AGAIN_MS
    assert len(spreading.tick(tablets.now)) == 4


def heirs(tablets: Tablets, spreading: LeaderSpreading) -> set[str]:
    return {one.heir.uuid for one in spreading.proposed(tablets.now)}


def judge(health: MemberHealth = MemberHealth.HEALTHY, **fields: object) -> Callable[[Tablets], None]:
    def change(tablets: Tablets) -> None:
        for region_id in list(tablets.keeper.tablets):
            tablets.health[region_id, 2] = msgspec.structs.replace(MemberReport(2, health), **fields)
            tablets.again(region_id)

    return change


def moving(tablets: Tablets) -> None:
    tablets.server("d")
    for region_id in list(tablets.keeper.tablets):
        tablets.move(region_id, TabletMove("c", "d"))


#: Obstacles for leaders on servers, and the servers that get leaders.
CASES: Final[dict[str, tuple[Callable[[Tablets], None], set[str]]]] = {
    "nothing": (lambda _: None, {"b", "c"}),
    "b lags": (judge(behind=CAUGHT_UP_ENTRIES + 1), {"c"}),
    "the disk of b is full": (judge(may_lead=False), {"c"}),
    "b is silent: a repair may follow": (judge(MemberHealth.UNKNOWN), set()),
    "b has failed": (judge(MemberHealth.FAILED), set()),
    "the disk of b is below its reserve": (lambda one: one.server("b", disk_free=NO_ROOM), {"c"}),
    "b gets nothing new": (lambda one: one.keeper.servers_closed(frozenset(), frozenset("b")), {"c"}),
    "b is about to stop": (lambda one: one.server("b", leaving=True), {"c"}),
    "b has just started": (lambda one: one.server("b", start_code=one.now - 1_000), {"c"}),
    "the clock of b is ahead": (lambda one: one.server("b", start_code=one.now + 1_000), {"b", "c"}),
    "b takes no tablets": (lambda one: one.server("b", tablets=False), {"c"}),
    "members move": (moving, set()),
    "c has not reported to this master": (lambda one: one.silent.add("c"), set()),
    "more than a third of the servers is gone": (
        lambda one: (one.keeper.server_down("b"), one.keeper.server_down("c")), set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_who_gets_leaders(name: str) -> None:
    change, expected = CASES[name]
    tablets, _ = uneven()
    spreading = LeaderSpreading(tablets.keeper, msgspec.structs.replace(FEW, leader_rest_ms=30_000))
    change(tablets)
    tablets.keeper.take(tablets.now)
    assert heirs(tablets, spreading) == expected
