"""The result of a drill: phases, unavailability, figures, checks, verdict; as a screen or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from cli.common import output


class InvariantCheck(msgspec.Struct):
    """One invariant: its name, whether it held, and the checked objects (or examples of violations)."""

    name: str
    held: bool
    detail: str
    examples: list[str] = []


class Figure(msgspec.Struct):
    """One measured duration, size or count; `unit` is s, ms, B, or empty for a count."""

    name: str
    value: float
    unit: str
    meaning: str


class DrillPhase(msgspec.Struct):
    """A phase of the drill: its beginning, in seconds since the drill began, and its duration."""

    name: str
    began_s: float
    seconds: float


class RegionOutage(msgspec.Struct):
    """A region's unavailability to its clients: number of outages, the longest, and the total."""

    region: str
    outages: int
    longest_s: float
    total_s: float


class Unavailability(msgspec.Struct):
    """Outages of regions for their clients; each region counts with its longest outage.

    `p50_s`, `p99_s`, `longest_s` are over the affected regions, `all_…` over all regions. The beginning of an outage is
    known with the precision `resolution_s`, the time between two requests to one region.
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
    #: Number of regions that were unavailable at the same time: steps of (seconds since the fault, number).
    band: list[tuple[float, int]] = []


class Traffic(msgspec.Struct):
    """The reads and writes during a drill, and their results."""

    seconds: float
    #: Operations by kind and outcome, such as "write ok".
    operations: dict[str, int]
    acknowledged_writes: int
    unknown_writes: int
    lost_or_doubled: int
    latency_p50_ms: float
    latency_p99_ms: float
    unavailability: Unavailability


class ForecastOutcome(msgspec.Struct):
    """An event that was forecast before the fault, and what happened. `expected`: yes, maybe or no."""

    event: str
    expected: str
    #: Earliest and latest time of the event in seconds from the fault; None: no latest time.
    earliest_s: float
    latest_s: float | None
    count: int
    why: str
    #: False if nothing outside of the process shows the event; `agrees` is then True.
    is_observed: bool
    agrees: bool
    outcome: str


class DrillReport(msgspec.Struct):
    """The result of a drill. `held`: all checks held."""

    drill: str
    victim: str
    figures: list[Figure]
    checks: list[InvariantCheck]
    #: Steps of transitions, and how many of them were too quick to be observed one by one.
    transitions: int
    steps_unseen: int
    notes: list[str] = []
    #: The fault that was injected.
    action: str = "was killed with SIGKILL"
    seed: int = 0
    seconds: float = 0.0
    #: When the fault was injected, in seconds since the drill began.
    struck_s: float = 0.0
    phases: list[DrillPhase] = []
    #: None if no load was requested, or if there were no rows to read and write.
    traffic: Traffic | None = None
    #: Events that were forecast before the fault, compared with what happened (`rk drill freeze`).
    forecast: list[ForecastOutcome] = []
    #: Arguments with which the drill is repeated, with a space before them.
    arguments: str = ""

    @property
    def held(self) -> bool:
        """Return the verdict."""
        return all(check.held for check in self.checks)


class Spread(msgspec.Struct):
    """A figure over several runs."""

    name: str
    unit: str
    smallest: float
    median: float
    largest: float


#: Violations listed in a report; the count is always complete.
EXAMPLES_MAX = 5


def check(name: str, violations: Sequence[str], detail: str) -> InvariantCheck:
    """Return a check that holds if there is no violation; `detail` then names the checked objects."""
    if not violations:
        return InvariantCheck(name, True, detail)
    return InvariantCheck(name, False, output.count(len(violations), "violation"), list(violations[:EXAMPLES_MAX]))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed (nearest rank); 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(name: str, seconds: Sequence[float], meaning: str) -> list[Figure]:
    """Return median, p99 and maximum of some durations."""
    return [
        Figure(f"{name}, {label}", round(value, 3), "s", meaning)
        for label, value in (
            ("median", percentile(seconds, 0.5)),
            ("p99", percentile(seconds, 0.99)),
            ("longest", max(seconds, default=0.0)),
        )
    ]


def summary(reports: Sequence[DrillReport]) -> list[Spread]:
    """Return each figure over the runs that have it, unavailability first."""
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
    """Return the report with its verdict."""
    return {**output.whole(report), "held": report.held}


def print_json(reports: Sequence[DrillReport], requested: int) -> None:
    """Print one report, or several with their summary. `requested`: number of runs that were requested."""
    if requested == 1:
        output.print_json(as_json(reports[0]))
        return
    output.print_json(
        {
            "drill": reports[0].drill,
            "held": len(reports) == requested and all(report.held for report in reports),
            "runs_wanted": requested,
            "summary": summary(reports),
            "runs": [as_json(report) for report in reports],
        }
    )


# --- for people ------------------------------------------------------------------------------------------------------


def show(report: DrillReport, console: Console) -> None:
    """Print the report for people."""
    console.print()
    console.print(Text(f"drill {report.drill}: {report.victim} {report.action}; seed {report.seed}", style="bold"))
    if report.phases:
        phases = ", ".join(f"{one.name} {one.seconds:.2f}" for one in report.phases)
        console.print(Text(f"seconds: {phases}"), soft_wrap=True)
    if report.traffic is not None:
        _show_traffic(report.traffic, console)
    if report.figures:
        console.print()
        figures = [(figure.name, shown_value(figure.value, figure.unit), figure.meaning) for figure in report.figures]
        console.print(output.table("", ["figure", "#", ""], figures))
    if report.forecast:
        lines = [(one.event, one.expected, one.outcome, "yes" if one.agrees else "NO") for one in report.forecast]
        console.print()
        console.print(output.table("", ["event", "forecast", "happened", "as forecast"], lines))
    console.print()
    rows = []
    for one in report.checks:
        mark = Text("held", style="green") if one.held else Text("BROKEN", style="bold red")
        rows.append((mark, one.name, one.detail))
    console.print(output.table("", ["", "invariant", ""], rows))
    for one in report.checks:
        for example in one.examples:
            console.print(Text(f"    {one.name}: {example}", style="red"), soft_wrap=True)
    unseen = f", {report.steps_unseen} of them inferred from the znodes' versions" if report.steps_unseen else ""
    console.print(Text(f"{report.transitions} steps of transitions{unseen}", style="dim"))
    for note in report.notes:
        console.print(Text(note, style="yellow"), soft_wrap=True)
    verdict = (
        Text("all invariants held", style="bold green") if report.held else Text("INVARIANTS BROKEN", style="bold red")
    )
    console.print(verdict)


def _show_traffic(traffic: Traffic, console: Console) -> None:
    """Print the table of outages, and a line about the load."""
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


def show_summary(reports: Sequence[DrillReport], requested: int, console: Console) -> None:
    """Print the spread of each figure over several runs, and the runs with violations."""
    console.print()
    console.print(Text(f"{len(reports)} of {requested} runs of drill {reports[0].drill}", style="bold"))
    rows = [
        (one.name, *(shown_value(value, one.unit) for value in (one.smallest, one.median, one.largest)))
        for one in summary(reports)
    ]
    console.print(output.table("", ["figure", "#smallest", "#median", "#largest"], rows))
    broken = [report for report in reports if not report.held]
    for report in broken:
        names = ", ".join(one.name for one in report.checks if not one.held)
        console.print(Text(f"BROKEN with --seed {report.seed} ({report.victim}): {names}", style="bold red"))
    if not broken and len(reports) == requested:
        console.print(Text(f"all invariants held in all {requested} runs", style="bold green"))
    elif len(reports) < requested:
        console.print(Text(f"{requested - len(reports)} runs did not take place", style="bold red"))


def shown_value(value: float, unit: str) -> str:
    """Return a figure for people, with its unit."""
    if unit == "s":
        return output.seconds(value)
    if unit == "B":
        return output.size(int(value))
    return f"{value:g} {unit}".strip()
