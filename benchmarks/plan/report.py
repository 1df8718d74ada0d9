"""Results of `make bench-plan`: one row per plan, and the tables made of them."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from benchmarks.plan.judging import Worth

#: Our engines, which must not break a rule. The plain methods may.
OURS: Final = ("flow", "greedy", "spark")


class Row(msgspec.Struct, kw_only=True):
    """One measurement. For problems that are not scenarios, `figures` has the measured values by name."""

    size: str
    scenario: str
    engine: str
    seed: int = 0
    date: str = ""
    #: One-minute load of the machine before the measurement, and its cores.
    load: float = 0.0
    cores: int = 0
    error: str = ""
    #: From the start of the process to its end, without the start of Spark (`start_s`).
    seconds: float = 0.0
    start_s: float = 0.0
    peak_mb: int = 0
    stages: dict[str, float] = {}
    #: Upper bound of the value of any plan for this input, if the engine has proven one.
    value_max: float = 0.0
    engine_note: str = ""
    digest: str = ""
    worth: Worth | None = None
    figures: dict[str, float] = {}

    @property
    def breaks(self) -> bool:
        """Return True if one of our engines broke a rule."""
        return self.engine in OURS and self.worth is not None and self.worth.violations > 0

    def one_line(self) -> str:
        """Return a line of progress."""
        name = f"{self.size} {self.scenario}: {self.engine}"
        if self.error:
            return f"{name} FAILED: {self.error}"
        parts = [f"{self.seconds:.1f} s"]
        if self.start_s:
            parts.append(f"(Spark's start {self.start_s:.1f} s)")
        if self.peak_mb:
            parts.append(f"{self.peak_mb:,} MB")
        if self.worth is not None:
            parts.append(f"{self.worth.violations} broken, {self.worth.moves:,} moves")
        parts += [f"{figure} {value:,.6g}" for figure, value in self.figures.items()]
        return f"{name} {', '.join(parts)}"


def as_json(rows: list[Row]) -> str:
    """Return all rows as JSON, with the ratios of the tables."""
    best = _best(rows)
    shown = [
        {**msgspec.to_builtins(row), **dict(zip(("value_ratio", "local_ratio"), _ratios(row, best), strict=True))}
        for row in rows
    ]
    return json.dumps(shown, indent=1)


def tables(rows: list[Row]) -> str:
    """Return Markdown: one table per size, then one for each special problem."""
    best = _best(rows)
    text = []
    for size in dict.fromkeys(row.size for row in rows if not row.figures):
        text += [
            f"{size}\n",
            "| scenario | engine | broken rules | J/J* | L/L* | max-min | table skew | moves (least) | seconds | MB |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        text += [_line(row, best) for row in rows if row.size == size and not row.figures]
        text.append("")
    for name in dict.fromkeys(row.scenario for row in rows if row.figures):
        some = [row for row in rows if row.scenario == name and row.figures]
        figures = list(dict.fromkeys(figure for row in some for figure in row.figures))
        text += [f"{name}\n", f"| what | seconds | {' | '.join(figures)} |", "| --- " * (len(figures) + 2) + "|"]
        for row in some:
            values = [f"{row.figures[figure]:,.6g}" if figure in row.figures else "" for figure in figures]
            text.append(f"| {row.engine} | {row.seconds:.2f} | {' | '.join(values)} |")
        text.append("")
    return "\n".join(text)


Best = dict[tuple[str, str, int], tuple[float, float]]


def _best(rows: list[Row]) -> Best:
    """Return J* and L* by size, scenario and seed, from the rows of the exact engine."""
    return {
        (row.size, row.scenario, row.seed): (row.value_max, row.worth.local)
        for row in rows
        if row.engine == "flow" and row.worth is not None
    }


def _ratios(row: Row, best: Best) -> tuple[float | None, float | None]:
    """Return J/J* and L/L*, None if the optimum is not known."""
    most = best.get((row.size, row.scenario, row.seed))
    if most is None or row.worth is None:
        return None, None
    return row.worth.value / max(most[0], 1), row.worth.local / max(most[1], 1)


def _line(row: Row, best: Best) -> str:
    if row.error or row.worth is None:
        return f"| {row.scenario} | {row.engine} | {row.error or 'no plan'} | | | | | | | |"
    value, local = ("?" if ratio is None else f"{ratio:.4f}" for ratio in _ratios(row, best))
    one = row.worth
    return (
        f"| {row.scenario} | {row.engine} | {one.violations:,} | {value} | {local} | {one.spread:.2f} | "
        f"{one.table_skew:.1f} | {one.moves:,} ({one.moves_min:,}) | {row.seconds:.1f} | {row.peak_mb:,} |"
    )
