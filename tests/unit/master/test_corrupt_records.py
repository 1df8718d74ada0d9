"""A corrupt znode of each kind: masters continue with the rest, and name the corrupt one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from master.leadership.identity import MasterIdentity
from master.service import MasterService
from master.settings import MasterSettings
from regions import messages as ms
from regions.cluster.history import Segment, pack
from regions.records.alarms import Alarm
from regions.records.model import (
    BalancerRecord,
    ClusterRecord,
    EpochRecord,
    FenceRecord,
    Incarnation,
    MasterRecord,
    Move,
    MoveBatch,
    PlanRecord,
    PlanState,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    RequestRecord,
    RunRecord,
    ServerRecord,
    TableIntent,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import Layout, decode_balancer, decode_cluster, decode_transition, encode
from tests.unit.master.fake_store import WatchedStore

LAYOUT = Layout("/rk")
SEGMENT = Segment(3, 0, 0, 1).name

SERVERS = [ServerRecord(f"s{number}", "h", number + 1, 7) for number in (1, 2, 3)]
TABLE = TableRecord("t", "orders")
GONE = ServerRecord("s4", "h", 9, 7)

#: Every kind of znode with a value, by its path: one of each, as in a working cluster.
VALUES: dict[str, bytes] = {
    LAYOUT.cluster: encode(ClusterRecord("c")),
    LAYOUT.epoch: encode(EpochRecord("former", 1, 1)),
    LAYOUT.balancer: encode(BalancerRecord()),
    LAYOUT.master("other"): encode(MasterRecord("other", "h", 100, 1)),
    LAYOUT.server("s3"): encode(SERVERS[2]),
    LAYOUT.draining_mark("s3"): b"",
    LAYOUT.fence_mark("s4"): encode(FenceRecord(GONE, 3_000)),
    LAYOUT.table("u"): encode(TableRecord("u", "more")),
    LAYOUT.name("more"): b"u",
    LAYOUT.table_regions("u"): b"",
    LAYOUT.region("u", "u.0"): encode(RegionRecord("u", "u.0", replicas=(ReplicaLocation(0, "s3", 7),))),
    LAYOUT.transition("t.1", 0): encode(
        TransitionRecord("t.1", "t", 0, RegionState.CLOSING, Incarnation("s2", 7), Incarnation("s1", 7), epoch=3)
    ),
    LAYOUT.plan("p1"): encode(PlanRecord("p1", 3, "create", PlanState.APPLYING)),
    LAYOUT.plan("p2"): encode(PlanRecord("p2", 3, "apply", PlanState.APPLYING, by_moves=True, parts=1, parts_done=1)),
    LAYOUT.move_batch("m1"): encode(MoveBatch("m1", (Move("t.0-0", Incarnation("s1", 7)),), plan_id="p2")),
    LAYOUT.request("r1"): encode(RequestRecord("r1", "CreateTable", "d", TABLE, 3, 1)),
    LAYOUT.segment(SEGMENT): pack([]),
    LAYOUT.alarm("a1"): encode(Alarm("a1", 1, "illegal step", "t.0-0", "text")),
    LAYOUT.run(3, 0): encode(RunRecord(3, "former", "h:1", "startup", 1, (("load", 0.1),))),
}
#: Znodes whose values masters never read: any content is valid.
UNREAD = {
    LAYOUT.epoch,
    LAYOUT.draining_mark("s3"),
    LAYOUT.table_regions("u"),
    LAYOUT.segment(SEGMENT),
    LAYOUT.alarm("a1"),
    LAYOUT.run(3, 0),
    LAYOUT.request("r1"),  # until a client repeats the request, or the result is old enough to be removed
}
RUBBISH = {
    "nothing": lambda _: b"",
    "rubbish": lambda _: b"\xff\x00rubbish",
    "cut off": lambda value: value[: len(value) // 2],
    "of another shape": lambda _: b'[{"some":"thing"}]',
}


class Store(WatchedStore):
    """A session with the methods that `MasterService` uses."""

    def connect(self) -> Any:
        return succeed(None)

    def close(self) -> Any:
        return succeed(None)

    def change(self, path: str, data: bytes = b"") -> None:
        """Change a value; the owner of an ephemeral stays."""
        owner = self.nodes[path][2] if path in self.nodes else 0
        super().change(path, data)
        self.nodes[path] = (*self.nodes[path][:2], owner)


class Cluster:
    """A store with one znode of each kind, and its active masters one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store()
        for path in ("/rk", *LAYOUT.parents()):
            self.store.put(path)
        for server in SERVERS:
            self.store.put(LAYOUT.server(server.uuid), encode(server))
        self.store.put(LAYOUT.table("t"), encode(TABLE))
        self.store.put(LAYOUT.name("orders"), b"t")
        self.store.put(LAYOUT.table_regions("t"))
        for number in (0, 1):
            region = RegionRecord("t", f"t.{number}", replicas=(ReplicaLocation(0, f"s{number + 1}", 7),))
            self.store.put(LAYOUT.region("t", region.region_id), encode(region))
        for path, value in VALUES.items():
            self.store.put(path, value, 3 if path == LAYOUT.epoch else 0)
        self.begin("first")

    def begin(self, name: str, *, cluster_id: str = "") -> None:
        """Start a master, and give it time to become active if there is no other."""
        self.clock = MemoryReactorClock()
        self.clock.connectTCP = lambda *_args, **_kwargs: None  # type: ignore[method-assign, assignment]
        settings = MasterSettings(
            store="x:1", data_dir=self.folder / name, host="h", port=1, root="/rk", plan_engine="greedy"
        )
        self.master = MasterService(self.clock, settings, MasterIdentity(settings.data_dir))
        self.master.now_ms = lambda: int(self.clock.seconds() * 1000) + 1_000
        self.master.cluster_id = cluster_id
        self.master.client = self.store  # type: ignore[assignment]
        # The servers live, and their heartbeats arrive.
        self.master.heartbeats.has_heard = lambda _server: True  # type: ignore[method-assign]
        self.master._start_election()
        self.go_on(4)

    def active_epoch(self) -> int:
        """Return the epoch of the active master, which must serve the unchanged table."""
        assert self.master.role == "active"
        active_master = self.master.active_master
        assert active_master is not None
        assert active_master.world.names["orders"].open_replicas
        return active_master.fence.epoch

    def ask(self, request: ms.MasterRequest) -> Any:
        """Return the master's answer, or the reason of its rejection."""
        results: list[Any] = []
        ensureDeferred(self.master.api.dispatch(request)).addBoth(results.append)
        self.go_on(1)
        found = results[0]
        return found.value if isinstance(found, Failure) else found

    def fail_over(self, cluster_id: str = "c") -> None:
        """End the active master's session; a standby, which knows the cluster from before, becomes active."""
        former = self.store
        self.store = Store()
        self.store.session_id = former.session_id + 1
        self.store.nodes = {path: node for path, node in former.nodes.items() if node[2] != former.session_id}
        self.begin(f"next-{self.store.session_id}", cluster_id=cluster_id)

    def go_on(self, seconds: float) -> None:
        """Let time pass; the store answers everything."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            for _ in range(3):
                self.store.answer()
                self.clock.advance(0)


@pytest.fixture
def logged() -> Iterator[list[LogEvent]]:
    """Return all log lines."""
    found: list[LogEvent] = []
    globalLogPublisher.addObserver(found.append)
    yield found
    globalLogPublisher.removeObserver(found.append)


def words(logged: list[LogEvent]) -> list[str]:
    return [formatEvent(one) for one in logged if one["log_level"] >= LogLevel.warn]


def tracebacks(logged: list[LogEvent]) -> list[str]:
    return [one["log_failure"].getTraceback() for one in logged if "log_failure" in one]


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("path", VALUES)
def test_masters_continue_with_all_other_znodes(
    tmp_path: Path, logged: list[LogEvent], path: str, rubbish: str
) -> None:
    """The active master continues, and so does its successor, which finds the corrupt znode."""
    cluster = Cluster(tmp_path)
    epoch = cluster.active_epoch()
    cluster.store.change(path, RUBBISH[rubbish](VALUES[path]))
    cluster.go_on(6)
    assert cluster.active_epoch() == epoch
    cluster.fail_over()
    written = epoch + (1 if path == LAYOUT.epoch else 0)  # the version is the epoch, whatever the value says
    assert cluster.active_epoch() == written + 1, words(logged)
    cluster.go_on(6)
    assert cluster.active_epoch() == written + 1
    assert tracebacks(logged) == []
    assert path in UNREAD or [one for one in words(logged) if path in one], words(logged)


def test_a_master_that_knows_the_cluster_rewrites_its_record(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.store.change(LAYOUT.cluster, b"rubbish")
    cluster.fail_over()
    assert decode_cluster(cluster.store.nodes[LAYOUT.cluster][0]).cluster_id == "c"


def test_a_master_without_the_cluster_record_reports_it_and_waits(tmp_path: Path, logged: list[LogEvent]) -> None:
    """All masters have been restarted, and none may guess the cluster's id. They continue once it is restored."""
    cluster = Cluster(tmp_path)
    cluster.store.change(LAYOUT.cluster, b"rubbish")
    cluster.fail_over(cluster_id="")
    assert (cluster.master.role, tracebacks(logged)) == ("standby", [])
    assert [one for one in words(logged) if f"cannot enter the election: {LAYOUT.cluster}: " in one]
    cluster.store.put(LAYOUT.cluster, VALUES[LAYOUT.cluster])
    cluster.go_on(6)
    cluster.active_epoch()


