"""The way back from an applied plan: moves for the replicas that are still on the plan's servers. Pure.

A replica that has moved since, by a death, the balancer or an operator, stays, because only the plan's own moves are
undone. Servers count, not the numbers of replicas, because a tablet's members get new numbers when they move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from regions.plan.artifact.compare import Places, Shift, compare


class Staying(msgspec.Struct, frozen=True):
    """A replica that the plan moved from `source` to `destination`, and why it does not move back."""

    region_id: str
    source: str
    destination: str
    reason: str


class WayBack(msgspec.Struct):
    """The moves that revert a plan, and the plan's moves that cannot be reverted."""

    moves: list[Shift]
    staying: list[Staying]


def way_back(
    before: Places,
    planned: Places,
    now: Places,
    regions: Collection[str],
    takes: Collection[str],
    racks: Mapping[str, str] | None = None,
) -> WayBack:
    """Return the way back.

    Args:
        before: The placement in the plan's input.
        planned: The placement of the plan.
        now: The present placement.
        regions: The regions that should be open now.
        takes: The servers that may take regions now.
        racks: The racks of servers, as they were when the plan was applied.
    """
    found = WayBack([], [])
    for one in compare(before, planned, racks).moves:
        here = {server: number for number, server in now.get(one.region_id, {}).items()}
        reason = _objection(one, here, regions, takes)
        if reason:
            found.staying.append(Staying(one.region_id, one.source, one.destination, reason))
        else:
            found.moves.append(Shift(one.region_id, here[one.destination], one.destination, one.source))
    return found


def _objection(one: Shift, here: Mapping[str, int], regions: Collection[str], takes: Collection[str]) -> str:
    if one.region_id not in regions:
        return "the region is gone, or is to stay closed"
    if one.source in here:
        return "its former server has a replica of the region already"
    if one.destination not in here:
        return "it is no longer where the plan put it"
    return "" if one.source in takes else "its former server is gone, or is being emptied"
