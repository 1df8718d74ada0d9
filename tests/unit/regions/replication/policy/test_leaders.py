"""The spread of leaders: it ends as even as it can be, never goes back and forth, and then does nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Final

import pytest

from regions.records.members import Member
from regions.records.model import ServerRecord
from regions.replication.policy.leaders import LeaderTransfer, LedTablet, spread_words, transfers

SEEDS: Final = 150

#: The voters of each tablet, the leader first.
Tablets = dict[str, list[str]]


def servers(*names: str, weight: float = 1.0) -> dict[str, ServerRecord]:
    """Return servers with their racks: `a/r1`."""
    found = {}
    for name in names:
        uuid, _, rack = name.partition("/")
        found[uuid] = ServerRecord(uuid, uuid, 1, 1, rack or "r", weight, tablets=True)
    return found


def leaders_of(tablets: Tablets) -> Counter[str]:
    return Counter(there[0] for there in tablets.values())


def chosen(tablets: Tablets, where: dict[str, ServerRecord], limit: int = 5) -> list[LeaderTransfer]:
    led = [
        LedTablet(name, "t", there[0], tuple(Member(int(uuid[1:] or 0), uuid) for uuid in there[1:]))
        for name, there in tablets.items()
    ]
    return transfers(led, leaders_of(tablets), where, limit)


def carry_out(tablets: Tablets, found: list[LeaderTransfer]) -> None:
    for one in found:
        there = tablets[one.region_id]
        assert there[0] == one.source
        assert one.heir.uuid in there[1:]
        there.remove(one.heir.uuid)
        there.insert(0, one.heir.uuid)


def cost(counts: Counter[str]) -> int:
    return sum(count * count for count in counts.values())


def some_tablets(chance: random.Random, names: list[str], count: int, replicas: int) -> Tablets:
    return {f"t{number:03}": chance.sample(names, min(replicas, len(names))) for number in range(count)}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_spread_ends_as_even_as_it_can_be(seed: int) -> None:
    """Each round makes the sum of the squares smaller, or moves the racks nearer to each other, and none goes back."""
    chance = random.Random(seed)
    where = servers(*(f"s{number}/r{number % chance.choice((1, 2, 3))}" for number in range(chance.randint(2, 7))))
    tablets = some_tablets(chance, list(where), chance.randint(1, 40), chance.choice((1, 3, 3, 5)))
    seen = {tuple(there[0] for there in tablets.values())}
    while found := chosen(tablets, where, limit=chance.choice((1, 2, 5))):
        before = cost(leaders_of(tablets))
        assert len({one.region_id for one in found}) == len(found)
        carry_out(tablets, found)
        assert cost(leaders_of(tablets)) <= before
        state = tuple(there[0] for there in tablets.values())
        assert state not in seen
        seen.add(state)
    assert chosen(tablets, where) == []
    if len(where) <= 4 and len(tablets) <= 6:
        assert cost(leaders_of(tablets)) == least_cost(tablets)


def least_cost(tablets: Tablets) -> int:
    """Return the smallest sum of squares of all choices of leaders."""
    return min(cost(Counter(leaders)) for leaders in itertools.product(*tablets.values()))


@pytest.mark.parametrize("seed", range(40))
def test_small_spreads_are_the_best_of_all(seed: int) -> None:
    """Compared with every choice of leaders there is."""
    chance = random.Random(seed)
    where = servers(*(f"s{number}" for number in range(chance.randint(2, 5))))
    tablets = some_tablets(chance, list(where), chance.randint(1, 7), 2)
    while found := chosen(tablets, where):
        carry_out(tablets, found)
    assert cost(leaders_of(tablets)) == least_cost(tablets)


def test_where_every_server_can_lead_every_tablet_the_counts_differ_by_one_at_most() -> None:
    where = servers("s0", "s1", "s2")
    tablets: Tablets = {f"t{number:03}": ["s0", "s1", "s2"] for number in range(200)}
    rounds = 0
    while found := chosen(tablets, where, limit=20):
        assert len(found) <= 20
        carry_out(tablets, found)
        rounds += 1
    assert sorted(leaders_of(tablets).values()) == [66, 67, 67]
    assert rounds == 7


def test_a_chain_relieves_a_server_that_shares_no_tablet_with_the_emptiest() -> None:
    """s0 hands over to s1, and s1 to s2: the last one first."""
    tablets: Tablets = {"t1": ["s0", "s1"], "t2": ["s0", "s1"], "t3": ["s1", "s2"]}
    found = chosen(tablets, servers("s0", "s1", "s2"))
    assert [(one.region_id, one.source, one.heir.uuid) for one in found] == [("t3", "s1", "s2"), ("t1", "s0", "s1")]


def test_a_difference_of_one_is_left_alone() -> None:
    assert chosen({"t1": ["s0", "s1"]}, servers("s0", "s1")) == []
    assert chosen({"t1": ["s0", "s1"], "t2": ["s0", "s1"], "t3": ["s1", "s0"]}, servers("s0", "s1")) == []


def test_racks_decide_between_servers_that_are_equally_good() -> None:
    """One rack leads both tablets. The other rack gets one of them, and then the handovers end."""
    where = servers("s0/a", "s1/a", "s2/b", "s3/b")
    tablets: Tablets = {"t1": ["s0", "s2"], "t2": ["s1", "s3"]}
    found = chosen(tablets, where)
    assert len(found) == 1
    carry_out(tablets, found)
    assert chosen(tablets, where) == []


def test_a_server_leads_in_proportion_to_its_weight() -> None:
    where = servers("s0", weight=2.0) | servers("s1")
    tablets: Tablets = {f"t{number}": ["s1", "s0"] for number in range(9)}
    while found := chosen(tablets, where):
        carry_out(tablets, found)
    assert leaders_of(tablets) == {"s0": 6, "s1": 3}


def test_servers_that_are_away_get_nothing() -> None:
    tablets: Tablets = {f"t{number}": ["s0", "s1"] for number in range(9)}
    assert chosen(tablets, servers("s0", "s2")) == []


def test_the_tablet_of_the_most_uneven_table_goes() -> None:
    led = [
        LedTablet(f"{table}{number}", table, "s0", (Member(1, "s1"),))
        for table, count in (("a", 1), ("b", 3))
        for number in range(count)
    ]
    (found, *_) = transfers(led, Counter({"s0": 4}), servers("s0", "s1"), 1)
    assert found.table_id == "b"


def test_words() -> None:
    assert spread_words({"a": 3, "b": 4}, ["a", "b", "c"]) == "0 to 4 on each of 3 servers"
    assert spread_words({"a": 3}, ["a"]) == "3 on each of 1 servers"
    assert spread_words({}, []) == "no server takes tablets"
