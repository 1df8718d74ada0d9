"""Replicas without a good place: spread exactly, as classes of equals.

Inside a class (table, replicas still needed, racks already used) the regions are interchangeable, so a flow over
classes and servers decides how many of a class go to each server; its size depends on tables, racks and servers, not
on regions.

    source -> class -> [table, rack] -> server -> sink (floor)
                                        server -> group -> sink (budget above the floors)

The arc class -> [table, rack] carries at most one unit per member. Where classes are many, each first gets arcs to a
few racks only, and to the others when those do not suffice: as full in the end, in a tenth of the time. The bounds of
(table, server) are opened in three steps, floor, ceiling, hard limit, so a table ends up as even as the rest allows.
The units of a class, rack by rack, are dealt in turn: unit j goes to member j mod n, which keeps the racks of one
member distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .maxflow import FlowNet
from .model import Ints
from .problem import Fleet
from .quota import Quotas
from .room import Room

#: Above so many arcs from classes to racks, a class gets arcs to so many racks per replica first.
ARCS_AT_ONCE: Final = 100_000
RACKS_FIRST: Final = 8


class LeftoverClass:
    """Equal regions: `need` replicas each, none of them on `used_racks`; `members` regions."""

    def __init__(self, table: int, need: int, used_racks: tuple[int, ...], members: int) -> None:
        self.table = table
        self.need = need
        self.used_racks = used_racks
        self.members = members

    @property
    def key(self) -> tuple[int, int, tuple[int, ...]]:
        """Identity and order of classes."""
        return (self.table, self.need, self.used_racks)


def spread(classes: Sequence[LeftoverClass], fleet: Fleet, quotas: Quotas, table_group: Ints, room: Room) -> list[Ints]:
    """Servers for the units of each class, sorted by (rack, server); lowers `room`.

    Unit j belongs to member j mod members. A class may get fewer than need * members units when its bounds clash with
    those of replicas already placed; `repair` cures that. `classes` are in the order of their keys.
    """
    net = _Network(classes, fleet, quotas, table_group, room)
    net.fill()
    return net.units(room)


def _some_of(hubs: Sequence[tuple[int, int]], nth: int, count: int) -> list[tuple[int, int]]:
    """`count` of the hubs, others for other classes, in order."""
    start = nth * 0x9E3779B1 % len(hubs)
    step = len(hubs) // count
    return sorted({hubs[(start + i * step) % len(hubs)] for i in range(count)})


class _Network:
    """The flow network of one call of `spread`."""

    def __init__(
        self, classes: Sequence[LeftoverClass], fleet: Fleet, quotas: Quotas, table_group: Ints, room: Room
    ) -> None:
        self.classes = classes
        self.fleet = fleet
        self.quotas = quotas
        self.servers = len(fleet)
        self.table_group = table_group
        self.room = room
        tables = sorted({c.table for c in classes})
        hubs: list[tuple[int, int]] = []
        self.rack_servers: dict[tuple[int, int], list[int]] = {}
        for s, (g, k) in enumerate(zip(fleet.group.tolist(), fleet.rack.tolist(), strict=True)):
            self.rack_servers.setdefault((g, k), []).append(s)
        group_racks: dict[int, list[int]] = {}
        for g, k in sorted(self.rack_servers):
            group_racks.setdefault(g, []).append(k)
        for table in tables:
            hubs += [(table, rack) for rack in group_racks[int(table_group[table])]]
        self.hubs = hubs
        first_hub = 2 + len(classes)
        first_server = first_hub + len(hubs)
        first_group = first_server + self.servers
        self.net = FlowNet(first_group + len(fleet.groups))
        self.hub_node = {hub: first_hub + i for i, hub in enumerate(hubs)}
        #: (arc, hub) of each class, and the hubs that it could have arcs to beyond those.
        self.class_arcs: list[list[tuple[int, tuple[int, int]]]] = []
        self.more_hubs: list[list[tuple[int, int]]] = []
        few = RACKS_FIRST if sum(len(group_racks[int(table_group[c.table])]) for c in classes) > ARCS_AT_ONCE else 0
        for i, group in enumerate(classes):
            self.net.add(0, 2 + i, group.need * group.members)
            racks = [k for k in group_racks[int(table_group[group.table])] if k not in group.used_racks]
            self.class_arcs.append([])
            self.more_hubs.append([(group.table, rack) for rack in racks])
            if few and len(racks) > few * group.need:
                self._join(i, _some_of(self.more_hubs[i], i, few * group.need))
            else:
                self._join(i, self.more_hubs[i])
        self.cell_arcs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for table, rack in hubs:
            self.cell_arcs[table, rack] = [
                (self.net.add(self.hub_node[table, rack], first_server + s, 0), s)
                for s in self.rack_servers[int(table_group[table]), rack]
            ]
        self.floor_arcs = [self.net.add(first_server + s, 1, int(room.below[s])) for s in range(self.servers)]
        self.extra_arcs = [
            self.net.add(first_server + s, first_group + int(fleet.group[s]), 0) for s in range(self.servers)
        ]
        for g in range(len(fleet.groups)):
            self.net.add(first_group + g, 1, max(0, int(room.budget[g])))

    def _join(self, nth: int, hubs: Sequence[tuple[int, int]]) -> None:
        """Give a class arcs to hubs."""
        chosen = set(hubs)
        self.more_hubs[nth] = [hub for hub in self.more_hubs[nth] if hub not in chosen]
        members = self.classes[nth].members
        self.class_arcs[nth] += [(self.net.add(2 + nth, self.hub_node[hub], members), hub) for hub in hubs]

    def _unsent(self) -> list[int]:
        """Classes not all of whose units have a place."""
        return [i for i, arc in enumerate(self.net.arcs[0]) if self.net.room[arc] > 0]

    def fill(self) -> None:
        """Fill floors with even tables first, then to the ceilings, then with what the hard limits allow."""
        self._open_cells(0)
        self.net.augment(0, 1)
        for s, arc in enumerate(self.extra_arcs):
            self.net.raise_capacity(arc, max(0, int(self.room.above[s])))
        for level in (1, 2):
            self._open_cells(level)
            self.net.augment(0, 1)
        # With arcs to all racks first for those that need them; their ways may be taken by others that do not.
        for everybody in (False, True):
            for i in range(len(self.classes)) if everybody and self._unsent() else self._unsent():
                self._join(i, self.more_hubs[i])
            self.net.augment(0, 1)

    def _open_cells(self, level: int) -> None:
        """Let every cell take what `level` leaves beside the replicas already in it."""
        by_table: dict[int, Ints] = {}
        for (table, _), arcs in self.cell_arcs.items():
            if table not in by_table:
                members = self.fleet.members(int(self.table_group[table]))
                limit = np.zeros(self.servers, dtype=np.int64)
                hard = self.quotas.cells(table, members, level=2)
                limit[members] = self.quotas.cells(table, members, level=level) - hard
                limit += self.room.cell[table * self.servers : (table + 1) * self.servers]
                by_table[table] = np.maximum(limit, 0)
            for arc, s in arcs:
                self.net.raise_capacity(arc, int(by_table[table][s]))

    def units(self, room: Room) -> list[Ints]:
        """Split the flow into the servers of each class, and take it out of `room`."""
        waiting: dict[tuple[int, int], list[int]] = {}
        for hub, arcs in self.cell_arcs.items():
            for arc, s in arcs:
                units = self.net.flow(arc)
                room.cell[hub[0] * self.servers + s] -= units
                waiting.setdefault(hub, []).extend([s] * units)
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
