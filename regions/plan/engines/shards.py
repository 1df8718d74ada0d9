"""Cut a plan into shards that are solved separately: the regions of each shard, and its part of the room.

A shard is a set of regions and a part of every bound. The parts add up to the whole, so the placements of all shards
together stay within all bounds (POP, SOSP'21). A table stays in one piece unless it is larger than a shard: spread over
all shards, a table would have about one place per server and shard, and good places would be rejected. Regions of a cut
table go to pieces by CRC-32 of their ids. Everything here depends on the input alone, never on cores or partitions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from regions.plan.problem.model import Floats, Ints
from regions.plan.problem.numbered import EligibleServers, TableGroups
from regions.plan.problem.quota import Quotas
from regions.plan.problem.room import Room

#: Target size of a shard in replicas: an exact flow over so many takes seconds; over ten times as many it takes
#: minutes.
SHARD_REPLICAS: Final = 60_000
#: With fewer regions than this per server in a shard, cutting costs more quality than it saves time.
REGIONS_PER_SERVER: Final = 25
#: Number of times that a plan of several shards is cut again and solved again. Each time the placed replicas keep their
#: room.
ROUNDS: Final = 1


def shard_count(replicas: int, servers: int) -> int:
    """Return how many shards a plan of this size is cut into."""
    return max(1, min(replicas // SHARD_REPLICAS, replicas // (REGIONS_PER_SERVER * max(servers, 1))))


def piece_of(region_id: str, pieces: int, nth_round: int = 0) -> int:
    """Return the piece of its table that a region belongs to in a round."""
    return zlib.crc32(region_id.encode(), nth_round) % pieces


class Held:
    """Replicas placed in the previous round, by the present shard of their region and by (table, server).

    Only entries above 0 are kept: the object goes to every worker, and most tables lie in one shard.
    """

    def __init__(self, servers: int, cells: int, keys: Ints, counts: Ints) -> None:
        """`keys` are shard * cells + table * servers + server; counts of equal keys add up."""
        self.servers = servers
        self.cells = cells
        self.keys, place = np.unique(keys, return_inverse=True)
        self.counts = np.bincount(place, weights=counts, minlength=len(self.keys)).astype(np.int64)

    @classmethod
    def none(cls, servers: int, cells: int) -> Held:
        """Return an empty Held, for the first round."""
        return cls(servers, cells, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def of(self, shard: int) -> Ints:
        """Return the replicas of one shard by (table, server)."""
        start, end = np.searchsorted(self.keys, (shard * self.cells, (shard + 1) * self.cells))
        return self._by_cell(slice(int(start), int(end)))

    def total(self) -> Ints:
        """Return the replicas by (table, server)."""
        return self._by_cell(slice(None))

    def before(self, shard: int) -> Ints:
        """Return the replicas of all shards with a lower number, by server."""
        end = int(np.searchsorted(self.keys, shard * self.cells))
        per_server: Ints = self._by_cell(slice(0, end)).reshape(-1, self.servers).sum(axis=0)
        return per_server

    def _by_cell(self, part: slice) -> Ints:
        found = np.bincount(self.keys[part] % self.cells, weights=self.counts[part], minlength=self.cells)
        cells: Ints = found.astype(np.int64)
        return cells


class Shards:
    """The cut of one round. Table t has `pieces[t]` pieces from `first[t]` on; piece p is in `shard_of_piece[p]`.

    Every round makes another cut: regions of a cut table go to other pieces, and other tables share a shard.
    """

    def __init__(
        self, fleet: EligibleServers, tables: TableGroups, quotas: Quotas, shards: int, nth_round: int = 0
    ) -> None:
        self.fleet = fleet
        self.quotas = quotas
        self.table_group = tables.group
        self.shards = shards
        self.nth_round = nth_round
        demand = quotas.table_replicas
        size = max(1, -(-int(demand.sum()) // shards))
        self.pieces = np.maximum(1, -(-demand // size)) if shards > 1 else np.ones(len(demand), dtype=np.int64)
        self.first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.pieces)))[:-1]
        self.shard_of_piece = np.zeros(int(self.pieces.sum()), dtype=np.int64)
        load = [0] * shards
        part = demand / self.pieces
        for table in self._order(part):
            for piece in range(int(self.pieces[table])):
                shard = min(range(shards), key=lambda i: (load[i], i))
                load[shard] += int(part[table])
                self.shard_of_piece[self.first[table] + piece] = shard

    def _order(self, part: Floats) -> list[int]:
        """Return tables in the order of dealing: largest first; later rounds shuffle tables of similar size."""
        numbers = np.arange(len(part))
        if not self.nth_round:
            return [int(table) for table in np.lexsort((numbers, -part))]
        scale = np.floor(np.log2(np.maximum(part, 1)))
        chance = [zlib.crc32(f"{self.nth_round}.{table}".encode()) for table in numbers.tolist()]
        return [int(table) for table in np.lexsort((numbers, np.array(chance), -scale))]

    def of_regions(self, ids_of: Callable[[Ints], Sequence[str]], table: Ints) -> Ints:
        """Return the shard of each region; `ids_of` returns the ids for region numbers: only cut tables need them."""
        nth = np.zeros(len(table), dtype=np.int64)
        cut = np.flatnonzero(self.pieces[table] > 1)
        pieces = self.pieces[table[cut]].tolist()
        nth[cut] = [piece_of(rid, n, self.nth_round) for rid, n in zip(ids_of(cut), pieces, strict=True)]
        shards: Ints = self.shard_of_piece[self.first[table] + nth]
        return shards

    def tables_of(self, shard: int) -> Ints:
        """Return the tables with a piece in the shard, ascending."""
        table_of_piece = np.repeat(np.arange(len(self.pieces)), self.pieces)
        return np.unique(table_of_piece[self.shard_of_piece == shard])

    def room(self, shard: int, held: Held | None = None) -> Room:
        """Return the shard's part of the room; `cell` has one row per table of `tables_of(shard)`.

        A shard keeps the room that its own regions use (`held`) and gets its part of the free room. A round therefore
        never makes a plan worse.
        """
        servers, tables = len(self.fleet), self.tables_of(shard)
        held = held or Held.none(servers, len(self.pieces) * servers)
        free = Room.beside(self.quotas, self.table_group, self.fleet.group, held.total())
        own = self._own(shard, held)
        cells, mine = free.cell.reshape(-1, servers), own.cell.reshape(-1, servers)
        if self.shards == 1:
            return Room(
                free.below + own.below,
                free.above + own.above,
                free.budget + own.budget,
                (cells + mine)[tables].reshape(-1),
            )
        low, high = self._fractions(shard)
        of_server = self.fleet.group
        numbers = np.arange(servers)
        groups = np.zeros(len(free.budget), dtype=np.int64)
        below = own.below + _part(free.below, low[of_server], high[of_server], numbers)
        above = own.above + _part(free.above, low[of_server], high[of_server], numbers + servers)
        budget = own.budget + _part(free.budget, low, high, groups)
        rows = mine[tables]
        whole = self.pieces[tables] == 1
        rows[whole] += cells[tables[whole]]
        for row in np.flatnonzero(~whole).tolist():
            rows[row] += self._cell_part(cells[tables[row]], int(tables[row]), shard, numbers)
        return Room(below, above, budget, rows.reshape(-1))

    def _own(self, shard: int, held: Held) -> Room:
        """Return the room used by the shard's regions. A server's replicas fill its floor shard by shard, then go
        above it."""
        mine = held.of(shard)
        per_server = mine.reshape(-1, held.servers).sum(axis=0)
        before = held.before(shard)
        after = before + per_server
        floor = self.quotas.floor
        below = np.minimum(after, floor) - np.minimum(before, floor)
        above = per_server - below
        budget = np.bincount(self.fleet.group, weights=above, minlength=len(self.quotas.budget)).astype(np.int64)
        return Room(below, above, budget, mine)

    def _fractions(self, shard: int) -> tuple[Floats, Floats]:
        """Return the fractions of each group's free room at which the shard's part begins and ends, by replicas to
        place."""
        groups = len(self.quotas.budget)
        weight = np.zeros((groups, self.shards + 1))
        table_of_piece = np.repeat(np.arange(len(self.pieces)), self.pieces)
        part = (self.quotas.table_replicas / self.pieces)[table_of_piece]
        group = self.table_group[table_of_piece]
        known = group >= 0
        np.add.at(weight, (group[known], self.shard_of_piece[known] + 1), part[known])
        upto = np.cumsum(weight, axis=1) / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        return upto[:, shard], upto[:, shard + 1]

    def _cell_part(self, cells: Ints, table: int, shard: int, servers: Ints) -> Ints:
        """Return the part of a table's free bounds that belongs to the shard's pieces of the table."""
        pieces = int(self.pieces[table])
        first = int(self.first[table])
        mine = np.flatnonzero(self.shard_of_piece[first : first + pieces] == shard)
        total = np.zeros(len(cells), dtype=np.int64)
        for piece in mine.tolist():
            low = np.full(len(cells), piece / pieces)
            high = np.full(len(cells), (piece + 1) / pieces)
            total += _part(cells, low, high, servers + table)
        return total


def _part(amount: Ints, low: Floats, high: Floats, salt: Ints) -> Ints:
    """Return the whole units of each amount between two fractions of it. Adjacent parts add up to the whole.

    The salt moves the rounding of each entry, so that small amounts do not all fall into the same part.
    """
    phase = (salt * 0x9E3779B1 % 2**32) / 2**32
    start = np.where(low <= 0, 0.0, np.floor(amount * low + phase))
    end = np.where(high >= 1 - 1e-12, amount, np.floor(amount * high + phase))
    part: Ints = np.maximum(np.minimum(end, amount) - np.minimum(start, amount), 0).astype(np.int64)
    return part
