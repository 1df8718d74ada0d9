"""Tablets without work: the CPU and memory of their servers, when all is durable and the log's floors have moved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import DEADLINE_S, cpu_s, memory_bytes, say
from benchmarks.tablets.cluster import SERVERS, TABLET, TabletLab, tablet_lab
from regionserver.tablets.rows.steady import STEADY_AFTER_S
from tests.support.helpers import eventually

#: Time in which the CPU is counted.
WATCH_S: Final = 20.0


class Idle(msgspec.Struct, frozen=True):
    """Tablets with three members each and no request. Averages of the servers."""

    tablets: int
    #: Part of one core.
    cpu: float
    #: Resident memory that each tablet adds to a server.
    kb_per_tablet: float


def idle(folder: Path, tablets: int) -> Idle:
    """Measure servers whose tablets are quiet."""
    with tablet_lab(folder) as cluster:
        empty = _memory(cluster)
        cluster.create(TABLET, tablets, TABLET)
        say(f"{tablets} tablets are there")
        eventually(lambda: _are_quiet(cluster, tablets), DEADLINE_S, f"{tablets} tablets are quiet on each server")
        # Points of new rows are spread over STEADY_AFTER_S from when they are due on.
        time.sleep(2 * STEADY_AFTER_S)
        full, before, began = _memory(cluster), _cpu(cluster), time.monotonic()
        time.sleep(WATCH_S)
        took = time.monotonic() - began
        used = (_cpu(cluster) - before) / took / SERVERS
        say(f"the servers took {100 * used:.2f} % of a core each")
        return Idle(tablets, used, (full - empty) / 1e3 / SERVERS / tablets)


def _are_quiet(cluster: TabletLab, tablets: int) -> bool:
    found = [cluster.figures(server) for server in cluster.servers]
    return all(one is not None and one.quiet >= tablets for one in found)


def _cpu(cluster: TabletLab) -> float:
    return sum(cpu_s(server.pid) for server in cluster.servers)


def _memory(cluster: TabletLab) -> int:
    """Return the servers' memory. Pages of LMDB's files are the kernel's, and are not counted."""
    return sum(memory_bytes(server.pid) for server in cluster.servers)
