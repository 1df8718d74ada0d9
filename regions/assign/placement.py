"""Chooses one server for one replica (`regions.plan` computes bulk plans).

A server is eligible if it is alive, has the table's group and kind, has a weight above zero, is not draining or
excluded, and has no other replica of the region. Among eligible servers the order of preference is:

1. the server that had the replica last (retained placement)
2. a server in a rack without another replica of the region
3. the lowest load relative to its weight
4. the lower uuid, so that the choice depends only on the cluster state
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from regions.cluster.entities import Replica, Server
from regions.records.kinds import KV, can_open, may_host, takes_tablets_alone
from regions.records.model import BarRecord
from regions.replication.siting import Site

#: 9999-12-31T23:59:59Z, the last second that a date can name, in milliseconds since 1970.
DATE_MS_MAX: Final = 253_402_300_799_000


class Candidate(Site, Protocol):
    """The attributes of a server that the choice uses."""

    @property
    def group(self) -> str:
        """Group of servers; "" for the default group."""
        ...

    @property
    def kind(self) -> str:
        """Kind of service; "" for the default kind."""
        ...

    @property
    def draining(self) -> bool:
        """True if the server gets no regions: it is drained, barred or being stopped."""
        ...


def is_eligible(
    server: Candidate,
    *,
    group: str,
    kind: str,
    exclude: Collection[str],
    peers: Collection[str],
    include_draining: bool = False,
) -> bool:
    """Return True if `server` may take a replica."""
    return (
        may_host(server.weight, server.group, server.kind, group=group, kind=kind)
        and (include_draining or not server.draining)
        and server.uuid not in exclude
        and server.uuid not in peers
    )


def objection(server: Candidate, *, group: str, kind: str, peers: Collection[str]) -> str:
    """Return why `server` may not take a replica; "" if it may. The caller's own exclusions are not considered."""
    if takes_tablets_alone(server.kind):
        return "it has no shared directory and takes tablets alone"
    if not can_open(server.kind, kind):
        return f"its kind is {server.kind or KV}, and the table needs {kind or KV}"
    if server.group != group:
        return f"it belongs to {_group(server.group)}, and the table to {_group(group)}"
    if server.draining:
        return "it is being drained"
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
    include_draining: bool = False,
) -> str | None:
    """Return the uuid of the server to open a replica on, or None if no server is eligible.

    `prefer` is the server that had the replica last. `exclude` are servers that must not get it. `peers` and
    `peer_racks` are the servers and racks of the region's other replicas. `include_draining` makes draining servers
    eligible.
    """
    best: str | None = None
    best_rank: tuple[bool, bool, float, str] | None = None
    for server in servers:
        uuid = server.uuid
        if not is_eligible(
            server, group=group, kind=kind, exclude=exclude, peers=peers, include_draining=include_draining
        ):
            continue
        rank = (uuid != prefer, server.rack in peer_racks, (server.load + 1) / server.weight, uuid)
        if best_rank is None or rank < best_rank:
            best, best_rank = uuid, rank
    assert best is None or (best not in exclude and best not in peers), f"server {best} must not get the replica"
    return best


class LeastLoaded:
    """Finds the same server as `choose`, for many replicas in turn, without a loop over all servers each time.

    The eligible servers of one group and kind are in a heap by load. `choose` notices loads that have grown; the caller
    reports loads that have fallen (`changed`). A thousand replicas of a dead server are placed among a thousand servers
    in some milliseconds.
    """

    def __init__(self, servers: Mapping[str, Server], group: str, kind: str, exclude: Collection[str]) -> None:
        self._servers = servers
        #: Replicas that will come to a server without being counted in its load yet.
        self._promised: dict[str, int] = {}
        self._heap = [
            (_ratio(one), one.uuid)
            for one in servers.values()
            if is_eligible(one, group=group, kind=kind, exclude=exclude, peers=())
        ]
        self._eligible = {uuid for _, uuid in self._heap}
        heapq.heapify(self._heap)

    def choose(self, exclude: Collection[str]) -> str | None:
        """Return the eligible server with the least load that is not in `exclude`, or None."""
        heap, passed = self._heap, []
        found: str | None = None
        while heap and found is None:
            ratio, uuid = heap[0]
            server = self._servers[uuid]
            now = _ratio(server, self._promised.get(uuid, 0))
            if now != ratio:
                heapq.heapreplace(heap, (now, uuid))
            elif uuid in exclude or server.draining:
                passed.append(heapq.heappop(heap))
            else:
                found = uuid
        for entry in passed:
            heapq.heappush(heap, entry)
        assert found is None or (found in self._eligible and found not in exclude), f"server {found} is not eligible"
        return found

    def changed(self, uuid: str) -> None:
        """The load of a server has fallen."""
        if uuid in self._eligible:
            heapq.heappush(self._heap, (_ratio(self._servers[uuid], self._promised.get(uuid, 0)), uuid))

    def promise(self, uuid: str) -> None:
        """Count a replica for the server that will get it, because an order that is sent now names this server."""
        self._promised[uuid] = self._promised.get(uuid, 0) + 1


def _ratio(server: Server, promised: int = 0) -> float:
    return (server.load + promised + 1) / server.weight


def objection_to(server: Server, replica: Replica, peers: Collection[str]) -> str:
    """Return why `server` may not take `replica`; "" if it may. `peers` have the region's other replicas."""
    if server.bar is not None:
        return f"it was fenced and gets no regions {bar_end_text(server.bar)}"
    table = replica.region.table.record
    return objection(server, group=table.group, kind=table.kind, peers=peers)


def bar_end_text(bar: BarRecord) -> str:
    """Return the text for when a bar ends."""
    if not bar.until_ms:
        return "until `rk server unfence`"
    return f"until {datetime.fromtimestamp(max(0, min(bar.until_ms, DATE_MS_MAX)) / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
