"""The quality of a plan, computed from the input and the rows: rules, value against the optimum, balance, moves."""

from __future__ import annotations

import msgspec
import numpy as np

from regions.plan.artifact.verify import judge
from regions.plan.problem.model import Ints, PlanRows
from regions.plan.problem.numbered import UNIT, NumberedProblem


class Worth(msgspec.Struct, kw_only=True):
    """Figures of one plan."""

    violations: int
    #: Number of violations by rule.
    broken: dict[str, int]
    #: Bytes local + lambda x bytes not moved, and bytes local.
    value: float
    local: float
    #: Largest difference of replicas per weight within a group, and between a (table, server) cell and its share.
    spread: float
    table_skew: float
    #: Replicas that leave a server on which they could stay, and the least number that must leave in any plan.
    moves: int
    moves_min: int


#: Rules of `Verdict`, by the names of its fields.
RULES = (
    "missing",
    "surplus",
    "same_server",
    "wrong_server",
    "same_rack",
    "over_ceiling",
    "under_floor",
    "over_table",
)


def worth(problem: NumberedProblem, rows: PlanRows) -> Worth:
    """Compute all figures of a plan's rows. Rows with unknown regions or servers count only as violations."""
    verdict = judge(problem, rows)
    region, server = _numbers(problem, rows)
    at = _candidates_of(problem, region, server)
    return Worth(
        violations=verdict.violations,
        broken={rule: getattr(verdict, rule) for rule in RULES if getattr(verdict, rule)},
        value=float(problem.cand_benefit[at].astype(np.float64).sum()) / UNIT,
        local=float(problem.cand_local[at].astype(np.float64).sum()),
        spread=_spread(problem, server),
        table_skew=verdict.table_skew,
        moves=int((problem.cand_held >= 0).sum()) - int((problem.cand_held[at] >= 0).sum()),
        moves_min=moves_min(problem),
    )


def _numbers(problem: NumberedProblem, rows: PlanRows) -> tuple[Ints, Ints]:
    """Return (region, server) of the rows, as numbers."""
    number = {rid: i for i, rid in enumerate(problem.region_ids.tolist())}
    region = np.array([number.get(rid, -1) for rid in rows.region_id.tolist()], dtype=np.int64)
    server = np.array([problem.fleet.number.get(sid, -1) for sid in rows.server_id.tolist()], dtype=np.int64)
    known = (region >= 0) & (server >= 0)
    return region[known], server[known]


def _candidates_of(problem: NumberedProblem, region: Ints, server: Ints) -> Ints:
    """Return the numbers of the candidates among the pairs."""
    keys = problem.cand_region * len(problem.fleet) + problem.cand_server
    wanted = np.unique(region * len(problem.fleet) + server)
    return np.flatnonzero(np.isin(keys, wanted, assume_unique=True))


def _spread(problem: NumberedProblem, server: Ints) -> float:
    """Return the largest minus the smallest number of replicas per weight, in the worst group."""
    per_weight = np.bincount(server, minlength=len(problem.fleet)) / problem.fleet.weight
    members = [problem.fleet.members(g) for g in range(len(problem.fleet.groups))]
    return max(float(per_weight[m].max() - per_weight[m].min()) for m in members)


def moves_min(problem: NumberedProblem) -> int:
    """Return how many replicas have to leave their servers in any balanced plan: those above the bounds of tables,
    servers and groups."""
    quotas, servers = problem.quotas, len(problem.fleet)
    held = problem.cand_held >= 0
    region, server = problem.cand_region[held], problem.cand_server[held]
    cells = np.bincount(problem.table[region] * servers + server, minlength=len(problem.tables) * servers)
    cells = cells.reshape(-1, servers)
    kept = np.zeros(servers, dtype=np.int64)
    for table in np.flatnonzero(problem.tables.group >= 0).tolist():
        members = problem.fleet.members(int(problem.tables.group[table]))
        kept[members] += np.minimum(cells[table, members], quotas.cells(table, members, level=2))
    kept = np.minimum(kept, quotas.ceil)
    over = np.bincount(
        problem.fleet.group, weights=np.maximum(kept - quotas.floor, 0), minlength=len(quotas.budget)
    ).astype(np.int64)
    most = int(np.minimum(kept, quotas.floor).sum()) + int(np.minimum(over, quotas.budget).sum())
    return int(held.sum()) - most
