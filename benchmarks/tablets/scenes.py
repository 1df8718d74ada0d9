"""The measurements: each compares a table of tablets with a table of shared regions."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import DEADLINE_S, Daemon, cpu_s, say
from benchmarks.tablets import clients
from benchmarks.tablets.clients import Writers, quantile
from benchmarks.tablets.cluster import SHARED, TABLET, TabletLab, Use, tablet_lab
from regions.messages.heartbeat import ReplicaState
from regionserver.client.client import RegionClient, connect
from tests.support.helpers import eventually

#: Regions of the tables for load, puts and gets, and threads of the bulk load.
REGIONS: Final = 12
LOADERS: Final = 4
ROWS: Final = 1000
PUTTERS: Final = 16
#: Tablets and writers of the outages.
OUTAGE_TABLETS: Final = 200
OUTAGE_WRITERS: Final = 8
WARM_S: Final = 1.0
#: Writers write for this long before an outage, and again after every region has been written again.
BEFORE_S: Final = 3.0
AFTER_S: Final = 1.0
#: Duration of a freeze.
FROZEN_S: Final = 6.0
BOTH: Final = (SHARED, TABLET)


class Speed(msgspec.Struct, frozen=True):
    """One way of using a table, for each storage. Times in seconds and microseconds."""

    storage: str
    per_s: float
    p50_ms: float
    p99_ms: float
    #: CPU per request: this process with the clients, the servers, masters, store.
    clients_us: float
    servers_us: float
    masters_us: float
    store_us: float
    #: Averages of the servers' shared logs; 0 if nothing was written.
    entries_per_sync: float
    bytes_per_sync: float


class Made(msgspec.Struct, frozen=True):
    """A table was created; seconds until all of its regions were open, tablets with a leader each."""

    storage: str
    regions: int
    seconds: float


class Restarted(msgspec.Struct, frozen=True):
    """A server was killed and started again. Seconds from its start."""

    tablets: int
    #: Until all its replicas run, and until they have everything that the leaders have committed.
    running_s: float
    caught_up_s: float


class Outage(msgspec.Struct, frozen=True):
    """A server was killed or frozen under writers: the longest gap between acknowledgments per region, in seconds."""

    storage: str
    how: str
    regions: int
    #: Regions that the server led or had open.
    hit: int
    p50_s: float
    p99_s: float
    max_s: float


@contextlib.contextmanager
def _client(cluster: TabletLab) -> Iterator[RegionClient]:
    with connect(cluster.hosts, timeout_s=DEADLINE_S) as client:
        yield client


def _measured(
    cluster: TabletLab, storage: str, rows: int, measure: Callable[[float], list[float]], seconds: float
) -> Speed:
    measure(WARM_S)
    before, own = cluster.use(), cpu_s(os.getpid())
    began = time.monotonic()
    took = measure(seconds)
    spent = time.monotonic() - began
    used, own = cluster.use().since(before), cpu_s(os.getpid()) - own
    return _speed(storage, rows, took, spent, used, own)


def _speed(storage: str, rows: int, took: list[float], spent: float, used: Use, own: float) -> Speed:
    count = max(1, len(took))
    return Speed(
        storage=storage,
        per_s=len(took) * rows / spent,
        p50_ms=quantile(took, 0.5) * 1000,
        p99_ms=quantile(took, 0.99) * 1000,
        clients_us=own / count * 1e6,
        servers_us=used.servers / count * 1e6,
        masters_us=used.masters / count * 1e6,
        store_us=used.store / count * 1e6,
        entries_per_sync=used.entries / used.syncs if used.syncs else 0.0,
        bytes_per_sync=used.log_bytes / used.syncs if used.syncs else 0.0,
    )


class Speeds(msgspec.Struct, frozen=True):
    """Load, puts and gets of both storages."""

    load: list[Speed]
    put: list[Speed]
    get: list[Speed]


def speeds(folder: Path, parts: list[str], seconds: float) -> Speeds:
    """Measure load, puts and gets of both storages, one storage after the other in each part."""
    found = Speeds([], [], [])
    with tablet_lab(folder) as cluster, _client(cluster) as client:
        for storage in BOTH:
            cluster.create(storage, REGIONS, storage)

        def measure(storage: str, rows: int, work: Callable[[float], list[float]]) -> Speed:
            say(f"{storage}: {seconds:g} s")
            return _measured(cluster, storage, rows, work, seconds)

        for storage in BOTH:
            if "load" in parts:
                found.load.append(
                    measure(storage, ROWS, lambda s, t=storage: clients.load(client, t, REGIONS, LOADERS, ROWS, s))
                )
            if "put" in parts:
                found.put.append(measure(storage, 1, lambda s, t=storage: clients.put(client, t, REGIONS, PUTTERS, s)))
            if "get" in parts:
                found.get.append(measure(storage, 1, lambda s, t=storage: clients.get(client, t, REGIONS, s)))
    return found


def create(folder: Path, regions: int) -> list[Made]:
    """Create a table of each storage."""
    with tablet_lab(folder) as cluster:
        found = []
        for storage in BOTH:
            say(f"{storage}: {regions} regions")
            found.append(Made(storage, regions, cluster.create(storage, regions, storage)))
        return found


def restart(folder: Path, tablets: int) -> Restarted:
    """Kill a server with that many tablets, write to all of them meanwhile, and start the server again."""
    with tablet_lab(folder) as cluster, _client(cluster) as client:
        cluster.create(TABLET, tablets, TABLET)
        victim = cluster.servers[0]
        victim.kill()
        others = cluster.servers[1:]
        writers = Writers(client, TABLET, tablets, OUTAGE_WRITERS)
        began = time.monotonic()
        eventually(lambda: writers.have_written_since(began), DEADLINE_S, "a write to each tablet")
        writers.stop()
        wanted = _ends(cluster, others)
        say(f"a server with {tablets} tablets is started again")
        started = time.monotonic()
        victim.start()
        running = _when(lambda: _running(cluster, victim) >= tablets, f"{tablets} replicas run")
        caught_up = _when(lambda: _has_all(cluster, victim, wanted), "its replicas have caught up")
        return Restarted(tablets, running - started, caught_up - started)


def _when(done: Callable[[], bool], what: str) -> float:
    eventually(done, DEADLINE_S, what)
    return time.monotonic()


def _running(cluster: TabletLab, server: Daemon) -> int:
    figures = cluster.figures(server)
    return 0 if figures is None else figures.replicas.get(ReplicaState.RUNNING.value, 0)


def _ends(cluster: TabletLab, servers: list[Daemon]) -> dict[str, int]:
    """Return the highest committed index of each tablet that these servers report."""
    found: dict[str, int] = {}
    for server in servers:
        for tablet, one in cluster.replicas(server).items():
            found[tablet] = max(found.get(tablet, 0), one.commit_index)
    return found


def _has_all(cluster: TabletLab, server: Daemon, wanted: dict[str, int]) -> bool:
    own = cluster.replicas(server)
    return all(tablet in own and own[tablet].commit_index >= index for tablet, index in wanted.items())


def outage(folder: Path, storage: str, how: str, regions: int) -> Outage:
    """Kill or freeze the server that leads most tablets, or has most regions open, while writers write to all
    regions."""
    with tablet_lab(folder) as cluster, _client(cluster) as client:
        cluster.create(storage, regions, storage)
        writers = Writers(client, storage, regions, OUTAGE_WRITERS)
        begun = time.monotonic()
        eventually(lambda: writers.have_written_since(begun), DEADLINE_S, "a write to each region")
        threading.Event().wait(BEFORE_S)
        led = cluster.led() if storage == TABLET else {}
        victim = max(led, key=lambda one: led[one]) if led else cluster.servers[0]
        hit = led.get(victim, regions // len(cluster.servers))
        say(f"{storage}: a server with {hit} of {regions} regions is {how}")
        hurt = time.monotonic()
        if how == "killed":
            victim.kill()
        else:
            victim.signal(signal.SIGSTOP)
            threading.Event().wait(FROZEN_S)
        eventually(lambda: writers.have_written_since(hurt), DEADLINE_S, "a write to each region after the outage")
        threading.Event().wait(AFTER_S)
        writers.stop()
        if how == "frozen":
            victim.signal(signal.SIGCONT)
        gaps = writers.longest_gaps(hurt)
        return Outage(storage, how, regions, hit, quantile(gaps, 0.5), quantile(gaps, 0.99), max(gaps))
