"""The cost of a change of masters at rest: a warm and a cold takeover, and the memory of a warm standby.

The catalog is written directly to the store: every region is open on a server that is only registered, so only the
masters work. First the active master is killed, and its standby with a mirror takes over. Then this master is killed,
and a standby without a mirror (`--no-mirror`) loads the store.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.beating import START_CODE, uuid_of
from benchmarks.assign.heartbeats import fill
from benchmarks.assign.lab import Daemon, Lab, memory_bytes, say
from benchmarks.assign.scenes import Failover, kill_master
from regions.records.model import ServerRecord
from regions.records.znodes import encode
from tests.support.helpers import eventually

SIZES: Final = (1_000, 10_000, 100_000)
SERVERS: Final = 4
#: A standby connects to the active master to notice its death at once, but does not report when it is connected.
EYE_S: Final = 0.5


class Takeover(msgspec.Struct, frozen=True):
    """Two takeovers with that many regions at rest."""

    regions: int
    warm: Failover
    cold: Failover
    #: Bytes of a warm standby beyond those of a standby without a mirror, per region.
    mirror_bytes: float
    #: Seconds from the standby's start until it was warm.
    warmed_s: float


def takeover(folder: Path, regions: int) -> Takeover:
    """Measure a warm and a cold takeover."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Lab(folder, masters=3, servers=0, opener="none", session_ms=10_000)
    try:
        cluster.start_store()
        say(f"the catalogue of {regions} regions is written")
        fill(cluster, SERVERS, regions)
        for number in range(SERVERS):
            record = ServerRecord(uuid_of(number), "127.0.0.1", 1, START_CODE)
            cluster.zk.create(cluster.layout.server(record.uuid), encode(record), ephemeral=True)
        first, second, third = cluster.masters
        first.start()
        cluster.follow("the first master serves", lambda status: status.open == regions)
        second.start()
        cluster.wait_warm()
        warmed_s = time.monotonic() - second.started
        warm_bytes = memory_bytes(second.pid)
        say(f"warm after {warmed_s:.1f} s; the active master is killed")
        warm = kill_master(cluster, regions)
        third.start("--no-mirror")
        eventually(lambda: cluster.status_of(third) is not None, 30, "a standby without a mirror")
        eventually(lambda: _knows_the_active(cluster, third), 30, "it stands by")
        threading.Event().wait(EYE_S)
        cold_bytes = memory_bytes(third.pid)
        say("its successor is killed")
        cold = kill_master(cluster, regions)
        return Takeover(regions, warm, cold, (warm_bytes - cold_bytes) / regions, warmed_s)
    finally:
        cluster.stop()


def _knows_the_active(cluster: Lab, standby: Daemon) -> bool:
    status = cluster.status_of(standby)
    return status is not None and bool(status.active)


def table(rounds: list[Takeover]) -> list[str]:
    """Return the table: a line for each size, medians."""
    if not rounds:
        return []
    lines = [
        "| regions | warm: serving s | place taken s | load s | recover s | cold: serving s | place taken s | load s"
        " | recover s | mirror, bytes per region | warm after s |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for size in sorted({one.regions for one in rounds}):
        same = [one for one in rounds if one.regions == size]
        cells = [f"{size:,}"]
        for kind in ([one.warm for one in same], [one.cold for one in same]):
            for name in ("serving_s", "taken_s", "load_s", "recover_s"):
                cells.append(f"{statistics.median(getattr(one, name) for one in kind):.3f}")
        cells.append(f"{statistics.median(one.mirror_bytes for one in same):,.0f}")
        cells.append(f"{statistics.median(one.warmed_s for one in same):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines
