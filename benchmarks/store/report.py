"""Results of any number of runs, and the tables made of them."""

from __future__ import annotations

import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.store.matrix import LESS_IS_MORE, bound, goal

Result = dict[str, Any]


class Results:
    """All results, by size of the cluster, row and target, in the order in which they were first measured."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], dict[str, list[Result]]] = {}

    def add(self, nodes: int, row: str, target: str, result: Result) -> None:
        """Add one run."""
        self._found.setdefault((nodes, row), {}).setdefault(target, []).append(result)

    def read(self, path: Path) -> None:
        """Read the runs that an earlier process wrote with --raw."""
        for line in path.read_text().splitlines():
            result = json.loads(line)
            self.add(result.pop("nodes"), result.pop("row"), result.pop("target"), result)

    def sizes(self) -> list[int]:
        """Return the measured sizes of clusters."""
        return sorted({nodes for nodes, _ in self._found})

    def rows(self, nodes: int) -> list[str]:
        """Return the rows of one size."""
        return [row for size, row in self._found if size == nodes]

    def targets(self) -> list[str]:
        """Return all targets."""
        return list(dict.fromkeys(target for runs in self._found.values() for target in runs))

    def runs(self, nodes: int, row: str, target: str) -> list[Result]:
        """Return the runs of one row against one target."""
        return self._found.get((nodes, row), {}).get(target, [])

    def median(self, nodes: int, row: str, target: str, field: str) -> float:
        """Return the median over the successful runs; nan without any."""
        found = [result[field] for result in self.runs(nodes, row, target) if field in result]
        return statistics.median(found) if found else math.nan

    def value(self, nodes: int, row: str, target: str) -> float:
        """Return the row's figure: operations per second, or the value in its unit."""
        return self.median(nodes, row, target, "value" if self.unit(nodes, row) != "/s" else "ops_s")

    def unit(self, nodes: int, row: str) -> str:
        """Return the row's unit: /s, or the unit of a case."""
        runs = [result for each in self._found.get((nodes, row), {}).values() for result in each]
        return next((result["unit"] for result in runs if "unit" in result), "/s")

    def ratio(self, nodes: int, row: str, target: str, reference: str) -> float:
        """Return how many times better than the reference the target is."""
        ours, theirs = self.value(nodes, row, target), self.value(nodes, row, reference)
        if self.unit(nodes, row) in LESS_IS_MORE:
            ours, theirs = theirs, ours
        return ours / theirs if theirs else math.nan

    def falls_short(self, nodes: int, row: str, target: str, reference: str) -> bool:
        """Return True if the row misses its goal."""
        most = bound(row)
        if most is not None and not self.value(nodes, row, target) <= most:
            return True
        return not self.ratio(nodes, row, target, reference) >= goal(nodes, row)

    def faults(self, nodes: int, row: str, target: str) -> int:
        """Return the number of wrong or missing answers and of failed runs."""
        counted = ("errors", "xid_errors", "bad_replies", "disconnects")
        runs = self.runs(nodes, row, target)
        if self.unit(nodes, row) != "/s":
            return sum("value" not in result for result in runs)
        return sum(sum(int(run.get(name, 0)) for name in counted) + ("ops_s" not in run) for run in runs)


def table(results: Results, nodes: int) -> str:
    """Return one size of cluster as Markdown. The first target is the reference."""
    reference, *others = results.targets()
    head = f"| {nodes} node{'s' if nodes > 1 else ''} | {reference} | CPU µs |"
    head += "".join(f" {name} | CPU µs | ratio | p50 / p99 ms |" for name in others)
    head += " goal | others' CPU | runs | faults |"
    lines = [head, "|" + " --- |" * (head.count("|") - 1)]
    for row in results.rows(nodes):
        unit = results.unit(nodes, row)
        cells = [row, _figure(results.value(nodes, row, reference), unit), _cpu(results, nodes, row, reference)]
        for target in others:
            ratio = results.ratio(nodes, row, target, reference)
            short = " ✗" if results.falls_short(nodes, row, target, reference) else ""
            cells += [_figure(results.value(nodes, row, target), unit), _cpu(results, nodes, row, target)]
            cells += [f"**{ratio:.2f}**{short}" if ratio == ratio else "-", _latencies(results, nodes, row, target)]
        most = bound(row)
        cells.append(f"≥ {goal(nodes, row):g}" + (f", ≤ {_figure(most, unit)}" if most is not None else ""))
        cells += [_noise(results, nodes, row)]
        everyone = [reference, *others]
        cells.append("/".join(str(len(results.runs(nodes, row, name))) for name in everyone))
        cells.append("/".join(str(results.faults(nodes, row, name)) for name in everyone))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_json(results: Results) -> str:
    """Return all tables as JSON."""
    reference, *others = results.targets()
    rows = []
    for nodes in results.sizes():
        for row in results.rows(nodes):
            made: Result = {"nodes": nodes, "row": row, "unit": results.unit(nodes, row), "goal": goal(nodes, row)}
            made["bound"] = bound(row)
            for target in (reference, *others):
                figures: Result = {
                    "value": _number(results.value(nodes, row, target)),
                    "cpu_us_per_op": _number(results.median(nodes, row, target, "server_cpu_us_per_op")),
                    "runs": len(results.runs(nodes, row, target)),
                    "faults": results.faults(nodes, row, target),
                }
                if target != reference:
                    figures["ratio"] = _number(results.ratio(nodes, row, target, reference))
                    figures["falls_short"] = results.falls_short(nodes, row, target, reference)
                made[target] = figures
            rows.append(made)
    return json.dumps(rows, indent=1)


def _cpu(results: Results, nodes: int, row: str, target: str) -> str:
    return _figure(results.median(nodes, row, target, "server_cpu_us_per_op"), "/s")


def _noise(results: Results, nodes: int, row: str) -> str:
    """Return the share of the machine that other processes used."""
    runs = [run for target in results.targets() for run in results.runs(nodes, row, target)]
    busy = [run["other_cpu_s"] / run["dur"] for run in runs if "other_cpu_s" in run]
    return f"{100 * statistics.median(busy) / (os.cpu_count() or 1):.0f} %" if busy else "-"


def _latencies(results: Results, nodes: int, row: str, target: str) -> str:
    found = [run["lat_ms"] for run in results.runs(nodes, row, target) if "lat_ms" in run]
    if not found:
        return "-"
    return " / ".join(f"{statistics.median(each[name] for each in found):.2f}" for name in ("p50", "p99"))


def _figure(value: float, unit: str) -> str:
    if value != value:
        return "-"
    said = f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return said if unit == "/s" else f"{said} {unit}"


def _number(value: float) -> float | None:
    return value if value == value else None
