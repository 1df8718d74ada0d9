"""Choosing one server for one replica: the incremental half of placement (bulk plans are `regions.plan`).

Eligible: alive, of the table's group and kind, weight above zero, not draining, not excluded, without another replica
of the same region. Among those: the server that had the replica last (retained placement), else a rack without a
replica of the region, else the lowest load for its weight; ties go to the lower uuid, so that the choice is a function
of the world alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Protocol

from regions.cluster.entities import Replica, Server
from regions.records.kinds import KV, can_open
from regions.records.model import BarRecord


class Candidate(Protocol):
    """What the choice looks at in a server."""

    @property
    def uuid(self) -> str: ...

    @property
    def rack(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def group(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def draining(self) -> bool: ...

    #: Replicas that the server has or is about to have.
    @property
    def load(self) -> int: ...


def is_eligible(
    server: Candidate,
    *,
    group: str,
    kind: str,
    exclude: Collection[str],
    peers: Collection[str],
    even_draining: bool = False,
) -> bool:
    """Whether `server` may take a replica at all."""
    return (
        server.weight > 0
        and (even_draining or not server.draining)
        and server.group == group
        and can_open(server.kind, kind)
        and server.uuid not in exclude
        and server.uuid not in peers
    )


def objection(server: Candidate, *, group: str, kind: str, peers: Collection[str]) -> str:
    """Why `server` may not take a replica, in words; "" if nothing but the caller's own exclusions is against it."""
    if not can_open(server.kind, kind):
        return f"it is of kind {server.kind or KV}, the table of kind {kind or KV}"
    if server.group != group:
        return f"it is of {_group(server.group)}, the table of {_group(group)}"
    if server.draining:
        return "it is being emptied"
    if server.weight <= 0:
        return "its weight is zero"
    if server.uuid in peers:
        return "it has another replica of the region"
    return ""


def _group(name: str) -> str:
    return f"group {name!r}" if name else "the default group"


def choose(
    servers: Iterable[Candidate],
    *,
    group: str = "",
    kind: str = "",
    prefer: str | None = None,
    exclude: Collection[str] = (),
    peers: Collection[str] = (),
    peer_racks: Collection[str] = (),
    even_draining: bool = False,
) -> str | None:
    """Uuid of the server to open a replica on, None if none is eligible.

    `prefer` is the server that had it last, `exclude` those that must not have it, `peers` and `peer_racks` the
    servers and racks of the region's other replicas. `even_draining`: servers that are to be emptied count, too.
    """
    best: str | None = None
    best_rank: tuple[bool, bool, float, str] | None = None
    for server in servers:
        uuid = server.uuid
        if not is_eligible(server, group=group, kind=kind, exclude=exclude, peers=peers, even_draining=even_draining):
            continue
        rank = (uuid != prefer, server.rack in peer_racks, (server.load + 1) / server.weight, uuid)
        if best_rank is None or rank < best_rank:
            best, best_rank = uuid, rank
    return best


def objection_to(server: Server, replica: Replica, peers: Collection[str]) -> str:
    """Return why `server` may not have `replica`, "" if it may; `peers` have the other replicas of the region."""
    if server.bar is not None:
        return f"it was fenced and gets no regions {bar_words(server.bar)}"
    table = replica.region.table.record
    return objection(server, group=table.group, kind=table.kind, peers=peers)


def bar_words(bar: BarRecord) -> str:
    """Return until when a bar stands."""
    if not bar.until_ms:
        return "until `rk server unfence`"
    return f"until {datetime.fromtimestamp(bar.until_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
