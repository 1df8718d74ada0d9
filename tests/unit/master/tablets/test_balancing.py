"""The balancer and tablets: rounds by themselves and at a request, with intents in the store, and handovers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from master.tablets.balancing import TabletBalancing
from regions import messages as ms
from tests.support.tablet_changes import ChangingServers
from tests.unit.master.tablets import fixture
from tests.unit.master.tablets.changing import ChangingBench
from tests.unit.master.tablets.test_member_requests import ask, kept


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangingBench:
    """Return three servers in three racks with four tablets, and two servers that were added afterwards."""
    monkeypatch.setattr(fixture, "ScriptedServers", ChangingServers)
    made = ChangingBench(tmp_path, 5)
    ask(made, ms.Balance(switch=False))
    for uuid in ("s4", "s5"):
        made.servers.stop(uuid)
    made.turn()
    made.create(regions=4)
    made.turn()
    assert held(made) == {"s1": 4, "s2": 4, "s3": 4}
    for uuid in ("s4", "s5"):
        made.servers.start(uuid)
    made.turn()
    return made


def held(world: ChangingBench) -> Counter[str]:
    return Counter(uuid for there in world.members() for uuid in there)


def is_even(world: ChangingBench) -> bool:
    """The racks of s1 and s4, and of s2 and s5, share their members; s3 is alone in its rack."""
    return held(world) == {"s1": 2, "s2": 2, "s3": 4, "s4": 2, "s5": 2} and not kept(world)


def test_a_round_is_shown_and_then_made(world: ChangingBench) -> None:
    """RT-14. A dry run writes nothing. What a round orders is an intent, which survives the master."""
    planned = ask(world, ms.Balance(run=True, dry_run=True))
    assert planned.dry_run
    assert {move.destination for move in planned.moves} == {"s4", "s5"}
    assert [one.replicas for one in planned.before if one.is_tablets] == [12]
    assert kept(world) == []
    made = ask(world, ms.Balance(run=True))
    assert made.moves == planned.moves
    assert made.tablets_moving == len(made.moves)
    assert {move.reason for one in kept(world) for move in one.moves} == {"balance"}
    world.fail_over(start=True)
    world.until(lambda: is_even(world))
    assert ask(world, ms.Balance(run=True)).moves == []


def test_rounds_begin_by_themselves_while_the_balancer_is_on(world: ChangingBench) -> None:
    """RT-14, RT-15."""
    world.turn(120, 1.0)
    assert set(held(world)) == {"s1", "s2", "s3"}, "it is off"
    ask(world, ms.Balance(switch=True))
    world.until(lambda: is_even(world))
    rounds = world.active_master.balancing.rounds.rounds
    moved = [move for one in rounds if one.what == "members of tablets" for move in one.moves]
    assert moved, "the page shows the rounds"
    assert all(one.reason and one.source != one.destination for one in moved)


def test_members_of_tablets_that_are_split_or_merged_stay(world: ChangingBench) -> None:
    """Their servers copy rows for the daughters."""
    before = {move.key.rpartition("-")[0] for move in ask(world, ms.Balance(run=True, dry_run=True)).moves}
    assert before
    for region in world.active_master.world.regions.values():
        region.resharding = "another"
    assert ask(world, ms.Balance(run=True, dry_run=True)).moves == []


def test_nothing_moves_while_a_plan_is_applied(world: ChangingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[Any] = []
    monkeypatch.setattr(TabletBalancing, "deciding", lambda _: began.append(1))
    monkeypatch.setattr(world.active_master.balancing, "applied_plan", lambda: "p1")
    ask(world, ms.Balance(switch=True))
    world.turn(60, 1.0)
    assert began == []
