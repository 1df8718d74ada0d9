"""Requests about members: each is an intent in the store that the policy keeps, whichever master is active."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from regions import messages as ms
from regions.messages.ddl import AlterTable, CreateTable
from regions.records.intents import TabletIntents
from regions.records.members import MemberRole
from regions.records.model import RegionRecord
from regions.records.znodes import decode_intents
from regions.replication.policy import newcomers
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.changing import ChangingBench, changing_world

#: Newcomers of a server at a time, in tests of this limit.
FEW = 8

ALL = {"s1", "s2", "s3", "s4", "s5"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangingBench:
    """Return five servers and a table of four tablets with three members each."""
    return changing_world(tmp_path, monkeypatch)


def ask(world: ChangingBench, request: Any) -> Any:
    """Return the reply, or the RpcError."""
    results: list[Any] = []

    def came(found: Any) -> None:
        results.append(found.value if isinstance(found, Failure) else found)

    marks = set(drained(world))
    ensureDeferred(world.bench.api.dispatch(request)).addBoth(came)
    world.bench.go_on()
    for path in set(drained(world)) - marks:
        world.store.change(path)  # this store notifies watchers only of servers' writes
    for _ in range(5):
        world.bench.go_on()
    [found] = results
    return found


def refused(world: ChangingBench, request: Any) -> str:
    """Return why a request is refused; nothing of it is in the store."""
    before = kept(world)
    found = ask(world, request)
    assert isinstance(found, RpcError), found
    assert kept(world) == before
    return found.message


def drained(world: ChangingBench) -> list[str]:
    """Return the paths of the servers that are to be empty."""
    return [path for path in world.store.nodes if path.startswith(f"{LAYOUT.draining}/")]


def kept(world: ChangingBench) -> list[TabletIntents]:
    """Return the intents in the store."""
    prefix = f"{LAYOUT.intents}/"
    return [decode_intents(world.store.nodes[path][0]) for path in sorted(world.store.nodes) if path.startswith(prefix)]


def first(world: ChangingBench) -> RegionRecord:
    """Return the first tablet's record."""
    return world.regions()[0]


def places(region: RegionRecord) -> set[str]:
    return {one.uuid for one in region.members}


def a_way(world: ChangingBench, region: RegionRecord) -> tuple[str, str]:
    """Return a member's server and another one in its rack."""
    rack = {uuid: one.record.rack for uuid, one in world.servers.servers.items()}
    ways = [(one, other) for one in places(region) for other in ALL - places(region) if rack[one] == rack[other]]
    return min(ways)


def test_a_move_is_kept_until_it_has_come_true(world: ChangingBench) -> None:
    """TC-19. A voter there, none here; then the intent is deleted."""
    before = places(first(world))
    source, target = a_way(world, first(world))
    found = ask(world, ms.MoveTablet(first(world).region_id, target, source))
    assert (found.moves[0].source, found.moves[0].target) == (source, target)
    assert found.cause_id
    [intents] = kept(world)
    assert intents.moves[0].origin is not None
    world.until(lambda: places(first(world)) == before - {source} | {target})
    world.until(lambda: not kept(world))
    world.until(world.is_running)
    assert all(one.role is MemberRole.VOTER for one in first(world).members)


@pytest.mark.parametrize("looks", [0, 1, 4, 12])
def test_a_move_survives_the_master(world: ChangingBench, looks: int) -> None:
    """TC-19. The master dies at another moment each time; the next one knows the intent from the store alone."""
    before = places(first(world))
    source, target = a_way(world, first(world))
    ask(world, ms.MoveTablet(first(world).region_id, target, source))
    world.turn(looks, 0.5)
    world.fail_over()
    world.until(lambda: places(first(world)) == before - {source} | {target})
    world.until(lambda: not kept(world))


