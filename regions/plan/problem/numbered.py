"""A snapshot checked and turned into numbers: the input of every engine.

Regions are numbered in the order of their ids, servers that may take regions (`EligibleServers`) in the order of their
ids, and (group, table) pairs in their order, so the order of the input rows has no influence. A server is a *candidate*
of a region if a replica there has a benefit > 0: `local + lambda * size * [the server held a replica of it]`, in
thousandths of a byte, whole numbers throughout. A region without bytes counts as one byte for staying, because a move
has a cost even then.

Unusable rows are ignored and counted under one of `REASONS`. Only contradicting rows of one region stop the plan,
because no answer could be right for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from regions.plan.problem.model import (
    MISSING,
    BadInput,
    ConflictingRegion,
    Floats,
    Ints,
    NoServers,
    Params,
    RegionColumns,
    ServerColumns,
    Snapshot,
    Texts,
)
from regions.plan.problem.quota import Demand, Quotas

REASONS: Final = {
    "region_without_id": "region row without id",
    "region_duplicate": "further identical row of a region",
    "region_replicas": "replicas missing or < 1, taken as 1; or beyond REPLICAS_MAX, taken as that",
    "region_size": "size missing, negative or beyond SIZE_MAX, taken as 0 or SIZE_MAX",
    "server_without_id": "server row without id",
    "server_duplicate": "further row of a server id; the least row counts",
    "server_weight": "weight missing, not a number or <= 0: takes no regions",
    "server_draining": "draining: takes no regions",
    "block_host": "block row on a host without a live server",
    "block_region": "block row of an unknown region",
    "block_bytes": "block row whose bytes are missing or <= 0",
    "last_region": "former place of an unknown region",
    "last_replica": "former place without a replica number",
    "last_server": "former place on a server that is gone or takes no regions",
    "last_duplicate": "further former place of one replica; the least server id counts",
}

#: Limit for the bytes of a region; it keeps every sum of benefits within 64 bits.
SIZE_MAX: Final = 2**43
#: Limit for the replicas of a region: no cluster has as many servers, and sums fit in 64 bits.
REPLICAS_MAX: Final = 2**20
#: Limit for the (table, server) cells of a plan: an array of counts for so many cells takes a gigabyte.
CELLS_MAX: Final = 2**27
#: Benefits are thousandths of a byte.
UNIT: Final = 1000
#: A plan is degraded if more than this fraction of the block rows was unusable.
DEGRADED_ABOVE: Final = 0.05


class EligibleServers:
    """The servers that may take regions, in the order of their ids; groups and racks as numbers."""

    def __init__(self, servers: ServerColumns, ignored: dict[str, int]) -> None:
        rows: dict[str, tuple[str, str, str, float, str, bool]] = {}
        columns = (servers.server_id, servers.host, servers.rack, servers.weight, servers.grp, servers.draining)
        for sid, host, rack, weight, grp, draining in zip(*(c.tolist() for c in columns), strict=True):
            if not sid:
                count(ignored, "server_without_id")
                continue
            row = (sid, host, rack, -1.0 if math.isnan(weight) or math.isinf(weight) else weight, grp, draining)
            if sid in rows:
                count(ignored, "server_duplicate")
                row = min(row, rows[sid])
            rows[sid] = row
        self.live = len(rows)
        self.live_hosts = frozenset(row[1] for row in rows.values())
        fit = []
        for sid in sorted(rows):
            row = rows[sid]
            if row[3] <= 0:
                count(ignored, "server_weight")
            elif row[5]:
                count(ignored, "server_draining")
            else:
                fit.append(row)
        self.ids = [row[0] for row in fit]
        self.number = {sid: i for i, sid in enumerate(self.ids)}
        self.hosts = [row[1] for row in fit]
        self.by_host: dict[str, list[int]] = {}
        for i, host in enumerate(self.hosts):
            self.by_host.setdefault(host, []).append(i)
        self.groups = sorted({row[4] for row in fit})
        self.weight = np.array([row[3] for row in fit], dtype=np.float64)
        self.group = _numbers([row[4] for row in fit], self.groups)
        self.rack = self._racks([row[2] for row in fit])
        self.group_servers = np.bincount(self.group, minlength=len(self.groups)).astype(np.int64)
        self.group_racks = np.array(
            [len(np.unique(self.rack[self.group == g])) for g in range(len(self.groups))], dtype=np.int64
        )

    def _racks(self, names: Sequence[str]) -> Ints:
        """Return rack numbers. If a group has a single rack, treat each of its servers as a rack of its own."""
        for g in range(len(self.groups)):
            members = np.flatnonzero(self.group == g).tolist()
            if len({names[i] for i in members}) == 1:
                names = [f"\0{self.ids[i]}" if self.group[i] == g else name for i, name in enumerate(names)]
        return _numbers(names, sorted(set(names)))

    def __len__(self) -> int:
        return len(self.ids)

    def members(self, group: int) -> Ints:
        """Return the servers of a group, ascending."""
        return np.flatnonzero(self.group == group)


class TableGroups:
    """The (group, table) pairs of the regions, sorted; `demands` counts their regions by placeable replicas."""

    def __init__(self, pairs: Sequence[tuple[str, str]], demands: Sequence[Demand], fleet: EligibleServers) -> None:
        self.pairs = list(pairs)
        self.demands = list(demands)
        group_number = {name: i for i, name in enumerate(fleet.groups)}
        #: Group of each table, -1 when no server may take its regions.
        self.group = np.array([group_number.get(grp, -1) for grp, _ in pairs], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.pairs)


class NumberedProblem:
    """One problem, in numbers. The candidates of region r are rows `cand_start[r] : cand_start[r + 1]`, by server.

    `table[r]`, `want[r]` (placeable replicas; 0 in a group without servers), `size[r]`; per candidate
    `cand_server`, `cand_benefit`, `cand_local`, `cand_held` (number of the replica it held, -1 for none).
    """

    def __init__(
        self,
        params: Params,
        fleet: EligibleServers,
        tables: TableGroups,
        region_ids: Texts,
        table: Ints,
        want: Ints,
        size: Ints,
        candidates: Candidates,
    ) -> None:
        self.params = params
        self.fleet = fleet
        self.tables = tables
        self.region_ids = region_ids
        self.table = table
        self.want = want
        self.size = size
        self.cand_start = candidates.start
        self.cand_region = candidates.region
        self.cand_server = candidates.server
        self.cand_local = candidates.local
        self.cand_held = candidates.held
        self.cand_benefit = candidates.benefit
        self.quotas = make_quotas(params, fleet, tables)
        #: Replicas that exceed the servers of their group; regions of groups without servers.
        self.under_replicated = 0
        self.unassignable: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.region_ids)


class Candidates:
    """Pairs (region, server) with a benefit > 0, sorted; see `NumberedProblem`."""

    def __init__(self, params: Params, size: Ints, region: Ints, server: Ints, local: Ints, held: Ints) -> None:
        """Take sorted, distinct pairs; drop those without a benefit."""
        stay = round(params.lambda_move * UNIT) * np.maximum(size[region], 1)
        benefit = local * UNIT + np.where(held >= 0, stay, 0)
        good = benefit > 0
        self.region, self.server, self.local = region[good], server[good], local[good]
        self.held, self.benefit = held[good], benefit[good]
        self.start = np.searchsorted(self.region, np.arange(len(size) + 1))

    @classmethod
    def summed(
        cls,
        params: Params,
        size: Ints,
        local_region: Ints,
        local_server: Ints,
        local_bytes: Ints,
        held_region: Ints,
        held_server: Ints,
        held_replica: Ints,
        servers: int,
    ) -> Candidates:
        """Build candidates from bytes on servers and former places, in any order.

        Local pairs may repeat (they add up); held pairs may repeat (the least replica number counts).
        """
        keys = np.concatenate((local_region * servers + local_server, held_region * servers + held_server))
        key, place = np.unique(keys, return_inverse=True)
        cut = len(local_region)
        region, server = key // max(servers, 1), key % max(servers, 1)
        local = np.zeros(len(key), dtype=np.int64)
        np.add.at(local, place[:cut], local_bytes)
        never = np.iinfo(np.int64).max
        held = np.full(len(key), never, dtype=np.int64)
        np.minimum.at(held, place[cut:], held_replica)
        return cls(params, size, region, server, np.minimum(local, size[region]), np.where(held == never, -1, held))


def count(ignored: dict[str, int], reason: str, rows: int = 1) -> None:
    """Add rows to a reason's count; add no entry for 0 rows."""
    assert reason in REASONS, reason
    if rows:
        ignored[reason] = ignored.get(reason, 0) + rows


