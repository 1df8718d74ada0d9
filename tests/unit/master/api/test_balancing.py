"""An operator's round of the balancer: a part in each turn, and what happens between two turns counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regions import messages as ms
from regions.balance import balancer
from regions.cluster.entities import Replica
from regions.records.model import RegionRecord, ReplicaLocation, ServerRecord
from regions.records.znodes import encode
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore, lay_ground

REGIONS, AT_ONCE = 30, 5


class Round(Bench):
    """REGIONS regions on s1, none on s2. The balancer counts AT_ONCE in a turn; `looked` has how many it did."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LossyStore()
        lay_ground(store, servers=2)
        for number in range(1, REGIONS):
            region = RegionRecord("t", f"t.{number:02}", replicas=(ReplicaLocation(0, "s1", 7),))
            store.put(LAYOUT.region("t", region.region_id), encode(region))
        super().__init__(folder, store=store)
        assert self.active_master is not None
        self.master = self.active_master
        self.hold_servers()
        self.ask(ms.Balance(switch=False))
        self.looks = 0
        is_at_rest = balancer._is_at_rest

        def counted(replica: Replica) -> bool:
            self.looks += 1
            return is_at_rest(replica)

        monkeypatch.setattr(balancer, "_is_at_rest", counted)
        monkeypatch.setattr(balancer, "COUNTED_AT_ONCE", AT_ONCE)

    def turn(self) -> int:
        """Let one turn pass. Return how many replicas the balancer has looked at."""
        before = self.looks
        self.one_turn()
        return self.looks - before

    def until(self, results: list[Any]) -> list[int]:
        """Return what `turn` returned, until there is an answer."""
        looked = []
        while not results:
            looked.append(self.turn())
            assert len(looked) < 1_000, "the request is not answered"
        return looked

    def begin(self) -> list[Any]:
        """Ask for a round, and let some turns of it pass."""
        results: list[Any] = []
        self.ask_into(ms.Balance(run=True), results)
        for _ in range(4):
            self.turn()
        assert not results
        return results

    def moves(self) -> Counter[str]:
        return Counter(one.move for one in self.master.world.replicas.values() if one.move is not None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Round:
    return Round(tmp_path, monkeypatch)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_turn_looks_at_some_regions(world: Round, dry_run: bool) -> None:
    """A round of 100,000 regions took 0.3 s in one turn of the master. Fails if all is counted in one turn."""
    results: list[Any] = []
    world.ask_into(ms.Balance(run=True, dry_run=dry_run), results)
    assert world.looks <= AT_ONCE
    looked = world.until(results)
    # A move looks at the replicas of its source for each receiver.
    assert max(looked) <= REGIONS + AT_ONCE
    assert sum(1 for count in looked if count) > REGIONS // AT_ONCE
    assert len(results[0].moves) == REGIONS // 2
    assert world.moves() == ({} if dry_run else {"s2": REGIONS // 2})


def test_a_server_that_comes_between_two_turns_gets_its_share(world: Round) -> None:
    """Fails if the round goes on with the shares of two servers."""
    results = world.begin()
    world.store.change(LAYOUT.server("s3"), encode(ServerRecord("s3", "h", 9, 7)))
    world.turn()
    world.until(results)
    assert world.moves() == {"s2": REGIONS // 3, "s3": REGIONS // 3}


def test_a_region_that_an_operator_moves_between_two_turns_goes_where_the_operator_wants(world: Round) -> None:
    results = world.begin()
    for number in range(10, 13):
        world.ask_into(ms.MoveRegion(f"t.{number}", 0, "s2"), [])
    world.turn()
    world.until(results)
    moved = {one.key for one in results[0].moves}
    assert not moved & {f"t.{number}-0" for number in range(10, 13)}
    assert world.moves() == {"s2": len(moved) + 3}


def test_a_plan_that_is_applied_from_between_two_turns_on_moves_the_regions_alone(world: Round) -> None:
    results = world.begin()
    world.master.balancing.applied_plan = lambda: "p1"
    world.until(results)
    assert results == [ms.BAD_REQUEST]
    assert not world.moves()


def test_two_operators_do_not_move_the_same_surplus(world: Round) -> None:
    """Fails if both rounds are decided side by side: more regions than are due would leave s1."""
    first, second = world.begin(), []
    world.ask_into(ms.Balance(run=True), second)
    world.until(first)
    world.until(second)
    assert len(first[0].moves) == REGIONS // 2
    assert second[0].moves == []
    assert world.moves() == {"s2": REGIONS // 2}


def test_the_balancer_itself_waits_meanwhile(world: Round) -> None:
    balancing = world.master.balancing
    world.ask(ms.Balance(switch=True))
    results = world.begin()
    assert balancing.tick() == []
    assert not balancing.is_counting
    world.until(results)
    assert not balancing.is_asked


def test_a_tenure_that_ends_between_two_turns_answers(world: Round) -> None:
    results = world.begin()
    world.master.end("stopping")
    assert results == [ms.NOT_LEADER]
    assert not world.moves()
    assert not world.master.balancing.is_asked


def test_an_operator_who_waits_for_another_at_the_end_of_the_tenure_gets_no_round(
    world: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round in one step does not wait for a turn. Fails if it is decided and reported: nobody would carry it out."""
    monkeypatch.setattr(balancer, "COUNTED_AT_ONCE", 10 * REGIONS)
    asked = world.master.balancing.asked
    asked.acquire()
    results: list[Any] = []
    world.ask_into(ms.Balance(run=True), results)
    assert not results
    world.master.end("stopping")
    asked.release()
    assert results == [ms.NOT_LEADER]
    assert not asked.locked
