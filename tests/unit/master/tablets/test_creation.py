"""Tables of tablets are created although masters and servers die at every step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from master.plans.planner import FinishedPlan, Planner, _greedy
from regions import messages as ms
from regions.cluster.limits import AssignerConfig
from regions.messages.ddl import CreateTable
from regions.plan import Params, Snapshot
from regions.records.formats import KNOWN
from regions.records.model import ServerRecord, TableIntent, TabletState
from regions.records.znodes import decode_cluster, encode
from tests.support.tablet_servers import STOPS
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.fixture import TabletBench, empty_cluster


@pytest.fixture
def world(tmp_path: Path) -> TabletBench:
    return TabletBench(tmp_path)


def test_a_table_is_created_and_every_member_made_once(world: TabletBench) -> None:
    """PREPARING, CREATING, RUNNING; no transition is left."""
    world.create(regions=5)
    assert world.states() == ["CREATING"] * 5
    world.turn()
    assert world.is_running(), (world.states(), world.transitions())
    assert len(world.servers.made) == 15
    assert set(world.servers.made.values()) == {1}
    assert all(region.leader == 1 and region.leader_term == 1 for region in world.regions())


def test_a_tablet_is_running_once_a_leader_has_reported(world: TabletBench) -> None:
    """DD-05: open members alone are not enough."""
    world.create()
    (region,) = world.regions()
    world.servers.leaderless.add(region.region_id)
    world.turn()
    assert (len(world.servers.made), world.transitions(), world.states()) == (3, [], ["CREATING"])
    world.servers.leaderless.clear()
    world.turn()
    assert world.is_running()


def test_the_request_waits_until_the_tablets_run(world: TabletBench) -> None:
    """`--wait`; the answer has the counts."""
    answers: list[ms.Tables] = []
    request = CreateTable("x", ["g"], replication=3, wait_ms=60_000)
    world.bench.ask_into(request, answers)
    world.bench.go_on()
    assert not answers
    world.turn()
    (found,) = answers[0].tables
    assert (found.regions, found.running, found.replicas, found.open) == (2, 2, 6, 6)
    listed = world.bench.ask(ms.ListTables()).tables
    assert [(one.table.name, one.running) for one in listed] == [("x", 2)]


def test_a_wait_that_times_out_reports_the_progress(world: TabletBench) -> None:
    world.servers.stop("s3")
    world.servers.start("s3")
    world.turn(3)
    answers: list[object] = []
    world.bench.ask_into(CreateTable("x", replication=3, wait_ms=1_000), answers)
    world.bench.go_on()
    world.servers.leaderless.update(region.region_id for region in world.regions())
    world.turn(5, 0.5)
    assert answers == [ms.TIMED_OUT]


@pytest.mark.parametrize("stop_at", STOPS)
@pytest.mark.parametrize("lost", [False, True])
def test_the_death_of_a_server_at_any_step_makes_no_member_twice(world: TabletBench, stop_at: str, lost: bool) -> None:
    """The server returns with its disk or without; in the end clients get a tablet."""
    world.servers.servers["s2"].stop_at = stop_at
    world.create()
    world.turn()
    assert not world.servers.servers["s2"].lives
    world.servers.start("s2", empty=lost)
    world.until(lambda: "RUNNING" in world.states(), 1.0)
    world.turn(20, 1.0)
    assert max(world.servers.made.values()) == 1, world.servers.made
    # A number that a server began and lost is left to the policy: here it stays rejected, and the other two serve.
    left = {one.key for one in world.transitions()}
    assert all(one.endswith("-2") for one in left), left


def test_a_member_on_a_dead_server_is_replaced_before_creation(tmp_path: Path) -> None:
    """While PREPARING, members move to other servers, under higher numbers."""
    world = TabletBench(tmp_path, servers=4)
    world.bench.ask_into(CreateTable("x", replication=3), [])
    while LAYOUT.name("x") not in world.store.nodes:
        world.store.answer(1)
    (region,) = world.regions()
    gone = region.members[0].uuid
    world.servers.stop(gone)
    world.fail_over()
    world.until(world.is_running)
    (region,) = world.regions()
    assert gone not in {one.uuid for one in region.members}
    assert min(one.number for one in region.members) > 3


def test_a_table_waits_for_servers(world: TabletBench) -> None:
    """All servers go before the creation begins: it begins when they are back."""
    world.bench.ask_into(CreateTable("x", replication=3), [])
    while LAYOUT.name("x") not in world.store.nodes:
        world.store.answer(1)
    for uuid in ("s1", "s2", "s3"):
        world.servers.stop(uuid)
    world.fail_over()
    world.turn(20, 0.5)
    assert world.states() == ["PREPARING"]
    for uuid in ("s1", "s2", "s3"):
        world.servers.start(uuid)
    world.until(world.is_running)


def test_a_region_without_a_leader_is_replaced(world: TabletBench) -> None:
    """DD-03: no leader reports in time. Servers delete replicas of the former region once they report them."""
    world.create()
    (first,) = world.regions()
    world.servers.leaderless.add(first.region_id)
    world.until(world.is_running, 2.0)
    former, fresh = world.regions()
    assert (former.state, fresh.state, fresh.replaces) == (TabletState.REPLACED, TabletState.RUNNING, first.region_id)
    world.until(lambda: all(list(one.disk) == [fresh.region_id] for one in world.servers.servers.values()))
    assert [one.running for one in world.bench.ask(ms.ListTables()).tables] == [1]


def test_a_rejected_replacement_is_retried(world: TabletBench) -> None:
    """DD-04: the table's record has changed at the same time, without an event."""
    world.create()
    (first,) = world.regions()
    world.servers.leaderless.add(first.region_id)
    path = LAYOUT.table(first.table_id)
    data, version, _ = world.store.nodes[path]
    world.store.put(path, data, version + 1)
    world.until(world.is_running, 2.0)
    assert world.states() == ["REPLACED", "RUNNING"]


