"""Spread of leaders over servers: chooses tablets that another of their voters should lead. Pure, stateless,
level-triggered.

A server's share of the leaders is proportional to its weight. A leader goes from server s to server t only if the sum
of all (leaders² / weight) falls; with equal weights: if s leads at least two tablets more than t. If that sum stays
the same, the racks decide by the same measure. So each handover improves the spread, the next round cannot undo it, and
an even spread is left alone.

A tablet can be led only where it has a voter. So it may take several handovers to relieve s: one of its tablets goes to
u, and one of u's tablets to t. The shortest such chain is taken. If no chain pays, the spread is as even as possible.
The last handover of a chain comes first, so an interrupted chain makes no server worse than before.

Source: N. Harvey et al., Semi-matchings for bipartite graphs and load balancing (2006). Kudu's leader rebalancer, too,
bounds the handovers of a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from regions.records.members import Member
from regions.records.model import ServerRecord

#: Differences of costs below this are rounding errors.
_NEAR: Final = 1e-6


class LedTablet(NamedTuple):
    """A tablet at rest whose leader may change."""

    region_id: str
    table_id: str
    #: Uuid of the leader's server.
    leader: str
    #: Other voters that can lead at once: caught up, on servers that may lead.
    heirs: tuple[Member, ...]


class LeaderTransfer(NamedTuple):
    """A tablet's leadership goes from the server `source` to the voter `heir`."""

    region_id: str
    table_id: str
    source: str
    heir: Member
    why: str


def transfers(
    led: Iterable[LedTablet], leaders: Mapping[str, int], servers: Mapping[str, ServerRecord], limit: int
) -> list[LeaderTransfer]:
    """Return at most `limit` handovers, one per tablet; none if the spread is as even as possible.

    `led` is read only if the spread is uneven. `leaders`: the number of tablets that each server leads, including
    tablets that are not in `led`.
    """
    spread = _Spread(leaders, servers)
    if not spread.may_pay():
        return []
    spread.add(led)
    found: list[LeaderTransfer] = []
    while len(found) < limit:
        chain = spread.chain()
        if not chain:
            break
        found += spread.hand_over(chain)[: limit - len(found)]
    return found


def _weight(server: ServerRecord) -> float:
    return server.weight if server.weight > 0 else 1.0