def test_the_master_chooses_the_member_that_moves(world: ChangingBench) -> None:
    """The one in the target's rack, so that the racks stay as they are."""
    region = first(world)
    source, target = a_way(world, region)
    planned = ask(world, ms.MoveTablet(region.region_id, target, dry_run=True))
    assert planned.moves[0].source == source
    assert "dry run" in planned.detail
    assert not kept(world)


def test_a_region_that_is_a_tablet_moves_a_member(world: ChangingBench) -> None:
    """The same request as for other regions; without a destination the master chooses one in the same rack."""
    region = first(world)
    source, target = a_way(world, region)
    number = next(one.number for one in region.members if one.uuid == source)
    results: list[Any] = []
    world.bench.ask_into(ms.MoveRegion(region.region_id, number, wait_ms=600_000), results)
    world.turn(1)
    assert [(one.source, one.target) for one in kept(world)[0].moves] == [(source, target)]
    world.until(lambda: bool(results))
    assert results[0].detail == f"the member of {region.region_id} on {source} moves to {target}"
    assert places(first(world)) == places(region) - {source} | {target}
    assert "no member with number 77" in refused(world, ms.MoveRegion(region.region_id, 77))


def a_plan(world: ChangingBench) -> list[ms.PlannedMove]:
    """Return one move of each tablet."""
    found = []
    for region in world.regions():
        source, target = a_way(world, region)
        found.append(ms.PlannedMove(region.region_id, 0, source, target))
    return found


def submitted(world: ChangingBench, moves: list[ms.PlannedMove]) -> ms.PlanReport:
    """Begin a plan and send its only part."""
    epoch = world.active_master.fence.epoch
    begun = ask(world, ms.BeginPlan("p", epoch=epoch, moves=len(moves), parts=1))
    assert isinstance(begun, ms.PlanReport), begun
    found = ask(world, ms.AddPlanMoves("p", 0, moves))
    assert isinstance(found, ms.PlanReport), found
    return found


def test_a_plan_moves_members(world: ChangingBench) -> None:
    """Each move is an intent; the plan ends when all have come true, under whichever master."""
    moves = a_plan(world)
    report = submitted(world, [*moves, ms.PlannedMove(moves[0].region_id, 1, "s9", "s4")])
    assert report.record.handed == len(moves)
    assert sum(report.record.skipped.values()) == 1
    assert {one.moves[0].plan_id for one in kept(world)} == {"p"}
    world.servers.loses = 10_000
    world.fail_over()
    world.turn(4, 1.0)
    assert world.active_master.applying.running() == "p", "no member has moved"
    world.servers.loses = 0
    for move in moves:
        world.until(lambda move=move: move.destination in places_of(world, move.region_id))  # type: ignore[misc]
    world.until(lambda: not kept(world))
    world.until(lambda: world.active_master.applying.running() == "")
    assert all(move.source not in places_of(world, move.region_id) for move in moves)


def places_of(world: ChangingBench, region_id: str) -> set[str]:
    return next(places(one) for one in world.regions() if one.region_id == region_id)


@pytest.mark.usefixtures("few_newcomers")
def test_an_aborted_plan_withdraws_what_has_not_begun(world: ChangingBench) -> None:
    """The moves that a server has no room for yet; the others are finished."""
    many_tablets(world)
    target, ways = busiest_way(world)
    report = submitted(world, [ms.PlannedMove(one, 0, source, target) for one, source in ways])
    assert report.record.handed == len(ways)
    world.turn(2)
    found = ask(world, ms.AbortPlan("p"))
    assert isinstance(found, ms.PlanReport), found
    begun = {one.region_id for one in world.transitions() if one.joins is not None}
    assert {one.region_id for one in kept(world)} == begun
    assert len(begun) == FEW