def test_a_late_leader_before_the_replacement_keeps_the_region(world: TabletBench) -> None:
    """A leader that reports while the region is given up, and before it is replaced."""
    world.create()
    (first,) = world.regions()
    world.servers.leaderless.add(first.region_id)
    world.servers.servers["s3"].stop_at = "after OPENING"
    world.turn(20, 2.0)
    world.servers.leaderless.clear()
    world.servers.start("s3")
    world.until(world.is_running, 2.0)
    assert [one.state for one in world.regions()] == [TabletState.RUNNING]


def test_a_majority_of_servers_completes_a_creation(world: TabletBench) -> None:
    """Two of three: the tablet runs; the third member is made when its server comes."""
    world.servers.servers["s1"].stop_at = "before OPENING"
    world.create()
    world.until(lambda: world.states() == ["RUNNING"], 0.5)
    (waiting,) = world.transitions()
    assert waiting.state.value == "OFFLINE"
    world.servers.start("s1")
    world.until(world.is_running)
    assert len(world.servers.made) == 3


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("answers", range(1, 26))
def test_the_next_master_completes_a_creation_from_any_step(tmp_path: Path, answers: int, done: bool) -> None:
    """After each request of the creation; an operation in flight is done or not."""
    world = TabletBench(tmp_path)
    results: list[object] = []
    world.bench.ask_into(CreateTable("x", ["m"], replication=3), results)
    for _ in range(answers):
        if not world.store.waiting:
            world.bench.clock.advance(0)
            world.servers.beat(world.active_master.reported)
        world.store.answer(1)
    if done:
        world.store.cut(done=True)
    world.fail_over()
    if LAYOUT.name("x") not in world.store.nodes:
        world.create(regions=2)
    world.until(world.is_running)
    assert set(world.servers.made.values()) == {1}, world.servers.made
    assert len(world.servers.made) == 6


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("answers", range(1, 26, 2))
def test_a_lost_connection_at_any_step_does_not_stop_a_creation(tmp_path: Path, answers: int, done: bool) -> None:
    """The same master reads what it does not know, and continues."""
    world = TabletBench(tmp_path)
    world.bench.ask_into(CreateTable("x", ["m"], replication=3), [])
    for _ in range(answers):
        if not world.store.waiting:
            world.bench.clock.advance(0)
            world.servers.beat(world.active_master.reported)
        world.store.answer(1)
    world.store.cut(done=done)
    world.turn(3)
    world.store.mend()
    world.turn()
    if LAYOUT.name("x") not in world.store.nodes:
        world.create(regions=2)
    world.until(world.is_running)
    assert world.bench.ended == []
    assert set(world.servers.made.values()) == {1}, world.servers.made
    assert len(world.servers.made) == 6


