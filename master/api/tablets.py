"""Requests about tablets, answered from the keeper's tablets and the servers' reports to this active master.

Standbys get no reports and do not answer. `regions/diagnose/tablets.py` judges the health; these functions only read.
"""

from __future__ import annotations

from typing import Final

from coord.rpc.server import RpcError
from master.catalog.lookup import find_table
from regions import messages as ms
from regions.cluster.state import ClusterState
from regions.diagnose.tablets import (
    HealthSince,
    TabletWatch,
    by_health,
    describe,
    diagnose,
    fits,
    is_listed,
    orphans,
)
from regions.replication.tablet import Tablet

#: Ids that the error about an ambiguous prefix names.
_EXAMPLES: Final = 3


def list_tablets(watch: TabletWatch, world: ClusterState, request: ms.ListTablets, now_ms: int) -> ms.TabletList:
    """Return a page of tablets. Raise RpcError for an unknown table and for a table with shared storage."""
    table_id = _table_id(world, request.table) if request.table else ""
    watch.look(now_ms)
    limit = min(request.limit, ms.TABLETS_PAGE_MAX) if request.limit > 0 else ms.TABLETS_PAGE_MAX
    found: list[ms.TabletStatus] = []
    after = ""
    for region_id in sorted(one for one in watch.listed if one > request.after):
        tablet, standing = watch.keeper.tablets[region_id], watch.standing(region_id)
        health = standing.judgment.health
        if not fits(tablet, health, table_id=table_id, server=request.server, wanted=request.health):
            continue
        if len(found) == limit:
            after = found[-1].region_id
            break
        found.append(describe(tablet, watch.keeper, standing, now_ms))
    unknown = orphans(watch.keeper, request.server) if not request.after and not table_id else []
    return ms.TabletList(found, after, by_health(watch.counts), unknown)


def show_tablet(watch: TabletWatch, world: ClusterState, request: ms.ShowTablet, now_ms: int) -> ms.TabletList:
    """Return one tablet. Raise RpcError if no tablet, or more than one, has this id or prefix."""
    tablet = find_tablet(watch, world, request.region_id)
    watch.look(now_ms)
    if is_listed(tablet):
        standing = watch.standing(tablet.region_id)
    else:
        standing = HealthSince(diagnose(tablet, watch.keeper, watch.has_reported), now_ms, True)
    return ms.TabletList([describe(tablet, watch.keeper, standing, now_ms)], counts=by_health(watch.counts))


def _table_id(world: ClusterState, name: str) -> str:
    table = find_table(world, name).record
    if not table.is_tablet:
        raise RpcError(
            ms.BAD_REQUEST,
            f"table {table.name} has no tablets: its rows lie in the shared directory",
            f"`rk region list --table {table.name}` shows its regions.",
        )
    return table.table_id


def find_tablet(watch: TabletWatch, world: ClusterState, text: str) -> Tablet:
    """Return the tablet with this id, or the only tablet whose id begins with it.

    Raise RpcError. For a tablet that was split, which a master forgets, the error names the daughters.
    """
    tablets = watch.keeper.tablets
    if text in tablets:
        return tablets[text]
    if daughters := _daughters(world, text):
        raise RpcError(
            ms.NOT_FOUND,
            f"tablet {text} was split or merged: {' and '.join(daughters)} took its place",
            f"Name one of those. `rk why {text}` shows what is left of the tablet.",
        )
    fit = sorted(one for one in tablets if one.startswith(text)) if text else []
    if len(fit) == 1:
        return tablets[fit[0]]
    if fit:
        named = ", ".join(fit[:_EXAMPLES]) + (", …" if len(fit) > _EXAMPLES else "")
        raise RpcError(
            ms.BAD_REQUEST, f"{text!r} begins the ids of {len(fit)} tablets: {named}", "Give more of the id."
        )
    shared = next((one for one in world.regions if text and one.startswith(text)), "")
    if shared and not world.regions[shared].record.is_tablet:
        table = world.regions[shared].table.record.name
        raise RpcError(
            ms.BAD_REQUEST,
            f"{shared} is no tablet: the rows of table {table} lie in the shared directory",
            f"`rk why {shared}` shows where the region is.",
        )
    raise RpcError(ms.NOT_FOUND, f"no tablet {text!r}", "`rk tablet list` shows the tablets.")


def _daughters(world: ClusterState, parent_id: str) -> list[str]:
    """Return the ids of the regions that replaced this one. They may have been split, too."""
    found = world.regions.items()
    return sorted(
        region_id for region_id, one in found if any(parent.region_id == parent_id for parent in one.record.parents)
    )