@pytest.fixture
def few_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gets FEW new members at a time: the tests have few tablets."""
    monkeypatch.setattr(newcomers, "INCOMING_MAX", FEW)


def many_tablets(world: ChangingBench) -> None:
    """Create 40 more tablets, whose members do not change because all messages to leaders are lost."""
    world.bench.ask(CreateTable("y", [f"k{number:02d}" for number in range(1, 40)], replication=3))
    world.turn()
    world.until(world.is_running)
    world.servers.loses = 10_000


def busiest_way(world: ChangingBench) -> tuple[str, list[tuple[str, str]]]:
    """Return the server to which most tablets can move a member, and these tablets with the members' servers."""
    ways = [(one.region_id, a_way(world, one)) for one in world.regions()]
    target = max({way[1] for _, way in ways}, key=lambda uuid: sum(way[1] == uuid for _, way in ways))
    found = [(region_id, way[0]) for region_id, way in ways if way[1] == target]
    assert len(found) > 2 * FEW
    return target, found


def test_a_repeated_move_is_the_same_move(world: ChangingBench) -> None:
    """Whether it is under way or over: after a lost reply the caller learns that it was accepted."""
    region = first(world)
    source, target = a_way(world, region)
    ask(world, ms.MoveTablet(region.region_id, target, source))
    before = kept(world)
    assert "already" in ask(world, ms.MoveTablet(region.region_id, target)).detail
    assert kept(world) == before
    world.until(lambda: not kept(world))
    assert "nothing to do" in ask(world, ms.MoveTablet(region.region_id, target, source)).detail
    assert not kept(world)


def test_what_the_policy_would_undo_is_refused(world: ChangingBench) -> None:
    """With the reason, and before anything is written."""
    region = first(world)
    there = sorted(places(region))
    free, other = sorted(ALL - places(region))
    assert "no tablet 'zz'" in refused(world, ms.MoveTablet("zz", free, there[0]))
    assert "is not registered" in refused(world, ms.MoveTablet(region.region_id, "s9", there[0]))
    assert "has a member of the tablet already" in refused(world, ms.MoveTablet(region.region_id, there[1], there[0]))
    assert "the same server" in refused(world, ms.MoveTablet(region.region_id, there[0], there[0]))
    assert f"{other} has no member" in refused(world, ms.MoveTablet(region.region_id, free, other))
    world.store.change(LAYOUT.draining_mark(free), b"")
    world.turn(4)
    assert "being emptied" in refused(world, ms.MoveTablet(region.region_id, free, there[0]))
    ask(world, ms.SetTableIntent("x", ms.ddl.TableIntent.DISABLED))
    assert "replicas rest" in refused(world, ms.MoveTablet(region.region_id, other, there[0]))


def test_a_move_keeps_the_racks(world: ChangingBench) -> None:
    """Two voters in one rack, and none in another, would be mended at once."""
    region = first(world)
    rack = {uuid: one.record.rack for uuid, one in world.servers.servers.items()}
    assert len({rack[one] for one in places(region)}) == 3
    source, target = a_way(world, region)
    wrong = next(one for one in places(region) if rack[one] != rack[target])
    said = refused(world, ms.MoveTablet(region.region_id, target, wrong))
    assert f"2 voters would lie in rack {rack[target]}, and 0 in rack {rack[wrong]}" in said
    assert ask(world, ms.MoveTablet(region.region_id, target, dry_run=True)).moves[0].source == source


def test_without_a_majority_nothing_is_accepted(world: ChangingBench) -> None:
    """The master says which servers are gone."""
    region = first(world)
    for uuid in sorted(places(region))[:2]:
        world.servers.stop(uuid)
    world.turn(20, 0.5)
    said = refused(world, ms.MoveTablet(region.region_id, min(ALL - places(region)), max(places(region))))
    assert "2 of 3 voters are on servers that are not registered" in said


def test_a_move_is_canceled(world: ChangingBench) -> None:
    """A newcomer that does not vote yet goes again."""
    region = first(world)
    source, target = a_way(world, region)
    assert "nothing to cancel" in refused(world, ms.CancelTabletMove(region.region_id))
    world.servers.loses = 3
    ask(world, ms.MoveTablet(region.region_id, target, source))
    world.turn(2)
    found = ask(world, ms.CancelTabletMove(region.region_id, source))
    assert found.moves == ()
    assert f"{source} -> {target}" in found.detail
    assert not kept(world)
    world.turn(20, 1.0)
    world.until(world.is_running)
    assert places(first(world)) == places(region)


