"""Intents about tablets' members that cannot come true as things are: servers to be emptied, and moves. Pure."""

from __future__ import annotations

from regions.diagnose.tablets import is_listed
from regions.replication.keeper import Keeper
from regions.replication.policy import intents
from regions.replication.tablet import Tablet


def tablets_on(keeper: Keeper, uuid: str) -> list[Tablet]:
    """Return the tablets with a member on a server. The replicas of deleted tables wait for their removal there."""
    return [
        one
        for one in keeper.tablets.values()
        if any(member.uuid == uuid for member in one.record.members) and is_listed(one)
    ]


def obstacle_to_empty(keeper: Keeper, uuid: str) -> str:
    """Return why some member on a server cannot leave it at present, "" if all can."""
    there = tablets_on(keeper, uuid)
    if not there:
        return ""
    if not keeper.policy.is_on:
        return "this master changes no members of tablets"
    tables = {one.table.record.table_id: one.table.record for one in there}
    found = intents.objection_to_retired(uuid, tables.values(), keeper.servers.values(), keeper.policy.closed)
    if found:
        return found
    resting = next((one for one in there if not one.wants_open), None)
    if resting is None:
        return ""
    if resting.record.unassigned:
        return f"tablet {resting.region_id} is unassigned, and its replicas rest: assign it first"
    return f"replicas of table {resting.table.record.name} rest, because it is disabled: enable it first"


def stuck_lines(keeper: Keeper, limit: int) -> list[str]:
    """Return lines about three obstacles: an outage in which no member is replaced, servers that cannot be emptied, and
    moves whose target cannot get the member."""
    lines = [why] if (why := keeper.policy.held_up()) else []
    lines += [f"tablet {region_id}: {why}" for region_id, why in list(keeper.policy.sealed_off.items())[:limit]]
    lines += [
        f"server {uuid} is to be empty and keeps members of tablets: {why}"
        for uuid in sorted(keeper.policy.retiring)
        if (why := obstacle_to_empty(keeper, uuid))
    ]
    for region_id, kept in sorted(keeper.policy.intents.items()):
        tablet = keeper.tablets.get(region_id)
        if len(lines) > limit or tablet is None:
            continue
        for move in kept.moves:
            there = {one.uuid for one in tablet.record.members}
            why = "" if move.target in there else _target_fault(keeper, tablet, move.target)
            if why:
                lines.append(f"the move of {region_id} from {move.source} to {move.target} waits: {why}")
    return lines[:limit]


def _target_fault(keeper: Keeper, tablet: Tablet, uuid: str) -> str:
    """Return why a server cannot get a member of the tablet now, "" if it can."""
    members, table = tablet.record.members, tablet.table.record
    return intents.objection_to_target(table, members, keeper.servers, keeper.policy.closed, uuid)
