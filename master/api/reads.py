"""Read requests, answered from a `ClusterState` in memory.

The state is either the active master's, which is never ahead of the store (MF-12), or a standby's mirror (FW-01). These
functions never wait or write, and they do not check roles: `master/api/roles.py` decides which master may answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from master.api.prepared import NO_SIZE, KeyOrder
from master.api.retirement import list_intents, retirement
from master.api.tablets import list_tablets, show_tablet
from master.catalog.lookup import find_region, find_table, summary
from regions import messages as ms
from regions.balance.sizes import NOT_MEASURED, RegionSize, RegionSizes
from regions.cluster.entities import Region, Server, Table
from regions.cluster.history import StepLog
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.explain import explain
from regions.diagnose.explain_table import explain_table, notes_on
from regions.diagnose.explain_tablets import explain_watched
from regions.diagnose.tablets import TabletWatch
from regions.messages.heartbeat import Measure
from regions.records.members import Member
from regions.records.model import RegionRecord, TableIntent, TransitionRecord
from regions.records.replica_key import parse_replica_key
from regions.replication.tablet import TabletTable
from regions.transitions.table_states import VISIBLE, tablet_state

RECENT_MAX: Final = 10_000

Read = (
    ms.ListTables
    | ms.DescribeTable
    | ms.DescribeRegion
    | ms.ExplainRegion
    | ms.ExplainTable
    | ms.ListServers
    | ms.ListRit
    | ms.RecentTransitions
    | ms.ListTablets
    | ms.ShowTablet
    | ms.ListIntents
    | ms.ShowRetirement
)
#: Requests answered from memory.
READS: Final = (
    ms.ListTables,
    ms.DescribeTable,
    ms.DescribeRegion,
    ms.ExplainRegion,
    ms.ExplainTable,
    ms.ListServers,
    ms.ListRit,
    ms.RecentTransitions,
    ms.ListTablets,
    ms.ShowTablet,
    ms.ListIntents,
    ms.ShowRetirement,
)


class TabletViews(Protocol):
    """The active master's knowledge of tablets beyond their records. `watch` has their health; None on a standby."""

    @property
    def watch(self) -> TabletWatch | None:
        """The health of all tablets."""

    def counts(self, table_id: str) -> TabletTable | None:
        """Return a table with the counts of its tablets, or None if the table has no tablets."""

    def transition(self, region_id: str, number: int) -> TransitionRecord | None:
        """Return the transition of a tablet's member, or None if it has none."""

    def takes_part(self, region_id: str, member: Member) -> bool | None:
        """Return whether a member's replica takes part, according to its server; None: unknown."""

    def in_transition(self, table_id: str = "") -> list[tuple[int, TransitionRecord]]:
        """Return the transitions of members, of one table or of all, each with the time at which it was read."""

    def measure(self, region_id: str) -> Measure | None:
        """Return the measured size of a tablet, or None if no replica has reported one."""


class RecordsAlone:
    """A standby's view: its mirror has tablets' records and no reports."""

    watch: TabletWatch | None = None

    def counts(self, _table_id: str) -> TabletTable | None:
        """Return None."""
        return None

    def transition(self, _region_id: str, _number: int) -> TransitionRecord | None:
        """Return None."""
        return None

    def takes_part(self, _region_id: str, _member: Member) -> bool | None:
        """Return None."""
        return None

    def in_transition(self, _table_id: str = "") -> list[tuple[int, TransitionRecord]]:
        """Return []."""
        return []

    def measure(self, _region_id: str) -> Measure | None:
        """Return None."""
        return None


class ReadView(NamedTuple):
    """Input of a read: cluster state, limits that explanations name, latest steps, and current time.

    `tablets` is the keeper of tablets, `sizes` are the sizes that servers have reported; a standby has neither.
    `totals` has the sums of sizes by table or by server, `order` the regions of tables in the order of their keys
    (`prepared.py`).
    """

    world: ClusterState
    config: AssignerConfig
    history: StepLog
    now_ms: int
    tablets: TabletViews = RecordsAlone()
    sizes: RegionSizes = NOT_MEASURED
    totals: Mapping[str, RegionSize] = {}
    order: KeyOrder | None = None