def _numbers(names: Sequence[str], ordered: Sequence[str]) -> Ints:
    """Return the position of each name in `ordered`, -1 if absent."""
    place = {name: i for i, name in enumerate(ordered)}
    return np.array([place.get(name, -1) for name in names], dtype=np.int64)


def make_quotas(params: Params, fleet: EligibleServers, tables: TableGroups) -> Quotas:
    """Return the bounds of all servers and tables; tables of groups without servers have none. Raise BadInput."""
    if len(tables) * len(fleet) > CELLS_MAX:
        raise BadInput(
            f"{len(tables)} tables on {len(fleet)} servers are {len(tables) * len(fleet)} places for a table: more "
            f"than the {CELLS_MAX} that a plan can count. Plan fewer tables at a time"
        )
    return Quotas(params, fleet.weight, fleet.rack, fleet.group, tables.group, tables.demands)


def encode(snapshot: Snapshot, params: Params, ignored: dict[str, int]) -> NumberedProblem:
    """Check a snapshot and number it; count the ignored rows in `ignored`.

    Raise NoServers, ConflictingRegion, or BadInput for the parameters.
    """
    params.checked()
    fleet = EligibleServers(snapshot.servers, ignored)
    if not len(fleet):
        raise NoServers(f"none of {fleet.live} live servers may take regions")
    regions = snapshot.regions
    rows = _distinct_regions(regions, ignored)
    region_ids = regions.region_id[rows]
    size = clean_sizes(regions.size_bytes[rows], ignored)
    replicas = clean_replicas(regions.replicas[rows], ignored)
    names = list(zip(regions.grp[rows].tolist(), regions.table_id[rows].tolist(), strict=True))
    pairs = sorted(set(names))
    pair_number = {pair: i for i, pair in enumerate(pairs)}
    table = np.array([pair_number[name] for name in names], dtype=np.int64)
    limit = {g: int(n) for g, n in zip(fleet.groups, fleet.group_servers, strict=True)}
    table_limit = np.array([limit.get(grp, 0) for grp, _ in pairs], dtype=np.int64)
    want = np.minimum(replicas, table_limit[table]) if len(rows) else replicas
    tables = TableGroups(pairs, _demands(table, want, len(pairs)), fleet)
    number = {rid: i for i, rid in enumerate(region_ids.tolist())}
    candidates = _candidates(snapshot, params, fleet, number, size, ignored)
    problem = NumberedProblem(params, fleet, tables, region_ids, table, want, size, candidates)
    problem.under_replicated = int((replicas - want)[want > 0].sum())
    for grp, regions_without in zip(*np.unique(regions.grp[rows][want == 0], return_counts=True), strict=True):
        problem.unassignable[grp] = int(regions_without)
    return problem


