"""Failovers and restarts: tablets are not touched, whether the next master begins cold or warm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from twisted.internet.defer import ensureDeferred

from master.standby.watcher import StoreWatcher, Warm
from master.tablets.loading import load_tablets
from master.tablets.reports import ReportQueue
from regions import messages as ms
from regions.assign.catalog.takeover import LOADED_AT_ONCE
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.messages.ddl import CreateTable
from regions.messages.heartbeat import Report
from regions.records.forgotten import ForgottenTables
from regions.records.members import Storage
from regions.records.model import RegionRecord, RegionState, TableRecord, TransitionRecord
from regions.records.znodes import encode
from regions.replication.effects import marked_replaced
from regions.replication.keeper import Keeper
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.tablets.fixture import TabletBench, empty_cluster
from tests.unit.regions.balance.tablets import Tablets


class Nobody:
    """Receives the watcher's events, and does nothing."""

    def transition_event(self, event_type: int, path: str) -> None: ...

    def transition_read(self, path: str, data: bytes, stat: object) -> None: ...

    def gap(self) -> None: ...


@pytest.fixture
def world(tmp_path: Path) -> TabletBench:
    """Return three servers with a shared table and a table of four tablets."""
    made = TabletBench(tmp_path)
    made.create(regions=4)
    made.turn()
    assert made.is_running()
    return made


def frozen(world: TabletBench) -> list[tuple[str, bytes, int]]:
    """Return regions' records and transitions, byte for byte, with their versions."""
    kept = (LAYOUT.regions, LAYOUT.unassigned)
    return sorted((path, node[0], node[1]) for path, node in world.store.nodes.items() if path.startswith(kept))


def test_a_failover_writes_nothing(world: TabletBench) -> None:
    """A failover writes no record and no transition, and sends no order."""
    before, orders = frozen(world), dict(world.servers.counts)
    world.fail_over()
    assert world.active_master.path == "failover"
    world.turn(30, 0.5)
    assert (frozen(world), dict(world.servers.counts)) == (before, orders)
    assert [one.running for one in world.bench.ask(ms.ListTables()).tables] == [4]


def test_the_death_of_a_server_moves_no_tablet(world: TabletBench) -> None:
    """Nor does its return; only the leader's name changes, late."""
    before = [region.members for region in world.regions()]
    world.servers.stop("s1")
    world.turn(30, 1.0)
    assert [region.members for region in world.regions()] == before
    assert not world.transitions()
    world.servers.start("s1")
    world.turn(30, 1.0)
    assert [region.members for region in world.regions()] == before
    assert not world.transitions()


def test_a_member_of_a_dead_server_raises_no_alarm(world: TabletBench) -> None:
    """Its transition may wait for hours."""
    world.servers.servers["s3"].stop_at = "before OPENING"
    world.create("late", 1)
    world.turn(200, 60.0)
    assert [one.destination.uuid for one in world.transitions() if one.destination] == ["s3"]


def test_a_full_restart_wipes_and_plans_no_tablet(world: TabletBench) -> None:
    """All servers and masters restart: without shared regions this is not a startup, and nothing has to be done."""
    before = frozen(world)
    for uuid in world.servers.servers:
        world.servers.stop(uuid)
    world.turn(5, 1.0)
    world.fail_over()
    world.turn(5, 1.0)
    for uuid in world.servers.servers:
        world.servers.start(uuid)
    world.turn(30, 1.0)
    assert frozen(world) == before


def test_a_full_restart_of_a_mixed_cluster(world: TabletBench) -> None:
    """The startup plans the shared regions; a member that was being made is opened by its own server."""
    world.bench.ask(CreateTable("shared", ["g"]))
    world.servers.servers["s2"].stop_at = "after OPENING"
    world.create("late", 1)
    world.turn(5)
    (late,) = [one for one in world.transitions() if one.replica > 0]
    members = {region.region_id: region.members for region in world.regions()}
    for uuid, server in world.servers.servers.items():
        if server.lives:
            world.servers.stop(uuid)
    world.fail_over(start=True)
    assert world.active_master.path == "startup"
    world.turn(20, 1.0)
    assert {region.region_id: region.members for region in world.regions()} == members
    waiting = {one.key for one in world.transitions() if one.replica > 0}
    assert waiting <= {late.key}, "it was begun and has no files: refused as AMNESIA, and the other two serve"
    assert max(world.servers.made.values()) == 1


