"""The cost of the region layer beside published figures of HBase, as one table.

    python -m benchmarks.assign [--only PARTS] [--full] [--rounds N] [--json]

Real processes on this machine: a store of three nodes with fsync, two masters, four region servers. Without --full the
growth is measured at its two smaller sizes. Progress goes to stderr.

    start      `rk up` on a cluster that exists: every region goes OFFLINE, OPENING, OPENED
    death      kill -9 of a server with 1,000 regions; detection (until its session ends) listed separately
    failover   kill -9 of the active master of 10,000 regions, 1,000 of them in transition
    growth     1,000, 10,000 and 100,000 regions: assignment, cost per transition, failover, memory
    takeover   kill -9 of the active master of 1,000, 10,000 and 100,000 regions at rest: warm and cold, memory
    ddl        create, alter and delete small tables: operations per second, by 1 and by 8 clients
    heartbeats 1,000 servers, one heartbeat a second each, and 100,000 regions: the masters' CPU
    million    10,000, 100,000 and 1,000,000 regions on 1,000 servers in one process: plan, assignment, rest, a server's
               death, balance, disable and enable, failovers, memory, longest turns; not measured unless named
    page       1,000, 10,000 and 100,000 regions that all move: the active master's CPU with 10 browsers and without

Regions hold key-value data in `start` and `death`, nothing elsewhere (`--opener` of `rk server run`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.arguments import made_folder, parts_of, positive
from benchmarks.assign import cluster_start, ddl, heartbeats, takeover, watched
from benchmarks.assign.ddl import Ddl
from benchmarks.assign.heartbeats import Beating
from benchmarks.assign.lab import say
from benchmarks.assign.million import phases as million
from benchmarks.assign.million import report as million_report
from benchmarks.assign.million.phases import Million
from benchmarks.assign.scenes import SIZES, Death, Failover, Growth, death, failover, growth
from benchmarks.assign.takeover import Takeover
from benchmarks.assign.watched import Watched
from benchmarks.pages import add_html_option, write_page
from benchmarks.work import work_folder
from cli.html.curves import Drawing, Series, curves
from coord.compiled import form

PARTS: Final = ("start", "death", "failover", "growth", "takeover", "ddl", "heartbeats", "page")
#: Measured only if named.
EXTRA_PARTS: Final = ("million",)
#: Parts that are measured at each size.
SIZED: Final = ("growth", "takeover", "page", "million")
SERVERS: Final = 4
BASE_PORT: Final = 24_800
#: Goals of this project, and the seconds that HBase's developers published for the same work.
GOAL_START_S: Final = 10.0
GOAL_DEATH_S: Final = 1.0
GOAL_FAILOVER_S: Final = 2.0
HBASE_DEATH_S: Final = 85.0


class Report(msgspec.Struct, omit_defaults=True):
    """All measurements: a list of rounds for each part."""

    store: str
    cores: int
    #: Seconds of a cluster start.
    start: list[float] = []
    death: list[Death] = []
    failover: list[Failover] = []
    growth: list[Growth] = []
    takeover: list[Takeover] = []
    ddl: list[Ddl] = []
    heartbeats: list[Beating] = []
    page: list[Watched] = []
    million: list[Million] = []


def measure(options: argparse.Namespace, work: Path) -> Report:
    """Measure all parts, one after the other, each on a new cluster."""
    report = Report(form(), os.cpu_count() or 1)
    for number in range(options.rounds):
        for part in options.only:
            for size in options.sizes if part in SIZED else (0,):
                began = time.monotonic()
                name = f"{part}{f' {size}' if size else ''}"
                say(f"-- round {number + 1} of {options.rounds}: {name}, load of the machine {os.getloadavg()[0]:.1f}")
                folder = work / f"{part}-{size}-{number}"
                _measure_part(report, part, folder, size, options.servers)
                shutil.rmtree(folder, ignore_errors=True)
                say(f"-- {name} took {time.monotonic() - began:.0f} s")
    return report


def _measure_part(report: Report, part: str, folder: Path, size: int, servers: int) -> None:
    if part == "start":
        for again in (False, True):
            started = cluster_start.start_once(folder, cluster_start.HBASE_REGIONS, SERVERS, "greedy", BASE_PORT, "kv")
            if again:
                report.start.append(cluster_start.assignment_seconds(started))
    elif part == "death":
        report.death.append(death(folder, "kv"))
    elif part == "failover":
        report.failover.append(failover(folder, "none"))
    elif part == "takeover":
        report.takeover.append(takeover.takeover(folder, size))
    elif part == "ddl":
        report.ddl += ddl.ddl(folder)
    elif part == "page":
        report.page.append(watched.watched(folder, size))
    elif part == "million":
        report.million.append(million.million(folder, size, servers_max=servers))
    elif part == "heartbeats":
        report.heartbeats.append(heartbeats.heartbeats(folder, heartbeats.SERVERS, heartbeats.REGIONS))
    else:
        report.growth.append(growth(folder, size))


def goals_table(report: Report) -> list[str]:
    """Return the table of the parts that have goals: medians over the rounds."""
    rows: list[tuple[str, Sequence[float], float, float]] = []
    if report.start:
        what = f"cluster start, {cluster_start.HBASE_REGIONS:,} regions on {SERVERS} servers"
        rows.append((what, report.start, GOAL_START_S, cluster_start.HBASE_S))
    if report.death:
        moved = report.death[0].regions
        what = f"server killed: its {moved:,} regions open elsewhere"
        rows.append((what, [one.reopening_s for one in report.death], GOAL_DEATH_S, HBASE_DEATH_S))
        rows.append(("  its detection, before that", [one.detection_s for one in report.death], 0, 0))
    if report.failover:
        found = report.failover[0].found
        what = f"master killed, {report.failover[0].regions:,} regions, {found:,} in transition: serving"
        rows.append((what, [one.serving_s for one in report.failover], GOAL_FAILOVER_S, 0))
        rows.append(("  place taken", [one.taken_s for one in report.failover], 0, 0))
        rows.append(("  all open, nothing in transition", [one.settled_s for one in report.failover], 0, 0))
    if not rows:
        return []
    lines = ["| seconds | median | min | max | goal | HBase, published |", "| --- | --: | --: | --: | --: | --: |"]
    for what, values, goal, hbase in rows:
        cells = [f"{one:.2f}" for one in (statistics.median(values), min(values), max(values))]
        cells += [f"{one:g}" if one else "" for one in (goal, hbase)]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return lines


#: Heading of a column, decimals, value.
COLUMNS: Final = (
    ("assigned s", 2, lambda one: one.assign_s),
    ("regions/s", 0, lambda one: one.regions / one.assign_s),
    ("CPU us: active master", 0, lambda one: one.cpu_active_us),
    ("standby", 0, lambda one: one.cpu_standby_us),
    ("servers", 0, lambda one: one.cpu_servers_us),
    ("store", 0, lambda one: one.cpu_store_us),
    ("znode writes", 2, lambda one: one.znode_writes),
    ("commits", 3, lambda one: one.writes),
    ("requests", 3, lambda one: one.requests),
    ("failover: serving s", 2, lambda one: one.failover.serving_s),
    ("load s", 2, lambda one: one.failover.load_s),
    ("recover s", 2, lambda one: one.failover.recover_s),
    ("memory, bytes", 0, lambda one: one.failover.memory_per_region),
)


def growth_table(rounds: list[Growth]) -> list[str]:
    """Return the table of growth, one line per size: CPU, writes, requests and memory per region."""
    if not rounds:
        return []
    heads = ["regions", *(head for head, _, _ in COLUMNS)]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['--:'] * len(heads))} |"]
    for size in sorted({one.regions for one in rounds}):
        same = [one for one in rounds if one.regions == size]
        medians = [(statistics.median(map(value, same)), digits) for _, digits, value in COLUMNS]
        cells = [f"{one:,.{digits}f}" if one else "" for one, digits in medians]  # 0: unknown
        lines.append(f"| {size:,} | {' | '.join(cells)} |")
    return lines


def _sizes(text: str) -> list[int]:
    return [positive(one.strip()) for one in text.split(",")]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.assign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=parts_of((*PARTS, *EXTRA_PARTS)), default=list(PARTS), help="parts, separated by commas"
    )
    parser.add_argument("--full", action="store_true", help="the growth up to 100,000 regions")
    parser.add_argument("--sizes", type=_sizes, default=None, help="regions of parts with sizes, separated by commas")
    parser.add_argument(
        "--servers", type=positive, default=million.SERVERS, help="servers of the part million, at most (%(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=1)
    parser.add_argument("--work", type=made_folder, default=None, help="where the data goes: a real disk")
    parser.add_argument("--json", action="store_true")
    add_html_option(parser)
    options = parser.parse_args()
    if options.only == ["million"]:
        options.sizes = options.sizes or million.SIZES
    options.sizes = options.sizes or (SIZES if options.full else SIZES[:-1])
    with work_folder(options.work) as work:
        report = measure(options, work)
    if options.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        return 0
    text = shown(report)
    sys.stdout.write(text)
    if options.html:
        write_page(
            options.html, "The region layer", text, growth_curves(report) + million_report.drawings(report.million)
        )
    return 0


def shown(report: Report) -> str:
    """Return the tables for people, as Markdown."""
    goals, grown = goals_table(report), growth_table(report.growth)
    parts = [[f"3 store nodes with fsync ({report.store}), 2 masters, 4 servers, {report.cores} cores"], goals]
    if grown:
        unit = "CPU in microseconds, znode writes, commits, requests, bytes of a master's memory"
        parts += [[f"growth; per region: {unit}"], grown]
    if report.takeover:
        parts += [
            ["takeover of regions at rest; seconds from the kill, and of its phases"],
            takeover.table(report.takeover),
            takeover.culprits(report.takeover),
        ]
    if report.ddl:
        parts += [["operations on tables of four regions"], ddl.table(report.ddl)]
    if report.heartbeats:
        parts += [["heartbeats; parts of a core, CPU in microseconds"], heartbeats.table(report.heartbeats)]
    if report.page:
        parts += [["the live page while all regions close and open"], watched.table(report.page)]
    if report.million:
        told = "all regions on many servers in one process; processor in microseconds per region of the phase"
        parts += [[told], million_report.phases_table(report.million), million_report.sizes_table(report.million)]
        parts += [million_report.culprits(report.million)]
    return "".join("\n".join(lines) + "\n\n" for lines in parts if lines)


def growth_curves(report: Report) -> list[Drawing]:
    """Return the curves over the number of regions: seconds, processor of the active master, failover; none for one
    size."""
    if len({one.regions for one in report.growth}) < 2:
        return []

    def medians(value: Callable[[Growth], float]) -> tuple[tuple[float, float], ...]:
        sizes = sorted({one.regions for one in report.growth})
        return tuple((s, statistics.median(value(one) for one in report.growth if one.regions == s)) for s in sizes)

    found = (
        ("assigned", "s", (Series("all regions open", medians(lambda one: one.assign_s)),)),
        (
            "processor per region",
            "us",
            (
                Series("active master", medians(lambda one: one.cpu_active_us)),
                Series("servers", medians(lambda one: one.cpu_servers_us)),
                Series("store", medians(lambda one: one.cpu_store_us)),
            ),
        ),
        ("failover", "s", (Series("until the next master serves", medians(lambda one: one.failover.serving_s)),)),
        (
            "memory of the active master",
            "B per region",
            (Series("", medians(lambda one: one.failover.memory_per_region)),),
        ),
    )
    return [curves(title, unit, series) for title, unit, series in found]


if __name__ == "__main__":
    sys.exit(main())
