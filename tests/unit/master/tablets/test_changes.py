"""The active master changes members: dead ones are replaced, tables grow and shrink, servers are emptied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from regions import messages as ms
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.changing import ChangingBench, changing_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangingBench:
    """Return five servers and a table of four tablets with three members each."""
    return changing_world(tmp_path, monkeypatch)


def test_a_dead_servers_members_are_replaced(world: ChangingBench) -> None:
    """TC-16. Another server gets a member with a new number; the dead one goes before the newcomer votes."""
    before = world.members()
    world.servers.stop("s1")
    world.until(lambda: all("s1" not in one and len(one) == 3 for one in world.members()))
    world.until(world.is_running)
    concerned = sum("s1" in one for one in before)
    assert concerned > 0
    assert Counter(world.servers.answers)["remove 1: DONE"] + Counter(world.servers.answers)["remove 2: DONE"] > 0
    assert sum(answer.startswith("add") and answer.endswith("DONE") for answer in world.servers.answers) == concerned
    assert all(region.next_number == 4 + ("s1" in was) for region, was in zip(world.regions(), before, strict=True))


def test_a_lost_message_is_sent_again(world: ChangingBench) -> None:
    """Until a report shows the change, and each change takes effect once."""
    world.servers.loses = 2
    world.servers.stop("s1")
    world.until(lambda: all("s1" not in one and len(one) == 3 for one in world.members()))
    added = [one for one in world.servers.answers if one.startswith("add") and one.endswith("DONE")]
    assert (
        len(added)
        == sum(len(one.members) for one in world.regions() for member in one.members if member.number > 3) // 3
    )


def test_the_next_master_goes_on(world: ChangingBench) -> None:
    """A master dies when a number was given out, and another when the newcomer is added: nothing begins anew."""
    world.servers.stop("s1")
    world.until(lambda: bool(world.transitions()), 0.1)
    world.fail_over()
    world.until(lambda: any(answer.startswith("add") for answer in world.servers.answers), 0.1)
    world.fail_over()
    world.until(lambda: all("s1" not in one and len(one) == 3 for one in world.members()))
    world.until(world.is_running)
    assert all(region.next_number <= 5 for region in world.regions())


def test_the_number_of_copies_follows_the_table(world: ChangingBench) -> None:
    """TC-20: 3 -> 5 -> 1 -> 3."""
    for wanted in (5, 1, 3):
        world.table_is(replication=wanted)
        world.until(lambda wanted=wanted: all(len(one) == wanted for one in world.members()))
        world.until(world.is_running)


def test_a_drained_server_is_emptied(world: ChangingBench) -> None:
    """TC-21: leadership goes first, and a member goes only when its successor votes."""
    world.store.change(LAYOUT.draining_mark("s1"), b"")
    world.until(lambda: all("s1" not in one and len(one) == 3 for one in world.members()))
    world.until(world.is_running)
    assert any(answer.startswith("transfer") for answer in world.servers.answers)
    assert not any("UNSAFE" in answer for answer in world.servers.answers)


def test_why_says_what_comes_next(world: ChangingBench) -> None:
    """With two of five servers gone nothing is replaced, and the operator reads why, in `rk why` and `rk status`."""
    world.servers.stop("s1")
    world.servers.stop("s4")
    world.turn(20, 1.0)
    words = [world.active_master.keeper.watch.standing(region.region_id).judgment for region in world.regions()]
    told = [one.reason for one in words if one.health is ms.TabletHealth.UNDER_REPLICATED]
    assert told
    assert all("2 of 5 servers are gone (s1, s4)" in one for one in told)
    outage = [one for one in world.active_master.keeper.problems() if "with dead members" in one]
    assert len(outage) == 1
    assert outage[0].startswith(f"{len(told)} tablet")
    assert "`rk server retire`" in outage[0]
    world.servers.start("s1")
    world.until(lambda: not any("with dead members" in one for one in world.active_master.keeper.problems()))
