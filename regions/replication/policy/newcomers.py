"""Servers for new members of a tablet that exists: group and kind, rack, weight, free space, copies under way. Pure.

A newcomer goes to the rack with the fewest of the voters that stay, then to the lowest load for its weight, then to the
lower uuid: the order of first members (`regions/replication/siting.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from regions.records.members import Member
from regions.records.model import ServerRecord
from regions.replication.policy.situation import INCOMING_MAX, LARGE_INCOMING_MAX, Situation
from regions.replication.siting import objection_to_space


class Choice(NamedTuple):
    """The server for a newcomer; "" if there is none now, with the reason."""

    uuid: str
    why: str = ""


def objection(facts: Situation, uuid: str, *, ignoring: str = "") -> str:
    """Return why a server cannot get a new member of the tablet, "" if it can.

    `ignoring`: uuid of a server whose present member does not count, because it is removed first.
    """
    server = facts.cluster.servers.get(uuid)
    if server is None:
        return f"{uuid} is not registered"
    misfit = facts.misfit(uuid)
    if misfit:
        return misfit
    if uuid in facts.cluster.closed:
        return f"{uuid} gets nothing new"
    if server.leaving:
        return f"{uuid} is about to stop"
    if uuid != ignoring and any(one.uuid == uuid for one in facts.members):
        return f"{uuid} has a member already"
    return objection_to_space(server, facts.tablet.size_bytes)


def usable(facts: Situation) -> list[ServerRecord]:
    """Return the servers that can get a new member."""
    return [one for uuid, one in facts.cluster.servers.items() if not objection(facts, uuid)]


def is_busy(facts: Situation, uuid: str) -> bool:
    """Return True if the server is getting as many new members as it can: of all tablets, or of large ones."""
    cluster = facts.cluster
    if facts.tablet.is_large and cluster.large_incoming.get(uuid, 0) >= LARGE_INCOMING_MAX:
        return True
    return cluster.incoming.get(uuid, 0) >= INCOMING_MAX


def choose(facts: Situation) -> Choice:
    """Return the server for the next newcomer: the target of a move whose source is a member, else the best one."""
    target = next(_targets(facts), None)
    if target is not None:
        why = objection(facts, target)
        movers = [one for one in facts.voters if one.uuid in facts.moves and one.number in facts.leaving]
        if not why and is_busy(facts, target):
            why = f"{target} is getting {facts.cluster.incoming[target]} others"
        if not why:
            return Choice(target)
        if len(facts.staying) + len(movers) >= facts.wanted:
            return Choice("", f"the move to {target} waits: {why}")
    found = usable(facts)
    if not found:
        return Choice("", f"no server can take a new member: {_nobody(facts)}")
    free = [one for one in found if not is_busy(facts, one.uuid)]
    if not free:
        least = min(facts.cluster.incoming[one.uuid] for one in found)
        return Choice("", f"each server that could take a new member is getting {least} others or more")
    racks = facts.racks([*facts.staying, *facts.joining])
    loads, incoming = facts.cluster.loads, facts.cluster.incoming

    def rank(one: ServerRecord) -> tuple[int, float, str]:
        load = loads.get(one.uuid, 0) + incoming.get(one.uuid, 0) + 1
        return (racks[one.rack], load / one.weight, one.uuid)

    return Choice(min(free, key=rank).uuid)


def _targets(facts: Situation) -> Iterator[str]:
    members = {one.uuid for one in facts.members}
    voters = {one.uuid for one in facts.voters}
    moves = [one for source, one in facts.moves.items() if source in voters and one.target not in members]
    # A move whose target must not have the member any more waits, and does not delay other changes.
    return (one.target for one in moves if not facts.misfit(one.target))


def _nobody(facts: Situation) -> str:
    """Return in words why no server is left: the objections to the servers that are not members, or that all servers
    are members."""
    members = {one.uuid for one in facts.members}
    others = [uuid for uuid in sorted(facts.cluster.servers) if uuid not in members]
    if not others:
        return f"all {len(facts.cluster.servers)} registered servers have one"
    found = [objection(facts, uuid) for uuid in others]
    return "; ".join(found[:3]) + ("; ..." if len(found) > 3 else "")


def crowded(facts: Situation) -> Member | None:
    """Return the voter that should go to another rack, None if the voters are spread well enough.

    A voter goes only from a rack to one with at least two voters fewer. So each move makes the spread more even, and no
    two moves undo each other. Return None while a voter's server is away: its rack is unknown, and a tablet with a
    missing voter has more urgent needs.
    """
    stay = facts.staying
    if len(stay) < 2 or any(facts.server(one) is None or not facts.is_healthy(one) for one in stay):
        return None
    racks = facts.racks(stay)
    rack, most = max(racks.items(), key=lambda item: (item[1], item[0]))
    if most < 2:
        return None
    others = {one.rack for one in usable(facts)} | set(facts.racks(facts.joining))
    if all(racks[other] > most - 2 for other in others):
        return None
    here = [one for one in stay if one.uuid in facts.cluster.servers and facts.cluster.servers[one.uuid].rack == rack]
    return max(here, key=lambda one: (one.number != facts.leader.number, one.number))


def worst_placed(facts: Situation) -> Member:
    """Return the voter that a tablet with too many voters needs least.

    Never the leader. Order of preference: not healthy, in the rack with the most voters, on the fullest server, added
    last.
    """
    racks = facts.racks(facts.voters)
    servers, loads = facts.cluster.servers, facts.cluster.loads

    def rank(one: Member) -> tuple[bool, bool, int, float, int]:
        server = servers.get(one.uuid)
        in_rack = 0 if server is None else racks[server.rack]
        weight = 1.0 if server is None or server.weight <= 0 else server.weight
        is_leader = one.number == facts.leader.number
        return (not is_leader, not facts.is_healthy(one), in_rack, loads.get(one.uuid, 0) / weight, one.number)

    return max(facts.voters, key=rank)
