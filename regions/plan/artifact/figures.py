"""Figures of a plan: servers before and after, locally read bytes, moves between racks, and rules that bound."""

from __future__ import annotations

import msgspec

from regions.plan.artifact.binding import Occupancy, count_bound
from regions.plan.artifact.compare import Difference, compare, former_places, places_of
from regions.plan.problem.model import PlanRows, Snapshot
from regions.plan.problem.numbered import NumberedProblem


class PlannedServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server with its quota, from `floor` to `ceil` replicas. Both are 0 for a server that takes none."""

    server_id: str
    host: str
    rack: str
    group: str
    takes_regions: bool
    floor: int
    ceil: int
    before: int
    after: int
    bytes_before: int
    bytes_after: int


class RackMoves(msgspec.Struct, frozen=True, kw_only=True):
    """Number of replicas that move between two racks or within one. The source is "" for a server that is gone."""

    source: str
    destination: str
    moves: int
    bytes: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one plan."""

    regions: int
    replicas: int
    #: Numbers of replicas that stay, replicas that move, and replicas that get their first server.
    stay: int
    move: int
    first: int
    moved_bytes: int
    #: Bytes of all placed replicas, and the locally read bytes among them, before and after.
    bytes_before: int
    bytes_after: int
    local_before: int
    local_after: int
    #: True if the input has block rows.
    knows_blocks: bool
    servers: list[PlannedServer]
    racks: list[RackMoves]
    #: Number of replicas that are not on their best server, by the rule that prevents it (`binding.PlanRule`).
    bound: dict[str, int]


def figures(snapshot: Snapshot, problem: NumberedProblem, rows: PlanRows) -> Figures:
    """Return the figures. `problem` is the encoded snapshot."""
    standing = Occupancy(problem, rows)
    before, after = former_places(snapshot), places_of(rows)
    size = dict(zip(problem.region_ids.tolist(), problem.size.tolist(), strict=True))
    before = {region_id: places for region_id, places in before.items() if region_id in size}
    columns = (snapshot.servers.server_id, snapshot.servers.host, snapshot.servers.rack, snapshot.servers.grp)
    servers = {row[0]: row for row in zip(*(column.tolist() for column in columns), strict=True) if row[0]}
    racks = {server_id: row[2] for server_id, row in servers.items()}
    difference = compare(before, after, racks)
    counts = {side: _per_server(places, size) for side, places in (("before", before), ("after", after))}
    shown = []
    for server_id, (_, host, rack, group) in sorted(servers.items()):
        at = problem.fleet.number.get(server_id, -1)
        old, new = counts["before"].get(server_id, (0, 0)), counts["after"].get(server_id, (0, 0))
        figure = PlannedServer(
            server_id=server_id,
            host=host,
            rack=rack,
            group=group,
            takes_regions=at >= 0,
            floor=int(problem.quotas.floor[at]) if at >= 0 else 0,
            ceil=int(problem.quotas.ceil[at]) if at >= 0 else 0,
            before=old[0],
            after=new[0],
            bytes_before=old[1],
            bytes_after=new[1],
        )
        shown.append(figure)
    return Figures(
        regions=len(problem),
        replicas=len(rows),
        stay=difference.same,
        move=len(difference.moves),
        first=len(difference.added),
        moved_bytes=sum(size.get(move.region_id, 0) for move in difference.moves),
        bytes_before=sum(count[1] for count in counts["before"].values()),
        bytes_after=sum(count[1] for count in counts["after"].values()),
        local_before=_local(standing, before),
        local_after=_local(standing, after),
        knows_blocks=len(snapshot.blocks) > 0,
        servers=shown,
        racks=_rack_moves(difference, racks, size),
        bound=count_bound(standing),
    )


def _per_server(places: dict[str, dict[int, str]], size: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return the replicas and their bytes by server."""
    counts: dict[str, tuple[int, int]] = {}
    for region_id, of_region in places.items():
        for server_id in of_region.values():
            replicas, total = counts.get(server_id, (0, 0))
            counts[server_id] = (replicas + 1, total + size.get(region_id, 0))
    return counts


def _local(standing: Occupancy, places: dict[str, dict[int, str]]) -> int:
    """Return the locally read bytes. Placements on servers that take no regions count as remote."""
    fleet = standing.problem.fleet.number
    return sum(
        standing.worth(standing.number[region_id], fleet[server_id])[0]
        for region_id, of_region in places.items()
        if region_id in standing.number
        for server_id in of_region.values()
        if server_id in fleet
    )


def _rack_moves(difference: Difference, racks: dict[str, str], size: dict[str, int]) -> list[RackMoves]:
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for move in difference.moves:
        key = (racks.get(move.source, ""), racks.get(move.destination, ""))
        moves, total = counts.get(key, (0, 0))
        counts[key] = (moves + 1, total + size.get(move.region_id, 0))
    return [
        RackMoves(source=source, destination=destination, moves=moves, bytes=total)
        for (source, destination), (moves, total) in sorted(counts.items())
    ]
