"""The measurements: death of a server, death of a master, and the growth of both with the number of regions."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import Lab, all_open, lab, memory_bytes, say
from tests.support.helpers import eventually

#: Regions of the dead server; regions of the master's failover, and the part of them that is in transition.
DEAD_REGIONS: Final = 1_000
FAILOVER_REGIONS: Final = 10_000
FAILOVER_MOVING: Final = 1_000
#: Sizes of the growth.
SIZES: Final = (1_000, 10_000, 100_000)
#: Session timeout for the growth: with 100,000 regions a small machine may pause for more than three seconds.
GROWTH_SESSION_MS: Final = 10_000


class Death(msgspec.Struct, frozen=True):
    """A server was killed. Times in seconds."""

    regions: int
    #: From the kill until the end of its session, and from there until all its regions were open elsewhere.
    detection_s: float
    reopening_s: float


class Failover(msgspec.Struct, frozen=True):
    """The active master was killed. Times in seconds from the kill, except the phases."""

    regions: int
    #: Replicas in transition that the successor found.
    found: int
    #: When `/active` was taken, when the successor served, and when all regions were open without transitions.
    taken_s: float
    serving_s: float
    settled_s: float
    #: Two phases of the successor's takeover.
    load_s: float
    recover_s: float
    #: Bytes of memory that the successor gained, per region.
    memory_per_region: float


class Growth(msgspec.Struct, frozen=True):
    """A table was created and assigned, then the active master was killed. CPU in microseconds per region."""

    regions: int
    assign_s: float
    cpu_active_us: float
    cpu_standby_us: float
    cpu_servers_us: float
    cpu_store_us: float
    #: Commits of the store (a multi is one) and requests to it, per region.
    writes: float
    requests: float
    #: Znodes created, set and deleted in those writes, per region.
    znode_writes: float
    failover: Failover


def death(folder: Path, opener: str) -> Death:
    """Kill one of four servers with that many regions each."""
    with lab(folder, servers=4, opener=opener) as cluster:
        total = DEAD_REGIONS * len(cluster.servers)
        cluster.create_table("packages", total)
        cluster.follow("regions open", all_open(total))
        victim = cluster.servers[0]
        [uuid] = [one for one, record in cluster.records().items() if (record.host, record.port) == victim.address]
        registration = cluster.layout.server(uuid)
        gone: list[float] = []
        assert cluster.zk.exists(registration, watch=lambda _: gone.append(time.monotonic()))
        say(f"a server with {DEAD_REGIONS} regions is killed")
        killed = time.monotonic()
        victim.kill()
        left = len(cluster.servers) - 1
        is_open = all_open(total)
        settled, _ = cluster.follow("its regions open", lambda status: status.servers == left and is_open(status))
        eventually(lambda: gone, 10, "the store's word that the server is gone")
        return Death(DEAD_REGIONS, gone[0] - killed, settled - gone[0])


def failover(folder: Path, opener: str) -> Failover:
    """Kill the active master while a tenth of the regions is in transition. The servers are stopped while the last
    table is created, so its orders stay pending. They continue as soon as `/active` is taken, and then also work on the
    former master's orders."""
    with lab(folder, opener=opener) as cluster:
        resting = FAILOVER_REGIONS - FAILOVER_MOVING
        cluster.create_table("packages", resting)
        cluster.follow("regions open", all_open(resting))
        for server in cluster.servers:
            server.signal(signal.SIGSTOP)
        cluster.create_table("more", FAILOVER_MOVING)
        eventually(lambda: cluster.in_transition() == FAILOVER_MOVING, 2, "regions in transition")
        say(f"the master of {FAILOVER_REGIONS} regions is killed, {FAILOVER_MOVING} of them in transition")
        return kill_master(cluster, FAILOVER_REGIONS)


def kill_master(cluster: Lab, regions: int) -> Failover:
    """Kill the active master and follow its successor until all regions are open."""
    active = cluster.active()
    [standby] = [one for one in cluster.masters if one is not active and one.is_running]
    former = cluster.active_uuid()
    memory = memory_bytes(standby.pid)
    killed = time.monotonic()
    active.kill()
    eventually(lambda: cluster.active_uuid() not in ("", former), 30, "a successor")
    taken = time.monotonic()
    for server in cluster.servers:
        server.signal(signal.SIGCONT)
    serving, _ = cluster.follow("a master serves", lambda _: True, 0.005)
    settled, status = cluster.follow("regions open", all_open(regions))
    phases = {phase.name: phase.seconds for phase in status.phases}
    return Failover(
        regions=regions,
        found=cluster.found_by(status.epoch),
        taken_s=taken - killed,
        serving_s=serving - killed,
        settled_s=settled - killed,
        load_s=phases["load"],
        recover_s=phases["recover"],
        memory_per_region=(memory_bytes(standby.pid) - memory) / regions,
    )


def growth(folder: Path, regions: int) -> Growth:
    """Create and assign a table of that many regions without data, then kill the active master."""
    with lab(folder, opener="none", session_ms=GROWTH_SESSION_MS) as cluster:
        cluster.create_table("packages", regions)
        before = cluster.cost()
        began = time.monotonic()
        settled, _ = cluster.follow(f"{regions} regions open", all_open(regions), 0.1)
        cluster.wait_warm()  # The deferred work of a standby is part of its cost.
        cost = cluster.cost().since(before)
        say(f"the master of {regions} regions is killed")
        over = kill_master(cluster, regions)
        return Growth(
            regions=regions,
            assign_s=settled - began,
            cpu_active_us=cost.active / regions * 1e6,
            cpu_standby_us=cost.standby / regions * 1e6,
            cpu_servers_us=cost.servers / regions * 1e6,
            cpu_store_us=cost.store / regions * 1e6,
            writes=cost.writes / regions,
            requests=cost.requests / regions,
            failover=over,
            znode_writes=cluster.writes_of_transitions() / regions,
        )