def read(view: ReadView, request: Read) -> ms.MasterReply:
    """Return the reply. Raise RpcError(NOT_FOUND) for an unknown table or region."""
    world = view.world
    match request:
        case ms.ListTables():
            tables = [world.names[name] for name in sorted(world.names)]
            return ms.Tables(
                [table_summary(one, view, view.totals.get(one.record.table_id, NO_SIZE)) for one in tables]
            )
        case ms.DescribeTable():
            return describe_table(find_table(world, request.table), request, view)
        case ms.DescribeRegion():
            region = find_region(world, request.region_id)
            return ms.Regions(region.table.record, [region_status(region, view)])
        case ms.ExplainRegion():
            replicas = find_region(world, request.region_id).replicas
            return ms.Explanations([explain(one, world, view.config, view.now_ms) for one in replicas])
        case ms.ExplainTable():
            table = find_table(world, request.table)
            if table.record.is_tablet and view.tablets.watch is not None:
                explained = explain_watched(table.record, view.tablets.watch, view.now_ms)
                return msgspec.structs.replace(explained, notes=notes_on(table, world))
            return explain_table(table, world, view.config, view.now_ms)
        case ms.ListServers():
            servers, flapping = world.servers, world.flapping
            watch = view.tablets.watch
            if watch is not None:
                watch.look(view.now_ms)
            sizes = view.totals
            found_loads = (
                server_load(servers[uuid], sizes.get(uuid, NO_SIZE), flapping.get(uuid, 0)) for uuid in sorted(servers)
            )
            loads = [with_tablets(one, watch) for one in found_loads]
            return ms.Servers(loads, barred=[bar for uuid, bar in sorted(world.bars.items()) if uuid not in servers])
        case ms.ListRit():
            found = [(one.seen_ms, one.transition) for one in world.rit() if one.transition is not None]
            found = sorted([*found, *view.tablets.in_transition()], key=lambda one: one[0])[: max(0, request.limit)]
            return ms.Transitions([_in_transition(*one) for one in found])
        case ms.RecentTransitions():
            return _recent(view.history, request)
        case ms.ListTablets():
            return list_tablets(_watch_of(view), world, request, view.now_ms)
        case ms.ShowTablet():
            return show_tablet(_watch_of(view), world, request, view.now_ms)
        case ms.ListIntents():
            return list_intents(_watch_of(view), world, request)
        case ms.ShowRetirement():
            return retirement(_watch_of(view), world, request.uuid)


def _watch_of(view: ReadView) -> TabletWatch:
    """Return the active master's watch: standbys do not answer these requests."""
    assert view.tablets.watch is not None, "only the active master has reports of tablets"
    return view.tablets.watch


# --- replies ----------------------------------------------------------------------------------------------------------


class ReplicaCounts(NamedTuple):
    """Replicas of shared regions and of tablets together; the fields are those of MasterStatus."""

    replicas: int
    open: int
    parked: int
    unusable: int
    resting: int


NO_REPLICAS: Final = ReplicaCounts(0, 0, 0, 0, 0)


def count_replicas(tables: Iterable[Table], tablets: TabletViews) -> ReplicaCounts:
    """Return the counts of these tables' replicas."""
    summaries = [summary(table, tablets.counts(table.record.table_id)) for table in tables]
    of_tablets = [one for one in summaries if one.table.is_tablet]
    enabled = [one for one in of_tablets if one.table.intent is TableIntent.ENABLED and one.table.state in VISIBLE]
    disabled = [one for one in summaries if one.table.intent is TableIntent.DISABLED]
    parked = sum(1 for _, record in tablets.in_transition() if record.parked) if of_tablets else 0
    return ReplicaCounts(
        replicas=sum(one.replicas for one in summaries),
        open=sum(one.open or 0 for one in summaries),
        parked=parked + sum(one.parked for one in summaries),
        # The table's own number of regions: the keeper learns a new table's regions after its record.
        unusable=sum(max(0, one.table.regions - max(0, one.running)) for one in enabled),
        resting=sum(one.replicas - (one.open or 0) - one.rit for one in disabled),
    )


def table_summary(table: Table, view: ReadView, size: RegionSize) -> ms.TableSummary:
    """Return a table's record with its counts and its size."""
    table_id = table.record.table_id
    found = summary(table, view.tablets.counts(table_id))
    found = msgspec.structs.replace(
        found, size_bytes=size.size_bytes, rows=size.rows, measured=size.is_measured or not table.regions
    )
    if not table.record.is_tablet:
        return found
    moving = [record for _, record in view.tablets.in_transition(table_id)]
    return msgspec.structs.replace(found, rit=len(moving), parked=sum(1 for record in moving if record.parked))


