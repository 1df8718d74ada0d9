"""A standby that finds a region which nobody serves, by the numbers in heartbeats and the list of one server (N5)."""

from __future__ import annotations

from typing import Any

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
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import Layout, decode_alarm, encode
from tests.unit.master.fake_store import WatchedStore

LAYOUT = Layout("/rk")
S1 = Incarnation("s1", 7)


class Standby:
    """A standby's watcher and auditor, and one server on which the store places t.0 and t.1."""

    def __init__(self) -> None:
        self.store = WatchedStore()
        for path in ("/rk", *LAYOUT.parents()):
            self.store.put(path)
        self.store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 7)))
        self.store.put(LAYOUT.table("t"), encode(TableRecord("t", "orders")))
        self.store.put(LAYOUT.table_regions("t"))
        for region_id in ("t.0", "t.1"):
            record = RegionRecord("t", region_id, replicas=(ReplicaLocation(0, "s1", 7, 1),))
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
            Sources(lambda: None),
            ShortfallCheck(client, lambda: self.watcher, self.roster, self.read_list, self.now_ms),
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
