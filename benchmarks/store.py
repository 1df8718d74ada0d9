"""Our store, compiled and interpreted, against Apache ZooKeeper on the same machine in the same minutes.

    python -m benchmarks.store [--bench DIR] [--nodes 1,3] [--rounds 3] [--seconds 2] [--only TEXT] [--full]

The load comes from the generator in --bench (`zkbench`, and `servers.py`, which starts the clusters with fsync on); it
is copied and built in the work folder. ZooKeeper's jars are those that pyspark ships. All clusters of one size run side
by side and idle while another one is measured; each round goes through the rows, and in each row from target to target.
Prints a Markdown table: medians over the rounds, the ratio to ZooKeeper, CPU of all server processes per operation,
and how much of the machine other processes took.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from coord.compiled import PURE_VARIABLE, form

ROOT: Final = Path(__file__).resolve().parent.parent
ZOOKEEPER: Final = "ZooKeeper"
OURS: Final = ("compiled", "interpreted")

Row = tuple[str, list[str]]


def _load(mode: str, connections: int, window: int, *more: str) -> Row:
    arguments = ["-m", mode, "-c", str(connections), "-w", str(window), *more]
    return f"{mode} {connections}x{window}{' ' + ' '.join(more) if more else ''}", arguments


#: Connections x requests in flight on each, 100 bytes of data.
SHORT: Final[list[Row]] = [
    _load("get", 1, 1),
    _load("get", 10, 16),
    _load("get", 50, 1),
    _load("get", 50, 64),
    _load("exists", 10, 16),
    _load("get_children", 10, 16),
    _load("set", 1, 1),
    _load("set", 10, 1),
    _load("set", 10, 16),
    _load("set", 50, 64),
    _load("create", 10, 16),
    _load("delete", 10, 16, "-n", "20000"),
    _load("multi_set", 4, 2, "-k", "100"),
    ("watch_persistent 1000", ["-m", "watch_persistent", "-c", "1000"]),
    ("connect 50", ["-m", "connect", "-c", "50"]),
]
FULL: Final[list[Row]] = [
    *SHORT,
    _load("exists", 50, 64),
    _load("get_children", 50, 64),
    _load("set", 10, 16, "-z", "1024"),
    _load("create", 10, 1),
    _load("create", 50, 64),
    _load("create_seq", 10, 16),
    _load("create_ephemeral", 10, 16),
    _load("delete", 10, 1, "-n", "5000"),
    _load("mixed", 10, 16),
    _load("mixed", 10, 16, "-r", "50"),
    _load("multi_set", 1, 1, "-k", "100"),
    _load("multi_create", 4, 2, "-k", "100"),
    _load("multi_set", 10, 4, "-k", "3"),
    ("cas on one znode 10", ["-m", "cas", "-c", "10", "-n", "1"]),
    ("watch 1000", ["-m", "watch", "-c", "1000"]),
    ("connect 1", ["-m", "connect", "-c", "1"]),
]


class Target:
    """A running cluster and what was measured on it: row -> results of the generator."""

    def __init__(self, name: str, cluster: Any) -> None:
        self.name = name
        self.cluster = cluster
        self.results: dict[str, list[dict[str, Any]]] = {}

    def median(self, row: str, field: str) -> float:
        """Over the rounds that worked; nan without any."""
        found = [result[field] for result in self.results.get(row, []) if field in result]
        return statistics.median(found) if found else float("nan")

    def faults(self, row: str) -> int:
        """Wrong or missing answers, and runs that failed as a whole."""
        counted = ("errors", "xid_errors", "bad_replies", "disconnects")
        return sum(
            sum(int(result.get(name, 0)) for name in counted) + ("ops_s" not in result)
            for result in self.results.get(row, [])
        )


def build_tools(bench: Path, work: Path) -> Path:
    """A copy of the generator, built. Raises SystemExit with one clear line."""
    if not (bench / "servers.py").exists():
        sys.exit(f"bench-store: no load generator in {bench} (--bench DIR)")
    tools = work / "tools"
    shutil.copytree(bench, tools, dirs_exist_ok=True)
    made = subprocess.run(["make", "-s"], cwd=tools, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(f"bench-store: the load generator does not build: {made.stderr.strip()[-300:]}")
    return tools


def jars() -> Path:
    """Where pyspark keeps ZooKeeper's jars."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        sys.exit("bench-store: ZooKeeper's jars are missing: install the extra `spark`, or set ZK_JARS")
    return Path(found.origin).parent / "jars"


