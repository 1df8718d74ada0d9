"""The cost of a change of masters at rest: a warm and a cold takeover, and the memory of a warm standby.

The catalog is written directly to the store: every region is open on a server of `beating`, which is registered and
sends heartbeats and nothing else. A new master waits for the first heartbeat of a server that holds regions, so without
heartbeats it would wait for the end of their sessions (master/beginning/roll_call.py). First the active master is
killed, and its standby with a mirror takes over. Then this master is killed, and a standby without a mirror
(`--no-mirror`) loads the store.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.beating_servers import TOLD, BeatingServers, fill
from benchmarks.assign.heartbeats import heard
from benchmarks.assign.lab import Daemon, Lab, memory_bytes, say
from benchmarks.assign.million.measures import Turns, longest, used
from benchmarks.assign.scenes import Failover, kill_master
from tests.support.helpers import eventually

SIZES: Final = (1_000, 10_000, 100_000)
SERVERS: Final = 4
#: A standby connects to the active master to notice its death at once, but does not report when it is connected.
EYE_S: Final = 0.5
WARM_WITHIN_S: Final = 400.0


class Takeover(msgspec.Struct, frozen=True):
    """Two takeovers with that many regions at rest."""

    regions: int
    warm: Failover
    cold: Failover
    #: Bytes of a warm standby beyond those of a standby without a mirror, per region.
    mirror_bytes: float
    #: Seconds from the standby's start until it was warm.
    warmed_s: float
    #: Turns of the successor's main loop, from before the kill until all regions were open again.
    warm_turns: Turns = Turns()
    cold_turns: Turns = Turns()


def takeover(folder: Path, regions: int) -> Takeover:
    """Measure a warm and a cold takeover."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Lab(folder, masters=3, servers=0, opener="none", session_ms=10_000, admin=True)
    servers: BeatingServers | None = None
    try:
        cluster.start_store()
        say(f"the catalog of {regions} regions is written")
        fill(cluster, SERVERS, regions)
        servers = BeatingServers(cluster.hosts, SERVERS, regions)
        first, second, third = cluster.masters
        first.start()
        servers.expect(TOLD)
        cluster.follow("the first master serves", lambda status: status.open == regions)
        second.start()
        cluster.wait_warm(WARM_WITHIN_S)
        warmed_s = time.monotonic() - second.started
        warm_bytes = memory_bytes(second.pid)
        eventually(lambda: heard(second) >= SERVERS, 30, "the standby hears all servers")
        say(f"warm after {warmed_s:.1f} s; the active master is killed")
        warm, warm_turns = _killed(cluster, second, regions)
        third.start("--no-mirror")
        eventually(lambda: cluster.status_of(third) is not None, 30, "a standby without a mirror")
        eventually(lambda: _knows_the_active(cluster, third), 30, "it stands by")
        eventually(lambda: heard(third) >= SERVERS, 30, "it hears all servers")
        threading.Event().wait(EYE_S)
        cold_bytes = memory_bytes(third.pid)
        say("its successor is killed")
        cold, cold_turns = _killed(cluster, third, regions)
        mirror_bytes = (warm_bytes - cold_bytes) / regions
        return Takeover(regions, warm, cold, mirror_bytes, warmed_s, warm_turns, cold_turns)
    finally:
        if servers is not None:
            servers.end()
        cluster.stop()


def _killed(cluster: Lab, successor: Daemon, regions: int) -> tuple[Failover, Turns]:
    """Kill the active master. Return the failover, and the turns of the successor's main loop meanwhile."""
    before = used(successor).turns
    made = kill_master(cluster, regions)
    return made, used(successor).turns.since(before)


def _knows_the_active(cluster: Lab, standby: Daemon) -> bool:
    status = cluster.status_of(standby)
    return status is not None and bool(status.active)


def table(rounds: list[Takeover]) -> list[str]:
    """Return the table: a line for each size, medians; the longest turns of all rounds."""
    if not rounds:
        return []
    one_kind = "serving s | place taken s | load s | recover s | longest turn ms"
    lines = [
        f"| regions | warm: {one_kind} | cold: {one_kind} | mirror, bytes per region | warm after s |",
        f"| {' | '.join(['--:'] * 13)} |",
    ]
    for size in sorted({one.regions for one in rounds}):
        same = [one for one in rounds if one.regions == size]
        cells = [f"{size:,}"]
        for kind in ([(one.warm, one.warm_turns) for one in same], [(one.cold, one.cold_turns) for one in same]):
            for name in ("serving_s", "taken_s", "load_s", "recover_s"):
                cells.append(f"{statistics.median(getattr(made, name) for made, _ in kind):.3f}")
            cells.append(longest([turns for _, turns in kind]))
        cells.append(f"{statistics.median(one.mirror_bytes for one in same):,.0f}")
        cells.append(f"{statistics.median(one.warmed_s for one in same):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def culprits(rounds: list[Takeover]) -> list[str]:
    """Return a line for each takeover with long turns: which functions ran, and how often."""
    lines = []
    for one in rounds:
        for name, turns in (("warm", one.warm_turns), ("cold", one.cold_turns)):
            if turns.long:
                named = ", ".join(f"`{culprit}` {count}" for culprit, count in turns.culprits.items())
                lines.append(f"- {one.regions:,} regions, {name}: {turns.long} turns over 20 ms in {named}")
    return lines
