"""What a drill found: phases, unavailability, figures, checks, the verdict; as a screen or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output


class InvariantCheck(msgspec.Struct):
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


class DrillPhase(msgspec.Struct):
    """A part of the drill: when it began, counted from the drill's own beginning, and how long it took."""

    name: str
    began_s: float
    seconds: float


class RegionOutage(msgspec.Struct):
    """A region as its clients saw it: how often it was unavailable, the longest time, all times together."""

    region: str
    outages: int
    longest_s: float
    total_s: float


class Unavailability(msgspec.Struct):
    """How long regions did not answer their clients as they should: each region counts with its longest outage.

    `p50_s`, `p99_s`, `longest_s` are over the regions that had one, `all_…` over all of them. An outage's beginning is
    known as exactly as `resolution_s`, the time between two requests to one region.
    """

    regions: int
    affected: int
    p50_s: float
    p99_s: float
    longest_s: float
    all_p50_s: float
    all_p99_s: float
    resolution_s: float
    per_region: list[RegionOutage]


class Traffic(msgspec.Struct):
    """The reads and writes that ran meanwhile, and what became of them."""

    seconds: float
    #: By kind and outcome, as "write ok".
    operations: dict[str, int]
    acknowledged_writes: int
    unknown_writes: int
    lost_or_doubled: int
    latency_p50_ms: float
    latency_p99_ms: float
    unavailability: Unavailability


class DrillReport(msgspec.Struct):
    """Everything a drill found. `held`: all checks did."""

    drill: str
    victim: str
    figures: list[Figure]
    checks: list[InvariantCheck]
    #: Steps of transitions that happened, and how many of them were too quick to be seen one by one.
    transitions: int
    steps_unseen: int
    notes: list[str] = []
    #: What was done to the victim.
    action: str = "was killed with SIGKILL"
    seed: int = 0
    seconds: float = 0.0
    phases: list[DrillPhase] = []
    #: None: no load was wanted, or there was nothing to read and write.
    traffic: Traffic | None = None

    @property
    def held(self) -> bool:
        """The verdict."""
        return all(check.held for check in self.checks)


class Spread(msgspec.Struct):
    """A figure over several runs."""

    name: str
    unit: str
    smallest: float
    median: float
    largest: float


#: Violations named in a report; the count is always complete.
EXAMPLES_MAX = 5


def check(name: str, violations: Sequence[str], detail: str) -> InvariantCheck:
    """Return a check that holds if there is no violation; `detail` then says what was checked."""
    if not violations:
        return InvariantCheck(name, True, detail)
    return InvariantCheck(name, False, output.count(len(violations), "violation"), list(violations[:EXAMPLES_MAX]))


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


def summary(reports: Sequence[DrillReport]) -> list[Spread]:
    """Each figure over the runs that have it, unavailability first."""
    values: dict[tuple[str, str], list[float]] = {}
    for report in reports:
        if report.traffic is not None:
            seen = report.traffic.unavailability
            for label, value in (("p50", seen.p50_s), ("p99", seen.p99_s), ("longest", seen.longest_s)):
                values.setdefault((f"region unavailable, {label}", "s"), []).append(value)
    for report in reports:
        for figure in report.figures:
            values.setdefault((figure.name, figure.unit), []).append(figure.value)
    return [
        Spread(name, unit, min(found), percentile(found, 0.5), max(found)) for (name, unit), found in values.items()
    ]


# --- as JSON ---------------------------------------------------------------------------------------------------------


def as_json(report: DrillReport) -> dict[str, Any]:
    """The report with its verdict."""
    return {**output.whole(report), "held": report.held}


def print_json(reports: Sequence[DrillReport], asked: int) -> None:
    """One report as it is; several with their summary. `asked`: how many runs were wanted."""
    if asked == 1:
        output.print_json(as_json(reports[0]))
        return
    output.print_json(
        {
            "drill": reports[0].drill,
            "held": len(reports) == asked and all(report.held for report in reports),
            "runs_wanted": asked,
            "summary": summary(reports),
            "runs": [as_json(report) for report in reports],
        }
    )


# --- for people ------------------------------------------------------------------------------------------------------


def show(report: DrillReport, console: Console) -> None:
    """The report for people."""
    console.print()
    console.print(Text(f"drill {report.drill}: {report.victim} {report.action}; seed {report.seed}", style="bold"))
    if report.phases:
        phases = ", ".join(f"{one.name} {one.seconds:.2f}" for one in report.phases)
        console.print(Text(f"seconds: {phases}"), soft_wrap=True)
    if report.traffic is not None:
        _show_traffic(report.traffic, console)
    if report.figures:
        console.print()
        figures = [(figure.name, _value(figure.value, figure.unit), figure.meaning) for figure in report.figures]
        console.print(output.table("", ["figure", "#", ""], figures))
    console.print()
    rows = []
    for one in report.checks:
        mark = Text("held", style="green") if one.held else Text("BROKEN", style="bold red")
        rows.append((mark, one.name, one.detail))
    console.print(output.table("", ["", "invariant", ""], rows))
    for one in report.checks:
        for example in one.examples:
            console.print(Text(f"    {one.name}: {example}", style="red"), soft_wrap=True)
    unseen = f", {report.steps_unseen} of them told from the znodes' versions" if report.steps_unseen else ""
    console.print(Text(f"{report.transitions} steps of transitions{unseen}", style="dim"))
    for note in report.notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)
    verdict = (
        Text("all invariants held", style="bold green") if report.held else Text("INVARIANTS BROKEN", style="bold red")
    )
    console.print(verdict)


def _show_traffic(traffic: Traffic, console: Console) -> None:
    """The table of what clients saw, and a line on what they did."""
    seen = traffic.unavailability
    rows = [
        (
            f"the {seen.affected} affected",
            *(output.seconds(value) for value in (seen.p50_s, seen.p99_s, seen.longest_s)),
        )
    ]
    everybody = (seen.all_p50_s, seen.all_p99_s, seen.longest_s)
    rows.append((f"all {seen.regions}", *(output.seconds(value) for value in everybody)))
    console.print()
    console.print(output.table("", ["region unavailable to its clients", "#p50", "#p99", "#longest"], rows))
    done = ", ".join(f"{count} x {kind}" for kind, count in traffic.operations.items())
    console.print(
        Text(
            f"load: {done}; one request to each region every {output.seconds(seen.resolution_s)};"
            f" p50 {traffic.latency_p50_ms:.0f} ms, p99 {traffic.latency_p99_ms:.0f} ms",
            style="dim",
        ),
        soft_wrap=True,
    )


def show_summary(reports: Sequence[DrillReport], asked: int, console: Console) -> None:
    """Several runs: each figure's spread, and which runs broke what."""
    console.print()
    console.print(Text(f"{len(reports)} of {asked} runs of drill {reports[0].drill}", style="bold"))
    rows = [
        (one.name, *(_value(value, one.unit) for value in (one.smallest, one.median, one.largest)))
        for one in summary(reports)
    ]
    console.print(output.table("", ["figure", "#smallest", "#median", "#largest"], rows))
    broken = [report for report in reports if not report.held]
    for report in broken:
        names = ", ".join(one.name for one in report.checks if not one.held)
        console.print(Text(f"BROKEN with --seed {report.seed} ({report.victim}): {names}", style="bold red"))
    if not broken and len(reports) == asked:
        console.print(Text(f"all invariants held in all {asked} runs", style="bold green"))
    elif len(reports) < asked:
        console.print(Text(f"{asked - len(reports)} runs were not carried out", style="bold red"))


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return output.seconds(value)
    return f"{value:g} {unit}".strip()
