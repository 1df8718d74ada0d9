"""Tablets from the active master, and from the servers themselves, which are asked in parallel, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cli.common.asking.servers import ask_server, ask_servers
from cli.common.connect import Cluster
from cli.common.errors import NotFoundError
from cli.common.lookup import FoundRegion
from cli.common.names import Names
from cli.tablets.former import name_former
from regions.diagnose.fsck import ClusterView, FoundTransition
from regions.messages import (
    ListTablets,
    OrphanReplica,
    OwnReplica,
    ReplicaList,
    ShowReplicas,
    TabletList,
    TabletMember,
    TabletStatus,
)
from regions.messages.heartbeat import ReplicaState, TabletReport, TabletRole
from regions.records.model import RegionRecord, ServerRecord, TableRecord
from regions.records.znodes import decode_region, decode_transition

#: Deadline of one server's whole answer, in all its pages.
SERVER_TIMEOUT_S: Final = 5.0
#: Characters of a whole uuid. A server that is not running must be named by its whole uuid.
_UUID_LENGTH: Final = 32


def read_replicas(
    servers: Sequence[ServerRecord], tablets: Sequence[str] = (), timeout_s: float = SERVER_TIMEOUT_S
) -> dict[str, list[OwnReplica] | None]:
    """Return each server's own view of its replicas, or of those of `tablets`, by uuid; None: no answer in time.

    Servers that take no tablets are not asked.
    """
    asked = [one for one in servers if one.tablets]
    return ask_servers(asked, lambda server: _replicas_of(server, list(tablets), timeout_s))


def views_of(servers: Sequence[ServerRecord], region_id: str) -> dict[str, OwnReplica]:
    """Return each server's own view of its replica of one tablet, by uuid. Servers without one are left out."""
    return {
        uuid: own
        for uuid, replicas in read_replicas(servers, [region_id]).items()
        for own in replicas or ()
        if own.report.region_id == region_id
    }


def leader_in(views: Mapping[str, OwnReplica]) -> str:
    """Return the uuid of the server that leads in the highest term, "" if none leads."""
    leaders = [uuid for uuid, own in views.items() if own.report.role is TabletRole.LEADER]
    return max(leaders, key=lambda uuid: views[uuid].report.term, default="")


def _replicas_of(server: ServerRecord, tablets: list[str], timeout_s: float) -> list[OwnReplica] | None:
    """Return the replicas of one server, None if it does not answer in time. Raise RpcError."""
    deadline_s = time.monotonic() + timeout_s
    found: list[OwnReplica] = []
    after = ""
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        page = ask_server(server, ShowReplicas(server.uuid, tablets, after), ReplicaList, left_s)
        if page.start_code != server.start_code:
            return None  # another start of the server than the one in the store
        found += page.replicas
        after = page.next
        if not after:
            return found


def view_of_tablet(cluster: Cluster, found: FoundRegion) -> ClusterView:
    """Return the view of one tablet by the store and by the servers."""
    assert found.table is not None, found.region.region_id
    return _view(cluster, found.table, [found.region])


def view_of_table(cluster: Cluster, table: TableRecord) -> ClusterView:
    """Return the data of the store and of the servers about the tablets of one table."""
    regions = cluster.records(cluster.layout.table_regions(table.table_id), decode_region)
    return _view(cluster, table, list(regions.values()))


def _view(cluster: Cluster, table: TableRecord, regions: list[RegionRecord]) -> ClusterView:
    layout, servers = cluster.layout, cluster.servers()
    view = ClusterView([table], {table.table_id: regions}, servers=servers, now_ms=int(time.time() * 1000))
    paths = [layout.transition(one.region_id, number) for one in regions for number in range(1, one.next_number)]
    for path, data, version in cluster.get_versions(paths):
        for record in cluster.understood({path: data}, decode_transition).values():
            view.transitions.append(FoundTransition(path, record, version))
    view.replicas = read_replicas(servers, [one.region_id for one in regions])
    return view


def with_present_figures(found: TabletStatus, own: Mapping[str, Sequence[OwnReplica] | None]) -> TabletStatus:
    """Return the tablet with the present term, applied entry, size and lag of each member from its server.

    Servers report to masters when a state or a role changes, so the master's figures may be hours old. A value that
    no server reported becomes unknown. `own` is the result of `read_replicas` for this tablet.
    """
    answers = {
        (uuid, one.report.number): one.report
        for uuid, replicas in own.items()
        for one in replicas or ()
        if one.report.region_id == found.region_id
    }
    leader = next((one.server for one in found.members if one.number == found.leader), "")
    led = answers.get((leader, found.leader or 0))
    behind = {one.number: one.behind for one in led.leader.health} if led is not None and led.leader is not None else {}
    members = [_present(one, answers.get((one.server, one.number)), behind.get(one.number)) for one in found.members]
    return msgspec.structs.replace(found, members=members)


def _present(member: TabletMember, report: TabletReport | None, behind: int | None) -> TabletMember:
    if report is None:
        return msgspec.structs.replace(member, applied_index=None, size_bytes=None, behind=behind)
    # Rows that are not open have no figures.
    runs = report.state is ReplicaState.RUNNING
    return msgspec.structs.replace(
        member,
        state=report.state,
        term=report.term,
        applied_index=report.applied_index if runs else None,
        size_bytes=report.size_bytes if runs else None,
        behind=behind,
    )


def servers_of(found: TabletList) -> set[str]:
    """Return the uuids of the members' servers, and of those with orphans."""
    return {member.server for one in found.tablets for member in one.members} | {one.server for one in found.orphans}


def tablets_of(cluster: Cluster, names: Names, table_id: str) -> list[TabletStatus]:
    """Return all tablets of a table, and look up the names of those of their servers that are gone."""
    found = all_tablets(cluster, ListTablets(table_id))
    name_former(cluster, names, servers_of(found))
    return found.tablets


def all_tablets(cluster: Cluster, request: ListTablets, limit: int | None = None) -> TabletList:
    """Return all tablets that fit, or the first `limit`. They are requested in pages."""
    found: list[TabletStatus] = []
    orphans: list[OrphanReplica] = []
    after = ""
    while True:
        left = 0 if limit is None else limit - len(found)
        asked = ListTablets(request.table, request.server, request.health, after, left)
        page = cluster.ask_master(asked, TabletList)
        found += page.tablets
        orphans += page.orphans
        after = page.next
        if not after or (limit is not None and len(found) >= limit):
            return TabletList(found, after, page.counts, orphans)


def uuid_of(cluster: Cluster, text: str, names: Names) -> str:
    """Return the uuid of a server by its name; members of tablets are on servers that are not running, too."""
    try:
        return names.find(text).uuid
    except NotFoundError as error:
        if len(text) >= _UUID_LENGTH:
            return text
        name_former(cluster, names, servers_of(all_tablets(cluster, ListTablets())))
        if len(fits := names.uuids(text)) == 1:
            return fits[0]
        raise NotFoundError(
            error.message, f"{error.hint} Give the whole uuid of a server that is not running."
        ) from None
