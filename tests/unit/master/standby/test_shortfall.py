"""A standby that finds a region which nobody serves, by the numbers in heartbeats and the list of one server (N5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from coord.errors import ConnectionLoss
from master.standby.auditor import DOUBTS_S, Auditor, Sources
from master.standby.shortfall import ShortfallCheck
from master.standby.watcher import StoreWatcher
from regions.diagnose.invariants import Rule
from regions.liveness.roster import Roster
from regions.messages import HostedReplica, OpenList
from regions.messages.heartbeat import Heartbeat, ServerFigures
from regions.records.model import (
    BarRecord,
    ClusterRecord,
    EpochRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import Layout, decode_alarm, encode
from tests.unit.master.fake_store import WatchedStore

LAYOUT = Layout("/rk")
S1 = Incarnation("s1", 7)


class Standby:
    """A standby's watcher and auditor. The store places t.0 and t.1 on s1, whose heartbeats come, and t.2 on s2."""

    def __init__(self) -> None:
        self.store = WatchedStore()
        for path in ("/rk", *LAYOUT.parents()):
            self.store.put(path)
        self.store.put(LAYOUT.cluster, encode(ClusterRecord("c")))
        self.store.put(LAYOUT.epoch, encode(EpochRecord("m1", 1, 0)))
        self.store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 7)))
        self.store.put(LAYOUT.server("s2"), encode(ServerRecord("s2", "h", 3, 9)))
        self.store.put(LAYOUT.table("t"), encode(TableRecord("t", "orders")))
        self.store.put(LAYOUT.table_regions("t"))
        for region_id, server in (("t.0", S1), ("t.1", S1), ("t.2", Incarnation("s2", 9))):
            record = RegionRecord("t", region_id, replicas=(ReplicaLocation(0, server.uuid, server.start_code, 1),))
            self.store.put(LAYOUT.region("t", region_id), encode(record))
        self.clock = Clock()
        self.roster = Roster()
        self.hosted = ["t.0", "t.1"]
        self.questions = 0
        self.is_reachable = True
        client: Any = self.store
        self.auditor = Auditor(
            self.clock,
            client,
            LAYOUT,
            self.now_ms,
            "m2",
            Sources(),
            ShortfallCheck(client, LAYOUT, lambda: self.watcher, self.roster, self.read_list, self.now_ms),
        )
        self.watcher = StoreWatcher(self.clock, client, LAYOUT, self.now_ms, self.auditor)
        self.watcher.start()
        self.watcher.follow()
        self.auditor.start()
        self.pass_time(2.0)

    def now_ms(self) -> int:
        return 1_000_000 + int(self.clock.seconds() * 1000)

    def read_list(self, record: ServerRecord) -> Deferred[OpenList]:
        self.questions += 1
        if not self.is_reachable:
            return fail(ConnectionLoss("cut"))
        hosted = [HostedReplica(one, "t", 0, "OPEN") for one in self.hosted]
        return succeed(OpenList(record.uuid, record.start_code, hosted))

    def pass_time(self, seconds: float) -> None:
        """Let time pass: the server sends a heartbeat each second, the store answers."""
        for turn in range(int(seconds / DOUBTS_S)):
            if turn % 2 == 0:
                figures = ServerFigures(len(self.hosted), shared=len(self.hosted))
                self.roster.accept(Heartbeat("c", S1, self.now_ms(), figures=figures), self.now_ms())
            self.clock.advance(DOUBTS_S)
            for _ in range(4):
                self.store.answer()
                self.clock.advance(0)

    def alarms(self) -> list[tuple[str, str]]:
        """Return rule and region of the alarms in the store."""
        paths = sorted(path for path in self.store.nodes if path.startswith(f"{LAYOUT.alarms}/"))
        found = [decode_alarm(self.store.nodes[path][0], path) for path in paths]
        return [(one.rule, one.key) for one in found]


@pytest.fixture
def standby() -> Standby:
    found = Standby()
    mirror = found.watcher.mirror
    assert mirror is not None
    assert mirror.is_complete
    assert len(mirror.world.servers["s1"].open) == 2
    return found


def test_a_standby_rings_within_three_seconds_by_itself(standby: Standby) -> None:
    """N5: there is no active master. Fails if `ShortfallCheck.due` returns nothing, or the auditor does not ask it."""
    standby.pass_time(20.0)
    assert (standby.alarms(), standby.questions) == ([], 0), "nothing is asked while the numbers agree"
    standby.hosted = ["t.1"]
    standby.pass_time(3.0)
    assert standby.alarms() == [(Rule.NO_OWNER.value, "t.0-0")]
    standby.pass_time(30.0)
    assert standby.alarms() == [(Rule.NO_OWNER.value, "t.0-0")], "the same fault is one alarm"


