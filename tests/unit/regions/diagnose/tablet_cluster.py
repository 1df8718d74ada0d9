"""A cluster of tablets at rest: the real keeper over models of store and servers, for tests of the operators' view."""

from __future__ import annotations

import msgspec

from regions.diagnose.fsck import ClusterView, FoundTransition
from regions.diagnose.tablets import TabletWatch
from regions.messages import OwnReplica, TabletHealth
from regions.messages.heartbeat import TAKES_PART, TabletReport, TabletRole
from regions.records.model import Incarnation, RegionRecord
from tests.sim.keeper.model import Machine
from tests.sim.keeper.world import TABLE, World


class TabletCluster:
    """Servers s0 to s2 with two tablets of three replicas, t.0 and t.1, and a watch of its active master."""

    def __init__(self, machines: int = 3, regions: int = 2, replicas: int = 3) -> None:
        self.world = World(3, machines=machines, regions=regions, replicas=replicas)
        self.world.calm = True
        for machine in self.world.machines.values():
            self.world.start(machine)
        self.silent: set[str] = set()
        self.new_master()
        self.world.tick()
        self.pass_time(10_000)

    def new_master(self) -> None:
        """Replace the active master; servers have yet to report to the new one."""
        self.world.start_master()
        assert self.world.master is not None
        self.watch = TabletWatch(self.world.master, self._has_reported, self.world.now)
        self.watch.look(self.world.now)

    def _has_reported(self, server: Incarnation) -> bool:
        assert self.world.master is not None
        told = self.world.machines[server.uuid].told
        views = [self.world.master.tablets[region_id].view for region_id in told]
        return bool(told) and all(server.uuid in view.replicas for view in views)

    def pass_time(self, ms: int) -> None:
        """Let time pass; the watch checks every 200 ms."""
        end = self.world.now + ms
        while self.world.now < end:
            self.world.run_until(self.world.now + 200)
            self.watch.look(self.world.now)

    def machine(self, uuid: str) -> Machine:
        """Return a server."""
        return self.world.machines[uuid]

    def home(self, region_id: str, number: int) -> str:
        """Return the uuid of a member's server."""
        member = self.world.regions[region_id][0].member(number)
        assert member is not None
        return member.uuid

    def leader(self, region_id: str) -> str:
        """Return the uuid of the leader's server."""
        return self.home(region_id, self.world.groups[region_id].leader)

    def health(self, region_id: str = "t.0") -> TabletHealth:
        """Return the health found by the watch."""
        return self.watch.standing(region_id).judgment.health

    def reason(self, region_id: str = "t.0") -> str:
        """Return the reason of the health."""
        return self.watch.standing(region_id).judgment.reason

    def own(self, machine: Machine, region_id: str) -> OwnReplica:
        """Return a replica's own view."""
        report: TabletReport = self.world.report_of(machine, region_id)
        group = self.world.groups[region_id]
        if report.state not in TAKES_PART:
            return OwnReplica(report)
        members = group.configs[report.config_id]
        leader = report.number if report.role is TabletRole.LEADER else group.leader
        return OwnReplica(report, members, report.config_id, leader, group.index, group.index)

    def view(self) -> ClusterView:
        """Return the view that `rk fsck` reads."""
        world = self.world
        live = [one for one in world.machines.values() if one.lives]
        return ClusterView(
            [world.table[0]],
            {TABLE: [self._with_keys(record) for record, _ in world.regions.values()]},
            [FoundTransition(f"/rk/{key}", record, version) for key, (record, version) in world.transitions.items()],
            [one.record for one in live],
            {one.uuid: [] for one in live},
            {
                one.uuid: None if one.uuid in self.silent else [self.own(one, region_id) for region_id in one.disk]
                for one in live
            },
            names={world.table[0].name: TABLE},
            now_ms=world.now,
            root="/rk",
        )

    @staticmethod
    def _with_keys(record: RegionRecord) -> RegionRecord:
        """Give the regions their keys: in the cluster state every region has the whole key space; here t.0 ends where
        t.1 begins."""
        bounds = {"t.0": ("", "m"), "t.1": ("m", "")}[record.region_id]
        return msgspec.structs.replace(record, start_key=bounds[0], end_key=bounds[1])

    def alter_record(self, region_id: str, **fields: object) -> None:
        """Change a region's record in the store without the master."""
        record, version = self.world.regions[region_id]
        self.world.regions[region_id] = (msgspec.structs.replace(record, **fields), version + 1)