def describe_table(table: Table, request: ms.DescribeTable, view: ReadView) -> ms.Regions:
    """Return regions in key order, beginning with the region of `request.start_key`."""
    order = view.order or KeyOrder()
    wanted = order.from_key(table, request.start_key, request.limit)
    return ms.Regions(table.record, [region_status(region, view) for region in wanted])


def region_status(region: Region, view: ReadView) -> ms.RegionStatus:
    """Return a region with the servers of its replicas. The replicas of a tablet are its members; only live servers are
    named."""
    size = view.sizes.of(region)
    if region.record.is_tablet:
        members = [_member_status(region.record, one, view) for one in region.record.members]
        return ms.RegionStatus(region.record, members, *size)
    replicas = [
        ms.ReplicaStatus(one.number, None if one.open_on is None else one.open_on.incarnation, one.transition)
        for one in region.replicas
    ]
    record = region.record
    in_transition = any(one.transition is not None for one in region.replicas)
    state = tablet_state(record, region.table.record, in_transition=in_transition)
    if state is not record.state:
        record = msgspec.structs.replace(record, state=state)
    return ms.RegionStatus(record, replicas, *size)


def _member_status(record: RegionRecord, member: Member, view: ReadView) -> ms.ReplicaStatus:
    server = view.world.servers.get(member.uuid)
    transition = view.tablets.transition(record.region_id, member.number)
    takes_part = view.tablets.takes_part(record.region_id, member)
    return ms.ReplicaStatus(member.number, None if server is None else server.incarnation, transition, takes_part)


def server_load(server: Server, size: RegionSize, shunned_until_ms: int = 0) -> ms.ServerLoad:
    """Return a live server with the number and size of its replicas."""
    outgoing = sum(1 for one in server.open.values() if one.transition is not None)
    return ms.ServerLoad(
        server.record,
        len(server.open) - outgoing,
        size.size_bytes,
        len(server.incoming),
        outgoing,
        server.draining,
        server.fencing,
        shunned_until_ms,
        server.bar,
        rows=size.rows,
        measured=size.is_measured,
    )


def with_tablets(load: ms.ServerLoad, watch: TabletWatch | None) -> ms.ServerLoad:
    """Return the load with the server's tablets; `watch` is None if no server has reported tablets."""
    if watch is None or not load.server.tablets:
        return load
    members, leaders = watch.members[load.server.uuid], watch.leaders_on(load.server.incarnation)
    if leaders is None:  # it has not reported everything to this master yet
        return msgspec.structs.replace(load, tablets=members, rows=None, measured=False)
    uuid = load.server.uuid
    there, of_tablets = watch.open[uuid], RegionSize(watch.bytes[uuid], watch.rows[uuid], is_measured=True)
    of_shared = RegionSize(load.bytes, load.rows, is_measured=load.measured or not load.open)
    size = RegionSize.total((of_shared, of_tablets))
    return msgspec.structs.replace(
        load,
        tablets=members,
        leaders=leaders,
        open=load.open + there,
        tablets_open=there,
        bytes=size.size_bytes,
        rows=size.rows,
        measured=size.is_measured,
    )


def _in_transition(seen_ms: int, record: TransitionRecord) -> ms.TransitionStep:
    server = record.destination or record.source
    return ms.TransitionStep(
        seen_ms,
        record.region_id,
        record.replica,
        "",
        "",
        record.state.value,
        record.reason,
        "" if server is None else server.uuid,
        record.epoch,
        record.plan_id,
        record.attempt,
        record.last_error,
        "" if record.origin is None else record.origin.cause_id,
        record.parked,
    )


def _recent(history: StepLog, request: ms.RecentTransitions) -> ms.Transitions:
    limit = min(max(0, request.limit), RECENT_MAX)
    found: list[ms.TransitionStep] = []
    for step in reversed(history):
        if len(found) >= limit:
            break
        region_id, number = parse_replica_key(step.key)
        if request.region_id in ("", region_id):
            found.append(
                ms.TransitionStep(
                    step.at_ms,
                    region_id,
                    number,
                    *step.words(),
                    step.server,
                    step.epoch,
                    step.plan_id,
                    step.attempt,
                    step.error,
                    step.cause_id,
                )
            )
    return ms.Transitions(found[::-1])
