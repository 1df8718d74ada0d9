"""What attacks cost honest clients, and what security costs. Tables of ratios, each of one run.

    python -m benchmarks.security [--only PARTS] [--attacks 10,11] [--rounds N] [--seconds S] [--raw FILE] [--json]
    python -m benchmarks.security --render FILE… [--json]     the tables of what earlier runs wrote with --raw

Real processes on this machine: a store of three nodes with fsync, two masters, three region servers. Progress goes to
stderr. The exit status is 1 if an attack misses a goal: p99 of an honest client at most 5 times its quiet p99, no
request fails, no lease lapses.

    beside     honest clients of store, rows and probes beside each attack on time, memory and connections
    flood      honest clients of a secured cluster beside a stranger who connects without a pause
    cost       a cluster of `rk up` beside one of `rk up --insecure`: get, set, put, scan, assign, page
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.arguments import made_folder, parts_of, positive
from benchmarks.pages import add_html_option, write_page
from benchmarks.security import beside, cost, flood
from benchmarks.security.attackers import ATTACKS
from benchmarks.security.report import Report, shown
from benchmarks.work import append_raw, read_raw, work_folder
from coord.compiled import form

PARTS: Final = ("beside", "flood", "cost")
NUMBERS: Final = [str(number) for number in ATTACKS]


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.security", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=parts_of(PARTS), default=list(PARTS), help="parts, separated by commas")
    parser.add_argument("--attacks", type=parts_of(NUMBERS), default=NUMBERS, help="numbers of attacks")
    parser.add_argument("--rows", type=parts_of(list(cost.ROWS_OF)), default=list(cost.ROWS_OF), help="rows of cost")
    parser.add_argument("--rounds", type=positive, default=3, help="rounds of flood and cost")
    parser.add_argument("--seconds", type=float, default=10, help="each measurement")
    parser.add_argument("--regions", type=positive, default=10_000, help="regions that are assigned")
    parser.add_argument("--up", default="", metavar="OPTIONS", help="further options of the secured `rk up`")
    parser.add_argument("--work", type=made_folder, default=None, help="where the data goes: a real disk")
    parser.add_argument("--raw", type=Path, help="append every result as a line of JSON")
    parser.add_argument("--render", type=Path, nargs="+", metavar="FILE", help="measure nothing, show these results")
    parser.add_argument("--json", action="store_true")
    add_html_option(parser)
    return parser.parse_args()


def measure(options: argparse.Namespace, work: Path, report: Report) -> None:
    """Measure the parts that were asked for."""
    for part in options.only:
        one = Report(report.store, report.cores)
        if part == "beside":
            one.beside = beside.measure(work, [int(number) for number in options.attacks], options.seconds)
        elif part == "flood":
            one.flood = flood.measure(work, options.rounds, options.seconds, options.up.split())
        else:
            shape = (options.rows, options.rounds, options.seconds, options.regions, options.up.split())
            one.cost = cost.measure(work, *shape)
        report.add(one)
        append_raw(options.raw, one)


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
        write_page(options.html, "Attacks and security", shown(report))
    return int(report.misses())


if __name__ == "__main__":
    sys.exit(main())