@contextlib.contextmanager
def clusters(tools: Path, work: Path, nodes: int, names: list[str]) -> Iterator[list[Target]]:
    """ZooKeeper and ours with `nodes` nodes each, running; stopped and removed afterwards."""
    sys.path.insert(0, str(tools))
    servers = importlib.import_module("servers")
    rk = f"{sys.executable} -m cli"
    started: list[Target] = []
    try:
        for position, name in enumerate(names):
            kind = "zk" if name == ZOOKEEPER else "rk"
            os.environ["RK"] = f"env {PURE_VARIABLE}=1 {rk}" if name == "interpreted" else rk
            cluster = servers.Cluster(f"{kind}{nodes}", str(work), name=f"{name}{nodes}")
            cluster.base += 10 * position
            started.append(Target(name, cluster))
            cluster.start()
        yield started
    finally:
        for target in started:
            target.cluster.stop()


def measure(tools: Path, target: Target, row: Row, seconds: float, lock: TextIO | None) -> None:
    """One run of the generator against one target."""
    where = target.cluster.target()
    command = [str(tools / "zkbench"), "-s", where["hosts"], "-d", str(seconds), "-W", "1"]
    command += ["-P", ",".join(map(str, where["pids"])), *row[1]]
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds * 3 + 120,
            check=False,
            # With ZKBENCH_BOOST, the share of a busy machine that the servers have.
            preexec_fn=sys.modules["servers"].boost,
        )
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        result = {"fatal": repr(error)}
    finally:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)
    target.results.setdefault(row[0], []).append(result)


def table(targets: list[Target], rows: list[Row], nodes: int) -> str:
    """The results as Markdown; the first target is what the others are compared with."""
    reference = targets[0]
    others = targets[1:]
    head = f"| {nodes} node{'s' if nodes > 1 else ''} | {reference.name} ops/s | CPU µs |"
    head += "".join(f" {t.name} ops/s | CPU µs | ratio | p50 / p99 ms |" for t in others) + " others' CPU | faults |"
    lines = [head, "|" + " --- |" * (head.count("|") - 1)]
    for name, _ in rows:
        cells = [
            name,
            _figure(reference.median(name, "ops_s")),
            _figure(reference.median(name, "server_cpu_us_per_op")),
        ]
        for target in others:
            ops = target.median(name, "ops_s")
            cells += [_figure(ops), _figure(target.median(name, "server_cpu_us_per_op"))]
            cells += [f"**{ops / reference.median(name, 'ops_s'):.2f}**", _latencies(target, name)]
        busy = [r["other_cpu_s"] / r["dur"] for t in targets for r in t.results.get(name, []) if "other_cpu_s" in r]
        cores = os.cpu_count() or 1
        cells.append(f"{100 * statistics.median(busy) / cores:.0f} %" if busy else "-")
        cells.append("/".join(str(target.faults(name)) for target in targets))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _latencies(target: Target, row: str) -> str:
    found = [result["lat_ms"] for result in target.results.get(row, []) if "lat_ms" in result]
    if not found:
        return "-"
    return " / ".join(f"{statistics.median(each[name] for each in found):.2f}" for name in ("p50", "p99"))


def _figure(value: float) -> str:
    if value != value:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench-store", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bench", type=Path, default=ROOT.parent / "shared" / "bench", metavar="DIR")
    parser.add_argument("--work", type=Path, default=ROOT / "bench-work", metavar="DIR", help="on a real disk")
    parser.add_argument("--nodes", default="1,3", help="sizes of the clusters")
    parser.add_argument(
        "--targets", default=",".join((ZOOKEEPER, *OURS)), help="the first is the measure of the others"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="each measurement, after one second to warm up")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains this")
    parser.add_argument("--full", action="store_true", help="more rows")
    parser.add_argument("--lock", type=Path, help="hold a lock on this file during each measurement")
    parser.add_argument("--raw", type=Path, help="append every result as a line of JSON")
    return parser.parse_args()


def main() -> None:
    """Build, start, measure, print."""
    given = arguments()
    names = given.targets.split(",")
    if "compiled" in names and form() != "compiled":
        sys.exit(f"bench-store: this installation is {form()}: make install, or --targets {ZOOKEEPER},interpreted")
    if "ZK_JARS" not in os.environ:
        os.environ["ZK_JARS"] = str(jars())
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tools = build_tools(given.bench, work)
    rows = [row for row in (FULL if given.full else SHORT) if given.only in row[0]]
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(given.lock.open("a")) if given.lock else None
        raw = stack.enter_context(given.raw.open("a")) if given.raw else None
        for nodes in map(int, given.nodes.split(",")):
            with clusters(tools, work, nodes, names) as targets:
                for round_number in range(given.rounds):
                    for row in rows:
                        for target in targets if round_number % 2 == 0 else targets[::-1]:
                            measure(tools, target, row, given.seconds, lock)
                            if raw is not None:
                                result = target.results[row[0]][-1]
                                raw.write(json.dumps({"nodes": nodes, "row": row[0], "target": target.name, **result}))
                                raw.write("\n")
                                raw.flush()
                sys.stdout.write(table(targets, rows, nodes) + "\n\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
