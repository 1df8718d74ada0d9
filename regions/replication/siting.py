"""Servers for the members of a new tablet. Pure.

Members are chosen one after the other: a server whose rack has the fewest of them, then the lowest load for its weight,
then the lower uuid, so that the choice depends only on the servers. With enough racks no rack has a majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from regions.records.kinds import kind_in_tablets, may_host
from regions.records.model import NO_ROOM, ServerRecord, TableRecord


class Site(Protocol):
    """The attributes of a server that the choice of servers for replicas uses."""

    @property
    def uuid(self) -> str: ...

    @property
    def rack(self) -> str: ...

    @property
    def weight(self) -> float: ...

    #: Number of replicas that the server has or is getting.
    @property
    def load(self) -> int: ...


class TabletSite(msgspec.Struct, frozen=True):
    """A registered server with its load, for the choice of members."""

    uuid: str
    rack: str
    weight: float
    load: int


def tablet_sites(
    servers: Iterable[ServerRecord], table: TableRecord, loads: Mapping[str, int], draining: Container[str]
) -> list[TabletSite]:
    """Return the live servers that may get a member of a tablet of the table."""
    return [
        TabletSite(one.uuid, one.rack, one.weight, loads.get(one.uuid, 0))
        for one in servers
        if one.tablets
        and may_host(one.weight, one.group, kind_in_tablets(one.kind), group=table.group, kind=table.kind)
        and not one.leaving
        and one.uuid not in draining
    ]


def choose_members(candidates: Iterable[Site], count: int, extra: Mapping[str, int] | None = None) -> list[str]:
    """Return the uuids of up to `count` distinct servers; fewer if there are not enough.

    `extra`: replicas by uuid that were assigned in this round and are not in `load` yet.
    """
    given = extra or {}
    left = {one.uuid: one for one in candidates}
    racks: Counter[str] = Counter()
    chosen: list[str] = []
    while left and len(chosen) < count:
        best = min(
            left.values(),
            key=lambda one: (racks[one.rack], (one.load + given.get(one.uuid, 0) + 1) / one.weight, one.uuid),
        )
        del left[best.uuid]
        racks[best.rack] += 1
        chosen.append(best.uuid)
    return chosen


def planned_members(planned: Sequence[str], candidates: Sequence[Site], count: int) -> list[str]:
    """Return the servers that a bulk plan names for a tablet, [] if the plan does not fit the present servers.

    A plan fits if it names `count` candidates, none twice, and is spread over racks no worse than `choose_members`.
    """
    racks = {one.uuid: one.rack for one in candidates}
    if len(planned) != count or len(set(planned)) != count or not racks.keys() >= set(planned):
        return []
    there, sizes = Counter(racks[uuid] for uuid in planned), Counter(racks.values())
    if len(there) < min(count, len(sizes)):
        return []
    # Number of members in one rack in the master's own choice, which goes round the racks that have a server left.
    most = next(most for most in range(1, count + 1) if sum(min(size, most) for size in sizes.values()) >= count)
    return list(planned) if max(there.values()) <= most else []


def has_room(server: ServerRecord) -> bool:
    """Return False for a server whose disk has less free space than its reserve."""
    return server.disk_free != NO_ROOM


def objection_to_space(server: ServerRecord, size_bytes: int) -> str:
    """Return why a server has no room for a copy of that size. Return "" if it has room, or if its free bytes are
    unknown."""
    if not has_room(server):
        return f"the disk of {server.uuid} has less free space than its reserve"
    if not 0 < server.disk_free < size_bytes:
        return ""
    return (
        f"{server.uuid} has {server.disk_free} bytes free above its reserve, too few for a copy of {size_bytes} bytes"
    )


def objection_to_racks(candidates: Iterable[Site], racks_min: int, replicas: int) -> str:
    """Return why members cannot be spread over that many racks, "" if they can."""
    if racks_min > replicas:
        return f"{replicas} replicas cannot lie in {racks_min} racks"
    racks = sorted({one.rack for one in candidates})
    if len(racks) < racks_min:
        there = ", ".join(racks) or "none"
        return f"replicas are to lie in {racks_min} racks, and the servers that can be used are in: {there}"
    return ""


def is_another_place(known: ServerRecord, record: ServerRecord) -> bool:
    """Return True if a server is another place for members than before."""
    return (known.rack, known.group, known.kind, known.weight, known.leaving, known.tablets) != (
        record.rack, record.group, record.kind, record.weight, record.leaving, record.tablets
    )  # fmt: skip
