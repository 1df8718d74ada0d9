"""Progress of the intents about members of tablets: servers that are emptied, moves, learners, numbers of voters."""

from __future__ import annotations

from typing import Final

from master.catalog.lookup import find_table
from regions import messages as ms
from regions.cluster.state import ClusterState
from regions.diagnose.member_intents import obstacle_to_empty, tablets_on
from regions.diagnose.tablets import TabletWatch, is_listed
from regions.records.intents import TabletIntents
from regions.replication.config import voters
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import standing_of
from regions.replication.policy.next_change import words_of
from regions.replication.tablet import Tablet

#: Tablets that the reply about a server names.
LEFT_MAX: Final = 20


def retirement(watch: TabletWatch, world: ClusterState, uuid: str) -> ms.Retirement:
    """Return how far a server is emptied."""
    keeper, server = watch.keeper, world.servers.get(uuid)
    tablets = tablets_on(keeper, uuid)
    leads = sum(1 for one in tablets if _leads(one, uuid))
    left = [
        ms.TabletLeft(one.region_id, one.table.record.name, _policy(keeper, one.region_id))
        for one in tablets[:LEFT_MAX]
    ]
    return ms.Retirement(
        uuid, server is not None, uuid in keeper.policy.retiring, len(tablets), leads,
        0 if server is None else server.load, obstacle_to_empty(keeper, uuid), left,
    )  # fmt: skip


def _leads(tablet: Tablet, uuid: str) -> bool:
    leader = tablet.view.leader_now()
    return leader is not None and leader.server.uuid == uuid


def _policy(keeper: Keeper, region_id: str) -> str:
    decision = keeper.policy.decisions.get(region_id)
    return "" if decision is None else words_of(decision)


# --- lists ------------------------------------------------------------------------------------------------------------


def list_intents(watch: TabletWatch, world: ClusterState, request: ms.ListIntents) -> ms.IntentList:
    """Return the intents that have not ended. Raise RpcError for an unknown table."""
    keeper = watch.keeper
    table_id = find_table(world, request.table).record.table_id if request.table else ""
    found: list[ms.KeptIntent] = []
    for region_id, kept in sorted(keeper.policy.intents.items()):
        tablet = keeper.tablets.get(region_id)
        if tablet is not None and table_id in ("", kept.table_id):
            found += _kept(keeper, tablet, kept)
    retiring = [retirement(watch, world, uuid) for uuid in sorted(keeper.policy.retiring)] if not table_id else []
    counts: dict[str, int] = {}
    for tablet in keeper.tablets.values():
        record = tablet.table.record
        if is_listed(tablet) and tablet.wants_open and table_id in ("", record.table_id) and not _has_count(tablet):
            counts[record.name] = counts.get(record.name, 0) + 1
    return ms.IntentList(found, [one for one in retiring if not one.is_empty], dict(sorted(counts.items())))


def _has_count(tablet: Tablet) -> bool:
    return len(voters(tablet.record.members)) == tablet.table.record.replication


def _kept(keeper: Keeper, tablet: Tablet, kept: TabletIntents) -> list[ms.KeptIntent]:
    region_id, name, members = kept.region_id, tablet.table.record.name, tablet.record.members
    policy = _policy(keeper, region_id)
    found = [
        ms.KeptIntent(
            region_id, name, one.target, one.source, one.at_ms, one.reason, standing_of(one, members).why, policy
        )
        for one in kept.moves
    ]
    there = {one.uuid for one in members}
    for uuid in kept.learners:
        progress = f"{uuid} {'has' if uuid in there else 'is to get'} a learner"
        found.append(ms.KeptIntent(region_id, name, uuid, reason="learner", progress=progress, policy=policy))
    return found
