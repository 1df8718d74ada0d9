"""A server dies for good: the time until its tablets have as many members as before, and what clients notice of it.

Four servers, three replicas of each tablet, 1 MB of rows in each. One server is killed and not started again. Its
members are judged FAILED after `--replica-dead-s`, here a few seconds; then each tablet gets a new member on the one
server that has no member of it, which copies the rows.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import DEADLINE_S, cpu_s, say
from benchmarks.tablets.clients import VALUE, Repeated, keys_of, quantile
from benchmarks.tablets.cluster import CALL_S, TABLET, TabletLab, region_prefix, tablet_lab
from coord.rpc.blocking import call_blocking
from coord.rpc.server import RpcError
from regions.messages.tablets import ListTablets, TabletHealth, TabletList
from regionserver.client.client import Change, RegionClient, connect
from tests.support.helpers import eventually

#: Servers that remain, and tablets for each tablet of the dead server: 3 of 4 servers have a member of a tablet.
SERVERS: Final = 4
REPLICAS: Final = 3
DEAD_S: Final = 5.0
ROW_BYTES: Final = 10_000
ROWS: Final = 100
LOADERS: Final = 4
#: Clients that put single rows all the time, and for how long before the death.
CLIENTS: Final = 2
BEFORE_S: Final = 5.0
#: Interval of the questions to the master.
LOOK_S: Final = 0.2


class Healed(msgspec.Struct, frozen=True):
    """A server was killed for good. Seconds."""

    #: Tablets with a member on the dead server, and bytes of rows of each.
    tablets: int
    bytes_each: int
    #: From the kill until the first new member; and from then until every tablet was HEALTHY.
    noticed_s: float
    healed_s: float
    #: Puts before the death, and from the first new member until all was healed.
    p99_before_ms: float
    p99_healing_ms: float
    #: Parts of a core of the active master, before the death and while the tablets were healed.
    master_before: float
    master_healing: float


def heal(folder: Path, tablets: int) -> Healed:
    """Kill a server with `tablets` members, and wait until all tablets are HEALTHY without it."""
    count = tablets * SERVERS // REPLICAS
    with tablet_lab(folder, servers=SERVERS, server_options=("--replica-dead-s", str(DEAD_S))) as cluster:
        cluster.create(TABLET, count, TABLET)
        with connect(cluster.hosts, timeout_s=DEADLINE_S) as client:
            _fill(client, count)
            eventually(lambda: _counts(cluster) == {TabletHealth.HEALTHY: count}, DEADLINE_S, "all tablets HEALTHY")
            return _killed(cluster, client, count)


def _fill(client: RegionClient, tablets: int) -> None:
    say(f"{tablets:,} tablets, {ROWS * ROW_BYTES / 1e6:g} MB of rows in each")
    numbers = iter(range(tablets))
    taking = threading.Lock()
    errors: list[Exception] = []

    def load() -> None:
        while not errors:
            with taking:
                number = next(numbers, None)
            if number is None:
                return
            changes = [Change(f"{region_prefix(number)}-row-{row:05}", os.urandom(ROW_BYTES)) for row in range(ROWS)]
            try:
                client.write(TABLET, changes)
            except Exception as error:  # the caller reports it
                errors.append(error)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(LOADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _killed(cluster: TabletLab, client: RegionClient, count: int) -> Healed:
    victim = cluster.servers[0]
    had = len(cluster.replicas(victim))
    master = cluster.active()
    began, cpu = time.monotonic(), cpu_s(master.pid)
    puts = Repeated(CLIENTS, _puts(client, count))
    threading.Event().wait(BEFORE_S)
    before = puts.stop()
    master_before = (cpu_s(master.pid) - cpu) / (time.monotonic() - began)
    say(f"a server with {had:,} members is killed")
    killed = time.monotonic()
    victim.kill()
    _wait(lambda: bool(_counts(cluster).get(TabletHealth.RECOVERING)), "the first new member")
    noticed, cpu = time.monotonic(), cpu_s(master.pid)
    say(f"the first new member after {noticed - killed:.1f} s")
    puts = Repeated(CLIENTS, _puts(client, count))
    _wait(lambda: _counts(cluster) == {TabletHealth.HEALTHY: count}, "all tablets HEALTHY")
    healed = time.monotonic()
    master_healing = (cpu_s(master.pid) - cpu) / (healed - noticed)
    during = puts.stop()
    say(f"all HEALTHY after {healed - noticed:.1f} s more")
    return Healed(
        had,
        ROWS * ROW_BYTES,
        noticed - killed,
        healed - noticed,
        quantile(before, 0.99) * 1000,
        quantile(during, 0.99) * 1000,
        master_before,
        master_healing,
    )


def _puts(client: RegionClient, tablets: int) -> Callable[[int], Callable[[], object]]:
    def work(writer: int) -> Callable[[], object]:
        numbers = [writer]

        def once() -> None:
            numbers[0] = (numbers[0] + 17) % tablets
            client.put(TABLET, next(keys_of(numbers[0], writer)), VALUE)

        return once

    return work


def _wait(done: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    began = said = time.monotonic()
    while not done():
        now = time.monotonic()
        if now - began > DEADLINE_S:
            raise SystemExit(f"{what}: given up after {DEADLINE_S:.0f} s")
        if now - said > 5:
            said = now
            say(f"{what}: {now - began:.0f} s")
        pause.wait(LOOK_S)


def _counts(cluster: TabletLab) -> dict[str, int]:
    """Return the number of tablets by health, as the active master says; empty if no master answers."""
    with contextlib.suppress(RpcError, OSError, AssertionError):
        return call_blocking(cluster.active().address, ListTablets(limit=1), CALL_S, expect=TabletList).counts
    return {}
