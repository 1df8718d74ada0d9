"""Place the replicas that have no good place, exactly, as classes of equal regions.

Inside a class (table, replicas still needed, racks already used) the regions are interchangeable. A flow over classes
and servers therefore decides how many replicas of a class go to each server. The size of the flow depends on the
numbers of tables, racks and servers, not on the number of regions.

    source -> class -> [table, rack] -> server -> sink (floor)
                                        server -> group -> sink (budget above the floors)

The arc class -> [table, rack] carries at most one unit per member. If tables or classes are many, each class first
gets arcs to a few racks, and more arcs only if these racks do not suffice. The result is equally full and takes a tenth
of the time, because a node [table, rack] and its arcs to servers are created with the first arc to the node. The bounds
of (table, server) are opened in three steps (floor, ceiling, hard limit), so a table is spread as evenly as the other
bounds allow. The units of a class are dealt in turn, rack by rack: unit j goes to member j mod n, which keeps the racks
of one member distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from regions.plan.engines.maxflow import FlowNet
from regions.plan.problem.model import Ints
from regions.plan.problem.numbered import EligibleServers
from regions.plan.problem.quota import Quotas
from regions.plan.problem.room import Room

#: With more arcs than this, a class first gets arcs to few racks only: to racks with this many times as many servers
#: as the class has units.
ARCS_AT_ONCE: Final = 50_000
RACKS_FIRST: Final = 3


#: (table, rack).
Hub = tuple[int, int]


class LeftoverClass:
    """Equal regions: `need` replicas each, none of them on `used_racks`; `members` regions."""

    def __init__(self, table: int, need: int, used_racks: tuple[int, ...], members: int) -> None:
        self.table = table
        self.need = need
        self.used_racks = used_racks
        self.members = members

    @property
    def key(self) -> tuple[int, int, tuple[int, ...]]:
        """Return the identity of the class, which also orders classes."""
        return (self.table, self.need, self.used_racks)


def spread(
    classes: Sequence[LeftoverClass], fleet: EligibleServers, quotas: Quotas, table_group: Ints, room: Room
) -> list[Ints]:
    """Return the servers for the units of each class, sorted by (rack, server), and take them out of `room`.

    Unit j belongs to member j mod members. A class gets fewer than need * members units if its bounds conflict with
    those of replicas already placed; `repair` then places the rest. `classes` must be sorted by key.
    """
    net = _Network(classes, fleet, quotas, table_group, room)
    net.fill()
    return net.units(room)


def _some_of(hubs: Sequence[tuple[int, int]], nth: int, count: int) -> list[tuple[int, int]]:
    """Return `count` of the hubs, in order. Different classes get different hubs."""
    start = nth * 0x9E3779B1 % len(hubs)
    step = len(hubs) // count
    return sorted({hubs[(start + i * step) % len(hubs)] for i in range(count)})


class _Network:
    """The flow network of one call of `spread`."""

    def __init__(
        self, classes: Sequence[LeftoverClass], fleet: EligibleServers, quotas: Quotas, table_group: Ints, room: Room
    ) -> None:
        self.classes = classes
        self.fleet = fleet
        self.quotas = quotas
        self.servers = len(fleet)
        self.room = room
        self.table_group = table_group
        self.rack_servers: dict[tuple[int, int], list[int]] = {}
        for s, (g, k) in enumerate(zip(fleet.group.tolist(), fleet.rack.tolist(), strict=True)):
            self.rack_servers.setdefault((g, k), []).append(s)
        self.group_racks: dict[int, list[int]] = {}
        for g, k in sorted(self.rack_servers):
            self.group_racks.setdefault(g, []).append(k)
        self.tables = np.unique([c.table for c in classes])
        self.row = {table: row for row, table in enumerate(self.tables.tolist())}
        #: Current limit of each cell, by row of `tables` and server.
        self.limit = np.zeros((len(self.tables), self.servers), dtype=np.int64)
        self.first_server = 2 + len(classes)
        first_group = self.first_server + self.servers
        self.net = FlowNet(first_group + len(fleet.groups))
        self.hub_node: dict[Hub, int] = {}
        #: (arc, server) of each [table, rack].
        self.cell_arcs: dict[Hub, list[tuple[int, int]]] = {}
        #: (arc, hub) of each class, and the further hubs that the class may get arcs to.
        self.class_arcs: list[list[tuple[int, Hub]]] = [[] for _ in classes]
        self.more_hubs: list[list[Hub]] = [self._hubs(c) for c in classes]
        places = int(fleet.group_servers[table_group[self.tables]].sum())
        few = places + sum(len(hubs) for hubs in self.more_hubs) > ARCS_AT_ONCE
        for i, group in enumerate(classes):
            self.net.add(0, 2 + i, group.need * group.members)
            count = self._racks_first(group) if few else len(self.more_hubs[i])
            self._join(
                i, _some_of(self.more_hubs[i], i, count) if count < len(self.more_hubs[i]) else self.more_hubs[i]
            )
        self.floor_arcs = [self.net.add(self.first_server + s, 1, int(room.below[s])) for s in range(self.servers)]
        self.extra_arcs = [
            self.net.add(self.first_server + s, first_group + int(fleet.group[s]), 0) for s in range(self.servers)
        ]
        for g in range(len(fleet.groups)):
            self.net.add(first_group + g, 1, max(0, int(room.budget[g])))

    def _hubs(self, group: LeftoverClass) -> list[Hub]:
        """Return the hubs that a class may use."""
        racks = self.group_racks[int(self.table_group[group.table])]
        return [(group.table, rack) for rack in racks if rack not in group.used_racks]

    def _racks_first(self, group: LeftoverClass) -> int:
        """Return the number of racks that probably suffice for a class."""
        of_group = self.table_group[group.table]
        per_rack = self.fleet.group_servers[of_group] // self.fleet.group_racks[of_group]
        return RACKS_FIRST * max(group.need, -(-group.need * group.members // int(per_rack)))

    def _join(self, nth: int, hubs: Sequence[Hub]) -> None:
        """Add arcs from a class to hubs."""
        chosen = set(hubs)
        self.more_hubs[nth] = [hub for hub in self.more_hubs[nth] if hub not in chosen]
        members = self.classes[nth].members
        self.class_arcs[nth] += [(self.net.add(2 + nth, self._node(hub), members), hub) for hub in hubs]

    def _node(self, hub: Hub) -> int:
        """Return the node of [table, rack]. Create it with its arcs to servers at the first call."""
        if hub not in self.hub_node:
            table, rack = hub
            node = self.hub_node[hub] = self.net.node()
            servers = self.rack_servers[int(self.table_group[table]), rack]
            limits = self.limit[self.row[table], servers].tolist()
            self.cell_arcs[hub] = [
                (self.net.add(node, self.first_server + s, limit), s) for s, limit in zip(servers, limits, strict=True)
            ]
        return self.hub_node[hub]

    def _unsent(self) -> list[int]:
        """Return the classes that still have units without a place."""
        return [i for i, arc in enumerate(self.net.arcs[0]) if self.net.room[arc] > 0]

    def fill(self) -> None:
        """Fill the floors with evenly spread tables first, then fill up to the ceilings, then up to the hard limits."""
        self._open_cells(0)
        self.net.augment(0, 1)
        for s, arc in enumerate(self.extra_arcs):
            self.net.raise_capacity(arc, max(0, int(self.room.above[s])))
        for level in (1, 2):
            if self._unsent():
                self._open_cells(level)
                self.net.augment(0, 1)
        for i in self._unsent():
            self._join(i, self.more_hubs[i])
        self.net.augment(0, 1)
        # Classes without alternatives may need the racks that other classes fill: give every class a few more racks.
        while self._unsent() and any(self.more_hubs):
            for i, hubs in enumerate(self.more_hubs):
                self._join(i, _some_of(hubs, i, min(RACKS_FIRST, len(hubs))) if hubs else [])
            self.net.augment(0, 1)

    def _open_cells(self, level: int) -> None:
        """Set the limit of every cell to the number of replicas that `level` allows in addition to those already
        there."""
        free = self.room.cell.reshape(-1, self.servers)
        opened: set[int] = set()
        for group in range(len(self.fleet.groups)):
            rows, members = np.flatnonzero(self.table_group[self.tables] == group), self.fleet.members(group)
            tables = self.tables[rows]
            below_hard = self.quotas.rows(tables, members, level=2) - self.quotas.rows(tables, members, level=level)
            limits = np.maximum(free[np.ix_(tables, members)] - below_hard, 0)
            opened |= set(tables[(limits > self.limit[np.ix_(rows, members)]).any(axis=1)].tolist())
            self.limit[np.ix_(rows, members)] = limits
        for (table, _), arcs in self.cell_arcs.items():
            if table in opened:
                of_table = self.limit[self.row[table]]
                for arc, s in arcs:
                    self.net.raise_capacity(arc, int(of_table[s]))

    def units(self, room: Room) -> list[Ints]:
        """Split the flow into the servers of each class, and take them out of `room`."""
        waiting: dict[Hub, list[int]] = {}
        for hub, arcs in self.cell_arcs.items():
            waiting[hub] = []
            for arc, s in arcs:
                if units := self.net.flow(arc):
                    room.cell[hub[0] * self.servers + s] -= units
                    waiting[hub] += [s] * units
        for s in range(self.servers):
            room.below[s] -= self.net.flow(self.floor_arcs[s])
            extra = self.net.flow(self.extra_arcs[s])
            room.above[s] -= extra
            room.budget[self.fleet.group[s]] -= extra
        result = []
        for class_arcs in self.class_arcs:
            servers: list[int] = []
            for arc, from_hub in class_arcs:
                units = self.net.flow(arc)
                servers += waiting[from_hub][:units]
                del waiting[from_hub][:units]
            result.append(np.array(servers, dtype=np.int64))
        return result
