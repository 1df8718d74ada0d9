"""Tables of tablets beside tables of shared regions, in the same run: one table of ratios and goals.

    python -m benchmarks.tablets [--only PARTS] [--full] [--rounds N] [--seconds S] [--raw FILE] [--json]
    python -m benchmarks.tablets --render FILE… [--json]      the tables of what earlier runs wrote with --raw

Real processes on this machine: a store of three nodes with fsync, two masters, three region servers. Progress goes to
stderr. A long measurement can be taken in pieces: --only chooses, --raw collects, --render makes one table of all.

    load       bulk load, 1,000 rows of 100 bytes per request, 4 clients
    put        single puts of 16 clients
    get        linearizable gets of one client
    create     a table of N regions until all are open, tablets with leaders (N = 100, with --full 1,000)
    restart    kill -9 of a server with N tablets and its start, until its replicas have caught up
    killed     kill -9 of a server under 8 writers: the longest gap of each of 200 regions
    frozen     SIGSTOP of a server, likewise
    copy       a copy of one tablet to another server, rows of 100, 1,000 and 10,000 bytes, beside a plain file
    split      a split of a tablet of 300 MB under 16 clients: the longest put, and the time without one
    heal       kill -9 of a server for good, with N tablets of 1 MB: until all have three live members again
    idle       the servers' CPU and memory with N tablets without work
    policy     the policy of members alone, 10,000 tablets, no I/O

`python -m benchmarks.tablets.path` measures the path of a write inside the servers, layer by layer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.arguments import made_folder, parts_of, positive
from benchmarks.assign.lab import say
from benchmarks.pages import add_html_option, write_page
from benchmarks.tablets import copying, healing, idle, policy, scenes, splitting
from benchmarks.tablets.cluster import TABLET
from benchmarks.tablets.report import Report, copies_table, costs_table, goals_table
from benchmarks.work import append_raw, read_raw, work_folder
from coord.compiled import form

SPEEDS: Final = ("load", "put", "get")
OUTAGES: Final = ("killed", "frozen")
PARTS: Final = (*SPEEDS, "create", "restart", *OUTAGES, "copy", "split", "heal", "idle", "policy")
REGIONS: Final = 100
REGIONS_FULL: Final = 1_000


def measure(options: argparse.Namespace, work: Path, report: Report) -> None:
    """Measure all parts, one after the other, and each kind of part on a new cluster."""
    for number in range(options.rounds):
        speeds = [part for part in options.only if part in SPEEDS]
        steps = ["+".join(speeds)] if speeds else []
        steps += [part for part in options.only if part not in SPEEDS]
        for part in steps:
            began = time.monotonic()
            say(f"-- round {number + 1} of {options.rounds}: {part}, load of the machine {os.getloadavg()[0]:.1f}")
            folder = work / f"{part}-{number}"
            one = Report(report.store, report.cores)
            _measure_part(one, part, folder, options)
            report.add(one)
            append_raw(options.raw, one)
            shutil.rmtree(folder, ignore_errors=True)
            say(f"-- {part} took {time.monotonic() - began:.0f} s")


def _measure_part(report: Report, part: str, folder: Path, options: argparse.Namespace) -> None:
    if part == "create":
        report.create = scenes.create(folder, options.regions)
    elif part == "restart":
        report.restart = [scenes.restart(folder, options.regions)]
    elif part == "copy":
        report.copy = [copying.copies(folder / str(size), size) for size in copying.SIZES]
    elif part == "split":
        report.split = [splitting.split(folder)]
    elif part == "heal":
        report.heal = [healing.heal(folder, options.regions)]
    elif part == "idle":
        report.idle = [idle.idle(folder, options.regions)]
    elif part == "policy":
        report.policy = [policy.cost()]
    elif part in OUTAGES:
        for storage in scenes.BOTH if options.both else (TABLET,):
            report.outages.append(scenes.outage(folder / storage, storage, part, scenes.OUTAGE_TABLETS))
    else:
        found = scenes.speeds(folder, part.split("+"), options.seconds)
        report.load, report.put, report.get = found.load, found.put, found.get


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tablets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=parts_of(PARTS), default=list(PARTS), help="parts, separated by commas")
    sized = "create, restart, heal and idle"
    parser.add_argument("--full", action="store_true", help=f"{sized} with {REGIONS_FULL} regions")
    parser.add_argument("--regions", type=positive, default=None, help=f"regions of {sized}")
    parser.add_argument("--rounds", type=positive, default=1)
    parser.add_argument("--seconds", type=float, default=5, help="each measurement of load, put and get")
    parser.add_argument("--tablets-only", dest="both", action="store_false", help="outages of tablets alone")
    parser.add_argument("--work", type=made_folder, default=None, help="where the data goes: a real disk")
    parser.add_argument("--raw", type=Path, help="append every result as a line of JSON")
    parser.add_argument("--render", type=Path, nargs="+", metavar="FILE", help="measure nothing, show these results")
    parser.add_argument("--json", action="store_true")
    add_html_option(parser)
    options = parser.parse_args()
    options.regions = options.regions or (REGIONS_FULL if options.full else REGIONS)
    return options


def main() -> int:
    """Measure and print."""
    options = arguments()
    report = Report(form(), os.cpu_count() or 1)
    if options.render:
        for one in read_raw(options.render, Report):
            report.store, report.cores = one.store, one.cores
            report.add(one)
    else:
        with work_folder(options.work) as work:
            measure(options, work, report)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n" if options.json else shown(report))
    if options.html:
        write_page(options.html, "Tablets beside shared regions", shown(report))
    return 0


def shown(report: Report) -> str:
    """Return the tables for people."""
    head = f"3 store nodes with fsync ({report.store}), 2 masters, 3 servers, {report.cores} cores"
    tables = [[head], goals_table(report), copies_table(report), costs_table(report)]
    return "".join("\n".join(one) + "\n\n" for one in tables if one)


if __name__ == "__main__":
    sys.exit(main())
