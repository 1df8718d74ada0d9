"""Checks a plan against the rules, independently of its engine.

The bounds come from the snapshot (`quota`), the counts from the rows of the plan. Nothing comes from the engine.
Unavoidable sharing of racks (fewer racks than replicas) is not a violation; it is counted in `racks_shared`.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from regions.plan.problem.model import Bools, Ints, Params, PlanRows, Snapshot
from regions.plan.problem.numbered import NumberedProblem, encode

#: Examples of broken rules in a verdict.
NOTES_MAX: Final = 20


class PlanVerdict(msgspec.Struct, kw_only=True):
    """Numbers of replicas or cells that break each hard rule, in the order of the rules; then measures of balance."""

    #: Replicas without a row; rows of unknown regions, repeated rows, wrong replica numbers.
    missing: int = 0
    surplus: int = 0
    same_server: int = 0
    #: Rows on servers that are unknown, draining, weightless or of another group.
    wrong_server: int = 0
    #: Replicas on a rack that another replica of the region uses, without those that too few racks make unavoidable.
    same_rack: int = 0
    #: Replicas above the ceiling of their server; replicas missing to the floor of a server.
    over_ceiling: int = 0
    under_floor: int = 0
    #: Replicas above the limit of their (table, server) cell.
    over_table: int = 0
    racks_shared: int = 0
    #: Largest replicas per weight over the mean of the group, the worst group.
    load_max_over_mean: float = 0.0
    #: Largest difference between a cell and its fractional share.
    table_skew: float = 0.0
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def violations(self) -> int:
        """Total number of violations of hard rules."""
        return (
            self.missing
            + self.surplus
            + self.same_server
            + self.wrong_server
            + self.same_rack
            + self.over_ceiling
            + self.under_floor
            + self.over_table
        )

    @property
    def ok(self) -> bool:
        """True if no hard rule is broken."""
        return self.violations == 0


def verify(snapshot: Snapshot, params: Params, rows: PlanRows) -> PlanVerdict:
    """Check every hard rule on rows in any order. Raise as `encode` does."""
    return judge(encode(snapshot, params, {}), rows)


def judge(problem: NumberedProblem, rows: PlanRows) -> PlanVerdict:
    """Do `verify` on an encoded snapshot."""
    verdict = PlanVerdict()
    region, server = _known_rows(problem, rows, verdict)
    _count_racks(problem, region, server, verdict)
    _count_bounds(problem, region, server, verdict)
    return verdict


def _known_rows(problem: NumberedProblem, rows: PlanRows, verdict: PlanVerdict) -> tuple[Ints, Ints]:
    """Count invalid rows. Return (region, server) of the valid rows, with distinct servers per region."""
    number = {rid: i for i, rid in enumerate(problem.region_ids.tolist())}
    region = np.array([number.get(rid, -1) for rid in rows.region_id.tolist()], dtype=np.int64)
    server = np.array([problem.fleet.number.get(sid, -1) for sid in rows.server_id.tolist()], dtype=np.int64)
    replica = rows.replica
    want = np.append(problem.want, 0)[region]
    fits = (region >= 0) & (replica >= 0) & (replica < want)
    most = int(problem.want.max(initial=0)) + 1
    stands = fits & _first_of_each(region * most + replica, fits)
    group = np.append(problem.tables.group, -1)[np.append(problem.table, -1)[region]]
    known = stands & (server >= 0) & (np.append(problem.fleet.group, -2)[server] == group)
    single = known & _first_of_each(region * len(problem.fleet) + server, known)
    for reason, bad in (("surplus", ~stands), ("wrong server", stands & ~known), ("same server", known & ~single)):
        for i in np.flatnonzero(bad)[:NOTES_MAX].tolist():
            _note(verdict, f"{reason}: {rows.region_id[i]}/{replica[i]} on {rows.server_id[i]}")
    verdict.surplus = int((~stands).sum())
    verdict.wrong_server = int((stands & ~known).sum())
    verdict.same_server = int((known & ~single).sum())
    verdict.missing = int(problem.want.sum()) - int(stands.sum())
    return region[single], server[single]


def _first_of_each(keys: Ints, rows: Bools) -> Bools:
    """Return the rows that are the first ones with their key."""
    at = np.flatnonzero(rows)
    _, first = np.unique(keys[at], return_index=True)
    chosen: Bools = np.zeros(len(keys), dtype=np.bool_)
    chosen[at[first]] = True
    return chosen


def _count_racks(problem: NumberedProblem, region: Ints, server: Ints, verdict: PlanVerdict) -> None:
    """Return the number of racks used twice by a region, and how many of these were avoidable."""
    racks = int(problem.fleet.rack.max(initial=0)) + 1
    distinct = np.bincount(np.unique(region * racks + problem.fleet.rack[server]) // racks, minlength=len(problem))
    placed = np.bincount(region, minlength=len(problem))
    of_group = np.append(problem.fleet.group_racks, 0)[problem.tables.group][problem.table]
    shared = placed - distinct
    verdict.racks_shared = int(shared.sum())
    verdict.same_rack = int((shared - np.maximum(placed - of_group, 0)).sum())


def _count_bounds(problem: NumberedProblem, region: Ints, server: Ints, verdict: PlanVerdict) -> None:
    """Count servers and cells outside their limits, and measure the balance."""
    quotas, servers = problem.quotas, len(problem.fleet)
    held = np.bincount(server, minlength=servers)
    verdict.over_ceiling = int(np.maximum(held - quotas.ceil, 0).sum())
    verdict.under_floor = int(np.maximum(quotas.floor - held, 0).sum())
    for s in np.flatnonzero((held > quotas.ceil) | (held < quotas.floor)).tolist():
        _note(verdict, f"{problem.fleet.ids[s]} holds {held[s]}, not {quotas.floor[s]}..{quotas.ceil[s]}")
    busy = quotas.share > 0
    verdict.load_max_over_mean = float((held[busy] / quotas.share[busy]).max()) if busy.any() else 0.0
    cells = np.bincount(problem.table[region] * servers + server, minlength=len(problem.tables) * servers)
    cells = cells.reshape(-1, servers)
    for group in range(len(problem.fleet.groups)):
        tables, members = np.flatnonzero(problem.tables.group == group), problem.fleet.members(group)
        held = cells[np.ix_(tables, members)]
        over = np.maximum(held - quotas.rows(tables, members, level=2), 0)
        verdict.over_table += int(over.sum())
        for row in np.flatnonzero(over.any(axis=1)).tolist():
            pair = problem.tables.pairs[tables[row]]
            _note(verdict, f"table {pair} is over its limit on {int((over[row] > 0).sum())} servers")
        skew = np.abs(held - quotas.table_replicas[tables][:, None] * quotas.fraction[members])
        verdict.table_skew = max(verdict.table_skew, float(skew.max(initial=0)))


def _note(verdict: PlanVerdict, text: str) -> None:
    """Keep the first NOTES_MAX examples."""
    if len(verdict.notes) < NOTES_MAX:
        verdict.notes.append(text)