def test_a_learner_more_is_kept(world: ChangingBench) -> None:
    """TC-01. It does not count as a voter, and goes when it is wanted no more."""
    region = first(world)
    uuid = min(ALL - places(region))
    assert ask(world, ms.WantLearner(region.region_id, uuid)).learners == (uuid,)

    def learners() -> list[int]:
        return [one.number for one in first(world).members if one.uuid == uuid and one.role is MemberRole.LEARNER]

    world.until(learners)
    world.until(world.is_running)
    kept_number = learners()
    world.fail_over()
    world.turn(20, 1.0)
    assert learners() == kept_number, "it was removed, and added again under another number"
    ask(world, ms.WantLearner(region.region_id, uuid, wanted=False))
    world.until(lambda: places(first(world)) == places(region))
    assert not kept(world)


def test_a_server_is_retired(world: ChangingBench) -> None:
    """TC-21. Until no configuration names it; the list says how far it is, also under the next master."""
    found = ask(world, ms.RetireServer("s1"))
    assert found.is_retiring
    assert found.tablets == sum("s1" in one for one in world.members()) > 0
    world.servers.loses = 8
    world.turn(3, 0.5)
    world.fail_over()
    world.turn(4, 0.1)
    [shown] = ask(world, ms.ListIntents()).retiring
    assert (shown.uuid, shown.obstacle) == ("s1", "")
    assert all(one.policy for one in shown.left)
    world.until(lambda: ask(world, ms.ShowRetirement("s1")).is_empty)
    assert not any("s1" in one for one in world.members())
    assert ask(world, ms.ListIntents()).retiring == []


def test_a_server_that_is_gone_for_good_is_retired(world: ChangingBench) -> None:
    """Two of five servers are dead, more than a third. So no member is replaced until an operator retires them."""
    world.servers.stop("s1")
    world.servers.stop("s4")
    world.turn(20, 1.0)
    assert any("s1" in one for one in world.members())
    assert ask(world, ms.RetireServer("s1")).tablets > 0
    world.until(lambda: all("s1" not in one and len(one) == 3 for one in world.members()))
    assert "no server 's9'" in refused(world, ms.RetireServer("s9"))


def test_a_server_that_cannot_be_emptied_is_not_retired(world: ChangingBench) -> None:
    """With too few others for a table's replicas; a drain empties it as far as possible, and says the same."""
    ask(world, AlterTable("x", replicas=5))
    world.until(lambda: all(len(one) == 5 for one in world.members()))
    said = refused(world, ms.RetireServer("s1"))
    assert "table x has 5 replicas, and without s1 only 4 servers can have one" in said
    assert LAYOUT.draining_mark("s1") not in world.store.nodes
    found = ask(world, ms.DrainServer("s1", wait_ms=5_000))
    assert "4 tablets keep a member there: table x has 5 replicas" in found.detail
    ask(world, AlterTable("x", replicas=3))
    world.until(lambda: not any("s1" in one for one in world.members()))


def test_a_drain_waits_for_members(world: ChangingBench) -> None:
    """The reply comes when the server has none."""
    results: list[Any] = []
    world.bench.ask_into(ms.DrainServer("s1", wait_ms=600_000), results)
    world.bench.go_on()
    world.store.change(LAYOUT.draining_mark("s1"))  # this store notifies watchers only of servers' writes
    world.turn(1)
    assert not results
    world.until(lambda: bool(results))
    assert results[0].detail == "server s1 is empty"
    assert not any("s1" in one for one in world.members())


