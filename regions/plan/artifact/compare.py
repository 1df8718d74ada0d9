"""Compares two placements: the replicas that must move to get from one to the other.

Only the servers of a region count, not the numbers of its replicas: a server in both placements keeps its replica. The
others are paired, first within a rack, then by number. So no move leads to a server that still has another replica of
the region, nor to a rack that another replica is about to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from regions.plan.problem.model import LastRow, PlanRows, Snapshot

#: Region id -> replica number -> server id.
Places = Mapping[str, Mapping[int, str]]


class Shift(msgspec.Struct, frozen=True):
    """One replica that moves from `source` to `destination`; "" for no server."""

    region_id: str
    replica: int
    source: str
    destination: str


class Difference(msgspec.Struct, kw_only=True):
    """The difference of two placements."""

    #: Replicas on the same server in both.
    same: int = 0
    moves: list[Shift] = msgspec.field(default_factory=list)
    #: Replicas that only the second placement has.
    added: list[Shift] = msgspec.field(default_factory=list)
    #: Replicas that only the first placement has.
    removed: list[Shift] = msgspec.field(default_factory=list)


def places_of(rows: PlanRows | Iterable[LastRow]) -> dict[str, dict[int, str]]:
    """Return the placements by region."""
    places: dict[str, dict[int, str]] = {}
    if isinstance(rows, PlanRows):
        for region_id, replica, server_id in rows:
            places.setdefault(region_id, {})[replica] = server_id
    else:
        for row in rows:
            places.setdefault(row.region_id, {})[row.replica] = row.server_id
    return places


def former_places(snapshot: Snapshot) -> dict[str, dict[int, str]]:
    """Return the snapshot's former places by region. Of two rows for one replica the lower server id counts."""
    last = snapshot.last
    places: dict[str, dict[int, str]] = {}
    rows = zip(last.region_id.tolist(), last.replica.tolist(), last.server_id.tolist(), strict=True)
    for region_id, replica, server_id in rows:
        of_region = places.setdefault(region_id, {})
        of_region[replica] = min(server_id, of_region.get(replica, server_id))
    return places


def compare(before: Places, after: Places, racks: Mapping[str, str] | None = None) -> Difference:
    """Return the moves from one placement to another, by region and replica. `racks` has the known racks of servers."""
    found = Difference()
    for region_id in sorted(before.keys() | after.keys()):
        _compare_region(found, region_id, before.get(region_id, {}), after.get(region_id, {}), racks or {})
    return found


def _compare_region(
    found: Difference, region_id: str, old: Mapping[int, str], new: Mapping[int, str], racks: Mapping[str, str]
) -> None:
    if old == new:
        found.same += len(old)
        return
    staying = set(old.values()) & set(new.values())
    found.same += len(staying)
    leaving = {number: server for number, server in sorted(old.items()) if server not in staying}
    wanted = {number: server for number, server in sorted(new.items()) if server not in staying}
    for number, source in list(leaving.items()):
        rack = racks.get(source)
        fit = [n for n, server in wanted.items() if rack is not None and racks.get(server) == rack]
        if fit:
            mate = number if number in fit else fit[0]
            found.moves.append(Shift(region_id, number, source, wanted.pop(mate)))
            del leaving[number]
    for number, source in list(leaving.items()):
        if wanted:
            mate = number if number in wanted else next(iter(wanted))
            found.moves.append(Shift(region_id, number, source, wanted.pop(mate)))
            del leaving[number]
    found.removed += [Shift(region_id, number, source, "") for number, source in leaving.items()]
    # A number of a replica that stays cannot be used for a new one.
    free = (number for number in range(len(old) + len(new) + 1) if number not in old)
    found.added += [Shift(region_id, next(free), "", server) for server in wanted.values()]


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Return texts for the differences that change the fingerprint between two snapshots."""
    found: list[str] = []
    for noun, (old, new) in {
        "server": (_server_rows(before), _server_rows(after)),
        "region": (_region_rows(before), _region_rows(after)),
    }.items():
        for verb, ids in (
            ("gone", old.keys() - new.keys()),
            ("new", new.keys() - old.keys()),
            ("changed", {key for key in old.keys() & new.keys() if old[key] != new[key]}),
        ):
            if ids:
                some = ", ".join(sorted(ids)[:3]) + (", …" if len(ids) > 3 else "")
                found.append(f"{len(ids)} {noun}{'' if len(ids) == 1 else 's'} {verb} ({some})")
    difference = compare(former_places(before), former_places(after))
    elsewhere = len(difference.moves)
    if elsewhere:
        found.append(f"{elsewhere} replica{'' if elsewhere == 1 else 's'} elsewhere")
    return found


def _server_rows(snapshot: Snapshot) -> dict[str, tuple[object, ...]]:
    one = snapshot.servers
    columns = (one.server_id, one.host, one.rack, one.weight, one.grp, one.draining)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {str(row[0]): tuple(map(repr, row)) for row in rows}  # NaN, a missing weight, equals itself as text


def _region_rows(snapshot: Snapshot) -> dict[str, tuple[object, ...]]:
    one = snapshot.regions
    columns = (one.region_id, one.table_id, one.replicas, one.grp)
    return {str(row[0]): row for row in zip(*(column.tolist() for column in columns), strict=True)}