def test_a_large_table_is_created_in_many_short_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tablets, a hundred records per turn and a few hundred operations per multi."""
    world = TabletBench(tmp_path, store=empty_cluster(is_audited=False))
    plans = plan_at_once(monkeypatch)
    world.create(regions=1_000)
    sizes = []
    for _ in range(80):
        count = len(world.store.multis)
        world.servers.beat(world.active_master.reported)
        world.bench.clock.advance(0)
        world.store.answer()
        sizes += [len(multi) for multi in world.store.multis[count:]]
        if world.is_running():
            break
    assert world.is_running()
    assert max(sizes) <= 502
    assert len(world.store.multis) < 120
    assert plans == [3_000], "all first members come from one plan"


def test_the_next_master_asks_for_a_plan_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one dies while its plan is made: no region has a member, and none has a transition."""
    world = TabletBench(tmp_path, store=empty_cluster(is_audited=False))
    world.create(regions=110)
    world.turn(3)
    assert {one.members for one in world.regions()} == {()}
    assert world.transitions() == []
    plans = plan_at_once(monkeypatch)
    world.fail_over()
    world.until(world.is_running)
    assert plans == [330]
    assert set(world.servers.made.values()) == {1}
    assert len(world.servers.made) == 330


def test_without_a_plan_the_master_chooses(tmp_path: Path) -> None:
    """The planner's thread never answers: after three minutes the members are chosen without it."""
    world = TabletBench(tmp_path, store=empty_cluster(is_audited=False))
    world.create(regions=110)
    late_s = AssignerConfig().plan_wait_ms / 1000
    world.turn(10, (late_s - 1) / 10)
    assert {one.members for one in world.regions()} == {()}
    world.until(world.is_running)
    members = Counter(one.uuid for region in world.regions() for one in region.members)
    assert list(members.values()) == [110] * 3


def plan_at_once(patch: pytest.MonkeyPatch) -> list[int]:
    """Have plans computed on this thread; return the list of how many replicas each has."""
    sizes: list[int] = []

    async def make(
        _planner: Planner, _id: str, _epoch: int, snapshot: Snapshot, _engine: str, _progress: object
    ) -> FinishedPlan:
        made = _greedy(snapshot, Params(), 100.0)
        sizes.append(len(made.placements))
        return made

    patch.setattr(Planner, "make", make)
    return sizes


def test_servers_that_take_no_tablets_get_none(world: TabletBench) -> None:
    """A mixed cluster: shared regions on all servers, tablets on those that take them."""
    plain = ServerRecord("p", "h", 99, 7, "r9", kind="kv/1", format=4)
    world.store.change(LAYOUT.server("p"), encode(plain))
    world.turn(3)
    world.create(regions=3)
    world.turn()
    assert world.is_running()
    assert all(one.uuid != "p" for region in world.regions() for one in region.members)


def test_the_format_is_raised_for_the_first_table(tmp_path: Path) -> None:
    """All processes know tablets, and the regular check has not come yet: the request need not wait for it."""
    world = TabletBench(tmp_path, store=empty_cluster(in_force=3))
    assert isinstance(world.create(), ms.Tables)
    assert decode_cluster(world.store.nodes[LAYOUT.cluster][0]).format_version == KNOWN


def test_transitions_of_members_are_listed(world: TabletBench) -> None:
    """`rk region rit`, the counts of `rk table list`, and each member in `rk table show`."""
    world.servers.servers["s1"].stop_at = "before OPENING"
    world.create()
    world.turn(20)
    (waiting,) = world.transitions()
    (listed,) = world.bench.ask(ms.ListRit(10)).transitions
    assert (listed.region_id, listed.replica, listed.after) == (waiting.region_id, waiting.replica, "OFFLINE")
    (table,) = world.bench.ask(ms.ListTables()).tables
    assert (table.rit, table.parked, table.open, table.replicas) == (1, 0, 2, 3)
    (region,) = world.bench.ask(ms.DescribeTable("x")).regions
    shown = {one.replica: (one.server is not None, one.transition is not None) for one in region.replicas}
    assert shown == {one: (one != waiting.replica, one == waiting.replica) for one in (1, 2, 3)}


def test_parked_members_are_retried_on_request(world: TabletBench) -> None:
    """A server cannot open a resting member; an operator repairs that and asks for a retry."""
    world.create()
    world.turn()
    (region_id,) = [region.region_id for region in world.regions()]
    world.bench.ask(ms.SetTableIntent("x", TableIntent.DISABLED))
    world.turn(20)
    world.servers.servers["s2"].broken.add(region_id)
    world.bench.ask(ms.SetTableIntent("x", TableIntent.ENABLED))
    world.until(lambda: any(one.parked for one in world.transitions()), 5.0)
    (parked,) = world.transitions()
    assert any(parked.key in line and "read-only" in line for line in world.active_master.problems(20))
    world.servers.servers["s2"].broken.clear()
    assert isinstance(world.bench.ask(ms.RetryRegion(region_id, parked.replica)), ms.Accepted)
    world.until(world.is_running)