def test_another_number_of_replicas_is_a_record(world: ChangingBench) -> None:
    """TC-20. 3 -> 5 -> 1 -> 3, under three masters; a wait ends when all tablets have it."""
    for wanted in (5, 1, 3):
        results: list[Any] = []
        world.bench.ask_into(AlterTable("x", replicas=wanted, wait_ms=600_000), results)
        world.turn(2)
        assert not results
        world.until(lambda found=results: bool(found))  # type: ignore[misc]
        assert results[0].tables[0].table.replication == wanted
        assert all(len(one) == wanted for one in world.members())
        world.fail_over()
    world.until(world.is_running)
    assert ask(world, ms.ListIntents()).counts == {}


@pytest.mark.parametrize(("wanted", "why"), [(2, "odd number"), (9, "1 to 7 replicas"), (7, "5 can be used")])
def test_an_impossible_number_is_refused(world: ChangingBench, wanted: int, why: str) -> None:
    assert why in refused(world, AlterTable("x", replicas=wanted))
    assert all(len(one) == 3 for one in world.members())


def test_the_list_says_what_each_intent_waits_for(world: ChangingBench) -> None:
    """A target that goes away is a reason; nothing is lost meanwhile."""
    region = first(world)
    source, target = a_way(world, region)
    ask(world, ms.MoveTablet(region.region_id, target, source))
    world.servers.stop(target)
    world.turn(10, 1.0)
    [found] = ask(world, ms.ListIntents("x")).intents
    assert (found.source, found.target, found.table) == (source, target, "x")
    assert "waits" in found.policy
    [shown] = ask(world, ms.ShowTablet(region.region_id)).tablets
    assert (shown.moves, shown.policy) == (kept(world)[0].moves, found.policy)
    assert any("move" in line for line in world.active_master.problems(20))


@pytest.mark.parametrize("done", [False, True])
def test_a_lost_connection_leaves_no_doubt(world: ChangingBench, done: bool) -> None:
    """The caller learns that the outcome is unknown; the master reads what is in the store, and acts on it."""
    region = first(world)
    source, target = a_way(world, region)
    results: list[Any] = []
    world.bench.ask_into(ms.MoveTablet(region.region_id, target, source), results)
    world.store.answer(1)  # the read of the intents; the write is on its way
    assert not results
    assert len(world.store.waiting) == 1
    world.store.cut(done=done)
    world.bench.go_on()
    assert results == [ms.BUSY]
    world.store.mend()
    world.turn(5)
    assert bool(kept(world)) is done
    assert bool(world.active_master.keeper.intents.kept) is done
    if done:
        world.until(lambda: places(first(world)) == places(region) - {source} | {target})


@pytest.mark.usefixtures("few_newcomers")
def test_a_server_gets_few_newcomers_at_a_time(world: ChangingBench) -> None:
    """However many moves name it: the others wait, and say so."""
    many_tablets(world)
    target, ways = busiest_way(world)
    for region_id, source in ways:
        ask(world, ms.MoveTablet(region_id, target, source))
    world.turn(5, 1.0)
    joining = [one for one in world.transitions() if one.joins is not None]
    assert len(joining) == FEW
    waits = [one.policy for one in ask(world, ms.ListIntents()).intents]
    assert any(f"{target} is getting {FEW} others" in one for one in waits)


def test_intents_end_with_their_table(world: ChangingBench) -> None:
    region = first(world)
    world.servers.loses = 100
    ask(world, ms.MoveTablet(region.region_id, min(ALL - places(region))))
    assert kept(world)
    ask(world, ms.DeleteTable("x"))
    world.until(lambda: not kept(world))


def test_a_damaged_intent_stops_nobody(world: ChangingBench) -> None:
    """The next master goes on without it, and the next request replaces it."""
    region = first(world)
    world.store.put(LAYOUT.tablet_intents(region.region_id), b"{")
    world.fail_over()
    world.turn(5)
    target = min(ALL - places(region))
    found = ask(world, ms.MoveTablet(region.region_id, target))
    assert found.moves[0].target == target
    world.until(lambda: target in places(first(world)))
