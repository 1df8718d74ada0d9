"""Lowest and highest number of replicas of each server.

A group's replicas are divided by weight: q = D * w / W, and a server holds between floor(q) and ceil(q) of them. One
rule has priority: replicas of a region stand on different racks, so a rack can use at most one replica of each region
(or, with fewer racks than replicas, an even part of them). If the share of a rack by weight exceeds this usable amount,
the rack is limited to the usable amount and the other racks take the rest.

Usable means, for any m racks together: at most the sum over regions of min(replicas, m) (Gale and Ryser). This bound is
concave in m, so the division is found by repeatedly fixing the tightest set of the heaviest racks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from regions.plan.problem.model import Floats, Ints, Params

#: Shares this close to a whole number count as that number, so that rounding errors in D * w / W have no effect.
NEAR = 1e-9

#: Number of regions by replicas wanted.
Demand = Mapping[int, int]


def whole_floor(share: Floats) -> Ints:
    """Return the largest whole number not above each share, tolerating rounding errors."""
    return np.floor(share + NEAR).astype(np.int64)


def whole_ceil(share: Floats) -> Ints:
    """Return the smallest whole number not below each share, tolerating rounding errors."""
    return np.ceil(share - NEAR).astype(np.int64)


def group_shares(weights: Floats, racks: Ints, demand: Demand) -> Floats:
    """Return how many replicas each server of one group should hold; the sum is the group's demand.

    `weights` are > 0; `racks` numbers the servers' racks in any way; every count in `demand` is for regions that want
    at least one and at most `len(weights)` replicas.
    """
    total = sum(want * count for want, count in demand.items())
    plain: Floats = total * _parts(weights)
    if max(demand, default=1) <= 1:
        return plain
    _, rack_of = np.unique(racks, return_inverse=True)
    sizes = np.bincount(rack_of)
    by_weight: Floats = np.bincount(rack_of, weights=plain).astype(np.float64)
    usable = _rack_shares(by_weight, sizes, demand)
    shares = np.zeros(len(weights))
    for rack, share in enumerate(usable.tolist()):
        members = np.flatnonzero(rack_of == rack)
        order = members[np.lexsort((members, -weights[members]))]
        shares[order] = _fair(_parts(weights[order]), _within_rack(len(order), share, demand, sizes))
    return plain if np.allclose(shares, plain, rtol=0, atol=1e-6) else shares


def _within_rack(servers: int, share: float, demand: Demand, sizes: Ints) -> Floats:
    """Return the bound for any m servers of a rack together: at most m replicas of each region."""
    bound = np.zeros(servers + 1)
    extra = share
    may_take = np.zeros(servers + 1)
    for want, count in demand.items():
        even = min(servers, _level(sizes, want))
        bound += count * np.minimum(even, np.arange(servers + 1))
        extra -= count * even
        may_take[even + 1 :] += count
    return bound + np.minimum(max(extra, 0.0), may_take)


def _level(sizes: Ints, want: int) -> int:
    """Return how many replicas of a region every rack has before any rack gets one more, as far as its servers
    reach."""
    level = 0
    while int(np.minimum(sizes, level + 1).sum()) <= want and level < int(sizes.max()):
        level += 1
    return level


def _parts(weights: Floats) -> Floats:
    """Return each weight's fraction of their sum; the sum itself may overflow a float."""
    scaled = weights / weights.max()
    parts: Floats = scaled / math.fsum(scaled.tolist())
    return parts


def _rack_shares(by_weight: Floats, sizes: Ints, demand: Demand) -> Floats:
    """Return the fair share of each rack. The heaviest racks are limited first.

    `by_weight` has the shares by weight alone.
    """
    racks = len(sizes)
    base, most = np.zeros(racks), np.zeros(racks)
    spare = np.zeros(racks + 1)
    for want, count in sorted(demand.items()):
        level = _level(sizes, want)
        even = np.minimum(sizes, level)
        base += count * even
        most += count * np.minimum(sizes, level + 1)
        spare += count * np.minimum(want - int(even.sum()), np.arange(racks + 1))
    target = np.maximum(by_weight - base, 0.0)
    order = np.lexsort((np.arange(racks), -target))
    shares = base.astype(np.float64)
    shares[order] += _fair(target[order], spare)
    # If all servers of a rack hold a region, the rack cannot take a spare replica of this region, and the other racks
    # divide the excess.
    beyond, rest = np.maximum(shares - most, 0.0), np.maximum(most - shares, 0.0)
    if beyond.any() and rest.any():
        shares += rest * (beyond.sum() / rest.sum()) - beyond
    return shares


def _fair(target: Floats, bound: Floats) -> Floats:
    """Divide bound[-1] in proportion to `target` (descending) so that the first m together get at most bound[m]."""
    given = np.zeros(len(target))
    start = 0
    while start < len(target):
        rest = target[start:]
        room = bound[start + 1 :] - bound[start]
        if rest[0] <= 0:
            given[start:] = room[-1] / len(rest)
            break
        rest = rest / rest[0]
        ratio = room / np.cumsum(rest)
        tight = int(np.argmin(ratio)) + 1
        if ratio[tight - 1] >= ratio[-1] * (1 - 1e-12):
            tight = len(rest)
        given[start : start + tight] = rest[:tight] * ratio[tight - 1]
        start += tight
    return given


