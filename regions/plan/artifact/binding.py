"""Explains a replica's placement: which rule kept it from a better server.

Each alternative server of one replica is tried alone, with all other rows of the plan unchanged. The first rule, in the
order of the rules, that the replica would break there is the one that *bound*. If the replica would break no rule,
another replica has the place because this raises the value of the whole plan.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from regions.plan.problem.model import BadInput, PlanRows
from regions.plan.problem.numbered import UNIT, NumberedProblem


class PlanRule(enum.StrEnum):
    """Why an alternative server was not chosen."""

    HERE = "here"  #: the plan has chosen this server
    GROUP = "group"  #: the server takes no regions of that group: another group, draining, or without weight
    SERVER = "same server"  #: the server has another replica of the region
    RACK = "same rack"  #: the server's rack has another replica of the region
    CEILING = "server full"  #: the server is at the ceiling of its quota
    TABLE = "table full"  #: the server is at the limit of its share of the table
    FLOOR = "floor of the chosen"  #: the chosen server would fall below the floor of its quota
    WORSE = "worth less"  #: allowed, with less benefit
    EQUAL = "worth the same"
    OTHERS = "for others"  #: allowed and worth more alone, but other replicas would lose more


#: The rules as sentences.
WORDS: Final[Mapping[PlanRule, str]] = {
    PlanRule.HERE: "it has the place of its greatest benefit",
    PlanRule.GROUP: "the better server takes no regions of this group",
    PlanRule.SERVER: "the better server has another replica of the region",
    PlanRule.RACK: "the better server's rack has another replica of the region",
    PlanRule.CEILING: "the better server is at the ceiling of its quota",
    PlanRule.TABLE: "the better server is at the limit of its share of the table",
    PlanRule.FLOOR: "the chosen server would fall below the floor of its quota",
    PlanRule.WORSE: "every other place is worth less",
    PlanRule.EQUAL: "every other place is worth no more",
    PlanRule.OTHERS: "another choice is worth more for the plan as a whole",
}
#: Rules that can keep a replica from a better place.
BINDING = (
    PlanRule.GROUP,
    PlanRule.SERVER,
    PlanRule.RACK,
    PlanRule.CEILING,
    PlanRule.TABLE,
    PlanRule.FLOOR,
    PlanRule.OTHERS,
)


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A server that could have had the replica. Bytes; counts as the plan leaves them."""

    server_id: str
    rule: PlanRule
    local_bytes: int
    #: The server held a replica of the region: nothing had to move.
    held: bool
    #: Bytes read locally + lambda x bytes not moved.
    benefit: float
    replicas: int
    floor: int
    ceil: int
    of_table: int
    table_limit: int


class ReplicaReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for one replica's placement."""

    replica: int
    server_id: str
    local_bytes: int
    held: bool
    benefit: float
    #: The rule that kept the replica from the best server without a replica of the region; HERE if it has that server.
    bound: PlanRule
    #: All other servers of the group, the best first.
    alternatives: list[Alternative]


class RegionReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons for a region's placement."""

    region_id: str
    table_id: str
    group: str
    size_bytes: int
    replicas: list[ReplicaReason]
    #: True if the racks force the table to exceed its share on a server (`quota.Quotas.raised`).
    table_raised: bool = False


class Occupancy:
    """Counts of a plan's rows and the limits of its problem. Rows that the problem does not have are ignored."""

    def __init__(self, problem: NumberedProblem, rows: PlanRows) -> None:
        self.problem = problem
        number = {region_id: at for at, region_id in enumerate(problem.region_ids.tolist())}
        fleet = problem.fleet.number
        known = [(number[rid], replica, fleet[sid]) for rid, replica, sid in rows if rid in number and sid in fleet]
        columns = np.array(known, dtype=np.int64).reshape(-1, 3)
        self.number: Mapping[str, int] = number
        self.region, self.replica, self.server = columns[:, 0], columns[:, 1], columns[:, 2]
        servers = len(problem.fleet)
        self.held = np.bincount(self.server, minlength=servers)
        cells = problem.table[self.region] * servers + self.server
        self.cells = np.bincount(cells, minlength=len(problem.tables) * servers).reshape(-1, servers)
        self.limits = np.zeros_like(self.cells)
        for table in np.flatnonzero(problem.tables.group >= 0).tolist():
            members = problem.fleet.members(int(problem.tables.group[table]))
            self.limits[table, members] = problem.quotas.cells(table, members, level=2)
        self._peers: dict[int, list[int]] = {}
        for r, s in zip(self.region.tolist(), self.server.tolist(), strict=True):
            self._peers.setdefault(r, []).append(s)

    def worth(self, region: int, server: int) -> tuple[int, bool, int]:
        """Return local bytes, whether the server had a replica, and the benefit in thousandths, of a region there."""
        problem = self.problem
        start, end = int(problem.cand_start[region]), int(problem.cand_start[region + 1])
        at = start + int(np.searchsorted(problem.cand_server[start:end], server))
        if at < end and problem.cand_server[at] == server:
            return int(problem.cand_local[at]), bool(problem.cand_held[at] >= 0), int(problem.cand_benefit[at])
        return 0, False, 0

    def against(self, region: int, chosen: int, other: int) -> PlanRule | None:
        """Return the first hard rule that the replica on `chosen` would break on `other`, or None."""
        problem, quotas = self.problem, self.problem.quotas
        rack = problem.fleet.rack
        table = int(problem.table[region])
        if problem.fleet.group[other] != problem.tables.group[table]:
            return PlanRule.GROUP
        peers = [server for server in self._peers.get(region, ()) if server != chosen]
        if other in peers:
            return PlanRule.SERVER
        if any(rack[one] == rack[other] for one in peers) and all(rack[one] != rack[chosen] for one in peers):
            return PlanRule.RACK
        if self.held[other] >= quotas.ceil[other]:
            return PlanRule.CEILING
        if self.cells[table, other] >= self.limits[table, other]:
            return PlanRule.TABLE
        if self.held[chosen] <= quotas.floor[chosen]:
            return PlanRule.FLOOR
        return None

    def rule(self, region: int, chosen: int, other: int, benefit: int) -> PlanRule:
        """Return why `other` was not chosen, given the replica's benefit on `chosen`."""
        broken = self.against(region, chosen, other)
        theirs = self.worth(region, other)[2]
        if broken is not None:
            return broken
        if theirs == benefit:
            return PlanRule.EQUAL
        return PlanRule.WORSE if theirs < benefit else PlanRule.OTHERS


