"""What a drill found: figures, checks, the verdict; as a screen or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from cli import output


class Check(msgspec.Struct):
    """One invariant: what must hold, whether it did, and what was found (examples of what broke it, if it did not)."""

    name: str
    held: bool
    detail: str
    examples: list[str] = []


class Figure(msgspec.Struct):
    """One measured duration or count; `unit` is s, ms or empty for a count."""

    name: str
    value: float
    unit: str
    meaning: str


class Report(msgspec.Struct):
    """Everything a drill found. `held`: all checks did."""

    drill: str
    victim: str
    figures: list[Figure]
    checks: list[Check]
    #: Steps of transitions that happened, and how many of them were too quick to be seen one by one.
    transitions: int
    steps_unseen: int
    notes: list[str] = []

    @property
    def held(self) -> bool:
        """The verdict."""
        return all(check.held for check in self.checks)


#: Violations named in a report; the count is always complete.
EXAMPLES_MAX = 5


def check(name: str, violations: Sequence[str], detail: str) -> Check:
    """A check that holds when there is no violation; `detail` says then what was looked at."""
    if not violations:
        return Check(name, True, detail)
    return Check(name, False, f"{len(violations)} violations", list(violations[:EXAMPLES_MAX]))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed; 0 for none (nearest rank)."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(name: str, seconds: Sequence[float], meaning: str) -> list[Figure]:
    """p50, p99 and the longest of some durations."""
    return [
        Figure(f"{name}, {label}", round(value, 3), "s", meaning)
        for label, value in (
            ("median", percentile(seconds, 0.5)),
            ("p99", percentile(seconds, 0.99)),
            ("longest", max(seconds, default=0.0)),
        )
    ]


def print_json(report: Report) -> None:
    """The report with its verdict."""
    output.print_json({**msgspec.to_builtins(report), "held": report.held})


def show(report: Report, console: Console) -> None:
    """The report for people."""
    console.print()
    console.print(Text(f"drill {report.drill}: {report.victim} was killed with SIGKILL", style="bold"))
    figures = [(figure.name, _value(figure), figure.meaning) for figure in report.figures]
    console.print(output.table("", ["figure", "#", ""], figures))
    console.print()
    rows = []
    for one in report.checks:
        mark = Text("held", style="green") if one.held else Text("BROKEN", style="bold red")
        rows.append((mark, one.name, one.detail))
    console.print(output.table("", ["", "invariant", ""], rows))
    for one in report.checks:
        for example in one.examples:
            console.print(Text(f"    {one.name}: {example}", style="red"))
    unseen = f", {report.steps_unseen} of them told from the znodes' versions" if report.steps_unseen else ""
    console.print(Text(f"{report.transitions} steps{unseen}", style="dim"))
    for note in report.notes:
        console.print(Text(note, style="yellow"))
    verdict = (
        Text("all invariants held", style="bold green") if report.held else Text("INVARIANTS BROKEN", style="bold red")
    )
    console.print(verdict)


def _value(figure: Figure) -> str:
    if figure.unit == "s":
        return output.seconds(figure.value)
    return f"{figure.value:g} {figure.unit}".strip()