class Quotas:
    """Bounds for every eligible server and every (table, server) cell.

    `share[s]` is the fractional quota of a server, `floor[s]` and `ceil[s]` its bounds. `budget[g]` is how many
    replicas of group g may lie above the floors of its servers; without this limit good places would fill some servers
    to the ceiling and leave others below the floor. `fraction[s]` is the server's part of its group,
    `table_replicas[t]` the replicas of a (group, table).
    """

    def __init__(
        self,
        params: Params,
        weights: Floats,
        racks: Ints,
        server_group: Ints,
        table_group: Ints,
        demands: Sequence[Demand],
    ) -> None:
        """`demands[t]` counts the regions of (group, table) t by replicas wanted; `table_group[t]` is its group."""
        groups = int(max(server_group.max(initial=-1), table_group.max(initial=-1))) + 1
        self.params = params
        self.share = np.zeros(len(weights))
        self.fraction = np.zeros(len(weights))
        self.budget = np.zeros(groups, dtype=np.int64)
        self.group_replicas = np.zeros(groups, dtype=np.int64)
        self.adjusted = 0
        #: Table -> lowest bounds with which its regions can have replicas on distinct racks, for tables whose share of
        #: the servers' quotas is too low for this.
        self._needs: dict[int, Ints] = {}
        self.table_replicas = np.array([sum(w * n for w, n in d.items()) for d in demands], dtype=np.int64)
        self.table_regions = np.array([sum(d.values()) for d in demands], dtype=np.int64)
        for group in range(groups):
            self._add_group(group, weights, racks, server_group, table_group, demands)
        self.floor = np.maximum(whole_floor(self.share * (1 - params.slop)), 0)
        self.ceil = whole_ceil(self.share * (1 + params.slop))
        floors = np.bincount(server_group, weights=self.floor, minlength=groups).astype(np.int64)
        self.budget = self.group_replicas - floors

    def _add_group(
        self,
        group: int,
        weights: Floats,
        racks: Ints,
        server_group: Ints,
        table_group: Ints,
        demands: Sequence[Demand],
    ) -> None:
        """Compute the shares of one group."""
        members = np.flatnonzero(server_group == group)
        demand: dict[int, int] = {}
        for table in np.flatnonzero(table_group == group).tolist():
            for want, count in demands[table].items():
                demand[want] = demand.get(want, 0) + count
        total = sum(want * count for want, count in demand.items())
        if not len(members):
            return
        self.group_replicas[group] = total
        shares = group_shares(weights[members], racks[members], demand)
        plain = _parts(weights[members])
        self.adjusted += int((np.abs(shares - total * plain) > 1e-6).sum())
        self.share[members] = shares
        self.fraction[members] = shares / total if total else plain
        several = [t for t in np.flatnonzero(table_group == group).tolist() if max(demands[t], default=1) > 1]
        for table in self._short_of_racks(np.array(several, dtype=np.int64), members, racks, demands):
            own = whole_ceil(group_shares(weights[members], racks[members], demands[table]))
            if (own > self.cells(table, members, level=2)).any():
                self._needs[table] = own

    def _short_of_racks(self, tables: Ints, members: Ints, racks: Ints, demands: Sequence[Demand]) -> list[int]:
        """Return the tables whose regions find no distinct racks within their bounds: m racks can use m replicas of
        each."""
        _, rack_of = np.unique(racks[members], return_inverse=True)
        of_rack = (rack_of[:, None] == np.arange(rack_of.max() + 1)).astype(np.int64)
        room = np.sort(self.rows(tables, members, level=2) @ of_rack, axis=1)
        # Column m: the room of all racks except the m fullest.
        beside = np.append(np.cumsum(room, axis=1)[:, ::-1], np.zeros((len(tables), 1), dtype=np.int64), axis=1)
        wants = np.array(sorted({want for table in tables.tolist() for want in demands[table]}), dtype=np.int64)
        counts = np.array([[demands[t].get(w, 0) for w in wants.tolist()] for t in tables.tolist()], dtype=np.int64)
        most = counts.reshape(len(tables), len(wants)) @ np.minimum(wants[:, None], np.arange(beside.shape[1]))
        short = (beside + most < self.table_replicas[tables][:, None]).any(axis=1)
        return [int(table) for table in tables[short]]

    @property
    def raised(self) -> list[int]:
        """Return the tables that may exceed ceiling and slack on some server because distinct racks require it."""
        return sorted(self._needs)

    def cells(self, table: int, members: Ints, *, level: int) -> Ints:
        """Return the bounds of one table on `members`, all servers of its group: floor (level 0), ceiling (1), limit
        (2)."""
        bound: Ints = self.rows(np.array([table]), members, level=level)[0]
        return bound

    def rows(self, tables: Ints, members: Ints, *, level: int) -> Ints:
        """Return `cells` of several tables of one group, one row each; computing thousands of rows singly takes
        seconds."""
        share = self.table_replicas[tables][:, None] * self.fraction[members]
        if level == 0:
            return whole_floor(share)
        most = whole_ceil(share) + (self.params.table_slack if level > 1 else 0)
        if level > 1 and self._needs:
            for row, table in enumerate(tables.tolist()):
                if table in self._needs:
                    most[row] = np.maximum(most[row], self._needs[table])
        bound: Ints = np.minimum(most, self.table_regions[tables][:, None])
        return bound