def test_a_warm_mirror_has_the_transitions_of_tablets(world: TabletBench) -> None:
    """The mirror keeps no replicas of tablets; after the handover the state equals that of a load. The mirror has no
    tablets that were split. Tried: without their transitions nobody ends them."""
    world.servers.servers["s3"].stop_at = "before OPENING"
    world.create("late", 2)
    world.turn(10)
    waiting = world.transitions()
    assert waiting
    table = world.table_id()
    former = msgspec.structs.replace(world.regions()[0], region_id=f"{table}.former")
    world.store.nodes[LAYOUT.region(table, former.region_id)] = (encode(marked_replaced(former)), 0, 0)
    closed = TransitionRecord(former.region_id, table, 1, RegionState.CLOSED)
    world.store.nodes[LAYOUT.transition(former.region_id, 1)] = (encode(closed), 0, 0)

    watcher = StoreWatcher(world.bench.clock, world.store, LAYOUT, world.bench.now_ms, Nobody())  # type: ignore[arg-type]
    watcher.start()
    watcher.follow()
    for _ in range(40):
        world.bench.go_on(0.5)
    assert watcher.mirror is not None
    assert watcher.mirror.is_complete
    handed: list[Warm] = []
    ensureDeferred(watcher.hand_over()).addCallback(handed.append)
    world.bench.go_on(1.0)
    (warm,) = handed
    assert sorted(record.key for record, _ in warm.tablets) == sorted(one.key for one in (*waiting, closed))
    assert not list(warm.world.rit()), "no replica of the assigner's"
    watcher.stop()


def test_reports_of_unknown_tablets_are_kept_until_their_records_are_read(world: TabletBench) -> None:
    """A report of a tablet that the master does not know is remembered until the record has been read."""
    table = world.table_id()
    keeper = world.active_master.keeper.keeper
    (region_id, *_) = sorted(keeper.tablets)
    keeper.forget_table(table)
    world.servers.new_master()
    world.turn(3)
    assert keeper.orphans
    world.turn(5, 1.0)
    assert region_id in keeper.tablets
    assert not keeper.orphans
    assert keeper.tablets[region_id].is_led


def test_reports_in_the_queue_are_not_known_yet(world: TabletBench) -> None:
    """A purge would end while servers have replicas, and the seal of a parent would be removed although a server has
    daughters that the store does not know. Tried: without the look at the queue the second line fails."""
    world.fail_over()
    world.bench.go_on()
    keeping = world.active_master.keeper
    world.servers.beat(world.active_master.reported)
    assert (len(world.active_master.reports.lists()), keeping.keeper.policy.have_all_reported()) == (3, False)
    world.turn(1)
    assert keeping.keeper.policy.have_all_reported()


def test_a_full_report_removes_replicas_that_it_does_not_name(world: TabletBench) -> None:
    """Replicas that it no longer names are gone, even if their end was never reported."""
    server = world.servers.servers["s1"]
    server.disk.clear()
    server.told = None
    world.turn(3)
    tablets = world.active_master.keeper.keeper.tablets.values()
    assert all("s1" not in tablet.view.replicas for tablet in tablets)
    assert {tablet.serving for tablet in tablets} == {2}


def test_a_transition_deleted_during_a_gap_is_noticed(world: TabletBench) -> None:
    """An operator deletes one while the master is cut off."""
    world.servers.servers["s3"].stop_at = "before OPENING"
    world.create("late", 1)
    world.turn(10)
    (waiting,) = world.transitions()
    keeper = world.active_master.keeper
    assert keeper.transition(waiting.region_id, waiting.replica) is not None
    world.store.cut()
    del world.store.nodes[LAYOUT.transition(waiting.region_id, waiting.replica)]
    world.store.mend()
    world.bench.go_on()
    assert keeper.transition(waiting.region_id, waiting.replica) is None