def clean_sizes(size: Ints, ignored: dict[str, int]) -> Ints:
    """Return the sizes, limited to 0..SIZE_MAX."""
    clean = np.clip(size, 0, SIZE_MAX)
    count(ignored, "region_size", int((clean != size).sum()))
    return clean


def clean_replicas(replicas: Ints, ignored: dict[str, int]) -> Ints:
    """Return the replica counts, limited to 1..REPLICAS_MAX."""
    clean = np.clip(replicas, 1, REPLICAS_MAX)
    count(ignored, "region_replicas", int((clean != replicas).sum()))
    return clean


def _demands(table: Ints, want: Ints, tables: int) -> list[Demand]:
    """Return, for each table, the number of regions by number of placeable replicas. Omit regions without any."""
    demands: list[dict[int, int]] = [{} for _ in range(tables)]
    most = int(want.max(initial=0)) + 1
    keys, counts = np.unique(table * most + want, return_counts=True)
    for key, regions in zip(keys.tolist(), counts.tolist(), strict=True):
        if key % most:
            demands[key // most][key % most] = regions
    return list(demands)


def _distinct_regions(regions: RegionColumns, ignored: dict[str, int]) -> Ints:
    """Return one row number per region id, in the order of the ids."""
    ids = regions.region_id.tolist()
    first: dict[str, int] = {}
    again: list[tuple[int, int]] = []
    for row, rid in enumerate(ids):
        if first.setdefault(rid, row) != row:
            again.append((first[rid], row))
    if "" in first:
        empty = sum(1 for rid in ids if not rid)
        count(ignored, "region_without_id", empty)
        del first[""]
        again = [pair for pair in again if ids[pair[0]]]
    columns: tuple[npt.NDArray[Any], ...] = (
        regions.table_id,
        regions.start_key,
        regions.size_bytes,
        np.nan_to_num(regions.load, nan=-1.0),
        regions.replicas,
        regions.grp,
    )
    differing = {ids[a] for a, b in again if any(c[a] != c[b] for c in columns)}
    if differing:
        raise ConflictingRegion(sorted(differing)[:20], len(differing))
    count(ignored, "region_duplicate", len(again))
    return np.array([first[rid] for rid in sorted(first)], dtype=np.int64)


def _candidates(
    snapshot: Snapshot,
    params: Params,
    fleet: EligibleServers,
    number: dict[str, int],
    size: Ints,
    ignored: dict[str, int],
) -> Candidates:
    """Return the candidates from the `blocks` and `last` tables."""
    block_region, block_server, block_bytes = _local_pairs(snapshot, fleet, number, ignored)
    held_region, held_server, held_replica = _held_pairs(snapshot, fleet, number, ignored)
    return Candidates.summed(
        params,
        size,
        block_region,
        block_server,
        block_bytes,
        held_region,
        held_server,
        held_replica,
        len(fleet),
    )


def _local_pairs(
    snapshot: Snapshot, fleet: EligibleServers, number: dict[str, int], ignored: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """Return (region, server, bytes) of every usable block row, once for each server of its host."""
    blocks = snapshot.blocks
    hosts = sorted(fleet.live_hosts)
    region = np.array([number.get(rid, -1) for rid in blocks.region_id.tolist()], dtype=np.int64)
    host = _numbers(blocks.host.tolist(), hosts)
    size = np.minimum(blocks.bytes, SIZE_MAX)
    bad_bytes = size <= 0
    bad_region = ~bad_bytes & (region < 0)
    bad_host = ~bad_bytes & ~bad_region & (host < 0)
    count(ignored, "block_bytes", int(bad_bytes.sum()))
    count(ignored, "block_host", int(bad_host.sum()))
    count(ignored, "block_region", int(bad_region.sum()))
    good = ~(bad_bytes | bad_host | bad_region)
    return on_servers(fleet, region[good], host[good], size[good])


def on_servers(fleet: EligibleServers, region: Ints, host: Ints, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (region, server, bytes) for each server of each row's host; hosts are indexes into sorted `live_hosts`."""
    hosts = sorted(fleet.live_hosts)
    per_host = [fleet.by_host.get(name, []) for name in hosts]
    servers_flat = np.array([s for servers in per_host for s in servers], dtype=np.int64)
    length = np.array([len(servers) for servers in per_host], dtype=np.int64)
    starts = np.cumsum(length) - length
    times = length[host] if len(hosts) else np.zeros(0, dtype=np.int64)
    row = np.repeat(np.arange(len(host)), times)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    server = servers_flat[starts[host[row]] + nth] if len(row) else np.zeros(0, dtype=np.int64)
    return region[row], server, size[row]


def _held_pairs(
    snapshot: Snapshot, fleet: EligibleServers, number: dict[str, int], ignored: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """Return (region, server, replica) of former places on servers that may still take regions."""
    last = snapshot.last
    region = np.array([number.get(rid, -1) for rid in last.region_id.tolist()], dtype=np.int64)
    server = np.array([fleet.number.get(sid, -1) for sid in last.server_id.tolist()], dtype=np.int64)
    known = region >= 0
    fits = known & (last.replica >= 0)
    count(ignored, "last_region", int((~known).sum()))
    count(ignored, "last_replica", int((known & ~fits).sum()))
    rows = np.flatnonzero(fits)
    rows = rows[np.lexsort((last.replica[rows], region[rows]))]
    again = np.zeros(len(rows), dtype=np.bool_)
    again[1:] = (np.diff(region[rows]) == 0) & (np.diff(last.replica[rows]) == 0)
    count(ignored, "last_duplicate", int(again.sum()))
    kept, starts = rows[~again], np.flatnonzero(~again)
    # If there are several rows, the one with the least server id counts, even if that server is gone.
    for nth in np.unique(np.searchsorted(starts, np.flatnonzero(again), side="right") - 1).tolist():
        end = starts[nth + 1] if nth + 1 < len(starts) else len(rows)
        kept[nth] = min(rows[starts[nth] : end].tolist(), key=lambda row: str(last.server_id[row]))
    count(ignored, "last_server", int((server[kept] < 0).sum()))
    kept = kept[server[kept] >= 0]
    return region[kept], server[kept], last.replica[kept]


def is_degraded(block_rows: int, ignored: dict[str, int]) -> bool:
    """Return True if too many block rows were unusable to trust the plan's locality."""
    bad = sum(ignored.get(reason, 0) for reason in ("block_host", "block_region", "block_bytes"))
    return bad > DEGRADED_ABOVE * block_rows


__all__ = [
    "MISSING",
    "REASONS",
    "SIZE_MAX",
    "UNIT",
    "Candidates",
    "EligibleServers",
    "Floats",
    "NumberedProblem",
    "TableGroups",
    "encode",
]
