"""Creating a table of tablets: its storage, objections, and the first members of each region. Pure.

`FirstMembers` has the members made, and replaces a tablet that gets no leader in time (DD-03).

The members of a small table are chosen with the table, those of a large one by a bulk plan. A table with too few
servers is refused at once. A region that is PREPARING has no transition, so until an order is sent its members may be
chosen again without loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from regions.cluster import effects as fx
from regions.cluster.limits import AssignerConfig
from regions.records.formats import TABLETS
from regions.records.kinds import KV, kind_name
from regions.records.members import Storage
from regions.records.model import Intent, RegionRecord, RegionState, ServerRecord, TableRecord, TabletState
from regions.records.replica_key import parse_replica_key, replica_key
from regions.replication.config import first_members, objection_to_count, objection_to_servers
from regions.replication.effects import BeginTablet, KeeperCauses, begin_tablet, replace_tablet
from regions.replication.member_orders import MemberWrites
from regions.replication.recovery import ServerFate, work_fate
from regions.replication.siting import Site, TabletSite, choose_members, objection_to_racks
from regions.replication.tablet import FirstPlan, GivenUp, MemberWork, Tablet
from regions.transitions.states import Cause


def storage_for(wanted: str, kind: str, replicas: int) -> Storage:
    """Return the storage of a new table. Raise ValueError if `wanted` names no storage or does not fit `kind`.

    By default, several copies of key-value rows are tablets. A single copy is in the shared directory, where every
    server can open it. Regions of other kinds store their data in their own way.
    """
    is_kv = kind_name(kind) == kind_name(KV)
    if not wanted:
        return Storage.TABLET if is_kv and replicas > 1 else Storage.SHARED
    try:
        storage = Storage(wanted)
    except ValueError as error:
        known = " or ".join(one.value for one in Storage)
        raise ValueError(f"storage is {known}, not {wanted!r}") from error
    if storage is Storage.TABLET and not is_kv:
        raise ValueError(f"tablets keep key-value rows: a table of kind {kind} has shared storage")
    return storage


def objection_to_tablets(
    sites: Sequence[Site],
    *,
    replicas: int,
    racks_min: int,
    allow_under_replicated: bool,
    format_in_force: int,
    registered: int,
) -> str:
    """Return why a table of tablets cannot be created, "" if it can.

    Args:
        sites: Live servers of the table's group and kind that take tablets and accept new replicas.
        replicas: Replicas of each region that are wanted.
        racks_min: In how many racks the replicas of each region must lie; 0: in any.
        allow_under_replicated: A majority of the replicas is enough to begin with.
        format_in_force: The cluster's format.
        registered: Live servers of the group and kind, whether they take tablets or not.
    """
    wrong = objection_to_count(replicas)
    if wrong:
        return wrong
    if not registered:
        return (
            "every server of this group is of another kind, is being drained, or has weight 0: undrain or start servers"
        )
    if not sites:
        return (
            f"none of the {registered} servers that could be used takes tablets:"
            " create the table with --replicas 1, whose one copy lies in the shared directory"
        )
    if format_in_force < TABLETS:
        return (
            f"the cluster has format {format_in_force}, tablets need format {TABLETS}: upgrade all masters and servers"
        )
    few = objection_to_servers(replicas, len(sites), allow_under_replicated=allow_under_replicated)
    return few or objection_to_racks(sites, racks_min, min(replicas, len(sites)))


def first_records(
    regions: Sequence[RegionRecord], sites: Sequence[Site], replicas: int, bulk_min: int
) -> list[RegionRecord]:
    """Return the records of a new table's regions.

    From `bulk_min` replicas on the members are left to a bulk plan, unless there are fewer servers than replicas.
    """
    if len(regions) * replicas < bulk_min or len(sites) < replicas:
        return with_members(regions, sites, replicas)
    return [msgspec.structs.replace(region, next_number=1) for region in regions]


def with_members(regions: Sequence[RegionRecord], sites: Sequence[Site], replicas: int) -> list[RegionRecord]:
    """Return the records of a new table's regions with their first members, spread evenly over the servers."""
    given: Counter[str] = Counter()
    made: list[RegionRecord] = []
    for region in regions:
        chosen = choose_members(sites, replicas, given)
        given.update(chosen)
        members = first_members(chosen)
        made.append(msgspec.structs.replace(region, members=members, next_number=len(members) + 1))
    return made


