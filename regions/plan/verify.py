"""Judges a plan by the rules alone, whoever made it.

The bounds come from the snapshot (`quota`), the counts from the plan's rows; nothing that an engine believed is used.
Unavoidable sharing of racks (fewer racks than replicas) is no violation; it is counted in `racks_shared`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from .model import Ints, Params, PlanRows, Snapshot
from .problem import Problem, encode


class Verdict(msgspec.Struct, kw_only=True):
    """Replicas or cells that break each hard rule, in the order of the rules; then measures of balance."""

    #: Replicas without a row; rows of unknown regions, repeated rows, wrong replica numbers.
    missing: int = 0
    surplus: int = 0
    same_server: int = 0
    #: Rows on servers that are unknown, draining, weightless or of another group.
    wrong_server: int = 0
    #: Replicas on a rack that another replica of the region uses, beyond what too few racks make unavoidable.
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
        """Broken hard rules in all."""
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
        """No hard rule is broken."""
        return self.violations == 0


def verify(snapshot: Snapshot, params: Params, rows: PlanRows) -> Verdict:
    """Every hard rule on any rows, in any order. Raises as `encode` does."""
    return judge(encode(snapshot, params, {}), rows)


def judge(problem: Problem, rows: PlanRows) -> Verdict:
    """`verify` on a snapshot that is encoded already."""
    verdict = Verdict()
    region, server = _known_rows(problem, rows, verdict)
    _count_racks(problem, region, server, verdict)
    _count_bounds(problem, region, server, verdict)
    return verdict


def _known_rows(problem: Problem, rows: PlanRows, verdict: Verdict) -> tuple[Ints, Ints]:
    """Count rows that cannot stand; returns (region, server) of the others, servers distinct per region."""
    number = {rid: i for i, rid in enumerate(problem.region_ids.tolist())}
    want = problem.want.tolist()
    table, group = problem.table.tolist(), problem.tables.group.tolist()
    replicas: set[tuple[int, int]] = set()
    pairs: set[tuple[int, int]] = set()
    for rid, replica, sid in rows:
        r = number.get(rid, -1)
        s = problem.fleet.number.get(sid, -1)
        if r < 0 or not 0 <= replica < want[r] or (r, replica) in replicas:
            verdict.surplus += 1
            _note(verdict, f"surplus: {rid}/{replica} on {sid}")
            continue
        replicas.add((r, replica))
        if s < 0 or problem.fleet.group[s] != group[table[r]]:
            verdict.wrong_server += 1
            _note(verdict, f"wrong server: {rid}/{replica} on {sid}")
        elif (r, s) in pairs:
            verdict.same_server += 1
            _note(verdict, f"same server: {rid}/{replica} on {sid}")
        else:
            pairs.add((r, s))
    verdict.missing = sum(want) - len(replicas)
    both = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _count_racks(problem: Problem, region: Ints, server: Ints, verdict: Verdict) -> None:
    """Racks used twice by a region, and how many of these could have been avoided."""
    racks = int(problem.fleet.rack.max(initial=0)) + 1
    distinct = np.bincount(np.unique(region * racks + problem.fleet.rack[server]) // racks, minlength=len(problem))
    placed = np.bincount(region, minlength=len(problem))
    of_group = np.append(problem.fleet.group_racks, 0)[problem.tables.group][problem.table]
    shared = placed - distinct
    verdict.racks_shared = int(shared.sum())
    verdict.same_rack = int((shared - np.maximum(placed - of_group, 0)).sum())


def _count_bounds(problem: Problem, region: Ints, server: Ints, verdict: Verdict) -> None:
    """Servers outside their bounds, cells above theirs, and how even it is."""
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
    for table in np.flatnonzero(problem.tables.group >= 0).tolist():
        members = problem.fleet.members(int(problem.tables.group[table]))
        over = cells[table, members] - quotas.cells(table, members, level=2)
        verdict.over_table += int(np.maximum(over, 0).sum())
        if (over > 0).any():
            _note(verdict, f"table {problem.tables.pairs[table]} is over its limit on {int((over > 0).sum())} servers")
        share = quotas.table_replicas[table] * quotas.fraction[members]
        if len(members):
            verdict.table_skew = max(verdict.table_skew, float(np.abs(cells[table, members] - share).max()))


def _note(verdict: Verdict, text: str) -> None:
    """Keep the first few examples."""
    if len(verdict.notes) < 20:
        verdict.notes.append(text)
