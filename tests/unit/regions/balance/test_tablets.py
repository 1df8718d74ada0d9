"""Moves of members: they even out counts and bytes, a few at a time, and then stop; never while servers are away."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

import pytest

from regions.balance.tablets import REASON, hopeless, moves_under_way, tablet_round
from regions.cluster.limits import BalancerConfig
from regions.records.intents import TabletMove
from regions.replication.config import voters
from tests.unit.regions.balance.tablets import Tablets

LIMITS: Final = BalancerConfig(tablet_moves_max=4, tablets_per_server_max=2)
MIB: Final = 1 << 20


def even_out(tablets: Tablets, limits: BalancerConfig = LIMITS) -> int:
    """Carry rounds out until none has moves. Return the number of moves."""
    made = 0
    for _ in range(500):
        found = tablet_round(tablets.keeper, limits, tablets.now)
        assert not found.blocking
        if not found.moves:
            assert not found.proposal.more
            return made
        assert len(found.moves) <= limits.tablet_moves_max
        for region_id, move in found.moves:
            tablets.move(region_id, move)
        busy = Counter(uuid for _, move in found.moves for uuid in (move.source, move.target))
        assert max(busy.values()) <= limits.tablets_per_server_max
        tablets.come_true(*sorted({region_id for region_id, _ in found.moves}))
        made += len(found.moves)
        check(tablets)
    raise AssertionError("rounds do not end")


def check(tablets: Tablets) -> None:
    """No tablet has two members on one server, nor more of them in one rack than it needs."""
    racks = {uuid: one.rack for uuid, one in tablets.keeper.servers.items()}
    for each in tablets.keeper.tablets.values():
        there = [one.uuid for one in voters(each.record.members)]
        assert len(set(there)) == len(there) == tablets.replicas
        count = len(set(racks.values()))
        assert max(Counter(racks[uuid] for uuid in there).values()) <= -(-tablets.replicas // count)


@pytest.mark.parametrize("seed", range(30))
def test_a_server_that_was_added_gets_its_share_and_then_nothing_moves(seed: int) -> None:
    """RT-14. Another look after the end moves nothing either."""
    chance = random.Random(seed)
    tablets = Tablets("a", "b", "c", "d")
    tablets.some(chance, chance.randint(8, 30), ["a", "b", "c", "d"])
    even_out(tablets)
    tablets.server("e")
    moves = even_out(tablets)
    counts = tablets.held()
    assert max(counts.values()) - min(counts.values()) <= 1
    assert moves <= counts["e"] + 4, "only what the new server lacks moves"
    assert even_out(tablets) == 0


@pytest.mark.parametrize("seed", range(10))
def test_racks_stay_as_they_are_allowed(seed: int) -> None:
    chance = random.Random(seed)
    tablets = Tablets("a/1", "b/2", "c/3", "d/1", "e/2", "f/3")
    for number in range(20):
        tablets.tablet(f"x{number:02}", "a", "b", chance.choice("cf"))
    even_out(tablets)
    counts = tablets.held()
    assert sorted(counts) == list("abcdef")
    assert max(counts.values()) - min(counts.values()) <= 1


def test_bytes_even_out_by_exchanges() -> None:
    """The counts are even; one server has all large tablets."""
    tablets = Tablets("a", "b", "c", "d", replicas=1)
    for number, uuid in enumerate("abcd" * 4):
        tablets.tablet(f"x{number:02}", uuid, size=640 * MIB if uuid == "a" else 64 * MIB)
    before = tablets.bytes()
    assert even_out(tablets) > 0
    after = tablets.bytes()
    assert max(after.values()) < max(before.values()) / 2
    assert set(tablets.held().values()) == {4}


def test_small_tablets_are_not_exchanged() -> None:
    tablets = Tablets("a", "b", replicas=1)
    for number, uuid in enumerate("abab"):
        tablets.tablet(f"x{number}", uuid, size=9 * MIB if uuid == "a" else MIB)
    assert even_out(tablets) == 0


def test_moves_under_way_count_as_done_and_for_the_limits() -> None:
    tablets = Tablets("a", "b", "c", replicas=1)
    for number in range(12):
        tablets.tablet(f"x{number:02}", "a")
    first = tablet_round(tablets.keeper, LIMITS, tablets.now)
    assert len(first.moves) == LIMITS.tablets_per_server_max
    for region_id, move in first.moves:
        tablets.move(region_id, move)
    assert moves_under_way(tablets.keeper) == 2
    assert tablet_round(tablets.keeper, LIMITS, tablets.now).moves == []
    wide = BalancerConfig(tablet_moves_max=10, tablets_per_server_max=10)
    more = tablet_round(tablets.keeper, wide, tablets.now)
    assert len(more.moves) == 6, "eight leave in all"
    assert not {one for one, _ in more.moves} & {one for one, _ in first.moves}


def test_members_of_tablets_that_are_split_or_merged_stay() -> None:
    """Tried: without the question, a member leaves the server to which a merge has brought it."""
    tablets = Tablets("a", "b", replicas=1)
    for number in range(8):
        tablets.tablet(f"x{number}", "a")
    found = tablet_round(tablets.keeper, LIMITS, tablets.now, lambda region_id: region_id != "x3")
    assert [region_id for region_id, _ in found.moves] == ["x3"]


def test_nothing_moves_while_a_server_is_away() -> None:
    """Its members may have to be copied elsewhere. A server that is emptied does not count."""
    tablets = Tablets("a", "b", "c", "d", "e")
    tablets.some(random.Random(1), 12, ["a", "b", "c"])
    tablets.keeper.server_down("a")
    found = tablet_round(tablets.keeper, LIMITS, tablets.now)
    assert found.blocking == "1 server with members of tablets are away: a"
    assert found.moves == []
    tablets.keeper.servers_closed(frozenset("a"), frozenset("a"))
    assert not tablet_round(tablets.keeper, LIMITS, tablets.now).blocking
    tablets.keeper.server_down("b")
    tablets.keeper.server_down("c")
    assert "more than a third" in tablet_round(tablets.keeper, LIMITS, tablets.now).blocking


def test_servers_without_room_or_that_get_nothing_new_are_no_targets() -> None:
    tablets = Tablets("a", "b", replicas=1)
    for number in range(8):
        tablets.tablet(f"x{number}", "a", size=64 * MIB)
    tablets.server("b", disk_free=32 * MIB)
    assert tablet_round(tablets.keeper, LIMITS, tablets.now).moves == []
    tablets.server("b", disk_free=640 * MIB)
    tablets.keeper.servers_closed(frozenset(), frozenset("b"))
    assert tablet_round(tablets.keeper, LIMITS, tablets.now).moves == []
    tablets.keeper.servers_closed(frozenset(), frozenset())
    assert len(tablet_round(tablets.keeper, LIMITS, tablets.now).moves) == 2


def test_moves_without_a_target_are_withdrawn() -> None:
    """Only moves of the balancer are withdrawn."""
    tablets = Tablets("a", "b", "c", replicas=1)
    for number in range(2):
        tablets.tablet(f"x{number}", "a")
    mine, other = TabletMove("a", "b", 1, REASON), TabletMove("a", "b", 1)
    tablets.move("x0", mine)
    tablets.move("x1", other)
    assert hopeless(tablets.keeper) == []
    tablets.keeper.server_down("b")
    assert hopeless(tablets.keeper) == [("x0", mine)]