class FirstMembers:
    """Decides about tablets that are PREPARING or CREATING."""

    def __init__(
        self,
        epoch: int,
        config: AssignerConfig,
        tablets: Mapping[str, Tablet],
        servers: Mapping[str, ServerRecord],
        sites: Callable[[TableRecord], list[TabletSite]],
        writes: MemberWrites,
        emit: Callable[[BeginTablet | fx.ReplaceRegion | fx.RequestPlan], None],
        causes: KeeperCauses,
        loads: Counter[str],
    ) -> None:
        """`sites` returns the servers that may get members of a table's tablets; `loads` counts their members."""
        self._epoch = epoch
        self._config = config
        self._tablets = tablets
        self._loads = loads
        #: Tablets without members for which no plan was requested.
        self.unplanned: dict[str, Tablet] = {}
        self._servers = servers
        self._sites = sites
        self._writes = writes
        self._emit = emit
        self._causes = causes
        self._given_up = GivenUp(tablets)

    def settle_preparing(self, tablet: Tablet, now_ms: int) -> None:
        """Begin to make the first members of a region in PREPARING, once all their servers are registered."""
        if tablet.is_writing or not tablet.wants_open:
            return
        if not tablet.record.members and not self._has_plan(tablet, now_ms):
            return
        sites, deadline_ms = self._sites(tablet.table.record), now_ms + self._config.start_timeout_ms
        effect = begin_tablet(tablet, sites, self._servers, self._epoch, deadline_ms, now_ms)
        if effect is not None:  # else looked at again when a server comes
            tablet.is_writing = True
            if not tablet.record.members:
                tablet.begun_on = tuple(one.uuid for one in effect.record.members)
                self._loads.update(tablet.begun_on)
            self._emit(self._causes.attached(effect, tablet))

    def answered(self, tablet: Tablet) -> None:
        """The write of a tablet's first members has committed, was refused, or is of no interest any more."""
        self._loads.subtract(tablet.begun_on)
        tablet.begun_on = ()

    # --- plans ---

    def _has_plan(self, tablet: Tablet, now_ms: int) -> bool:
        """Return True if the plan of a tablet's members is there, or is not awaited any more."""
        if tablet.plan is None:
            self.unplanned[tablet.region_id] = tablet
            return False
        return now_ms >= tablet.plan.until_ms

    def request_plan(self, now_ms: int) -> None:
        """Ask for one plan of all tablets that need one; the members of a few tablets are chosen here at once.

        Tablets for which there are too few servers are looked at again.
        """
        waiting, self.unplanned = self.unplanned, {}
        servers = {one.table: len(self._sites(one.table.record)) for one in waiting.values()}
        tablets = [
            one
            for one in waiting.values()
            if self._needs_plan(one) and servers[one.table] >= one.table.record.replication
        ]
        if not tablets:
            return
        keys: list[str] = [
            replica_key(one.region_id, at) for one in tablets for at in range(one.table.record.replication)
        ]
        is_bulk = len(keys) >= self._config.tablets_bulk_min
        plan = FirstPlan(now_ms + self._config.plan_wait_ms) if is_bulk else FirstPlan()
        for tablet in tablets:
            tablet.plan = plan
            if not is_bulk:
                self.settle_preparing(tablet, now_ms)
        if is_bulk:
            self._emit(fx.RequestPlan(keys, Cause.ASSIGN.value, origin=self._causes.of_tablet(tablets[0])))

    def _needs_plan(self, tablet: Tablet) -> bool:
        is_known = self._tablets.get(tablet.region_id) is tablet
        return is_known and tablet.plan is None and tablet.record.state is TabletState.PREPARING and tablet.wants_open

    def plan_ready(self, plan_id: str, keys: Iterable[str], placements: Mapping[str, str]) -> list[Tablet]:
        """Assign the plan's servers to its tablets, and return the tablets that waited for the plan."""
        servers: dict[str, list[str]] = {}
        for key in keys:
            servers.setdefault(parse_replica_key(key)[0], []).append(placements.get(key, ""))
        found = [one for one in map(self._tablets.get, servers) if one is not None and one.plan is not None]
        for tablet in found:
            tablet.plan = FirstPlan(0, plan_id, tuple(servers[tablet.region_id]))
        return found

    # --- tablets that get no leader ---

    def settle_creating(self, tablet: Tablet, now_ms: int) -> bool:
        """Replace a tablet that has no leader's report in time (DD-03). Return True while it is given up."""
        if not tablet.wants_open or tablet.is_writing:
            tablet.creating_since_ms = 0 if not tablet.wants_open else tablet.creating_since_ms
            return tablet.is_given_up
        if not tablet.creating_since_ms:
            tablet.creating_since_ms = max(1, now_ms)
        late = now_ms - tablet.creating_since_ms >= self._config.create_timeout_ms
        if late and tablet.record.generation < self._config.replacements_max and not tablet.is_given_up:
            self._given_up.add(tablet)
            self._causes.given_up(tablet, self._config.create_timeout_ms)
        if not tablet.is_given_up:
            return False
        for work in list(tablet.work.values()):
            self._put_down(tablet, work, now_ms)
        if all(work.is_put_down for work in tablet.work.values()):
            tablet.is_writing = True
            self._emit(replace_tablet(tablet, self._sites(tablet.table.record)))
        return True

    def _put_down(self, tablet: Tablet, work: MemberWork, now_ms: int) -> None:
        """Take a member's transition away from its server, unless the server is working on it."""
        transition = work.transition
        if transition is None or work.is_writing or work.is_unread:
            return
        fate = work_fate(tablet, work, self._servers)
        if transition.state is RegionState.OPENED:
            self._writes.delete(tablet, work, Cause.DONE)
        elif transition.state is RegionState.OFFLINE and transition.destination is not None:
            self._writes.offline(tablet, work, None, Cause.REPLAN, now_ms, intent=Intent.CLOSE)
        elif transition.state is RegionState.OPENING:
            is_late = now_ms - work.seen_ms >= self._config.open_timeout_ms
            if fate is not ServerFate.ALIVE or is_late:
                cause = Cause.DEADLINE if fate is ServerFate.ALIVE else Cause.SERVER_DEATH
                self._writes.offline(tablet, work, None, cause, now_ms, intent=Intent.CLOSE)
