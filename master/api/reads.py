"""Read requests, answered from a `ClusterState` in memory.

The state is either the active master's, which is never ahead of the store (MF-12), or a standby's mirror (FW-01). These
functions never wait or write, and they do not check roles: `master/api/roles.py` decides which master may answer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from master.catalog.lookup import find_region, find_table, summary
from regions import messages as ms
from regions.cluster.entities import Region, Replica, Server, Table
from regions.cluster.history import StepLog
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.explain import explain
from regions.diagnose.explain_table import explain_table
from regions.records.replica_key import parse_replica_key
from regions.transitions.table_states import tablet_state

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
)


class ReadView(NamedTuple):
    """Input of a read: cluster state, limits that explanations name, latest steps, and current time."""

    world: ClusterState
    config: AssignerConfig
    history: StepLog
    now_ms: int


def read(view: ReadView, request: Read) -> ms.MasterReply:
    """Return the reply. Raise RpcError(NOT_FOUND) for an unknown table or region."""
    world = view.world
    match request:
        case ms.ListTables():
            return ms.Tables([summary(world.names[name]) for name in sorted(world.names)])
        case ms.DescribeTable():
            return describe_table(find_table(world, request.table), request)
        case ms.DescribeRegion():
            region = find_region(world, request.region_id)
            return ms.Regions(region.table.record, [region_status(region)])
        case ms.ExplainRegion():
            replicas = find_region(world, request.region_id).replicas
            return ms.Explanations([explain(one, world, view.config, view.now_ms) for one in replicas])
        case ms.ExplainTable():
            return explain_table(find_table(world, request.table), world, view.config, view.now_ms)
        case ms.ListServers():
            servers, flapping = world.servers, world.flapping
            loads = [server_load(servers[uuid], flapping.get(uuid, 0)) for uuid in sorted(servers)]
            return ms.Servers(loads, barred=[bar for uuid, bar in sorted(world.bars.items()) if uuid not in servers])
        case ms.ListRit():
            found = sorted(world.rit(), key=lambda one: one.seen_ms)[: max(0, request.limit)]
            return ms.Transitions([_in_transition(replica) for replica in found])
        case ms.RecentTransitions():
            return _recent(view.history, request)


# --- replies ----------------------------------------------------------------------------------------------------------


def describe_table(table: Table, request: ms.DescribeTable) -> ms.Regions:
    """Return regions in key order, beginning with the region of `request.start_key`."""
    ordered = sorted(table.regions.values(), key=lambda region: region.record.start_key)
    start = request.start_key
    wanted = [one for one in ordered if one.record.end_key == "" or one.record.end_key > start or start == ""]
    if request.limit > 0:
        wanted = wanted[: request.limit]
    return ms.Regions(table.record, [region_status(region) for region in wanted])


def region_status(region: Region) -> ms.RegionStatus:
    """Return a region with the servers of its replicas."""
    replicas = [
        ms.ReplicaStatus(one.number, None if one.open_on is None else one.open_on.incarnation, one.transition)
        for one in region.replicas
    ]
    record = region.record
    in_transition = any(one.transition is not None for one in region.replicas)
    state = tablet_state(record, region.table.record, in_transition=in_transition)
    if state is not record.state:
        record = msgspec.structs.replace(record, state=state)
    return ms.RegionStatus(record, replicas)


def server_load(server: Server, shunned_until_ms: int = 0) -> ms.ServerLoad:
    """Return a live server with the number and size of its replicas."""
    outgoing = sum(1 for one in server.open.values() if one.transition is not None)
    return ms.ServerLoad(
        server.record,
        len(server.open) - outgoing,
        sum(one.region.record.size_bytes for one in server.open.values()),
        len(server.incoming),
        outgoing,
        server.draining,
        server.fencing,
        shunned_until_ms,
        server.bar,
    )


def _in_transition(replica: Replica) -> ms.TransitionStep:
    record = replica.transition
    assert record is not None, replica.key
    server = record.destination or record.source
    return ms.TransitionStep(
        replica.seen_ms,
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
                    step.actor.value,
                    "" if step.before is None else step.before.value,
                    "" if step.after is None else step.after.value,
                    "" if step.cause is None else step.cause.value,
                    step.server,
                    step.epoch,
                    step.plan_id,
                    step.attempt,
                    step.error,
                    step.cause_id,
                )
            )
    return ms.Transitions(found[::-1])
