"""The first election of new tablets: the chosen member leads, even if it is opened last."""

from __future__ import annotations

from collections import Counter
from typing import Final

from twisted.internet.task import Clock

from coord.raft.messages import FOLLOWER, PRE_CANDIDATE
from regionserver.tablets.host.beats import TICK_MS
from regionserver.tablets.process.first_elections import (
    ASK_AGAIN_S,
    ASK_DAUGHTER_AGAIN_S,
    ASKS_MAX,
    FirstElections,
    stands_first,
)
from tests.support.tablet_hosts import Hosts

TABLETS: Final = tuple(f"orders.{number:04x}" for number in range(40))
#: Ticks before the first election timeout: no member stands for election by itself until then.
BEFORE_TIMEOUTS: Final = 9


class NewTablets(Hosts):
    """Three servers that open the replicas of new tablets."""

    def __init__(self) -> None:
        super().__init__(tablets=())
        self.clock = Clock()
        self.elections = {name: FirstElections(server.turn, self.clock) for name, server in self.servers.items()}

    def open(self, number: int, tablets: tuple[str, ...] = TABLETS) -> None:
        name = self.places[number]
        for slot, tablet in enumerate(tablets, 1):
            self.elections[name].opened(self.add(tablet, number, slot))

    def pass_ticks(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(TICK_MS / 1000)
            self.ticks(1)

    def chosen(self, tablet: str) -> str:
        return next(place for number, place in self.places.items() if stands_first(tablet, number, self.places))


def test_one_member_of_each_tablet_is_chosen_and_the_servers_share_the_tablets() -> None:
    chosen = Counter(
        number for at in range(300) for number in (3, 5, 8) if stands_first(f"7c1e09aa.{at:04x}", number, [8, 3, 5])
    )
    assert chosen.total() == 300
    assert min(chosen.values()) >= 70
    assert not stands_first("t", 1, [])


def test_the_chosen_members_lead_before_any_timeout() -> None:
    hosts = NewTablets()
    for number in hosts.places:
        hosts.open(number)
    hosts.pass_ticks(BEFORE_TIMEOUTS)
    for tablet in TABLETS:
        assert hosts.leader(tablet) == hosts.chosen(tablet)
        assert hosts.core(hosts.chosen(tablet), tablet).term == 1


def test_a_chosen_member_asks_again_until_the_others_are_there() -> None:
    hosts = NewTablets()
    hosts.open(1)
    hosts.pass_ticks(4)
    hosts.open(2)
    hosts.pass_ticks(5)
    led = {tablet: hosts.leader(tablet) for tablet in TABLETS if hosts.chosen(tablet) != "s3"}
    assert led == {tablet: hosts.chosen(tablet) for tablet in led}


def test_a_tablet_whose_chosen_member_never_comes_gets_a_leader() -> None:
    hosts = NewTablets()
    hosts.open(1)
    hosts.open(2)
    for tablet in TABLETS:
        hosts.elect(tablet)


def test_a_member_that_stays_alone_stops_asking() -> None:
    hosts = NewTablets()
    hosts.open(1)
    hosts.clock.pump([ASK_AGAIN_S] * ASKS_MAX)
    assert not hosts.clock.getDelayedCalls()


def test_a_replica_that_has_heard_of_a_term_does_not_stand_first() -> None:
    hosts = NewTablets()
    tablet = next(one for one in TABLETS if hosts.chosen(one) == "s1")
    for number in (2, 3):
        hosts.open(number, (tablet,))
    hosts.elect(tablet)
    hosts.mute.add("s1")
    group = hosts.add(tablet, 1)
    group.core.term = 1
    hosts.elections["s1"].opened(group)
    assert not hosts.clock.getDelayedCalls()


def test_a_daughter_of_a_split_stands_at_once_and_asks_again_soon() -> None:
    """The chosen member of a new tablet waits for the next tick, and for the others several ticks longer."""
    hosts = NewTablets()
    tablet = TABLETS[0]
    first = hosts.add(tablet, 1)
    hosts.elections["s1"].opened(first, True)
    assert first.core.role == PRE_CANDIDATE
    hosts.ticks(1)
    second = hosts.add(tablet, 2)
    hosts.elections["s2"].opened(second, False)
    assert second.core.role == FOLLOWER
    hosts.clock.advance(ASK_DAUGHTER_AGAIN_S)
    hosts.ticks(1)
    assert hosts.leader(tablet) == "s1"
    hosts.clock.pump([ASK_DAUGHTER_AGAIN_S] * ASKS_MAX)
    assert not hosts.clock.getDelayedCalls()