def explain_region(standing: Occupancy, region_id: str, *, limit: int = 0) -> RegionReason:
    """Return the reasons for a region's placement, with at most `limit` alternatives each (0: all).

    Raise BadInput for a region that the input does not have.
    """
    problem = standing.problem
    region = standing.number.get(region_id)
    if region is None:
        raise BadInput(f"the plan's input has no region {region_id!r}")
    group, table_id = problem.tables.pairs[int(problem.table[region])]
    rows = np.flatnonzero(standing.region == region)
    replicas = []
    for row in rows[np.argsort(standing.replica[rows])].tolist():
        replicas.append(_explain(standing, region, int(standing.replica[row]), int(standing.server[row]), limit))
    return RegionReason(
        region_id=region_id,
        table_id=table_id,
        group=group,
        size_bytes=int(problem.size[region]),
        replicas=replicas,
        table_raised=int(problem.table[region]) in problem.quotas.raised,
    )


def _explain(standing: Occupancy, region: int, replica: int, chosen: int, limit: int) -> ReplicaReason:
    problem = standing.problem
    local, held, benefit = standing.worth(region, chosen)
    members = problem.fleet.members(int(problem.tables.group[int(problem.table[region])])).tolist()
    others = [_alternative(standing, region, chosen, other, benefit) for other in members if other != chosen]
    others.sort(key=lambda one: (-one.benefit, one.server_id))
    better = [one for one in others if round(one.benefit * UNIT) > benefit and one.rule is not PlanRule.SERVER]
    return ReplicaReason(
        replica=replica,
        server_id=problem.fleet.ids[chosen],
        local_bytes=local,
        held=held,
        benefit=benefit / UNIT,
        bound=better[0].rule if better else PlanRule.HERE,
        alternatives=others[:limit] if limit else others,
    )


def _alternative(standing: Occupancy, region: int, chosen: int, other: int, benefit: int) -> Alternative:
    problem = standing.problem
    table = int(problem.table[region])
    local, held, theirs = standing.worth(region, other)
    return Alternative(
        server_id=problem.fleet.ids[other],
        rule=standing.rule(region, chosen, other, benefit),
        local_bytes=local,
        held=held,
        benefit=theirs / UNIT,
        replicas=int(standing.held[other]),
        floor=int(problem.quotas.floor[other]),
        ceil=int(problem.quotas.ceil[other]),
        of_table=int(standing.cells[table, other]),
        table_limit=int(standing.limits[table, other]),
    )


def count_bound(standing: Occupancy) -> dict[str, int]:
    """Return, for each rule, the number of replicas that it keeps from their region's best free server."""
    problem = standing.problem
    taken = set(zip(standing.region.tolist(), standing.server.tolist(), strict=True))
    counts: dict[str, int] = {}
    for region, chosen in zip(standing.region.tolist(), standing.server.tolist(), strict=True):
        start, end = int(problem.cand_start[region]), int(problem.cand_start[region + 1])
        if start == end:
            continue
        benefits = problem.cand_benefit[start:end]
        mine = standing.worth(region, chosen)[2]
        if mine >= int(benefits.max()):
            continue
        free = [
            (-int(benefits[at]), int(problem.cand_server[start + at]))
            for at in range(end - start)
            if int(benefits[at]) > mine and (region, int(problem.cand_server[start + at])) not in taken
        ]
        if free:
            rule = standing.rule(region, chosen, min(free)[1], mine)
            counts[rule.value] = counts.get(rule.value, 0) + 1
    return dict(sorted(counts.items()))
