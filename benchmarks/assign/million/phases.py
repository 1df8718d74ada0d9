"""The phases of a cluster's life that are measured, one after the other on one cluster.

load       the first master takes over a store full of regions that are open nowhere
mirror     a standby reads the same, until it is warm
register   the servers register, all in one process
plan       the plan of the first assignment, by the exact flow
assign     plan ready -> all OPENED
rest       heartbeats only
death      the end of a server's session -> all of its regions OPENED elsewhere
balance    the server is back, and rounds of the balancer fill it again
disable    a table, a tenth of all regions: all CLOSED
enable     the same table: all OPENED
warm       kill -9 of the active master, 1 % of the regions in transition: a standby with a mirror serves
cold       the same with a standby without a mirror, which loads the store
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.lab import Daemon, all_open, memory_bytes, say
from benchmarks.assign.million.lab import DONE_WITHIN_S, MillionLab, began, million_lab
from benchmarks.assign.million.measures import Usage, Watch
from benchmarks.assign.million.servers import uuid_of
from benchmarks.assign.scenes import Failover, kill_master
from coord.rpc.blocking import call_blocking
from regions import messages as ms
from regions.records.model import TableIntent
from tests.support.helpers import eventually

SERVERS: Final = 1_000
SIZES: Final = (10_000, 100_000, 1_000_000)
#: Fewer regions have fewer servers: a server has at least this number.
PER_SERVER_MIN: Final = 10
REST_S: Final = 20.0
#: The balancer's rounds end after this time, even if they have not filled the server.
BALANCE_S: Final = 60.0
WAIT_MS: Final = 600_000
#: A part of this size is in transition when a master is killed.
MOVING_PART: Final = 100
_LOOK_S: Final = 0.05


class Phase(msgspec.Struct, frozen=True):
    """What one phase took, by the clock of this program, and what the daemons used meanwhile."""

    name: str
    seconds: float
    #: Regions that the phase was about.
    regions: int
    usage: dict[str, Usage]


class Memory(msgspec.Struct, frozen=True):
    """Bytes per region at rest, beyond a process that knows no region: unshared memory as the kernel counts it."""

    store: float
    active: float
    mirror: float
    servers: float


class Million(msgspec.Struct, frozen=True):
    """All phases with that many regions and servers."""

    regions: int
    servers: int
    phases: list[Phase]
    memory: Memory
    warm: Failover
    cold: Failover
    #: Seconds of `assign` as the master measures them: until all znodes OFFLINE are written, and from then on.
    offline_s: float
    open_s: float
    #: Engine of the plan, and why it was not the exact flow.
    engine: str
    #: Moves of the balancer's rounds, and the number of rounds.
    moves: int
    rounds: int


class _Run:
    """One cluster, and what has been measured on it."""

    def __init__(self, cluster: MillionLab, regions: int, servers: int) -> None:
        self.cluster = cluster
        self.regions = regions
        self.servers = servers
        self.phases: list[Phase] = []
        self.tables: list[str] = []

    @contextlib.contextmanager
    def phase(self, name: str, regions: int) -> Iterator[Callable[[float], None]]:
        """Measure a block. It may call what is yielded with the seconds that count in place of its own."""
        watch = Watch(self.cluster.roles())
        told: list[float] = []
        began = time.monotonic()
        yield told.append
        seconds = told[0] if told else time.monotonic() - began
        self.add(name, seconds, regions, watch.read())

    def add(self, name: str, seconds: float, regions: int, usage: dict[str, Usage]) -> None:
        """Keep a phase, and say it."""
        self.phases.append(Phase(name, seconds, regions, usage))
        turns = ", ".join(f"{r} {one.turns.longest_ms:.0f} ({one.turns.work_ms:.0f})" for r, one in usage.items())
        say(f"{name}: {seconds:.2f} s for {regions:,} regions; longest turns (on the processor), ms: {turns}")


def million(folder: Path, regions: int, rest_s: float = REST_S, servers_max: int = SERVERS) -> Million:
    """Measure all phases with that many regions, on at most that many servers."""
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    servers = max(3, min(servers_max, regions // PER_SERVER_MIN))
    with million_lab(folder, servers) as cluster:
        run = _Run(cluster, regions, servers)
        bare_store = max(memory_bytes(one.pid) for one in cluster.store)
        run.tables = cluster.fill(regions)
        _take_over(run)
        bare_servers = _register(run)
        status = _assign(run)
        parts = {one.name: one.seconds for one in status.phases}
        engine = "" if status.plan is None else f"{status.plan.engine} {status.plan.note}".strip()
        _rest(run, rest_s)
        active, [standby] = cluster.active(), cluster.roles()["standby"]
        used = [memory_bytes(one.pid) for one in (active, standby, cluster.simulated)]
        store = max(memory_bytes(one.pid) for one in cluster.store) - bare_store
        _death(run)
        moves, rounds = _balance(run)
        _switch(run)
        cluster.wait_warm()
        warm = _failover(run, "warm")
        bare = _start_bare(cluster)
        cold = _failover(run, "cold")
        memory = [store, used[0] - bare, used[1] - bare, used[2] - bare_servers]
        return Million(
            regions=regions,
            servers=servers,
            phases=run.phases,
            memory=Memory(*(one / regions for one in memory)),
            warm=warm,
            cold=cold,
            offline_s=parts.get("OFFLINE", 0.0),
            open_s=parts.get("open", 0.0),
            engine=engine,
            moves=moves,
            rounds=rounds,
        )


def _take_over(run: _Run) -> None:
    """The first master loads the store and waits for servers; then a standby reads the same."""
    cluster = run.cluster
    first, second, _ = cluster.masters
    steps: list[tuple[str, Daemon, Callable[[], bool]]] = [
        ("load", first, lambda: cluster.has_begun(first, "servers")),
        ("mirror", second, lambda: cluster.is_warm(second)),
    ]
    for name, master, is_done in steps:
        master.start()
        eventually(lambda master=master: cluster.status_of(master) is not None, 60, f"{master.name} answers")
        watch = Watch({"store": cluster.store, "active": [first], "standby": [second]})
        eventually(is_done, DONE_WITHIN_S, f"{name} of {run.regions} regions")
        run.add(name, time.monotonic() - master.started, run.regions, watch.read())


def _register(run: _Run) -> int:
    """Start all servers. Return the memory of their process without any region."""
    simulated = run.cluster.simulated
    simulated.start()
    with run.phase("register", 0):
        simulated.ask("start", 0, run.servers - 1)
        run.cluster.wait_registered(run.servers)
    return memory_bytes(simulated.pid)


def _assign(run: _Run) -> ms.MasterStatus:
    """Follow the plan and what comes of it. Return the status afterwards."""
    with run.phase("plan", run.regions) as tell:
        _, status = run.cluster.follow("planning", lambda status: began(status, "OFFLINE"), _LOOK_S)
        tell(next(one.seconds for one in status.phases if one.name == "plan"))
    with run.phase("assign", run.regions) as tell:
        _, status = run.cluster.follow(
            "regions open", lambda status: all_open(run.regions)(status) and not _is_assigning(status), _LOOK_S
        )
        tell(sum(one.seconds for one in status.phases if one.name in ("OFFLINE", "open")))
    say(", ".join(f"{one.name} {one.seconds:.2f} s" for one in status.phases))
    return status


def _is_assigning(status: ms.MasterStatus) -> bool:
    return status.plan is not None and status.plan.state == "APPLYING"


def _rest(run: _Run, rest_s: float) -> None:
    run.cluster.wait_warm()
    with run.phase("rest", run.regions):
        threading.Event().wait(rest_s)


def _death(run: _Run) -> None:
    """End one server; its regions open elsewhere."""
    cluster = run.cluster
    gone: list[float] = []
    assert cluster.zk.exists(cluster.layout.server(uuid_of(0)), watch=lambda _: gone.append(time.monotonic()))
    is_open = all_open(run.regions)
    with run.phase("death", run.regions // run.servers) as tell:
        cluster.simulated.ask("end", 0)
        eventually(lambda: gone, 60, "the store's word that the server is gone")
        settled, _ = cluster.follow(
            "its regions open", lambda status: status.servers == run.servers - 1 and is_open(status)
        )
        tell(settled - gone[0])


def _balance(run: _Run) -> tuple[int, int]:
    """Start the server again and balance, round after round. Return the number of moves and of rounds."""
    cluster = run.cluster
    cluster.simulated.ask("start", 0, 0)
    cluster.wait_registered(run.servers)
    cluster.follow("the server is back", lambda status: status.servers == run.servers)
    moves = rounds = 0
    with run.phase("balance", run.regions) as tell:
        began = time.monotonic()
        is_open = all_open(run.regions)
        while time.monotonic() - began < BALANCE_S:
            made = call_blocking(cluster.active().address, ms.Balance(run=True), 60.0, expect=ms.BalanceReport)
            rounds += 1
            if not made.moves:
                break
            moves += len(made.moves)
            cluster.follow("a round's moves", is_open)
        tell(time.monotonic() - began)
    return moves, rounds


def _switch(run: _Run) -> None:
    """Disable a tenth of all regions, and enable them again."""
    name = run.tables[0]
    count = run.regions // len(run.tables)
    for what, intent in (("disable", TableIntent.DISABLED), ("enable", TableIntent.ENABLED)):
        with run.phase(what, count):
            request = ms.SetTableIntent(name, intent, WAIT_MS)
            call_blocking(run.cluster.active().address, request, WAIT_MS / 1000, expect=ms.Tables)


def _failover(run: _Run, name: str) -> Failover:
    """Kill the active master with a part of all regions in transition."""
    cluster = run.cluster
    moving = max(1, run.regions // MOVING_PART)
    cluster.simulated.signal(signal.SIGSTOP)
    cluster.create_table(f"moving-{name}", moving)
    eventually(lambda: cluster.in_transition() == moving, 60, "regions in transition")
    run.regions += moving
    say(f"the master of {run.regions:,} regions is killed, {moving:,} of them in transition")
    watch = Watch(cluster.roles())
    made = kill_master(cluster, run.regions)
    run.add(name, made.serving_s, run.regions, watch.read())
    return made


def _start_bare(cluster: MillionLab) -> int:
    """Start the third master, without a mirror. Return its memory."""
    third = cluster.masters[2]
    third.start("--no-mirror")
    eventually(lambda: _knows_the_active(cluster), 60, "a standby without a mirror")
    return memory_bytes(third.pid)


def _knows_the_active(cluster: MillionLab) -> bool:
    status = cluster.status_of(cluster.masters[2])
    return status is not None and bool(status.active)
