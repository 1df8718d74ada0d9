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

#: Replicas that a shard should hold.
SHARD_REPLICAS: Final = 25_000
#: With fewer regions than this per server in a shard, cutting costs more quality than it saves time.
REGIONS_PER_SERVER: Final = 25


def shard_count(replicas: int, servers: int) -> int:
    """How many shards a plan of this size is cut into."""
    return max(1, min(replicas // SHARD_REPLICAS, replicas // (REGIONS_PER_SERVER * max(servers, 1))))


def piece_of(region_id: str, pieces: int) -> int:
    """The piece of its table that a region belongs to."""
    return zlib.crc32(region_id.encode()) % pieces


class Shards:
    """The cut. Table t has `pieces[t]` pieces from `first[t]` on; piece p lies in shard `shard_of_piece[p]`."""

    def __init__(self, fleet: Fleet, tables: Tables, quotas: Quotas, shards: int) -> None:
        self.fleet = fleet
        self.quotas = quotas
        self.table_group = tables.group
        self.shards = shards
        demand = quotas.table_replicas
        size = max(1, -(-int(demand.sum()) // shards))
        self.pieces = np.maximum(1, -(-demand // size)) if shards > 1 else np.ones(len(demand), dtype=np.int64)
        self.first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.pieces)))[:-1]
        self.shard_of_piece = np.zeros(int(self.pieces.sum()), dtype=np.int64)
        load = [0] * shards
        part = demand / self.pieces
        for table in np.lexsort((np.arange(len(demand)), -part)).tolist():
            for piece in range(int(self.pieces[table])):
                shard = min(range(shards), key=lambda i: (load[i], i))
                load[shard] += int(part[table])
                self.shard_of_piece[self.first[table] + piece] = shard

    def of_regions(self, region_ids: Sequence[str], table: Ints) -> Ints:
        """The shard of each region."""
        pieces = self.pieces[table].tolist()
        nth = [piece_of(rid, n) if n > 1 else 0 for rid, n in zip(region_ids, pieces, strict=True)]
        shards: Ints = self.shard_of_piece[self.first[table] + np.array(nth, dtype=np.int64)]
        return shards

    def tables_of(self, shard: int) -> Ints:
        """Tables with a piece in the shard, ascending."""
        table_of_piece = np.repeat(np.arange(len(self.pieces)), self.pieces)
        return np.unique(table_of_piece[self.shard_of_piece == shard])

    def room(self, shard: int) -> Room:
        """The shard's part of the room; `cell` has one row per table of `tables_of(shard)`."""
        whole = Room.whole(self.quotas, self.table_group, self.fleet.group)
        tables = self.tables_of(shard)
        cells = whole.cell.reshape(len(self.pieces), len(self.fleet))
        if self.shards == 1:
            return Room(whole.below, whole.above, whole.budget, cells[tables].reshape(-1))
        groups = len(whole.budget)
        weight = np.zeros((groups, self.shards + 1))
        table_of_piece = np.repeat(np.arange(len(self.pieces)), self.pieces)
        part = (self.quotas.table_replicas / self.pieces)[table_of_piece]
        group = self.table_group[table_of_piece]
        known = group >= 0
        np.add.at(weight, (group[known], self.shard_of_piece[known] + 1), part[known])
        upto = np.cumsum(weight, axis=1) / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        low, high = upto[:, shard], upto[:, shard + 1]
        of_server = self.fleet.group
        servers = np.arange(len(of_server))
        below = _part(whole.below, low[of_server], high[of_server], servers)
        above = _part(whole.above, low[of_server], high[of_server], servers + len(servers))
        budget = _part(whole.budget, low, high, np.zeros(groups, dtype=np.int64))
        rows = [self._cell_part(cells[table], table, shard, servers) for table in tables.tolist()]
        return Room(below, above, budget, np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))

    def _cell_part(self, cells: Ints, table: int, shard: int, servers: Ints) -> Ints:
        """The part of a table's bounds that belongs to the shard's pieces of it."""
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
