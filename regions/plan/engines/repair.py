"""Repair violations of hard rules that counts alone cannot prevent, by chains of moves among placed replicas.

A replica without a place, or a server below its floor, is repaired by the shortest chain of moves: a replica goes to a
server, a replica there goes on to another server, and so on until a server has room. The search is breadth-first, so as
few replicas as possible move; among chains of equal length the one that loses least benefit wins. If no chain exists, a
rule gives way, the weakest first: the table's bound, then the server's ceiling, then distinct racks. Two replicas of a
region never share a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from regions.plan.problem.model import Bools, Deadline, Ints
from regions.plan.problem.numbered import NumberedProblem
from regions.plan.problem.room import Room

#: A server in a chain: (server, table whose replica has to leave, or ANY).
Node = tuple[int, int]
ANY = -1
#: Number of servers that are tried for a replica whose table is over its limit, the emptiest first.
EASE_TRIES = 64


class Repair:
    """Placed replicas as sets per server and region, kept within `room`.

    `placed` are distinct pairs (region, server); `room` is what they leave free. Every method updates both together.
    """

    def __init__(
        self, problem: NumberedProblem, region: Ints, server: Ints, room: Room, deadline: Deadline | None
    ) -> None:
        self.problem = problem
        self.deadline = deadline
        self.servers = len(problem.fleet)
        self.rack = problem.fleet.rack
        self.group = problem.fleet.group
        self.below = room.below
        self.above = room.above
        self.budget = room.budget
        self.cell = room.cell.reshape(-1, self.servers)
        self.on: list[set[int]] = [set() for _ in range(self.servers)]
        self.of: dict[int, list[int]] = {}
        for r, s in zip(region.tolist(), server.tolist(), strict=True):
            self.on[s].add(r)
            if problem.want[r] > 1:
                self.of.setdefault(r, []).append(s)
        #: Replicas of each region by rack. Regions of one replica cannot crowd a rack, so their entries stay 0.
        self.crowd = np.zeros((len(problem), int(self.rack.max(initial=0)) + 1), dtype=np.int8)
        several = problem.want[region] > 1
        np.add.at(self.crowd, (region[several], self.rack[server[several]]), 1)
        self.held = np.zeros_like(self.cell)
        np.add.at(self.held, (problem.table[region], server), 1)
        #: (region, server) of the candidates as one ascending number; computed when first needed.
        self.keys: Ints | None = None
        self.placed = 0
        self.moves = 0

    # --- what callers use ------------------------------------------------------------------------------------------

    def place_all(self, regions: Iterable[int]) -> None:
        """Place one more replica for each entry of `regions` (a region may occur several times)."""
        for region in regions:
            self._place(region)
            self.placed += 1

    def raise_floors(self) -> None:
        """Fill servers below their floor from servers above theirs."""
        for server in np.flatnonzero(self.below > 0).tolist():
            while self.below[server] > 0 and not self._late():
                if not self._raise(server, strict=True) and not self._raise(server, strict=False):
                    break

    def lower_tables(self) -> None:
        """Bring tables that are over their limit on a server back to it: by a move or a swap, else by a chain."""
        for table, server in np.argwhere(self.cell < 0).tolist():
            while self.cell[table, server] < 0 and not self._late():
                if not self._ease(table, server) and not self._ease_by_chain(table, server):
                    break

    def pairs(self) -> tuple[Ints, Ints]:
        """Return all placed replicas as (region, server), sorted."""
        region = np.array([r for regions in self.on for r in regions], dtype=np.int64)
        server = np.repeat(np.arange(self.servers), [len(regions) for regions in self.on])
        order = np.lexsort((server, region))
        return region[order], server[order]

    # --- room ------------------------------------------------------------------------------------------------------

    def _open(self, members: Ints) -> Bools:
        """Return which servers have room now; all servers of a group share its budget."""
        spare: Bools = (self.below[members] > 0) | ((self.above[members] > 0) & (self.budget[self.group[members]] > 0))
        return spare

    def _above_floor(self, group: int) -> list[int]:
        """Return the servers of a group that hold more than their floor."""
        members = self.problem.fleet.members(group)
        ceil, floor = self.problem.quotas.ceil[members], self.problem.quotas.floor[members]
        used = ceil - floor - self.above[members]
        return [int(s) for s in members[(used > 0) & (self.below[members] <= 0)]]

    def _late(self) -> bool:
        return self.deadline is not None and self.deadline() <= 0

    def _add(self, region: int, server: int) -> None:
        """Put a replica on a server and take its room. Beyond all bounds `above` and `cell` become negative."""
        self.on[server].add(region)
        if self.problem.want[region] > 1:
            self.of.setdefault(region, []).append(server)
            self.crowd[region, self.rack[server]] += 1
        self.cell[self.problem.table[region], server] -= 1
        self.held[self.problem.table[region], server] += 1
        if self.below[server] > 0:
            self.below[server] -= 1
        else:
            self.above[server] -= 1
            self.budget[self.group[server]] -= 1

    def _remove(self, region: int, server: int) -> None:
        """Take a replica from a server and give its room back."""
        self.on[server].remove(region)
        if self.problem.want[region] > 1:
            self.of[region].remove(server)
            self.crowd[region, self.rack[server]] -= 1
        self.cell[self.problem.table[region], server] += 1
        self.held[self.problem.table[region], server] -= 1
        if self.above[server] < self.problem.quotas.ceil[server] - self.problem.quotas.floor[server]:
            self.above[server] += 1
            self.budget[self.group[server]] += 1
        else:
            self.below[server] += 1

    # --- placing one replica ---------------------------------------------------------------------------------------

    def _allowed(self, region: int) -> tuple[Ints, Ints]:
        """Return the servers of the region's group that hold no replica of it, and the replicas on each one's rack."""
        members = self.problem.fleet.members(int(self.problem.tables.group[self.problem.table[region]]))
        here = self.of.get(region, [])
        if not here:
            return members, np.zeros(len(members), dtype=np.int64)
        members = members[~np.isin(members, here)]
        racks = self.rack[here]
        return members, (self.rack[members][:, None] == racks[None, :]).sum(axis=1)

    def _place(self, region: int) -> None:
        """Place one replica on a least used rack, within all bounds if a chain can make room."""
        table = int(self.problem.table[region])
        members, crowd = self._allowed(region)
        assert len(members), (region, "more replicas than servers")
        members = members[crowd == crowd.min()]
        cells = self.cell[table, members]
        direct = members[(cells > 0) & self._open(members)]
        if len(direct):
            self._add(region, self._emptiest(direct, table))
            return
        starts = [(int(s), ANY if c > 0 else table) for s, c in zip(members, cells, strict=True)]
        goals = set(np.flatnonzero(self._open(np.arange(self.servers))).tolist())
        path = None if self._late() else self._chain(starts, goals, avoid=region)
        if path is None and not self._late() and not self._open(members).any():
            starts = [(int(s), ANY) for s in members]
            path = self._chain(starts, goals, avoid=region, strict=False)
        if path is not None:
            self._walk(path)
            self._add(region, path[0][0])
            return
        roomy = members[self._open(members)]
        self._add(region, self._emptiest(roomy if len(roomy) else members, table))

    def _emptiest(self, servers: Ints, table: int) -> int:
        """Return the server that most needs a replica: below its floor, then room for the table, then any room, then
        number."""
        order = np.lexsort((servers, -self.above[servers], -self.cell[table, servers], -self.below[servers]))
        return int(servers[order[0]])

    # --- one replica less of a table --------------------------------------------------------------------------------

    def _ease(self, table: int, server: int) -> bool:
        """Move one replica of a table off a server, alone or in exchange for one of another table. Return True if
        possible."""
        mine = [r for r in self.on[server] if self.problem.table[r] == table]
        rows = np.array(sorted(mine, key=lambda r: (self._loss(r, server), r)), dtype=np.int64)
        members = self.problem.fleet.members(int(self.group[server]))
        members = members[(members != server) & (self.cell[table, members] > 0)]
        members = members[np.argsort(-self.cell[table, members], kind="stable")][:EASE_TRIES]
        if not len(rows) or not len(members):
            return False
        spare = len(self.on[server]) > self.problem.quotas.floor[server]
        fits = self._fits(rows, server, members)
        for m in np.flatnonzero(fits.any(axis=0)).tolist():
            region, other = int(rows[np.argmax(fits[:, m])]), int(members[m])
            # A server above its floor returns to the group's budget the replicas that the other server takes from it.
            takes = spare and (self.below[other] > 0 or self.above[other] > 0)
            back = -1 if takes else self._exchange(other, server)
            if back is None:
                continue
            self._remove(region, server)
            if back >= 0:
                self._remove(back, other)
                self._add(back, server)
            self._add(region, other)
            self.moves += 1 if back < 0 else 2
            return True
        return False

    def _ease_by_chain(self, table: int, server: int) -> bool:
        """Move one replica of a table off a server. Return False if that is impossible.

        The replica takes the place of another one, which moves on, and so forth. The chain ends at a server with room,
        or at the first server again. If the first server is now below its floor, a second chain fills it; without a
        second chain, undo the first.
        """
        members = self.problem.fleet.members(int(self.group[server]))
        roomy = members[(self.below[members] > 0) | (self.above[members] > 0)]
        path = self._chain([(server, table)], {*roomy.tolist(), server})
        if path is None:
            return False
        before = int(self.below[server])
        self._walk(path)
        if self.below[server] <= before or self._raise(server, strict=True):
            return True
        self._walk_back(path)
        return False

    def _raise(self, server: int, *, strict: bool) -> bool:
        """Give a server one more replica by a chain from a server above its floor. Return False if there is no such
        chain."""
        donors = [(s, ANY) for s in self._above_floor(int(self.group[server]))]
        path = self._chain(donors, {server}, strict=strict)
        if path is not None:
            self._walk(path)
        return path is not None

    def _exchange(self, source: int, server: int) -> int | None:
        """Return a replica on `source` that may go to `server` within the bounds of tables and racks, or None."""
        rows = np.array(sorted(self.on[source], key=lambda r: (self._loss(r, source), r)), dtype=np.int64)
        rows = rows[self.cell[self.problem.table[rows], server] > 0]
        if not len(rows):
            return None
        fits = np.flatnonzero(self._fits(rows, source, np.array([server]))[:, 0])
        return int(rows[fits[0]]) if len(fits) else None

    # --- chains ----------------------------------------------------------------------------------------------------

    def _chain(
        self, starts: list[Node], goals: set[int], *, avoid: int = -1, strict: bool = True
    ) -> list[tuple[int, int]] | None:
        """Return a shortest chain from one of `starts` to one of `goals`, None if there is none.

        The chain is a list of (server, region that leaves the server), ended by (last server, -1); the replica that
        leaves a server goes to the next one. No region moves twice, and `avoid` does not move: each step is checked
        against the present places of the other replicas. If `strict` is False, tables may exceed their limits along the
        chain.
        """
        came: dict[Node, tuple[Node, int] | None] = dict.fromkeys(starts)
        front = list(starts)
        while front and goals:
            behind: list[Node] = []
            for node in self._promising_first(front, goals, strict):
                moved = {region for _, region in self._path(came, node)} | {avoid}
                for target, region in self._steps(node, came, moved, strict):
                    came[target] = (node, region)
                    behind.append(target)
                    if target[1] == ANY and target[0] in goals:
                        return self._path(came, target)
            front = behind
        return None

    def _promising_first(self, front: list[Node], goals: set[int], strict: bool) -> list[Node]:
        """Sort a layer: nodes whose table has room at a goal first. The search usually ends at one of them."""
        if not strict:
            return front
        takes: Bools = np.any(self.cell[:, sorted(goals)] > 0, axis=1)
        gives: Bools = np.any((self.held > 0) & takes[:, None], axis=0)
        good = [bool(gives[s]) if t == ANY else bool(takes[t]) for s, t in front]
        return [n for n, g in zip(front, good, strict=True) if g] + [
            n for n, g in zip(front, good, strict=True) if not g
        ]

    def _path(self, came: dict[Node, tuple[Node, int] | None], node: Node) -> list[tuple[int, int]]:
        """Return the chain that led to `node`."""
        path = [(node[0], -1)]
        step = came[node]
        while step is not None:
            before, region = step
            path.append((before[0], region))
            step = came[before]
        return path[::-1]

    def _walk(self, path: list[tuple[int, int]]) -> None:
        """Move the replicas of a chain, the last first, so that each finds room."""
        for (server, region), (goal, _) in reversed(list(pairwise(path))):
            self._remove(region, server)
            self._add(region, goal)
            self.moves += 1

    def _walk_back(self, path: list[tuple[int, int]]) -> None:
        """Undo `_walk`."""
        for (server, region), (goal, _) in pairwise(path):
            self._remove(region, goal)
            self._add(region, server)
            self.moves -= 1

    def _steps(
        self, node: Node, came: dict[Node, tuple[Node, int] | None], moved: set[int], strict: bool
    ) -> list[tuple[Node, int]]:
        """Return the servers to which a replica of this server may go, each with the replica that loses least."""
        server, only = node
        regions = sorted(self.on[server] - moved, key=lambda r: (self._loss(r, server), r))
        if only != ANY:
            regions = [r for r in regions if self.problem.table[r] == only]
        members = self.problem.fleet.members(int(self.group[server]))
        members = members[members != server]
        if not regions or not len(members):
            return []
        rows = np.array(regions, dtype=np.int64)
        fits = self._fits(rows, server, members)
        free = (self.cell[self.problem.table[rows]][:, members] > 0) | (not strict)
        steps: list[tuple[Node, int]] = []
        for usable, narrow in ((fits & free, False), (fits & ~free, True)):
            best = np.argmax(usable, axis=0)
            for i in np.flatnonzero(usable[best, np.arange(len(members))]).tolist():
                region = regions[int(best[i])]
                target = (int(members[i]), int(self.problem.table[region]) if narrow else ANY)
                if target not in came and (not narrow or (target[0], ANY) not in came):
                    steps.append((target, region))
        return steps

    def _fits(self, regions: Ints, server: int, members: Ints) -> Bools:
        """Return for each member whether a region's replica may go to its server: no server twice, and no more crowded
        rack."""
        crowd = self.crowd[regions]
        mine = crowd[:, self.rack[server]] - 1
        crowd[:, self.rack[server]] = mine
        fits: Bools = crowd[:, self.rack[members]] <= np.maximum(mine, 0)[:, None]
        for i in np.flatnonzero(mine > 0).tolist():
            fits[i] &= ~np.isin(members, self.of[int(regions[i])])
        return fits

    def _loss(self, region: int, server: int) -> int:
        """Return the benefit that is lost if a replica leaves."""
        if self.keys is None:
            self.keys = self.problem.cand_region * self.servers + self.problem.cand_server
        key = region * self.servers + server
        at = int(np.searchsorted(self.keys, key))
        return int(self.problem.cand_benefit[at]) if at < len(self.keys) and self.keys[at] == key else 0
