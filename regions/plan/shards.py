"""Cutting a plan into shards that are solved apart: who is in which, and how much room each has.

A shard is a set of regions and its part of every bound; the parts add up to the whole, so whatever shards place
together is within all bounds (POP, SOSP'21). A table stays in one piece unless it is larger than a shard: spread
thinly, a table would have about one place per server and shard, and good places would be refused. Regions of a cut
table go to pieces by CRC-32 of their ids. Everything here depends on the input alone, never on cores or partitions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from .model import Floats, Ints
from .problem import Fleet, Tables
from .quota import Quotas
from .room import Room

#: Replicas that a shard should hold: an exact flow over so many takes seconds, and ten times as many take minutes.
SHARD_REPLICAS: Final = 60_000
#: With fewer regions than this per server in a shard, cutting costs more quality than it saves time.
REGIONS_PER_SERVER: Final = 25
#: Times that a plan of several shards is cut anew and solved again, each time keeping what it has.
ROUNDS: Final = 1


def shard_count(replicas: int, servers: int) -> int:
    """How many shards a plan of this size is cut into."""
    return max(1, min(replicas // SHARD_REPLICAS, replicas // (REGIONS_PER_SERVER * max(servers, 1))))


def piece_of(region_id: str, pieces: int, nth_round: int = 0) -> int:
    """The piece of its table that a region belongs to in a round."""
    return zlib.crc32(region_id.encode(), nth_round) % pieces


class Shards:
    """The cut of one round. Table t has `pieces[t]` pieces from `first[t]` on; piece p is in `shard_of_piece[p]`.

    Every round cuts otherwise: regions of a cut table go to other pieces, and tables meet other tables.
    """

    def __init__(self, fleet: Fleet, tables: Tables, quotas: Quotas, shards: int, nth_round: int = 0) -> None:
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
        """Tables in the order of dealing: the largest first, and in later rounds shuffled among those of like size."""
        numbers = np.arange(len(part))
        if not self.nth_round:
            return [int(table) for table in np.lexsort((numbers, -part))]
        scale = np.floor(np.log2(np.maximum(part, 1)))
        chance = [zlib.crc32(f"{self.nth_round}.{table}".encode()) for table in numbers.tolist()]
        return [int(table) for table in np.lexsort((numbers, np.array(chance), -scale))]

    def of_regions(self, region_ids: Sequence[str], table: Ints) -> Ints:
        """The shard of each region."""
        pieces = self.pieces[table].tolist()
        nth = [piece_of(rid, n, self.nth_round) if n > 1 else 0 for rid, n in zip(region_ids, pieces, strict=True)]
        shards: Ints = self.shard_of_piece[self.first[table] + np.array(nth, dtype=np.int64)]
        return shards

    def tables_of(self, shard: int) -> Ints:
        """Tables with a piece in the shard, ascending."""
        table_of_piece = np.repeat(np.arange(len(self.pieces)), self.pieces)
        return np.unique(table_of_piece[self.shard_of_piece == shard])

    def room(self, shard: int, held: Ints | None = None) -> Room:
        """The shard's part of the room; `cell` has one row per table of `tables_of(shard)`.

        `held[k, table * servers + server]` counts the replicas that the regions of shard k have from the round before:
        a shard keeps what its own use, and gets its part of what nobody uses. So a round never makes a plan worse.
        """
        servers, tables = len(self.fleet), self.tables_of(shard)
        if held is None:
            held = np.zeros((self.shards, len(self.pieces) * servers), dtype=np.int64)
        free = Room.beside(self.quotas, self.table_group, self.fleet.group, held.sum(axis=0))
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
        rows = [mine[table] + self._cell_part(cells[table], table, shard, numbers) for table in tables.tolist()]
        return Room(below, above, budget, np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))

    def _own(self, shard: int, held: Ints) -> Room:
        """What the shard's regions use: a server's replicas fill its floor shard by shard, the rest is above it."""
        servers = len(self.fleet)
        per_server = held.reshape(self.shards, -1, servers).sum(axis=1)
        before = per_server[:shard].sum(axis=0)
        after = before + per_server[shard]
        floor = self.quotas.floor
        below = np.minimum(after, floor) - np.minimum(before, floor)
        above = per_server[shard] - below
        budget = np.bincount(self.fleet.group, weights=above, minlength=len(self.quotas.budget)).astype(np.int64)
        return Room(below, above, budget, held[shard])

    def _fractions(self, shard: int) -> tuple[Floats, Floats]:
        """From which to which part of each group's free room is the shard's, by the replicas it has to place."""
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
        """The part of a table's free bounds that belongs to the shard's pieces of it."""
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
    """Whole units of each amount between two fractions of it; parts that meet at their fractions add up to the whole.

    The salt moves the rounding of each entry, so that small amounts do not all fall into the same part.
    """
    phase = (salt * 0x9E3779B1 % 2**32) / 2**32
    start = np.where(low <= 0, 0.0, np.floor(amount * low + phase))
    end = np.where(high >= 1 - 1e-12, amount, np.floor(amount * high + phase))
    part: Ints = np.maximum(np.minimum(end, amount) - np.minimum(start, amount), 0).astype(np.int64)
    return part
