"""Invariants of a cluster at rest, checked with the store and with every server's own answer.

`check_at_rest` is pure: it compares the store with the servers' answers. `observe` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cli.common.asking.servers import ask_server
from cli.common.connect import Cluster
from cli.drill.report import InvariantCheck, check
from cli.drill.tablets import check_tablets, running_tablets
from cli.tablets.reading import read_replicas
from coord.rpc.wire import RpcError
from regions import messages
from regions.records.model import Incarnation, RegionRecord, TableIntent
from regions.records.replica_key import replica_key
from regions.records.znodes import decode_region
from regions.transitions.observed import History, epoch_breaches
from regions.transitions.table_states import VISIBLE

#: State of a replica that its server serves, in the server's own list.
_OPEN = "OPEN"


class Observation(msgspec.Struct):
    """A cluster at rest, as the store and the servers describe it."""

    #: Shared regions of enabled tables.
    regions: list[RegionRecord]
    #: The live servers' own lists, by incarnation; None for a server that did not answer.
    open_lists: dict[str, list[messages.HostedReplica] | None]
    #: Znodes below /unassigned.
    transitions: list[str]
    #: Number of replicas that each region must have, by table id.
    replication: dict[str, int]
    #: The tablets of enabled tables by id, and the replicas that each live server reports, or None without an answer.
    tablets: dict[str, RegionRecord] = {}
    views: dict[str, list[messages.OwnReplica] | None] = {}


def observe(cluster: Cluster) -> Observation:
    """Read every region and transition from the store, and the open replicas from every live server."""
    tables = [one for one in cluster.tables() if one.intent is TableIntent.ENABLED and one.state in VISIBLE]
    regions = []
    for table in (one for one in tables if not one.is_tablet):
        folder = cluster.layout.table_regions(table.table_id)
        kept = [decode_region(data, f"{folder}/{name}") for name, data in cluster.get_all(folder).items()]
        regions += [one for one in kept if not one.is_replaced]
    lists: dict[str, list[messages.HostedReplica] | None] = {}
    for server in cluster.servers():
        try:
            found = ask_server(server, messages.ListOpen(server.uuid), messages.OpenList)
        except RpcError:
            lists[str(server.incarnation)] = None
        else:
            lists[str(Incarnation(found.uuid, found.start_code))] = found.replicas
    replication = {one.table_id: one.replication for one in tables}
    tablets = running_tablets(cluster)
    views = read_replicas(cluster.servers()) if tablets else {}
    return Observation(regions, lists, cluster.transitions_left(), replication, tablets, views)


def check_at_rest(seen: Observation) -> list[InvariantCheck]:
    """Check that each region has one owner, that the store names it, and that no transition is left."""
    owners = _owners(seen.open_lists)
    silent = [f"{name} did not answer" for name, found in seen.open_lists.items() if found is None]
    wrong_count = []
    wrong_place = []
    replicas = 0
    for region in seen.regions:
        for number in range(seen.replication.get(region.table_id, 1)):
            replicas += 1
            key = replica_key(region.region_id, number)
            held_by = owners.pop(key, [])
            if len(held_by) != 1:
                wrong_count.append(f"{key} is open on {len(held_by)} servers {', '.join(held_by)}".rstrip())
            stored = region.location(number).incarnation
            if held_by and str(stored) not in held_by:
                wrong_place.append(f"{key}: the store names {stored}, but it is open on {', '.join(held_by)}")
    misplaced = [f"{key} is open on {', '.join(where)} but in no enabled table" for key, where in owners.items()]
    servers = len(seen.open_lists)
    found = [
        check(
            "each region open on exactly one live server",
            silent + wrong_count + misplaced,
            f"{replicas} on {servers} servers",
        ),
        check("the store names the right servers", wrong_place, f"{replicas} locations"),
        check("no transition left", seen.transitions, "/unassigned is empty"),
    ]
    if seen.tablets:
        members = sum(len(one.members) for one in seen.tablets.values())
        detail = f"{len(seen.tablets)} tablets, {members} replicas, the same entries applied"
        found.append(
            check("each tablet has one leader, every replica runs", check_tablets(seen.tablets, seen.views), detail)
        )
    return found


def _owners(lists: Mapping[str, Sequence[messages.HostedReplica] | None]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for server, replicas in lists.items():
        for one in replicas or ():
            if one.state == _OPEN:
                owners.setdefault(replica_key(one.region_id, one.replica), []).append(server)
    return owners


def check_history(
    history: History, epochs: list[tuple[int, int]], *, new_epoch_after: int | None = None
) -> list[InvariantCheck]:
    """Check that only legal steps happened and that epochs increase; after a failover also beyond `new_epoch_after`."""
    breaches = epoch_breaches(epochs, history.changes)
    if new_epoch_after is not None and (not epochs or epochs[-1][0] <= new_epoch_after):
        breaches.append(f"the epoch is still {new_epoch_after} after the failover")
    way = " -> ".join(str(version) for version, _ in epochs[-4:])
    return [
        check("epochs strictly increasing, no write of a deposed master", breaches, f"epoch {way}"),
        check(
            "only legal transitions", history.breaches, f"{sum(1 + change.missed for change in history.changes)} steps"
        ),
    ]
