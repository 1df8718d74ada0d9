"""The history of tablets: each step has the id of the request, or of the event, that began the work.

Every test with a `TabletBench` compares the history with the store's log (`audited.py`); these look at causes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from regions import messages as ms
from regions.cluster.history import unpack
from regions.messages.ddl import CreateTable, SetTableIntent
from regions.records.model import TableIntent
from regions.transitions.entries import FORCED, HistoryEntry
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.fixture import TabletBench


@pytest.fixture
def world(tmp_path: Path) -> TabletBench:
    return TabletBench(tmp_path)


def steps(world: TabletBench) -> list[HistoryEntry]:
    """Return the steps in the store's history, as `rk history` reads them."""
    below = f"{LAYOUT.history}/"
    names = sorted(path for path in world.store.nodes if path.startswith(below))
    return [entry for name in names for entry in unpack(world.store.nodes[name][0]) if entry.region_id]


def done_by(world: TabletBench, request: ms.MasterRequest) -> tuple[str, list[HistoryEntry]]:
    """Return the request's cause id, and the steps that followed."""
    before = len(steps(world))
    answer = world.bench.ask(request)
    world.turn(40, 0.5)
    assert isinstance(answer, ms.Tables | ms.Accepted), answer
    return answer.cause_id, steps(world)[before:]


def test_every_step_has_the_id_of_the_request_that_wanted_it(world: TabletBench) -> None:
    """Creation, close and open: all members, the servers' steps as well; the first one says what the request was."""
    for request, count in (
        (CreateTable("x", ["m"], replication=3), 6 * 4),
        (SetTableIntent("x", TableIntent.DISABLED), 6 * 3),
        (SetTableIntent("x", TableIntent.ENABLED), 6 * 4),
    ):
        cause, found = done_by(world, request)
        assert cause
        # A late report that a replica rests may cause it to be opened once more.
        assert (len(found) % count, {one.cause_id for one in found}) == (0, {cause})
        assert all(type(request).__name__ in one.origin for one in found if not one.before)
        recent = world.bench.ask(ms.RecentTransitions(count)).transitions
        assert {one.cause_id for one in recent} == {cause}


def test_one_tablet_that_is_unassigned_has_its_own_cause(world: TabletBench) -> None:
    done_by(world, CreateTable("x", ["m"], replication=3))
    first = world.regions()[0].region_id
    cause, found = done_by(world, ms.SetRegionIntent(first, False))
    assert {(one.region_id, one.cause_id) for one in found} == {(first, cause)}
    assert len([one for one in found if one.key]) == 9
    assert [(one.cause, one.detail) for one in found if not one.key] == [("request", f"unassign region {first}")]


def test_a_death_and_a_new_master_begin_new_work(world: TabletBench) -> None:
    """The next master's work for a restarted server has another cause than the request."""
    world.servers.servers["s2"].stop_at = "after OPENING"
    cause, found = done_by(world, CreateTable("x", replication=3))
    assert {one.cause_id for one in found} == {cause}
    world.fail_over()
    before = len(steps(world))
    world.servers.start("s2", empty=False)
    world.turn(40, 0.5)
    later = steps(world)[before:]
    anew = [one for one in later if one.cause == "server death"]
    assert anew
    assert all(one.cause_id != cause and one.origin.startswith("znode: server h:20 has registered") for one in anew)


def test_a_replacement_says_that_no_leader_has_reported(world: TabletBench) -> None:
    """DD-03: the replacing tablet begins with that cause."""
    assert isinstance(world.bench.ask(CreateTable("x", replication=3)), ms.Tables)
    former = world.regions()[0].region_id
    world.servers.leaderless.add(former)
    world.until(lambda: len(world.regions()) == 2 and world.is_running(), 5.0)
    fresh = {one.cause_id: one.origin for one in steps(world) if one.region_id != former and not one.before}
    assert [text for text in fresh.values() if text] == list(fresh.values())
    assert len(fresh) == 1
    assert next(iter(fresh.values())).startswith(f"timer: no leader of tablet {former} has reported for ")


def test_a_forced_configuration_is_recorded(world: TabletBench) -> None:
    """An operator forced it with the servers alone; `rk history` of the tablet shows it, with what was given up."""
    done_by(world, CreateTable("x", ["m"], replication=3))
    first = world.regions()[0].region_id
    cause, (found,) = done_by(world, ms.NoteForcedConfig(first, "s2", (2,), (1, 3), 7, 40))
    assert (found.region_id, found.cause, found.server, found.cause_id) == (first, FORCED, "s2", cause)
    assert found.detail == "members 2 stay, 1, 3 are given up; writes after entry 7.40 are lost"
