"""Results of any number of runs, and their tables."""

from __future__ import annotations

from typing import Final

import msgspec

from benchmarks.security import flood
from benchmarks.security.attackers import ATTACKS
from benchmarks.security.beside import CLIENTS, RATIO_MAX, Beside
from benchmarks.security.cost import LOSS_MAX, Measured, Row, rows
from benchmarks.security.flood import Flooded

_GOALS: Final = f"Goals: ratios at most {RATIO_MAX:g}, no request fails, no lease lapses; ✗ misses one."


class Report(msgspec.Struct):
    """All measurements."""

    store: str
    cores: int
    beside: list[Beside] = []
    flood: list[Flooded] = []
    cost: list[Measured] = []

    def add(self, other: Report) -> None:
        """Add the results of another report."""
        self.beside += other.beside
        self.flood += other.flood
        self.cost += other.cost

    def misses(self) -> bool:
        """Return True if an attack missed a goal (`Beside.misses`)."""
        return any(one.misses() for one in (*self.beside, *self.flood))


def shown(report: Report) -> str:
    """Return the tables for people."""
    lines = [f"3 store nodes with fsync ({report.store}), 2 masters, 3 servers, {report.cores} cores", ""]
    if report.beside:
        heads = [f"{one}: p99 ms quiet → attacked" for one in CLIENTS]
        lines += ["| attack | what | " + " | ".join(heads) + " | failed | lapsed leases |"]
        lines += ["| --- " * (len(CLIENTS) + 4) + "|", *map(_attack, report.beside), ""]
        lines += [_GOALS, ""]
    if report.flood:
        lines += [*flood.shown(report.flood), "", _GOALS, ""]
    if report.cost:
        lines += ["| secured beside open | open | secured | ratio | CPU µs open → secured |", "| --- " * 5 + "|"]
        lines += [*map(_row, rows(report.cost)), ""]
        lines += [
            f"A ratio below 1 is a loss; ✗ marks one of more than {LOSS_MAX:.0%}. CPU is that of all daemons.",
            "",
        ]
    return "\n".join(lines)


def _attack(found: Beside) -> str:
    cells = []
    for one in CLIENTS:
        ratio = found.ratio(one)
        mark = " ✗" if ratio > RATIO_MAX else ""
        cells.append(f"{found.quiet_ms[one]:.1f} → {found.attacked_ms[one]:.1f}, **{ratio:.1f}**{mark}")
    counts = [f"{count}{' ✗' if count else ''}" for count in (found.failed, found.lapses)]
    return f"| {found.number} | {ATTACKS[found.number][0]} | " + " | ".join([*cells, *counts]) + " |"


def _row(row: Row) -> str:
    digits = 1 if row.is_time else 0
    values = f"{row.open_value:,.{digits}f} | {row.secured_value:,.{digits}f}"
    mark = " ✗" if row.loses else ""
    return f"| {row.name} | {values} | **{row.ratio:.2f}**{mark} | {row.open_cpu_us:,.2f} → {row.secured_cpu_us:,.2f} |"
