"""Servers and Raft groups of the simulated cluster, and the invariants at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from regions.cluster.limits import AssignerConfig
from regions.messages.heartbeat import HAS_NO_FILES, TabletReport
from regions.records.members import NO_CONFIG, ConfigId, Member
from regions.records.model import Incarnation, ServerRecord, TabletState
from regions.replication.config import majority, voters
from regions.replication.guards import ReplicaOnDisk

if TYPE_CHECKING:
    from tests.sim.keeper.world import World


#: Short times, so that every deadline passes within a run.
CONFIG: Final = AssignerConfig(
    changes_members=False,
    create_timeout_ms=6_000, open_timeout_ms=4_000, resend_ms=500, resend_max_ms=2_000,
    tablets_bulk_min=9, plan_wait_ms=4_000,
)  # fmt: skip


class BrokenInvariantError(AssertionError):
    """Raised when an invariant does not hold."""


class Group:
    """One Raft group, as processes outside of it can observe it."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.configs: dict[ConfigId, tuple[Member, ...]] = {NO_CONFIG: members}
        self.config_id = NO_CONFIG
        self.term = 0
        self.leader = 0
        self.index = 0
        #: Time before which no election takes place.
        self.quiet_until = 0
        #: A leader that is cut off from the others, and continues to report its state: (number, term, configuration).
        self.cut_off: tuple[int, int, ConfigId] | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        return self.configs[self.config_id]


class Machine:
    """A region server: its disk, and its process while that runs."""

    def __init__(self, uuid: str, rack: str) -> None:
        self.uuid = uuid
        self.rack = rack
        self.start_code = 0
        self.lives = False
        #: State that survives a crash: the superblocks, by region.
        self.disk: dict[str, ReplicaOnDisk] = {}
        #: Replicas whose order this process is carrying out.
        self.busy: set[str] = set()
        #: Reports that the active master has received, by region.
        self.told: dict[str, TabletReport] = {}

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.uuid, self.start_code)

    @property
    def record(self) -> ServerRecord:
        return ServerRecord(
            self.uuid, self.uuid, 1, self.start_code, self.rack, kind="kv/1", tablets=True, peer_port=2, format=4
        )


def check_at_rest(world: World) -> None:
    """Check that every region is RUNNING, or replaced, or has lost a majority, and that no work is left that could
    continue."""
    for region_id, (record, _) in world.regions.items():
        if record.state is TabletState.REPLACED:
            continue
        group = world.groups.get(region_id)
        has_leader = group is not None and group.leader
        if has_leader:
            world.require(record.state is TabletState.RUNNING, f"a leader reports, and it is {record}")
        else:
            able = group is not None and _lost(world, region_id, group)
            world.require(able, f"no leader, and no disk was lost: {record}")
        for member in record.members if has_leader else ():
            # A number that was begun and never made (a crash before the superblock) is left to the policy.
            was_made = (region_id, member.number) in world.begun
            waits = f"{region_id}-{member.number}" in world.transitions
            world.require(was_made or waits, f"{region_id}-{member.number} was never made")
        if group is not None and has_leader:
            world.require(record.config_id == group.config_id, f"{group.config_id} has committed: {record}")
    for key, (record, _) in world.transitions.items():
        is_member = world.regions[record.region_id][0].member(record.replica) is not None
        is_lost = is_member and record.last_error.startswith("refused")
        # A newcomer waits for a leader, which a tablet without a majority does not get.
        waits = record.joins is not None and not world.groups[record.region_id].leader
        world.require(is_lost or waits, f"{key} is still {record}")
    for machine in world.machines.values():
        for region_id, local in machine.disk.items():
            record = world.regions[region_id][0]
            member = record.member(local.number)
            has_leader = region_id in world.groups and world.groups[region_id].leader
            if record.state is TabletState.RUNNING and member is None and has_leader:
                world.require(local.state in HAS_NO_FILES, f"{machine.uuid} keeps {region_id}-{local.number}")


def _lost(world: World, region_id: str, group: Group) -> bool:
    """Return True if too many disks were lost for a majority."""
    electorate = voters(group.members)
    disks = [(one.number, world.machines[one.uuid].disk.get(region_id)) for one in electorate]
    kept = [number for number, local in disks if local is not None and local.number == number]
    return len(kept) < majority(len(electorate))
