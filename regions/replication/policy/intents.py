"""Intents about members: moves, the number of voters, learners, retired servers. Pure.

    intent    kept in                       ends when
    Move      /intents/<region_id>          a configuration has a voter on the target and none on the source
    learner   /intents/<region_id>          withdrawn
    count     the table's record            replaced by another count
    Retire    /draining/<uuid>              no configuration names the server

Nothing else is stored. Each step follows from the intent and the configuration (`next_change.py`), so every master
continues where the last one stopped. A request is refused if the policy would undo its effect at once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord, ServerRecord, TableRecord
from regions.replication.config import objection_to_count, voters
from regions.replication.siting import tablet_sites


class IntentProgress(enum.StrEnum):
    """Progress of an intent."""

    OPEN = "open"
    DONE = "done"
    VOID = "void"  #: it cannot come true any more


class IntentStanding(NamedTuple):
    """Progress of an intent, with the reason in words."""

    progress: IntentProgress
    why: str


def standing_of(move: TabletMove, members: Collection[Member]) -> IntentStanding:
    """Return how far a move is, by the tablet's committed configuration."""
    is_there = any(one.uuid == move.target for one in voters(members))
    has_left = all(one.uuid != move.source for one in members)
    if is_there and has_left:
        return IntentStanding(IntentProgress.DONE, f"{move.target} has a voter, {move.source} has none")
    if has_left and all(one.uuid != move.target for one in members):
        return IntentStanding(
            IntentProgress.VOID, f"{move.source} has no member any more: there is nothing to be moved"
        )
    if has_left:
        return IntentStanding(IntentProgress.OPEN, f"the newcomer on {move.target} is not a voter yet")
    if is_there:
        return IntentStanding(IntentProgress.OPEN, f"the member on {move.source} is to be removed")
    return IntentStanding(IntentProgress.OPEN, f"{move.target} is to get a member")


def remaining(intents: TabletIntents, members: Collection[Member]) -> TabletIntents:
    """Return the unfinished intents of a tablet. Return the same record if none has ended."""
    moves = tuple(one for one in intents.moves if standing_of(one, members).progress is IntentProgress.OPEN)
    return intents if moves == intents.moves else msgspec.structs.replace(intents, moves=moves)


def with_move(intents: TabletIntents, move: TabletMove) -> TabletIntents:
    """Return a tablet's intents with another move, which replaces a former one of the same source."""
    others = tuple(one for one in intents.moves if one.source != move.source)
    return msgspec.structs.replace(intents, moves=(*others, move))


def without_moves(intents: TabletIntents, source: str = "") -> TabletIntents:
    """Return a tablet's intents without the move of `source`; "": without any move."""
    return msgspec.structs.replace(intents, moves=tuple(one for one in intents.moves if source not in ("", one.source)))


def with_learner(intents: TabletIntents, uuid: str, *, wanted: bool) -> TabletIntents:
    """Return a tablet's intents with or without a learner on a server."""
    others = tuple(one for one in intents.learners if one != uuid)
    return msgspec.structs.replace(intents, learners=(*others, uuid) if wanted else others)


# --- what is refused --------------------------------------------------------------------------------------------------


def objection_to_target(
    table: TableRecord,
    members: Collection[Member],
    servers: Mapping[str, ServerRecord],
    closed: Collection[str],
    uuid: str,
) -> str:
    """Return why a server cannot get a member of the tablet, "" if it can."""
    if any(one.uuid == uuid for one in members):
        return f"{uuid} has a member of the tablet already"
    server = servers.get(uuid)
    if server is None:
        return f"{uuid} is not registered"
    if not tablet_sites([server], table, {}, closed):
        return f"{uuid} takes no members of this table: it is being emptied or stopped, or of another group or kind"
    return ""


def objection_to_move(
    region: RegionRecord,
    table: TableRecord,
    servers: Mapping[str, ServerRecord],
    closed: Collection[str],
    intents: TabletIntents,
    move: TabletMove,
) -> str:
    """Return why a move is refused, "" if it is accepted. `closed`: servers that get nothing new."""
    rival = next((one for one in intents.moves if one.target == move.target and one.source != move.source), None)
    if rival is not None:
        return f"the member on {rival.source} is moving to {move.target} already"
    source = next((one for one in region.members if one.uuid == move.source), None)
    if source is None:
        return f"{move.source} has no member of the tablet"
    if source.role is not MemberRole.VOTER:
        return f"{move.source} has a {source.role.value}, and only voters are moved"
    return objection_to_target(table, region.members, servers, closed, move.target)


def objection_to_new_count(
    table: TableRecord, replicas: int, servers: Iterable[ServerRecord], closed: Collection[str]
) -> str:
    """Return why a table of tablets cannot have that many replicas, "" if it can."""
    wrong = objection_to_count(replicas)
    if wrong:
        return wrong
    found = len(tablet_sites(servers, table, {}, closed))
    if replicas > max(found, table.replication):
        return f"{replicas} replicas need {replicas} servers that take tablets, and {found} can be used"
    return ""


def objection_to_retired(
    uuid: str, tables: Iterable[TableRecord], servers: Iterable[ServerRecord], closed: Collection[str]
) -> str:
    """Return why a server cannot be emptied of tablets, "" if it can: too few others for a table's replicas."""
    registered = list(servers)
    for table in tables:
        others = tablet_sites(registered, table, {}, {*closed, uuid})
        if table.is_tablet and len(others) < table.replication:
            return (
                f"table {table.name} has {table.replication} replicas, and without {uuid} only {len(others)} servers"
                " can have one: start another server, or lower the table's replicas"
            )
    return ""


def left_on(uuid: str, tablets: Iterable[RegionRecord]) -> int:
    """Return how many configurations still name a server. A retired server is empty when none does."""
    return sum(1 for one in tablets if any(member.uuid == uuid for member in one.members))