def test_an_orphaned_tablet_is_reported_and_not_touched(world: TabletBench) -> None:
    """FN-04."""
    server = world.servers.servers["s1"]
    (local, *_) = server.disk.values()
    server.disk["zz.0000"] = local
    world.turn(10, 1.0)
    assert "zz.0000" in server.disk
    problems = world.active_master.problems(20)
    assert any("orphan: server s1 has tablet zz.0000-" in line for line in problems), problems


def test_a_replica_of_a_forgotten_table_is_deleted(world: TabletBench) -> None:
    """MD-06: its server was away when the rows were removed, and comes back when the records are removed, too."""
    server = world.servers.servers["s1"]
    (local, *_) = server.disk.values()
    server.disk["zz.0000"] = local
    world.store.put(LAYOUT.forgotten_ids("zz"), encode(ForgottenTables({"zz": 1})))
    world.turn(10, 1.0)
    assert "zz.0000" not in server.disk


def test_the_assigner_has_no_replicas_of_tablets(world: TabletBench) -> None:
    """Plans and the balancer can move only what the assigner has; its invariants hold."""
    assigner = world.active_master.assigner
    assert not assigner.world.replicas
    assert len(assigner.world.regions) == 4
    assigner.validate()
    assert all(isinstance(region.record, RegionRecord) for region in assigner.world.regions.values())
    for region in assigner.world.regions.values():
        stored = world.store.nodes[LAYOUT.region(region.record.table_id, region.record.region_id)]
        assert region.version == stored[1], "the cluster state follows the keeper's writes"


def test_transitions_of_a_tablet_that_was_split_end_after_a_failover(tmp_path: Path) -> None:
    """The master died between the servers' CLOSED and its own last step. The next one knew the transition of the tablet
    that it read last, at most. Tried: without the tablets that have transitions, or with the members of the record
    alone, both stay for ever."""
    world = TabletBench(tmp_path, store=empty_cluster(is_audited=False))
    world.create()
    world.turn()
    table = world.table_id()
    former = msgspec.structs.replace(world.regions()[0], region_id=f"{table}.former")
    world.store.put(LAYOUT.region(table, former.region_id), encode(marked_replaced(former)))
    for number in (1, 3):
        closed = TransitionRecord(former.region_id, table, number, RegionState.CLOSED)
        world.store.put(LAYOUT.transition(former.region_id, number), encode(closed))
    world.fail_over()
    world.turn(5, 1.0)
    assert world.transitions() == []


def test_many_small_tables_are_loaded_in_several_steps() -> None:
    """Fails if the count begins again with each table."""
    cluster, keeper = ClusterState(), Keeper(4, AssignerConfig())
    for number in range(LOADED_AT_ONCE):
        table = TableRecord(f"t{number}", f"orders{number}", replication=3, storage=Storage.TABLET)
        regions = [RegionRecord(table.table_id, f"{table.table_id}.{part}") for part in range(2)]
        cluster.put_table(table, 0, [(one, 0) for one in regions])
    assert len(list(load_tablets(keeper, cluster, [], 1, {}))) == 2
    assert len(keeper.tablets) == 2 * LOADED_AT_ONCE


def test_a_full_report_is_compared_with_the_tablets_of_its_server() -> None:
    """The report names one of two replicas: the other one is gone. Fails if the end of a report walks over all
    tablets, which took as long as the start of a server."""
    tablets = Tablets(*"abcdef")
    for number in range(20):
        tablets.tablet(f"x{number:02}", "d", "e", "f")
    tablets.tablet("kept", "a", "b", "c")
    tablets.tablet("lost", "a", "b", "c")
    keeper = tablets.keeper
    queue, server = ReportQueue(keeper), keeper.servers["a"].incarnation
    named = keeper.tablets["kept"].view.replicas["a"].report
    before = keeper.concerned.looks
    queue.put(server, Report(begins=True, ends=True, tablets=[named]))
    queue.take_some()
    assert keeper.concerned.looks - before == 2
    assert [one for one in ("kept", "lost") if "a" in keeper.tablets[one].view.replicas] == ["kept"]
