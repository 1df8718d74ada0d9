"""Decisions whether requests about members are accepted, from the active master's present view of the tablet. Pure.

`intents.py` checks a request against the records. This module adds facts that only reports show: whether there is a
leader, the size of the rows, and the policy's next move of the member. A request that the policy would undo at once is
refused with that reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import Member
from regions.records.model import ServerRecord, TableRecord, TabletState
from regions.replication.config import voters
from regions.replication.policy import intents
from regions.replication.siting import objection_to_space, tablet_sites
from regions.replication.tablet import Tablet


class Places(NamedTuple):
    """The servers, for the check of a request."""

    servers: Mapping[str, ServerRecord]
    #: Servers that get nothing new.
    closed: Collection[str]
    #: Members by server.
    loads: Mapping[str, int]


def objection_to_state(tablet: Tablet) -> str:
    """Return why members of the tablet do not change in its present state, "" if they may."""
    record, table = tablet.record, tablet.table.record
    if record.state is not TabletState.RUNNING:
        return f"it is {record.state.value}: its first members are being made"
    if not tablet.wants_open:
        how = "unassigned" if record.unassigned else f"of table {table.name}, which is disabled or deleted"
        return f"it is {how}: its replicas rest, and members do not change meanwhile"
    return ""


def complete(tablet: Tablet, places: Places, move: TabletMove) -> TabletMove:
    """Return the move with a source and a target: the given ones, or the best for the tablet.

    A source is a voter in the target's rack if there is one, because that keeps the racks as they are; then one in the
    rack with the most voters, not the leader, on the fullest server, with the highest number. A target is a server that
    can get the member, in the rack with the fewest other voters, then the emptiest one. "" stays if there is no such
    server.
    """
    if not move.source:
        move = msgspec.structs.replace(move, source=_source_for(tablet, places, move.target))
    if not move.target:
        move = msgspec.structs.replace(move, target=_target_for(tablet, places, move.source))
    return move


def _source_for(tablet: Tablet, places: Places, to: str) -> str:
    target = places.servers.get(to)
    there = voters(tablet.record.members)
    racks = _racks(there, places.servers)
    leader = tablet.view.leader_now()
    leads = 0 if leader is None else leader.number

    def rank(one: Member) -> tuple[bool, int, bool, float, int]:
        server = places.servers.get(one.uuid)
        rack = "" if server is None else server.rack
        weight = 1.0 if server is None or server.weight <= 0 else server.weight
        is_near = target is not None and server is not None and rack == target.rack
        return (is_near, racks[rack], one.number != leads, places.loads.get(one.uuid, 0) / weight, one.number)

    found = max(there, key=rank, default=None)
    return "" if found is None else found.uuid


def _target_for(tablet: Tablet, places: Places, source: str) -> str:
    members = {one.uuid for one in tablet.record.members}
    racks = _racks((one for one in voters(tablet.record.members) if one.uuid != source), places.servers)
    sites = tablet_sites(places.servers.values(), tablet.table.record, places.loads, places.closed)
    free = [
        one
        for one in sites
        if one.uuid not in members and not objection_to_space(places.servers[one.uuid], tablet.size_bytes)
    ]
    best = min(free, key=lambda one: (racks[one.rack], (one.load + 1) / one.weight, one.uuid), default=None)
    return "" if best is None else best.uuid


def objection_to_tablet_move(tablet: Tablet, places: Places, kept: TabletIntents, move: TabletMove) -> str:
    """Return why a move is refused, "" if it is accepted."""
    region, table = tablet.record, tablet.table.record
    if not move.target:
        return "no other server can get a member of it"
    if move.source == move.target:
        return "source and target are the same server"
    return (
        objection_to_state(tablet)
        or intents.objection_to_move(region, table, places.servers, places.closed, kept, move)
        or objection_to_space(places.servers[move.target], tablet.size_bytes)
        or _objection_to_racks(region.members, table, places, move)
    )


def objection_to_learner(tablet: Tablet, places: Places, uuid: str) -> str:
    """Return why a learner is not added on a server, "" if it is."""
    region, table = tablet.record, tablet.table.record
    return (
        objection_to_state(tablet)
        or intents.objection_to_target(table, region.members, places.servers, places.closed, uuid)
        or objection_to_space(places.servers[uuid], tablet.size_bytes)
    )


def _objection_to_racks(members: Collection[Member], table: TableRecord, places: Places, move: TabletMove) -> str:
    """Return why the policy would move a voter on at once: the target's rack would have too many of them."""
    after = [one for one in voters(members) if one.uuid != move.source]
    racks = _racks(after, places.servers)
    target = places.servers[move.target].rack
    source = places.servers.get(move.source)
    racks[target] += 1
    if source is not None and source.rack == target:
        return ""
    taken = {one.uuid for one in after} | {move.target}
    usable = {
        site.rack for site in tablet_sites(places.servers.values(), table, {}, places.closed) if site.uuid not in taken
    }
    better = sorted(rack for rack in usable if racks[rack] <= racks[target] - 2)
    if not better:
        return ""
    return (
        f"{racks[target]} voters would lie in rack {target}, and {racks[better[0]]} in rack {better[0]}, so one would"
        " move on at once"
    )


def _racks(members: Iterable[Member], servers: Mapping[str, ServerRecord]) -> Counter[str]:
    return Counter(servers[one.uuid].rack for one in members if one.uuid in servers)