class _Spread:
    """The leaders of all servers, after the handovers chosen so far."""

    def __init__(self, leaders: Mapping[str, int], servers: Mapping[str, ServerRecord]) -> None:
        self._servers = servers
        self._leaders = Counter(leaders)
        self._racks: Counter[str] = Counter()
        self._rack_weights: dict[str, float] = {}
        for uuid, one in servers.items():
            self._racks[one.rack] += self._leaders[uuid]
            self._rack_weights[one.rack] = self._rack_weights.get(one.rack, 0.0) + _weight(one)
        #: Leaders by server and table: of several tablets, one of the table that is the most uneven goes.
        self._of_table: Counter[tuple[str, str]] = Counter()
        #: The tablets that `source` leads and `target` could lead, in the order of their ids.
        self._movable: dict[str, dict[str, dict[str, LedTablet]]] = {}

    def add(self, led: Iterable[LedTablet]) -> None:
        """Add tablets whose leaders may change."""
        for one in sorted(led):
            self._of_table[one.leader, one.table_id] += 1
            for heir in one.heirs:
                self._movable.setdefault(one.leader, {}).setdefault(heir.uuid, {})[one.region_id] = one

    # --- costs --------------------------------------------------------------------------------------------------------

    def _saved(self, uuid: str) -> tuple[float, float]:
        """Return by how much the sums of servers and of racks fall if a server leads one tablet less."""
        server = self._servers[uuid]
        racks = (2 * self._racks[server.rack] - 1) / self._rack_weights[server.rack]
        return (2 * self._leaders[uuid] - 1) / _weight(server), racks

    def _added(self, uuid: str) -> tuple[float, float]:
        """Return by how much the sums of servers and of racks rise if a server leads one tablet more."""
        server = self._servers[uuid]
        racks = (2 * self._racks[server.rack] + 1) / self._rack_weights[server.rack]
        return (2 * self._leaders[uuid] + 1) / _weight(server), racks

    def _pays(self, source: str, target: str) -> bool:
        saved, added = self._saved(source), self._added(target)
        if abs(saved[0] - added[0]) > _NEAR:
            return saved[0] > added[0]
        return self._servers[source].rack != self._servers[target].rack and saved[1] - added[1] > _NEAR

    def may_pay(self) -> bool:
        """Return True if a handover between some two servers would pay. Otherwise no tablet need be examined."""
        takers = [uuid for uuid, one in self._servers.items() if one.tablets]
        givers = [uuid for uuid in takers if self._leaders[uuid]]
        return any(self._pays(source, target) for source in givers for target in takers if target != source)

    # --- chains -------------------------------------------------------------------------------------------------------

    def chain(self) -> list[str]:
        """Return the servers of the best chain of handovers, the source first; [] if no chain pays."""
        sources = [uuid for uuid in self._movable if uuid in self._servers and self._leaders[uuid]]
        for source in sorted(sources, key=lambda uuid: (*(-one for one in self._saved(uuid)), uuid)):
            former = self._reach(source)
            paying = [uuid for uuid in former if uuid != source and self._pays(source, uuid)]
            if paying:
                chains = [_path(former, uuid) for uuid in paying]
                return min(chains, key=lambda one: (len(one), self._added(one[-1]), one))
        return []

    def _reach(self, source: str) -> dict[str, str]:
        """Return each server that a chain from `source` can end at, with the server before it."""
        former = {source: source}
        front = [source]
        while front:
            following: list[str] = []
            for uuid in front:
                for target in sorted(self._movable.get(uuid, ())):
                    if target not in former and target in self._servers and self._movable[uuid][target]:
                        former[target] = uuid
                        following.append(target)
            front = following
        return former

    def hand_over(self, chain: list[str]) -> list[LeaderTransfer]:
        """Carry out a chain. Return its handovers, the last one first."""
        found: list[LeaderTransfer] = []
        why = f"{chain[0]} leads {self._leaders[chain[0]]} tablets, and {chain[-1]} {self._leaders[chain[-1]]}"
        for source, target in reversed(list(pairwise(chain))):
            one = self._pick(source, target)
            heir = next(each for each in one.heirs if each.uuid == target)
            found.append(LeaderTransfer(one.region_id, one.table_id, source, heir, why))
            for each in one.heirs:
                del self._movable[source][each.uuid][one.region_id]
            self._of_table[source, one.table_id] -= 1
            self._of_table[target, one.table_id] += 1
        for uuid, change in ((chain[0], -1), (chain[-1], 1)):
            self._leaders[uuid] += change
            self._racks[self._servers[uuid].rack] += change
        return found

    def _pick(self, source: str, target: str) -> LedTablet:
        """Return a movable tablet of the table whose leaders differ the most between the source and the target."""
        counts = self._of_table

        def rank(one: LedTablet) -> tuple[int, str]:
            return (counts[target, one.table_id] - counts[source, one.table_id], one.region_id)

        return min(self._movable[source][target].values(), key=rank)


def _path(former: Mapping[str, str], end: str) -> list[str]:
    found = [end]
    while former[found[-1]] != found[-1]:
        found.append(former[found[-1]])
    return found[::-1]


def spread_words(leaders: Mapping[str, int], servers: Collection[str]) -> str:
    """Return how many tablets the servers lead, for operators: "25 to 27 on each of 3 servers"."""
    counts = [leaders.get(uuid, 0) for uuid in servers]
    if not counts:
        return "no server takes tablets"
    each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{each} on each of {len(counts)} servers"