def test_a_balancer_with_a_corrupt_switch_is_off_until_it_is_set(tmp_path: Path) -> None:
    """An operator may have switched it off. `rk status` reports it, and `rk balance` repairs it."""
    for wanted in (False, True):
        cluster = Cluster(tmp_path / str(wanted))
        cluster.store.change(LAYOUT.balancer, b"rubbish")
        cluster.fail_over()
        assert not cluster.ask(ms.Balance()).enabled
        [problem] = [one for one in cluster.master.api.status().problems if LAYOUT.balancer in one]
        assert "the balancer is off" in problem
        assert cluster.ask(ms.Balance(switch=wanted)).enabled is wanted
        assert decode_balancer(cluster.store.nodes[LAYOUT.balancer][0]).enabled is wanted
        assert not [one for one in cluster.master.api.status().problems if LAYOUT.balancer in one]


def test_a_request_that_needs_the_corrupt_znode_is_rejected_with_its_path(
    tmp_path: Path, logged: list[LogEvent]
) -> None:
    """Closing the region; repeating a request whose result cannot be read."""
    cluster = Cluster(tmp_path)
    epoch = cluster.active_epoch()
    for path, request in (
        (LAYOUT.region("u", "u.0"), ms.SetRegionIntent("u.0", False)),
        (LAYOUT.request("r1"), ms.SetTableIntent("more", TableIntent.DISABLED, request_id="r1")),
    ):
        cluster.store.put(path, b"rubbish")
        refused = cluster.ask(request)
        assert isinstance(refused, RpcError)
        assert (refused.code, path in refused.message) == (ms.BAD_REQUEST, True)
    assert (cluster.active_epoch(), tracebacks(logged)) == (epoch, [])


