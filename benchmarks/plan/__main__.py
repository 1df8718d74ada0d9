"""Measure bulk plans: value against the best possible, broken rules, balance, moves, seconds, memory.

    python -m benchmarks.plan [--size 10k,100k,1m] [--only NAME,…] [--engine NAME,…] [--seed N] [--cores 2]
                              [--raw FILE] [--work DIR] [--json]
    python -m benchmarks.plan --render FILE… [--json]           the tables of what earlier runs wrote with --raw

NAME of --only is a scenario (`regions/plan/problem/scenarios.py`), `hbase` (HBase's own planner problem: a million
regions on a thousand servers) or `dead-server` (the master's work when one of a thousand servers with a million regions
dies). Engines: flow, greedy, spark, and the plain methods sorted and hbase (`benchmarks/plan/references.py`).

A separate process makes every plan, from Parquet files to a manifest, as `python -m regions.plan` does. This program
judges the plan from the input and the plan's rows. J* is the value of the exact flow before rounding and repair; no
plan can exceed it. L* is the number of local bytes in the exact plan. Seconds run from the start of the process to its
end; the start and the warm-up of Spark are listed separately. Memory is the sum over all processes of the plan.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, TextIO

import msgspec

from benchmarks.arguments import made_folder
from benchmarks.pages import add_html_option, write_page
from benchmarks.plan import dead_server, hbase
from benchmarks.plan.judging import worth
from benchmarks.plan.report import Row, as_json, tables
from benchmarks.plan.running import machine, run
from regions.plan import Params, PlanError
from regions.plan.artifact.files import read_plan, write_snapshot
from regions.plan.problem.numbered import NumberedProblem, encode
from regions.plan.problem.scenarios import SCENARIOS, scenario

SIZES: Final = {"10k": (10_000, 100), "100k": (100_000, 1000), "1m": (1_000_000, 1000)}
#: The exact flow comes first, because its value is J*.
ENGINES: Final = ("flow", "greedy", "spark", "sorted", "hbase")
SPECIAL: Final = ("hbase", "dead-server")
#: A seed that was not used while the engines were written.
SEED: Final = 9001


class Bench:
    """One run of this program: the choice of measurements, and the destination of results."""

    def __init__(self, options: argparse.Namespace, raw: TextIO | None) -> None:
        self.options = options
        self.rows: list[Row] = []
        self._raw = raw
        self._start = time.monotonic()

    def note(self, row: Row) -> None:
        """Keep a result and print it."""
        self.rows.append(row)
        self.say(row.one_line())
        if self._raw is not None:
            self._raw.write(json.dumps(msgspec.to_builtins(row)) + "\n")
            self._raw.flush()

    def say(self, text: str) -> None:
        """Print a line of progress on standard error."""
        sys.stderr.write(f"[{time.monotonic() - self._start:7.1f} s] {text}\n")
        sys.stderr.flush()

    def case(self, size: str, name: str) -> None:
        """Run all engines on one input."""
        regions, servers = SIZES[size]
        params = Params()
        with tempfile.TemporaryDirectory(prefix="bench-plan-", dir=self.options.work) as work:
            self.say(f"{size} {name}: making the input")
            snapshot = scenario(name, regions=regions, servers=servers, seed=self.options.seed)
            write_snapshot(Path(work, "in"), snapshot, params, kind="parquet")
            problem = encode(snapshot, params, {})
            del snapshot
            for engine in ENGINES:
                if engine in self.options.engines:
                    self.say(f"{size} {name}: {engine} …")
                    self.note(self._measure(size, name, engine, Path(work), problem))

    def _measure(self, size: str, name: str, engine: str, work: Path, problem: NumberedProblem) -> Row:
        """Run one engine on an input that has been written."""
        before, out = machine(), work / engine
        files = ("--input", str(work / "in"), "--output", str(out))
        if engine == "spark":
            done = run("regions.plan.spark_job", *files, "--master", f"local[{self.options.cores}]", "--warm-up")
        elif engine in ("sorted", "hbase"):
            done = run("benchmarks.plan.references", *files, "--method", engine)
        else:
            done = run("regions.plan", *files, "--engine", engine)
        row = Row(
            size=size,
            scenario=name,
            seed=self.options.seed,
            engine=engine,
            date=time.strftime("%Y-%m-%d %H:%M"),
            load=before["load"],
            cores=before["cores"],
            error=done.error,
            peak_mb=round(done.peak_bytes / 2**20),
            stages=done.stages,
        )
        if not done.error:
            start = done.stages.get("warm-up", done.stages.get("session", 0.0))
            row.start_s, row.seconds = start, round(done.stages["done"] - start, 2)
            made, manifest = read_plan(out)
            row.value_max, row.engine_note = manifest.stats.value_max, manifest.note
            row.worth = worth(problem, made.rows)
            row.digest = made.digest
        shutil.rmtree(out, ignore_errors=True)
        return row


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make bench-plan", description=(__doc__ or "").split("\n")[0])
    names = (*SCENARIOS, *SPECIAL)
    parser.add_argument("--size", default=",".join(SIZES), help=f"of {', '.join(SIZES)}; all by default")
    parser.add_argument("--only", default=",".join(names), help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--engine", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}; all by default")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark uses")
    parser.add_argument("--raw", type=Path, help="append each result to this file, as one line of JSON")
    parser.add_argument("--work", type=made_folder, help="folder for inputs and plans; by default a temporary one")
    parser.add_argument("--render", type=Path, nargs="+", help="measure nothing: tables of files written with --raw")
    parser.add_argument("--json", action="store_true", help="results as JSON instead of tables")
    add_html_option(parser)
    options = parser.parse_args(arguments)
    options.sizes = _chosen(parser, "--size", options.size, tuple(SIZES))
    options.names = _chosen(parser, "--only", options.only, names)
    options.engines = _chosen(parser, "--engine", options.engine, ENGINES)
    return options


def _chosen(parser: argparse.ArgumentParser, option: str, given: str, known: tuple[str, ...]) -> list[str]:
    """Return the names in a comma-separated list, in the order of `known`."""
    wanted = {name.strip() for name in given.split(",")}
    if strange := sorted(wanted - set(known)):
        parser.error(f"{option}: {', '.join(strange)} is none of {', '.join(known)}")
    return [name for name in known if name in wanted]


def main(arguments: list[str]) -> int:
    """Measure or render. Return exit status 1 if a plan failed or broke a rule that our engines keep."""
    options = parse(arguments)
    if options.render:
        lines = [line for path in options.render for line in path.read_text().splitlines()]
        rows = [msgspec.json.decode(line, type=Row) for line in lines]
    else:
        rows = _measured(options)
    print(as_json(rows) if options.json else tables(rows))
    if options.html:
        write_page(options.html, "Bulk plans", tables(rows))
    return 1 if any(row.error or row.breaks for row in rows) else 0


def _measured(options: argparse.Namespace) -> list[Row]:
    """Run the chosen measurements, the small sizes first."""
    raw = options.raw.open("a") if options.raw else None
    try:
        bench = Bench(options, raw)
        for size in options.sizes:
            for name in options.names:
                if name not in SPECIAL:
                    bench.case(size, name)
        if "hbase" in options.names:
            hbase.measure(bench.note, bench.say, [one for one in ("greedy", "flow") if one in options.engines])
        if "dead-server" in options.names:
            dead_server.measure(bench.note, bench.say)
    finally:
        if raw is not None:
            raw.close()
    return bench.rows


if __name__ == "__main__":
    # A SIGTERM must also end the planning process and remove its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except (PlanError, OSError) as error:
        sys.stderr.write(f"bench-plan: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
