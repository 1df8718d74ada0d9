"""The cost of heartbeats for a master: a thousand servers, one heartbeat a second each, a hundred thousand regions.

The servers are `benchmarks.assign.beating`, one process with a connection per server and master; masters and store are
real processes. The catalog is written before a master starts, so the master takes over a cluster at rest. The benchmark
measures the masters' CPU with heartbeats, and then without them for comparison.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.beating_servers import TOLD, BeatingServers, fill
from benchmarks.assign.lab import Daemon, Lab, say
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions import messages as ms
from tests.support.helpers import eventually

SERVERS: Final = 1_000
REGIONS: Final = 100_000
#: A goal of this project: the fraction of a core that the active master may use for heartbeats.
GOAL_SHARE: Final = 0.5
#: Duration of each measurement, with heartbeats and without.
WATCH_S: Final = 20.0
#: A master that uses less than this fraction of a core for CALM_S is idle.
CALM_S: Final = 3.0
CALM_SHARE: Final = 0.12


class Beating(msgspec.Struct, frozen=True):
    """A measurement with so many servers. Shares are fractions of a core."""

    servers: int
    regions: int
    #: Heartbeats per second that the active master received, and the share that it and the standby used meanwhile.
    per_s: float
    active: float
    standby: float
    #: The same without heartbeats.
    active_idle: float
    standby_idle: float
    #: From the start of the active master until it had every server's full report, and its CPU seconds until then.
    told_s: float
    told_cpu_s: float

    @property
    def active_us(self) -> float:
        """Return the CPU time of one heartbeat in the active master, in microseconds."""
        return (self.active - self.active_idle) / self.per_s * 1e6

    @property
    def standby_us(self) -> float:
        """Return the CPU time of one heartbeat in a standby, in microseconds."""
        return (self.standby - self.standby_idle) / self.per_s * 1e6


def heard(master: Daemon) -> int:
    """Return how many heartbeats a master has received so far; 0 if the master does not answer yet."""
    try:
        found = call_blocking(master.address, ms.ListContacts(), 60.0, expect=ms.Contacts)
    except RpcError:
        return 0
    return sum(one.beats for one in found.contacts)


def run_s(pid: int) -> float:
    """Return the seconds of CPU that the threads of a process have used, to the nanosecond. The usual account may count
    ticks."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


def is_calm(master: Daemon) -> bool:
    """Return True if a master is idle. The check takes some seconds."""
    before = run_s(master.pid)
    threading.Event().wait(CALM_S)
    return run_s(master.pid) - before < CALM_S * CALM_SHARE


def watch(masters: Iterable[Daemon]) -> list[float]:
    """Return the share of a core that each master uses."""
    before = [run_s(one.pid) for one in masters]
    began = time.monotonic()
    threading.Event().wait(WATCH_S)
    seconds = time.monotonic() - began
    return [(run_s(one.pid) - then) / seconds for one, then in zip(masters, before, strict=True)]


def heartbeats(folder: Path, servers: int, regions: int) -> Beating:
    """Measure heartbeats with that many servers and regions."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Lab(folder, masters=2, servers=0, opener="none", session_ms=10_000)
    load: BeatingServers | None = None
    try:
        cluster.start_store()
        say(f"the catalogue of {regions} regions is written")
        fill(cluster, servers, regions)
        load = BeatingServers(cluster.hosts, servers, regions)
        began = time.monotonic()
        cluster.masters[0].start()
        load.expect(TOLD)
        told_s, told_cpu_s = time.monotonic() - began, run_s(cluster.masters[0].pid)
        say(f"every server has told the master everything {told_s:.1f} s after its start")
        cluster.masters[1].start()
        active, standby = cluster.active(), cluster.masters[1]
        eventually(lambda: heard(standby) >= servers, 30, "the standby hears all")
        eventually(lambda: is_calm(standby), 60, "the standby has read the catalogue")
        before, at = heard(active), time.monotonic()
        beating = watch([active, standby])
        per_s = (heard(active) - before) / (time.monotonic() - at)
        load.fall_silent()
        idle = watch([active, standby])
        return Beating(servers, regions, per_s, *beating, *idle, told_s, told_cpu_s)
    finally:
        if load is not None:
            load.end()
        cluster.stop()


def table(rounds: list[Beating]) -> list[str]:
    """Return the table: a line per round."""
    if not rounds:
        return []
    lines = [
        "| servers | regions | heartbeats/s | active: core | goal | without | us each | per core and s"
        " | standby: core | us each | all told s | CPU until then s |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for one in rounds:
        cells = [f"{one.servers:,}", f"{one.regions:,}", f"{one.per_s:,.0f}", f"{one.active:.3f}", f"{GOAL_SHARE:g}"]
        cells += [f"{one.active_idle:.3f}", f"{one.active_us:.0f}", f"{1e6 / max(one.active_us, 1e-9):,.0f}"]
        cells += [f"{one.standby:.3f}", f"{one.standby_us:.0f}", f"{one.told_s:.1f}", f"{one.told_cpu_s:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
