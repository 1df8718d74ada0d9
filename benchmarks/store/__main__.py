"""Measure our store, compiled and interpreted, against Apache ZooKeeper on the same machine in the same minutes.

    python -m benchmarks.store [--nodes 1,3] [--rounds 3] [--seconds 2] [--what load,start,sessions,outage,million]
                               [--only TEXT] [--full] [--raw FILE] [--bench DIR] [--work DIR] [--json]
    python -m benchmarks.store --before DIR --targets before,compiled       an older checkout and this one
    python -m benchmarks.store --render FILE… [--json]           the table of what earlier runs wrote with --raw

The load comes from the generator in --bench (`zkbench`, and `servers.py`, which starts the clusters with fsync on); it
is copied and built in the work folder. ZooKeeper's jars are those that pyspark ships. For the rows of load, all
clusters of one size run side by side; while one is measured, the others are idle. Each round takes one row after the
other, and in each row one target after the other. Each of the other cases runs alone on the machine, one target after
the other.

The program prints a Markdown table for each size: medians over the rounds, the ratio to ZooKeeper (above 1 is always
better than ZooKeeper; ✗ marks a missed goal), CPU of all server processes per operation, and the share of the machine
that other processes used. A long measurement can be taken in pieces: --only and --what choose, --raw collects, --render
makes one table of all.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

from benchmarks.arguments import made_folder
from benchmarks.pages import add_html_option, write_page
from benchmarks.store.cases import CASES
from benchmarks.store.clusters import Fleet, build_tools, jars
from benchmarks.store.matrix import BEFORE, FULL, OURS, SHORT, ZOOKEEPER, Row
from benchmarks.store.report import Result, Results, as_json, table
from coord.compiled import form

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LOAD: Final = "load"


class Bench:
    """One run of this program, and the destination of its results."""

    def __init__(self, given: argparse.Namespace, raw: TextIO | None, lock: TextIO | None) -> None:
        self.given = given
        self.results = Results()
        self._raw = raw
        self._lock = lock

    def load(self, fleet: Fleet, names: list[str], rows: list[Row]) -> None:
        """Measure the rows of steady load, interleaved over the targets."""
        with fleet.running(names) as clusters:
            for round_number in range(self.given.rounds):
                for row in rows:
                    for name in names if round_number % 2 == 0 else names[::-1]:
                        with self._alone():
                            result = _measure(fleet, clusters[name], row, self.given.seconds)
                        self._note(fleet.nodes, row[0], name, result)

    def case(self, fleet: Fleet, names: list[str], case: str) -> None:
        """Measure a case on every target."""
        for round_number in range(self.given.rounds):
            for name in names if round_number % 2 == 0 else names[::-1]:
                with self._alone():
                    try:
                        CASES[case](
                            fleet, name, lambda row, result, name=name: self._note(fleet.nodes, row, name, result)
                        )
                    except (RuntimeError, ValueError, IndexError, KeyError, subprocess.TimeoutExpired) as error:
                        sys.stderr.write(f"bench-store: {case}, {fleet.nodes} nodes, {name}: {error!r}\n")

    def _note(self, nodes: int, row: str, target: str, result: Result) -> None:
        self.results.add(nodes, row, target, result)
        value = result.get("value", result.get("ops_s", float("nan")))
        sys.stderr.write(f"{nodes}  {row}  {target}: {value:,.1f} {result.get('unit', '/s')}\n")
        if self._raw is not None:
            noted = {"nodes": nodes, "row": row, "target": target, "date": time.strftime("%Y-%m-%d %H:%M"), **result}
            self._raw.write(json.dumps(noted) + "\n")
            self._raw.flush()

    @contextlib.contextmanager
    def _alone(self) -> Any:
        if self._lock is None:
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def render(self) -> str:
        """Return all results, for people or for programs."""
        if self.given.json:
            return as_json(self.results) + "\n"
        return self.tables()

    def tables(self) -> str:
        """Return the tables of all sizes of clusters, as Markdown."""
        return "".join(table(self.results, nodes) + "\n\n" for nodes in self.results.sizes())


def _measure(fleet: Fleet, cluster: Any, row: Row, seconds: float) -> Result:
    """Run the generator once against one target."""
    process = fleet.spawn(fleet.generator(cluster, ["-d", str(seconds), "-W", "1", *row[1]]))
    try:
        said, _ = process.communicate(timeout=seconds * 3 + 120)
        result: Result = json.loads(said.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        process.kill()
        result = {"fatal": repr(error)}
    return result


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="bench-store", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bench", type=Path, default=ROOT.parent / "shared" / "bench", metavar="DIR")
    parser.add_argument("--work", type=made_folder, default=ROOT / "bench-work", metavar="DIR", help="on a real disk")
    parser.add_argument("--nodes", default="1,3", help="sizes of the clusters")
    targets = ",".join((ZOOKEEPER, *OURS))
    parser.add_argument("--targets", default=targets, help="the first is the measure of the others")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, installed: the target `before`")
    parser.add_argument("--what", default=",".join((LOAD, *CASES)), help="rows of load, and cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=2, help="each measurement of load, after one second to warm up"
    )
    parser.add_argument("--only", default="", metavar="TEXT,…", help="rows of load whose name contains one of these")
    parser.add_argument("--full", action="store_true", help="more rows of load")
    parser.add_argument("--lock", type=Path, help="hold a lock on this file during each measurement")
    parser.add_argument("--raw", type=Path, help="append every result as a line of JSON")
    parser.add_argument("--render", type=Path, nargs="+", metavar="FILE", help="measure nothing, show these results")
    parser.add_argument("--json", action="store_true", help="the tables for programs")
    add_html_option(parser)
    given = parser.parse_args()
    unknown = set(given.what.split(",")) - {LOAD, *CASES}
    if unknown:
        parser.error(f"--what knows {LOAD}, {', '.join(CASES)}, not {', '.join(sorted(unknown))}")
    known = (ZOOKEEPER, *OURS, *((BEFORE,) if given.before else ()))
    unknown = set(given.targets.split(",")) - set(known)
    if unknown:
        parser.error(f"--targets knows {', '.join(known)}, not {', '.join(sorted(unknown))}")
    if given.before and not (given.before / ".venv/bin/python").exists():
        parser.error(f"{given.before} has no .venv/bin/python: run `make install` there")
    return given


def main() -> None:
    """Build, start, measure, print."""
    given = arguments()
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(given.raw.open("a")) if given.raw else None
        lock = stack.enter_context(given.lock.open("a")) if given.lock else None
        bench = Bench(given, raw, lock)
        if given.render:
            for path in given.render:
                bench.results.read(path)
        else:
            _measure_all(bench)
        sys.stdout.write(bench.render())
        if given.html:
            write_page(given.html, "The store", bench.tables())


def _measure_all(bench: Bench) -> None:
    given = bench.given
    names = given.targets.split(",")
    if "compiled" in names and form() != "compiled":
        sys.exit(f"bench-store: this installation is {form()}: make install, or --targets {ZOOKEEPER},interpreted")
    if "ZK_JARS" not in os.environ:
        os.environ["ZK_JARS"] = str(jars())
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tools = build_tools(given.bench, work)
    wanted = given.only.split(",")
    rows = [row for row in (FULL if given.full else SHORT) if any(text in row[0] for text in wanted)]
    for nodes in map(int, given.nodes.split(",")):
        fleet = Fleet(tools, work, nodes, given.before and given.before.resolve())
        for what in given.what.split(","):
            if what == LOAD:
                bench.load(fleet, names, rows)
            else:
                bench.case(fleet, names, what)


if __name__ == "__main__":
    main()