def test_a_server_with_a_corrupt_registration_counts_as_alive(tmp_path: Path) -> None:
    """If it counted as dead, its regions would be opened elsewhere while it serves them."""
    cluster = Cluster(tmp_path)
    active_master = cluster.master.active_master
    assert active_master is not None
    cluster.store.change(LAYOUT.server("s3"), b"rubbish")
    cluster.go_on(6)
    assert "s3" in active_master.world.servers
    assert active_master.world.replicas["u.0-0"].transition is None
    cluster.store.drop(LAYOUT.server("s3"))
    cluster.go_on(6)
    assert "s3" not in active_master.world.servers


def test_a_master_rewrites_its_own_registration(tmp_path: Path, logged: list[LogEvent]) -> None:
    """Servers and commands find the master by it."""
    cluster = Cluster(tmp_path)
    mark = LAYOUT.master(cluster.master.uuid)
    before = cluster.store.nodes[mark][0]
    for rubbish in (b"", b"rubbish"):
        cluster.store.change(mark, rubbish)
        cluster.go_on(2)
        assert cluster.store.nodes[mark][0] == before
    assert [one for one in words(logged) if f"its znode was damaged: {mark}" in one]
    cluster.active_epoch()


def test_a_corrupt_table_record_keeps_no_region_closed(tmp_path: Path) -> None:
    """Writes of transitions check the table's record: the active master keeps its copy and continues."""
    cluster = Cluster(tmp_path)
    cluster.store.change(LAYOUT.table("t"), b"{")
    cluster.store.drop(LAYOUT.server("s1"))
    cluster.go_on(4)
    cluster.go_on(4)
    assert decode_transition(cluster.store.nodes[LAYOUT.transition("t.0", 0)][0]).destination == Incarnation("s2", 7)
