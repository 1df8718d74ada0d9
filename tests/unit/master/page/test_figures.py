"""The figures of each second: real ages, the verdict of `rk health`, and no state told as better than it is."""

from __future__ import annotations

import json

import msgspec
from twisted.internet.task import Clock

from master.page.figures import FiguresMaker, PageFigures, StoreNodeFigure
from regions.diagnose.health import unserved
from regions.diagnose.live.work_in_progress import look
from regions.messages import MasterStatus
from regions.messages.heartbeat import Heartbeat, ServerFigures
from regions.page.curves import SERIES, Curves
from regions.records.model import RegionState, TransitionRecord
from tests.unit.master.page.fake_master import FakeMaster, cluster_of
from tests.unit.regions.model_cluster import ModelCluster, at, server


class Api:
    """The status of a master with no problems."""

    def __init__(self, master: FakeMaster) -> None:
        self._master = master

    def status(self, _repeated_for: int = 9) -> MasterStatus:
        world = self._master.cluster.assigner.world
        is_active = self._master.active_master is not None
        now_ms = self._master.now_ms()
        none = {"open": 0, "rit": 0, "parked": 0, "phases": [], "plan": None, "problems": [], "uptime_ms": 0}
        return MasterStatus(
            uuid="m",
            role=self._master.role,
            epoch=1,
            active="",
            path="",
            servers=2,
            masters=1,
            tables=1,
            regions=len(world.regions),
            replicas=len(world.replicas),
            unserved=unserved(look(world.active.values(), ()), now_ms) if is_active else None,
            **none,
        )


class Sight:
    """The figures of one cluster."""

    def __init__(self, cluster: ModelCluster, store: list[StoreNodeFigure] | None = None) -> None:
        self.clock = Clock()
        self.master = FakeMaster(self.clock, cluster)
        self.master.api = Api(self.master)  # type: ignore[attr-defined]
        self.store = store or []
        self.maker = FiguresMaker(self.master, lambda: self.store, lambda: {"other:1": {"s1": 70}})  # type: ignore[arg-type]
        self.sequence = 0

    def beat(self, *uuids: str) -> None:
        self.sequence += 1
        for uuid in uuids:
            self.master.heartbeats.roster.accept(
                Heartbeat("c", at(uuid), self.sequence, figures=ServerFigures(load=2.5), registration=server(uuid)),
                self.master.now_ms(),
            )

    def make(self) -> PageFigures:
        return self.maker.make(self.master.cluster.assigner.world, Curves())


def test_all_is_well() -> None:
    """Both servers send heartbeats, all regions are open."""
    sight = Sight(cluster_of(4))
    sight.beat("s1", "s2")
    found = sight.make()
    assert found.verdict == "degraded"
    assert found.reasons == [
        "no master is active: nothing is assigned, tables cannot be changed (0 of 0 masters answer)"
    ]
    assert [(one.address, one.state, one.open, one.load) for one in found.servers] == [
        ("s1:1", "up", 2, 2.5),
        ("s2:1", "up", 2, 2.5),
    ]
    assert found.servers[0].elsewhere == {"other:1": 70}
    assert len(found.curves) == len(SERIES)
    assert set(json.loads(msgspec.json.encode(found))) >= {"now_ms", "verdict", "servers"}


def test_a_silent_server_makes_its_regions_unavailable() -> None:
    """The session still lives, so its regions are open according to the store, but the server sends no heartbeats."""
    sight = Sight(cluster_of(4))
    sight.beat("s1", "s2")
    sight.clock.advance(6)
    sight.beat("s2")
    found = sight.make()
    assert found.verdict == "unavailable"
    assert found.reasons[0] == "region server s1:1 sends no heartbeat: 2 regions are served by nobody"
    assert [(one.state, one.heard_ms) for one in found.servers] == [("silent", 6000), ("up", 0)]


def test_a_dead_server_stays_in_sight() -> None:
    """The page shows the dead server as gone, with the time of its last heartbeat."""
    sight = Sight(cluster_of(4))
    sight.beat("s1", "s2")
    sight.master.cluster.kill("s1")
    sight.clock.advance(2)
    assert [(one.uuid, one.state, one.open) for one in sight.make().servers] == [("s1", "gone", 0), ("s2", "up", 4)]


def test_an_open_region_that_leaves_is_counted_apart() -> None:
    """The server has two open regions, one of which is closing. Fails if `_count_going` counts nothing."""
    sight = Sight(cluster_of(4))
    sight.beat("s1", "s2")
    world = sight.master.cluster.assigner.world
    replica = world.replicas["r00000-0"]
    record = replica.region.record
    step = TransitionRecord(record.region_id, record.table_id, 0, RegionState.CLOSING, replica.home, None)
    world.set_transition(replica, step, 1, 0)
    home = replica.open_on
    assert home is not None
    (found,) = [one for one in sight.make().servers if one.uuid == home.uuid]
    assert (found.open, found.going) == (1, 1)


def test_a_drained_server_is_drained_when_nothing_is_left_there() -> None:
    """Fails if `_state_of` calls every server draining that an operator drains."""
    sight = Sight(cluster_of(4))
    sight.beat("s1", "s2")
    for one in sight.master.cluster.assigner.world.servers.values():
        one.marked = True
        if one.uuid == "s2":
            for key in list(one.open):
                del one.open[key]
    found = sight.make()
    assert [one.state for one in found.servers] == ["draining", "drained"]
    assert {"s1:1 is draining", "s2:1 is drained"} <= set(found.reasons)


def test_a_standby_tells_of_its_copy_and_its_age() -> None:
    """Counts are those of the copy; the age is the proof's."""
    sight = Sight(cluster_of(4))
    sight.master.stand_by(sight.master.cluster.assigner.world)
    found = sight.make()
    assert (found.role, found.stale_ms) == ("standby", 300)
    assert {name: found.counts[name] for name in ("regions", "open", "rit")} == {"regions": 4, "open": 4, "rit": 0}
    assert found.active_since_ms == 0


def test_without_a_cluster_state_nothing_is_called_healthy() -> None:
    """A master that is becoming active knows nothing yet."""
    sight = Sight(cluster_of(4))
    found = sight.maker.make(None, Curves())
    assert found.verdict == "degraded"
    assert "no active master says which regions and tablets are open" in found.reasons


def test_a_store_without_a_leader_is_unavailable() -> None:
    """According to the answers of its nodes."""
    nodes = [StoreNodeFigure("a:1", "follower"), StoreNodeFigure("b:1", "", "refuses connections")]
    sight = Sight(cluster_of(1), nodes)
    sight.beat("s1", "s2")
    found = sight.make()
    assert found.reasons[0] == "the store has no leader: 1 of 2 nodes serve"
    assert "store node b:1 refuses connections" in found.reasons
