"""Creating a table of tablets: where its rows lie, what stands against it, and the first members of each region. Pure.

The members are chosen with the table, so a table for which there are too few servers is refused at once. Until an order
goes out nothing is lost with them: a region that is PREPARING has no transition, and its members may be chosen anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from regions.records.formats import TABLETS
from regions.records.kinds import KV, kind_name
from regions.records.members import Storage
from regions.records.model import RegionRecord
from regions.replication.config import first_members, objection_to_count, objection_to_servers
from regions.replication.siting import Site, choose_members, objection_to_racks


def storage_for(wanted: str, kind: str, replicas: int) -> Storage:
    """Return where the rows of a new table lie. Raise ValueError if `wanted` names no storage or does not fit `kind`.

    Unless the caller says otherwise, several copies of key-value rows are tablets. Regions of other kinds bring their
    own way of keeping things, and one copy lies in the shared directory, where every server can open it.
    """
    is_kv = kind_name(kind) == kind_name(KV)
    if not wanted:
        return Storage.TABLET if is_kv and replicas > 1 else Storage.SHARED
    try:
        storage = Storage(wanted)
    except ValueError as error:
        known = " or ".join(one.value for one in Storage)
        raise ValueError(f"storage is {known}, not {wanted!r}") from error
    if storage is Storage.TABLET and not is_kv:
        raise ValueError(f"tablets keep key-value rows: a table of kind {kind} has shared storage")
    return storage


def objection_to_tablets(
    sites: Sequence[Site],
    *,
    replicas: int,
    racks_min: int,
    allow_under_replicated: bool,
    format_in_force: int,
    registered: int,
) -> str:
    """Return why a table of tablets cannot be created, "" if it can.

    Args:
        sites: Live servers of the table's group and kind that take tablets and may be given something.
        replicas: Replicas of each region that are wanted.
        racks_min: In how many racks the replicas of each region must lie; 0: in any.
        allow_under_replicated: A majority of the replicas is enough to begin with.
        format_in_force: The cluster's format.
        registered: Live servers of the group and kind, whether they take tablets or not.
    """
    wrong = objection_to_count(replicas)
    if wrong:
        return wrong
    if format_in_force < TABLETS:
        return (
            f"the cluster has format {format_in_force}, tablets need format {TABLETS}: upgrade all masters and servers"
        )
    if not sites:
        return (
            f"none of the {registered} servers that could be used takes tablets:"
            " create the table with --replicas 1, whose one copy lies in the shared directory"
        )
    few = objection_to_servers(replicas, len(sites), allow_under_replicated=allow_under_replicated)
    return few or objection_to_racks(sites, racks_min, min(replicas, len(sites)))


def with_members(regions: Sequence[RegionRecord], sites: Sequence[Site], replicas: int) -> list[RegionRecord]:
    """Return the records of a new table's regions with the members that each begins with, evenly over the servers."""
    given: Counter[str] = Counter()
    made: list[RegionRecord] = []
    for region in regions:
        chosen = choose_members(sites, replicas, given)
        given.update(chosen)
        members = first_members(chosen)
        made.append(msgspec.structs.replace(region, members=members, next_number=len(members) + 1))
    return made
