"""Cases other than steady load: starts, simultaneous sessions, a failing leader, memory, a million znodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.store.clusters import Fleet
from benchmarks.store.report import Result

#: Reports one result as soon as it is known: row, result.
Tell = Callable[[str, Result], None]

#: Seconds after its start at which a node counts as idle.
IDLE_S: Final = 5.0
SESSIONS: Final = 1000
#: Seconds of observation around the failure of a leader.
OUTAGE_S: Final = {"killed": 5, "frozen": 20}
#: Resolution of measured outages: a prober reconnects after this much silence.
PROBE_MS: Final = 100
#: While pauses by snapshots are measured: entries between two snapshots, and seconds of the load.
PAUSE_ENTRIES: Final = 30_000
PAUSE_S: Final = 12
#: Time limit of a start. The generator gives up on a node and retries by itself.
START_S: Final = 120


def start(fleet: Fleet, name: str, tell: Tell) -> None:
    """Start a new cluster. Measure from the start of its processes to the first acknowledged write, and its idle
    memory."""
    with _cluster(fleet, name) as cluster:
        began = time.time()
        cluster.start(wait=False)
        told = _wait(fleet, cluster)
        tell("start to first write", {"value": (told["first_ok_epoch"] - began) * 1000, "unit": "ms"})
        cluster.wait_ready()
        time.sleep(IDLE_S)
        tell("idle memory", {"value": _memory_mb(cluster) / fleet.nodes, "unit": "MB"})


def sessions(fleet: Fleet, name: str, tell: Tell) -> None:
    """Open a thousand sessions at once."""
    with _started(fleet, name) as cluster:
        _run(fleet, fleet.generator(cluster, ["-m", "hold", "-c", "10", "-d", "0.2"]))
        told = _run(fleet, fleet.generator(cluster, ["-m", "hold", "-c", str(SESSIONS), "-d", "0.5"]))
        tell(f"{SESSIONS:,} sessions at once", {"value": told["connect_all_ms"], "unit": "ms"})


def outage(fleet: Fleet, name: str, tell: Tell) -> None:
    """Kill or freeze the leader. Measure the time without an acknowledged write."""
    if fleet.nodes == 1:
        return
    for how, sent in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
        with _started(fleet, name) as cluster:
            time.sleep(1)
            leader = cluster.leader()
            seconds = OUTAGE_S[how]
            prober = fleet.spawn(fleet.generator(cluster, ["-m", "outage", "-d", str(seconds), "-x", str(PROBE_MS)]))
            time.sleep(2)
            os.kill(cluster.procs[leader].pid, sent)
            told = _result(prober, seconds)
            # Without a write at the end, the outage continues to the end.
            longest = max(told["max_gap_ms"], told["tail_ms"])
            tell(f"write outage, leader {how}", {"value": longest, "unit": "ms"})


def million(fleet: Fleet, name: str, tell: Tell, znodes: int = 1_000_000) -> None:
    """Create a million znodes. Measure the time, the memory, a restart, and the pauses during snapshots."""
    with _started(fleet, name) as cluster:
        said = f"{znodes:,} znodes"
        load = fleet.generator(cluster, ["-m", "load", "-n", str(znodes), "-c", "10"])
        told = _run(fleet, load, timeout=1200)
        tell(f"load {said}", {"value": told["setup_s"], "unit": "s"})
        tell(f"memory of {said}", {"value": _memory_mb(cluster) / fleet.nodes, "unit": "MB"})
        _settle(cluster)
        seconds = _restart(fleet, cluster)
        tell(f"restart with {said}", {"value": seconds, "unit": "s"})
        tell(f"memory of {said}, restarted", {"value": _memory_mb(cluster) / fleet.nodes, "unit": "MB"})
        cluster.extra = [f"snapCount={PAUSE_ENTRIES}"]
        _restart(fleet, cluster)
        before = _snapshots(cluster)
        writer = fleet.spawn(fleet.generator(cluster, ["-m", "set", "-c", "10", "-d", str(PAUSE_S)]))
        reader = fleet.spawn(fleet.generator(cluster, ["-m", "get", "-c", "2", "-d", str(PAUSE_S)]))
        for what, process in (("set", writer), ("get", reader)):
            told = _result(process, PAUSE_S)
            told.update(value=told["lat_ms"]["max"], unit="ms", snapshots=len(_snapshots(cluster) - before))
            del told["ops_s"]
            tell(f"longest {what} while {said} are snapshotted", told)


CASES: Final = {"start": start, "sessions": sessions, "outage": outage, "million": million}


@contextlib.contextmanager
def _cluster(fleet: Fleet, name: str) -> Iterator[Any]:
    """Yield a cluster that is not started yet. Stop and remove it afterwards."""
    fleet.choose(name)
    cluster = fleet.make(name)
    cluster.wipe()
    try:
        yield cluster
    finally:
        for process in cluster.procs:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
        cluster.stop()


@contextlib.contextmanager
def _started(fleet: Fleet, name: str) -> Iterator[Any]:
    with _cluster(fleet, name) as cluster:
        cluster.start()
        yield cluster


def _wait(fleet: Fleet, cluster: Any) -> Result:
    """Wait until a write is acknowledged."""
    return _run(fleet, fleet.generator(cluster, ["-m", "wait", "-d", str(START_S), "-x", "1000"]), timeout=2 * START_S)


def _restart(fleet: Fleet, cluster: Any) -> float:
    """Kill all nodes and start them. Return the seconds until a write is acknowledged."""
    for node in range(fleet.nodes):
        cluster.kill_node(node)
    began = time.time()
    for node in range(fleet.nodes):
        cluster.start_node(node)
    return float(_wait(fleet, cluster)["first_ok_epoch"]) - began


def _settle(cluster: Any) -> None:
    """Wait until a snapshot in progress has finished."""
    known: set[tuple[str, int]] = set()
    while known != (known := {(str(path), path.stat().st_size) for path in _files(cluster)}):
        time.sleep(2)


def _files(cluster: Any) -> list[Path]:
    folder = Path(cluster.work)
    return [*folder.glob("n*/data/snap/*"), *folder.glob("n*/data/version-2/snapshot.*")]


def _snapshots(cluster: Any) -> set[str]:
    return {str(path) for path in _files(cluster) if path.suffix != ".tmp"}


def _memory_mb(cluster: Any) -> float:
    """Return the resident memory of all nodes together, in MB."""
    found = 0
    for pid in cluster.pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return found / 1024


def _run(fleet: Fleet, command: list[str], timeout: float = 120) -> Result:
    return _result(fleet.spawn(command), timeout)


def _result(process: subprocess.Popen[str], seconds: float) -> Result:
    """Return the result that a generator prints at its end. Its time limit is a little more than twice its duration."""
    said, _ = process.communicate(timeout=2 * seconds + 60)
    result: Result = json.loads(said.strip().splitlines()[-1])
    return result
