"""Chooses the member of two neighbors that must move next, so that both have their members on the same servers. Pure.

The members of a merge's daughter are made from replicas of both parents on one server. So the parents' members are
brought together first, one after the other, by moves like an operator's. The tablet with fewer bytes moves. Each move
makes the difference smaller, so the moves end, also if the sizes change or another master continues.
"""

from __future__ import annotations

from collections.abc import Callable

from regions.assign.resharding.parents import MERGE
from regions.records.intents import TabletIntents, TabletMove
from regions.records.model import WorkOrigin
from regions.replication.policy.requests import Places, objection_to_tablet_move
from regions.replication.tablet import Tablet


def servers_of(tablet: Tablet) -> frozenset[str]:
    """Return the uuids of the servers with members of the tablet."""
    return frozenset(one.uuid for one in tablet.record.members)


def next_move(
    left: Tablet,
    right: Tablet,
    places: Places,
    kept: Callable[[Tablet], TabletIntents],
    origin: WorkOrigin | None = None,
) -> tuple[Tablet, TabletMove] | str:
    """Return the tablet whose member moves next, and the move, or why no member can.

    The tablets are at rest and have members on different servers. `kept` returns a tablet's intents.
    """
    if len(left.record.members) != len(right.record.members):
        return (
            f"tablets {left.region_id} and {right.region_id} have {len(left.record.members)} and"
            f" {len(right.record.members)} members"
        )
    moving, staying = (left, right) if left.size_bytes < right.size_bytes else (right, left)
    leader = moving.view.leader_now()
    leads = "" if leader is None else leader.server.uuid
    sources = sorted(servers_of(moving) - servers_of(staying), key=lambda one: (one == leads, one))
    why = ""
    for target in sorted(servers_of(staying) - servers_of(moving)):
        for source in sorted(sources, key=lambda one: _rack(places, one) != _rack(places, target)):
            move = TabletMove(source, target, reason=MERGE, origin=origin)
            objection = objection_to_tablet_move(moving, places, kept(moving), move)
            if not objection:
                return moving, move
            why = why or f"a member of tablet {moving.region_id} cannot be moved to {target}: {objection}"
    return why


def _rack(places: Places, uuid: str) -> str:
    server = places.servers.get(uuid)
    return "" if server is None else server.rack
