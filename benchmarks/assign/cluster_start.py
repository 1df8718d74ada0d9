"""Assign many regions from one command, and print where the time goes.

    python -m benchmarks.assign.cluster_start [--regions 10339] [--servers 4] [--rounds 3] [--engine greedy]

Each round starts a cluster of real processes with `rk up` on an empty directory (3 store nodes with fsync, 2 masters).
The cluster creates a table of that many shared regions and assigns them. The round then stops the cluster and starts it
again: this is the *cluster start*, in which every region passes OFFLINE, OPENING, OPENED. The output also shows the
time that HBase's developers published for starting 10,339 regions: 250 s. Split keys are real package names, so the
table cannot have more regions than the list has names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.arguments import made_folder

#: Seconds that HBase's developers published for assigning 10,339 regions at start.
HBASE_S: Final = 250.0
HBASE_REGIONS: Final = 10_339
DEADLINE_S: Final = 300


def start_once(data_dir: Path, regions: int, servers: int, engine: str, base_port: int, opener: str) -> dict[str, Any]:
    """Run `rk up` until it reports that all regions are open, then stop it. Return its report of the start."""
    command = [sys.executable, "-m", "cli", "up", "--data-dir", str(data_dir), "--json"]
    command += ["--regions", str(regions), "--servers", str(servers), "--base-port", str(base_port)]
    command += ["--plan-engine", engine, "--opener", opener, "--replicas", "1"]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        for line in up.stdout:
            event = json.loads(line)
            if event["event"] == "up":
                return dict(event)
        _, errors = up.communicate(timeout=DEADLINE_S)
        raise SystemExit(f"rk up ended before all regions were open: {errors.strip()}")
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=DEADLINE_S)


def phases_of(report: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each phase by name. The master's own phases are named `master:…`."""
    found = {phase["name"]: float(phase["seconds"]) for phase in report["phases"]}
    found |= {f"master: {phase['name']}": float(phase["seconds"]) for phase in report["master_phases"]}
    return found


def assignment_seconds(report: dict[str, Any]) -> float:
    """Return the seconds from the table's creation, or the servers' registration, until the last region is OPENED."""
    phases = {phase["name"]: float(phase["seconds"]) for phase in report["phases"]}
    return sum(phases.get(name, 0.0) for name in ("table", "plan", "open"))


def table(title: str, reports: list[dict[str, Any]]) -> list[str]:
    """Return the lines of one table: median and range of each phase."""
    lines = [f"{title}", f"  {'phase':24} {'median s':>9} {'min':>8} {'max':>8}"]
    for name in phases_of(reports[0]):
        values = [phases_of(report).get(name, 0.0) for report in reports]
        lines.append(f"  {name:24} {statistics.median(values):9.3f} {min(values):8.3f} {max(values):8.3f}")
    return lines


def main() -> int:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regions", type=int, default=HBASE_REGIONS)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="greedy", choices=("greedy", "spark", "auto"))
    parser.add_argument(
        "--opener",
        default="kv",
        choices=("kv", "directories", "none"),
        help="what a region is: none measures the assignment alone",
    )
    parser.add_argument("--base-port", type=int, default=24_800)
    parser.add_argument("--work", type=made_folder, default=None, help="where the data goes: a real disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rk-bench-", dir=options.work or Path.cwd()))
    first: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    try:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            data_dir = work / str(number)
            arguments = (data_dir, options.regions, options.servers, options.engine, options.base_port, options.opener)
            first.append(start_once(*arguments))
            again.append(start_once(*arguments))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        print(json.dumps({"first": first, "again": again}))
        return 0
    print(
        f"{options.regions} regions, {options.servers} servers, 3 store nodes with fsync, 2 masters; "
        f"planned by {options.engine}; opener {options.opener}"
    )
    for title, reports in (("table made and assigned", first), ("cluster start, all regions again", again)):
        seconds = statistics.median(assignment_seconds(report) for report in reports)
        print("\n".join(table(title, reports)))
        ratio = (
            f"; HBase, as published: {HBASE_S:.0f} s, ratio {HBASE_S / seconds:.0f}"
            if options.regions == HBASE_REGIONS
            else ""
        )
        print(f"  ordered to all OPENED: {seconds:.2f} s, {options.regions / seconds:.0f} regions/s{ratio}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
