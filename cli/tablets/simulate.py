"""`rk simulate --tablets`: hosts of tablets in simulated time, from seeds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import click
import msgspec

from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.output import console, count, print_json
from simulation.tablets.run import TabletsVerdict, run_tablets

#: Numbers of servers that the simulation takes.
SERVERS_MIN = 3
SERVERS_MAX = 5
#: Interval of progress lines.
LOG_EVERY_S = 2.0


class TabletsReport(msgspec.Struct):
    """The report of `--json`."""

    ok: bool
    seeds: int
    #: Each violation ends with the command that repeats it.
    failed: list[TabletsVerdict]
    simulated_s: float
    took_s: float
    #: Faults and rare situations over all runs, including copies by the checks of their orders.
    counts: dict[str, int]


class TabletsPlan(NamedTuple):
    """Parameters of a simulation. `servers` None: each seed chooses."""

    seeds: Sequence[int]
    servers: int | None
    #: Simulated seconds of faults, None: the usual ones.
    duration: float | None
    splits: bool
    merges: bool = False


def simulate_tablets(plan: TabletsPlan, *, trace: bool, keep_going: bool, as_json: bool) -> int:
    """Simulate tablets from seeds, and print a verdict. Return the exit code."""
    servers = plan.servers
    if servers is not None and not SERVERS_MIN <= servers <= SERVERS_MAX:
        raise UsageFaultError(
            f"--servers {servers}: tablets are simulated on {SERVERS_MIN} to {SERVERS_MAX} servers",
            "Leave --servers out to let each seed choose.",
        )
    report = _run_all(plan, trace=trace, keep_going=keep_going)
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report.ok else ExitStatus.REFUSED


def _run_all(plan: TabletsPlan, *, trace: bool, keep_going: bool) -> TabletsReport:
    talk = console(stderr=True)
    report = TabletsReport(True, 0, [], 0.0, 0.0, {})
    began = shown_s = time.monotonic()
    seeds, show = plan.seeds, click.echo if trace else None
    for seed in seeds:
        verdict = run_tablets(
            seed, plan.servers or 0, plan.duration or 0.0, show, splits=plan.splits, merges=plan.merges
        )
        report.seeds += 1
        report.simulated_s = round(report.simulated_s + verdict.simulated_s, 3)
        for what, often in verdict.counts.items():
            report.counts[what] = report.counts.get(what, 0) + often
        if verdict.violation:
            report.ok = False
            report.failed.append(verdict)
            if not keep_going:
                break
        if time.monotonic() - shown_s >= LOG_EVERY_S:
            shown_s = time.monotonic()
            talk.print(f"{report.seeds} of {count(len(seeds), 'run')}, {len(report.failed)} failed")
    report.took_s = round(time.monotonic() - began, 3)
    return report


def _show(report: TabletsReport) -> None:
    out = console()
    for verdict in report.failed:
        out.print(f"seed {verdict.seed}, {verdict.servers} servers: {verdict.violation}", markup=False)
    what = "held" if report.ok else f"did not hold in {count(len(report.failed), 'run')}"
    copies, deletions = report.counts.get("copied", 0), report.counts.get("deleted", 0)
    out.print(
        f"tablets: {count(report.seeds, 'run')}, {report.simulated_s:.0f} s simulated in {report.took_s:.1f} s, "
        f"{count(copies, 'replica')} copied, {count(deletions, 'replica')} removed; the invariants {what}"
    )