def test_a_region_that_is_being_closed_raises_no_alarm(standby: Standby) -> None:
    """N5: the server serves one region less, because the store has a transition for it."""
    path = LAYOUT.transition("t.0", 0)
    standby.store.change(path, encode(TransitionRecord("t.0", "t", 0, RegionState.CLOSING, source=S1, destination=S1)))
    standby.hosted = ["t.1"]
    standby.pass_time(20.0)
    assert (Rule.NO_OWNER.value, "t.0-0") not in standby.alarms()
    assert standby.questions >= 1


@pytest.mark.parametrize("late", ["transition", "record"])
def test_a_mirror_that_is_late_raises_no_alarm(standby: Standby, late: str) -> None:
    """N5: the store has a change of t.0 that the mirror has not read yet. Fails if `unserved` asks the mirror alone."""
    if late == "transition":
        closing = TransitionRecord("t.0", "t", 0, RegionState.CLOSING, source=S1, destination=S1)
        standby.store.put(LAYOUT.transition("t.0", 0), encode(closing))
    else:
        moved = RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "s2", 9, 1),))
        standby.store.put(LAYOUT.region("t", "t.0"), encode(moved))
    standby.hosted = ["t.1"]
    standby.pass_time(20.0)
    assert standby.questions >= 1
    assert (Rule.NO_OWNER.value, "t.0-0") not in standby.alarms()


def test_a_list_that_explains_the_number_raises_no_alarm(standby: Standby) -> None:
    """N5: a heartbeat with a number that is wrong. The server is asked again after a pause only."""
    standby.roster.accept(
        Heartbeat("c", S1, standby.now_ms() + 60_000, figures=ServerFigures(shared=1)), standby.now_ms() + 60_000
    )
    standby.pass_time(9.0)
    assert (standby.alarms(), standby.questions) == ([], 1)


def test_a_server_that_cannot_be_asked_is_asked_again(standby: Standby) -> None:
    """N5: heartbeats come in, but the way back is cut for a time."""
    standby.is_reachable = False
    standby.hosted = ["t.1"]
    standby.pass_time(5.0)
    assert standby.alarms() == []
    standby.is_reachable = True
    standby.pass_time(12.0)
    assert standby.alarms() == [(Rule.NO_OWNER.value, "t.0-0")]


def test_regions_of_a_dead_server_that_no_master_moves_ring_within_three_seconds(standby: Standby) -> None:
    """N5: the active master is frozen, and its session lives on. Fails if `Shortfalls.look` ignores the dead."""
    standby.pass_time(10.0)
    standby.store.drop(LAYOUT.server("s1"))
    standby.pass_time(3.0)
    assert standby.alarms() == [(Rule.NO_OWNER.value, "t.0-0")], "one alarm for all regions of the server"
    standby.pass_time(30.0)
    assert standby.alarms() == [(Rule.NO_OWNER.value, "t.0-0")]


def test_a_new_master_gets_time_to_take_over(standby: Standby) -> None:
    """N5: it reads the store first. Fails without TAKEOVER_MS."""
    standby.pass_time(10.0)
    standby.store.drop(LAYOUT.server("s1"))
    standby.store.change(LAYOUT.epoch, encode(EpochRecord("m3", 1, 0)))
    standby.pass_time(9.0)
    assert standby.alarms() == []
    standby.pass_time(4.0)
    assert standby.alarms() == [(Rule.NO_OWNER.value, "t.0-0")]


@pytest.mark.parametrize("reason", ["moves", "shutdown", "start", "no room", "disabled"])
def test_regions_of_a_dead_server_wait_for_a_reason(standby: Standby, reason: str) -> None:
    """N5: a master moves them, the cluster stops or starts, no server may take them, or they are to be closed."""
    standby.pass_time(10.0)
    transition = TransitionRecord("t.0", "t", 0, RegionState.OFFLINE, destination=Incarnation("s2", 9))
    match reason:
        case "shutdown":
            standby.store.change(LAYOUT.cluster, encode(ClusterRecord("c", clean_shutdown=True)))
        case "start":
            standby.store.drop(LAYOUT.server("s2"))
        case "no room":
            standby.store.change(LAYOUT.bar("s2"), encode(BarRecord("s2", 9)))
        case "disabled":
            disabled = TableRecord("t", "orders", intent=TableIntent.DISABLED)
            standby.store.change(LAYOUT.table("t"), encode(disabled))
    standby.store.drop(LAYOUT.server("s1"))
    for number in (0, 1) if reason == "moves" else ():
        standby.pass_time(1.5)
        path = LAYOUT.transition(f"t.{number}", 0)
        standby.store.change(path, encode(msgspec.structs.replace(transition, region_id=f"t.{number}")))
    standby.pass_time(15.0)
    assert [one for one in standby.alarms() if one[0] == Rule.NO_OWNER.value] == []
