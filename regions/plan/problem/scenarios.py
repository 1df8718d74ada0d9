"""Seeded inputs for tests and measurements: typical and difficult inputs of a bulk plan.

    uniform      equal servers, tables of equal size, blocks on three hosts, every replica where its bytes are
    hot_rack     most bytes and former places lie in one rack
    huge_table   three fifths of all regions belong to one table
    lost30       three tenths of the servers are gone, with their former places and blocks
    hetero       servers of weight 1, 2 and 4
    replicas     one to three replicas per region
    groups       three groups of servers, some of them draining
    mixed        all of the above
    dirty        equal servers; one row in thirty is unusable or repeats another row

The random numbers are a counter hashed with SplitMix64, so an input depends on its seed alone, not on a library
version.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from regions.plan.problem.model import (
    MISSING,
    Blocks,
    Floats,
    Ints,
    Last,
    RegionColumns,
    ServerColumns,
    Snapshot,
    Texts,
    texts,
)

SCENARIOS: Final = (
    "uniform",
    "hot_rack",
    "huge_table",
    "lost30",
    "hetero",
    "replicas",
    "groups",
    "mixed",
    "dirty",
)


class _Chance:
    """A stream of hashed counters."""

    def __init__(self, seed: int) -> None:
        self.state = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)

    def floats(self, n: int) -> Floats:
        """Return n numbers in [0, 1)."""
        with np.errstate(over="ignore"):
            x = self.state + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            self.state = self.state + np.uint64(n) * np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
        values: Floats = (x >> np.uint64(11)).astype(np.float64) / 2.0**53
        return values

    def below(self, n: int, limit: int) -> Ints:
        """Return n whole numbers in 0..limit-1."""
        values: Ints = (self.floats(n) * limit).astype(np.int64)
        return values

    def distinct(self, n: int, k: int, limit: int) -> Ints:
        """Return n rows of k different numbers in 0..limit-1."""
        if k * 4 > limit:
            return np.argsort(self.floats(n * limit).reshape(n, limit), axis=1, kind="stable")[:, :k]
        rows = self.below(n * k, limit).reshape(n, k)
        for column in range(1, k):
            while True:
                clash = np.flatnonzero((rows[:, :column] == rows[:, column : column + 1]).any(axis=1))
                if not len(clash):
                    break
                rows[clash, column] = self.below(len(clash), limit)
        return rows


def scenario(name: str, *, regions: int, servers: int, seed: int, tables: int = 20, copies: int = 3) -> Snapshot:
    """Return the snapshot of a named situation. Servers stand in racks of about ten; there are at least three racks."""
    assert name in SCENARIOS, name
    mixed = name == "mixed"
    chance = _Chance(seed)
    racks = max(3, servers // 10)
    rack = np.arange(servers) % racks
    groups = max(1, min(3, servers // racks)) if mixed or name == "groups" else 1
    group = np.arange(servers) // racks % groups
    weight: Floats = np.ones(servers)
    if mixed or name == "hetero":
        weight = weight * 2.0 ** chance.below(servers, 3)
    draining = chance.floats(servers) < 0.05 if mixed or name == "groups" else np.zeros(servers, dtype=np.bool_)
    lost = chance.floats(servers) < (0.3 if name == "lost30" else 0.1 if mixed else 0.0)
    table = chance.below(regions, tables)
    if mixed or name == "huge_table":
        table = np.where(chance.floats(regions) < 0.6, 0, table)
    region_group = table % groups
    want = 1 + chance.below(regions, 3) if mixed or name == "replicas" else np.ones(regions, dtype=np.int64)
    size = (2.0 ** (20 + 12 * chance.floats(regions))).astype(np.int64)
    wanted = np.full(regions, copies) if copies > 3 else np.full(regions, 3)
    places = _places(chance, rack, group, region_group, int(wanted.max()), hot=mixed or name == "hot_rack")
    part = np.array([1.0, 0.9, 0.6, *([0.3] * (places.shape[1] - 3))])
    lying = size[:, None] * part[None, :] * (0.7 + 0.3 * chance.floats(places.size).reshape(places.shape))
    was = chance.floats(regions * 3).reshape(regions, 3) < 0.9
    region_id = _names("r", regions)
    host, server_id = _names("host", servers), _names("server", servers)
    held = was & (np.arange(3)[None, :] < want[:, None])
    rows, nth = np.nonzero(held)
    live = ~lost
    block_row = np.repeat(np.arange(regions), places.shape[1])
    made = Snapshot(
        RegionColumns(
            region_id,
            texts(f"table{t:04d}" for t in table.tolist()),
            texts(f"{i:012d}" for i in range(regions)),
            size,
            chance.floats(regions),
            want,
            texts(f"g{g}" if g else "" for g in region_group.tolist()),
        ),
        ServerColumns(
            server_id[live],
            host[live],
            texts(f"rack{k:03d}" for k in rack[live].tolist()),
            weight[live],
            texts(f"g{g}" if g else "" for g in group[live].tolist()),
            draining[live],
        ),
        Blocks(region_id[block_row], host[places.reshape(-1)], lying.reshape(-1).astype(np.int64)),
        Last(region_id[rows], nth.astype(np.int64), server_id[places[rows, nth]]),
    )
    return _soiled(made, chance) if name == "dirty" else made


def _soiled(clean: Snapshot, chance: _Chance) -> Snapshot:
    """Return the snapshot with rows of every kind that planning has to ignore or to resolve."""
    r, s, b, p = clean.regions, clean.servers, clean.blocks, clean.last
    size, replicas, weight = r.size_bytes.copy(), r.replicas.copy(), s.weight.copy()
    size[_some(chance, len(r))[::3]] = MISSING
    replicas[_some(chance, len(r))[::3]] = 0
    weight[0], weight[-1] = np.nan, 0.0
    rid, host, amount = b.region_id.copy(), b.host.copy(), b.bytes.copy()
    bad = _some(chance, len(b))
    rid[bad[::4]], host[bad[1::4]], amount[bad[2::4]], amount[bad[3::4]] = "nobody", "nowhere", -1, MISSING
    # Duplicate region rows, a duplicate server, and replicas with a second former place.
    i = np.append(np.arange(len(r)), _some(chance, len(r)))
    j = np.append(np.arange(len(s)), 0)
    k = np.append(np.arange(len(p)), _some(chance, len(p)))
    was = p.server_id[k]
    was[len(p) :: 2] = "server-gone"
    return Snapshot(
        RegionColumns(r.region_id[i], r.table_id[i], r.start_key[i], size[i], r.load[i], replicas[i], r.grp[i]),
        ServerColumns(s.server_id[j], s.host[j], s.rack[j], weight[j], s.grp[j], s.draining[j]),
        Blocks(rid, host, amount),
        Last(p.region_id[k], p.replica[k], was),
    )


def _some(chance: _Chance, rows: int) -> Ints:
    """Return about one row number in thirty."""
    return np.flatnonzero(chance.floats(rows) < 1 / 30)


def _places(chance: _Chance, rack: Ints, group: Ints, region_group: Ints, copies: int, *, hot: bool) -> Ints:
    """Return servers for each region's copies: distinct ones of its group, for six regions of ten in the hot rack."""
    places = np.zeros((len(region_group), copies), dtype=np.int64)
    for g in np.unique(region_group).tolist():
        members = np.flatnonzero(group == g)
        regions = np.flatnonzero(region_group == g)
        places[regions] = members[chance.distinct(len(regions), copies, len(members))]
        warm = members[rack[members] == rack[members[0]]]
        if hot and len(warm) >= copies:
            chosen = regions[chance.floats(len(regions)) < 0.6]
            places[chosen] = warm[chance.distinct(len(chosen), copies, len(warm))]
    return places


def _names(prefix: str, n: int) -> Texts:
    """Return ids that sort by number."""
    return texts(f"{prefix}{i:07d}" for i in range(n))


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """Return the same snapshot with the rows of every table in another order."""
    chance = _Chance(seed)
    r, s, b, p = snapshot.regions, snapshot.servers, snapshot.blocks, snapshot.last
    i, j, k, m = (np.argsort(chance.floats(len(t)), kind="stable") for t in (r, s, b, p))
    return Snapshot(
        RegionColumns(
            r.region_id[i], r.table_id[i], r.start_key[i], r.size_bytes[i], r.load[i], r.replicas[i], r.grp[i]
        ),
        ServerColumns(s.server_id[j], s.host[j], s.rack[j], s.weight[j], s.grp[j], s.draining[j]),
        Blocks(b.region_id[k], b.host[k], b.bytes[k]),
        Last(p.region_id[m], p.replica[m], p.server_id[m]),
    )
