"""What every drill needs: a cluster of `rk up`, a follower that records it, a load, the power to kill, waits.

A drill changes what runs, so it puts everything back however it ends: daemons that it killed are started again, frozen
ones continue, cut links are healed, its rows and znodes are deleted, also after an error, Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, UnreachableError
from cli.common.local import LocalCluster
from cli.common.names import Names
from cli.common.options import Globals
from cli.diagnose.follow import Follower, ReactorThread
from cli.drill.invariants import check_at_rest, check_history, observe
from cli.drill.report import DrillPhase, DrillReport, Figure, InvariantCheck, check
from cli.drill.traffic import Running, Span, enabled
from cli.up.control import ControlRequest, DaemonState, ask
from coord.errors import CoordError
from regions import messages
from regions.records.model import ServerRecord
from regions.records.replica_key import parse_replica_key
from regions.transitions.observed import NONE, Change

T = TypeVar("T")

#: Longest time for any one thing a drill waits for. Far above what a healthy cluster needs: beyond it the drill fails.
DEADLINE_S: Final = 90.0
#: How long a cluster may take to be at rest before the drill.
REST_DEADLINE_S: Final = 20.0
#: How long a daemon may be away: `rk up` starts again at once what died for the first time.
AWAY_DEADLINE_S: Final = 6.0
#: Longest time between two looks at a condition; news from the follower wakes the drill at once.
_PAUSE_S: Final = 0.05
#: The load runs for so long before the drill strikes, plus up to so much more, as the seed says.
WARM_UP_S: Final = 1.0
WARM_UP_MORE_S: Final = 2.0
#: A step is seen that much later at most than it happened, and a move whose steps nobody saw has lasted no longer.
SEEN_LATE_MS: Final = 1000


class ClusterUnderTest:
    """One running cluster and one reactor, for any number of drills one after the other."""

    def __init__(self, given: Globals, cluster: Cluster, local: LocalCluster, reactor: ReactorThread) -> None:
        self.given = given
        self.cluster = cluster
        self.local = local
        self.reactor = reactor


class Drill:
    """One drill on one cluster. Runs on the main thread; the follower fills in what it sees on the reactor's."""

    def __init__(self, target: ClusterUnderTest, follower: Follower, seed: int, rate: float) -> None:
        self.cluster = target.cluster
        self.local = target.local
        self.follower = follower
        self.reactor = target.reactor
        self.names = Names(target.cluster.servers(), target.local)
        self.rng = random.Random(seed)
        self.notes: list[str] = []
        self.figures: list[Figure] = []
        self.checks: list[InvariantCheck] = []
        self.victim = ""
        self.action = "was killed with SIGKILL"
        self.traffic: Running | None = None
        self.seed = seed
        self._rate = rate
        self._data_dir: Path = target.given.data_path
        self._pids: dict[str, int] = {}
        #: Daemons whose process was ended by this drill at some time, and those it has left dead.
        self._touched: set[str] = set()
        self._dead: set[str] = set()
        self._frozen: set[str] = set()
        self._endings: list[Callable[[], object]] = []
        self._struck: dict[str, float] = {}
        self._phases: list[DrillPhase] = []
        self._news = threading.Event()
        self._console = output.console(stderr=target.given.json)
        self._began_s = time.monotonic()
        follower.on_change = lambda _: self.news()
        follower.on_membership = lambda _: self.news()

    # --- telling ---

    def say(self, text: str) -> None:
        """One line about what happens, with the seconds since the drill began."""
        self._console.print(f"{self.elapsed_s():7.2f} s  {text}", markup=False, soft_wrap=True)

    def elapsed_s(self) -> float:
        """Since the drill began."""
        return time.monotonic() - self._began_s

    def figure(self, name: str, seconds: float, meaning: str) -> None:
        """Record a duration and print it."""
        self.figures.append(Figure(name, round(seconds, 3), "s", meaning))
        self.say(f"{name}: {output.seconds(seconds)}")

    def phase(self, name: str) -> None:
        """The phase before ends here, and this one begins; "" ends the last one."""
        now_s = self.elapsed_s()
        if self._phases and not self._phases[-1].seconds:
            self._phases[-1].seconds = round(now_s - self._phases[-1].began_s, 3)
        if name:
            self._phases.append(DrillPhase(name, round(now_s, 3), 0.0))

    # --- acting ---

    def now_ms(self) -> int:
        """Now, on the clock of the recorded changes."""
        return self.follower.clock.now_ms()

    def daemons(self) -> dict[str, DaemonState]:
        """The daemons of this cluster, by name."""
        return {one.name: one for one in ask(self._data_dir, ControlRequest("list"))}

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, is_quiet: bool = False) -> int:
        """End a daemon by a signal; returns the time at which it was sent."""
        self._touched.add(name)
        self._dead.add(name)
        ask(self._data_dir, ControlRequest("kill", name, number))
        at_ms = self.now_ms()
        if number == signal.SIGKILL and not is_quiet:
            self.say(f"killed {name} (SIGKILL)")
        return at_ms

    def restart(self, name: str, *, is_quiet: bool = False) -> None:
        """Have `rk up` start a daemon again."""
        ask(self._data_dir, ControlRequest("start", name))
        self._dead.discard(name)
        if not is_quiet:
            self.say(f"started {name} again")

    def freeze(self, name: str, *, is_quiet: bool = False) -> int:
        """SIGSTOP a daemon; returns the time at which it was sent."""
        self._frozen.add(name)
        ask(self._data_dir, ControlRequest("kill", name, signal.SIGSTOP))
        if not is_quiet:
            self.say(f"froze {name} (SIGSTOP)")
        return self.now_ms()

    def unfreeze(self, name: str, *, is_quiet: bool = False) -> int:
        """SIGCONT."""
        ask(self._data_dir, ControlRequest("kill", name, signal.SIGCONT))
        self._frozen.discard(name)
        if not is_quiet:
            self.say(f"{name} goes on (SIGCONT)")
        return self.now_ms()

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` done when the drill is over, whatever becomes of it; the last one given comes first."""
        self._endings.append(work)

    def put_back(self) -> None:
        """Whatever a drill that could not be finished has left behind: frozen, dead, cut off, running."""
        for name in sorted(self._frozen):
            with contextlib.suppress(CliError):
                self.unfreeze(name)
        for name in sorted(self._dead):
            with contextlib.suppress(CliError):
                self.restart(name)
        for work in reversed(self._endings):
            with contextlib.suppress(CliError, CoordError, TimeoutError, KazooException, KazooTimeoutError):
                work()
        if self.traffic is not None:
            if self.traffic.is_running:
                self.say("stopping the load and taking its rows away")
            with contextlib.suppress(CliError, KazooException, KazooTimeoutError):
                self.traffic.close()

    def on_reactor(self, work: Callable[[], Awaitable[T]], timeout_s: float = DEADLINE_S) -> T:
        """Run a coroutine beside the follower. Raises CliError instead of the store's own errors."""
        try:
            return self.reactor.run(work, timeout_s)
        except (CoordError, TimeoutError) as error:
            raise CliError(f"the drill lost the store: {error}") from error

    # --- the load ---

    def begin(self) -> None:
        """Record the daemons' pids, start the load, and let it run for as long as the seed says."""
        self._pids = {name: one.pid for name, one in self.daemons().items()}
        warm_up_s = WARM_UP_S + WARM_UP_MORE_S * self.rng.random()
        self.traffic = Running(self.cluster.hosts, self.cluster.layout.root, self.cluster.access)
        self.traffic.look(enabled(self.cluster.tables()))
        count = self.traffic.tables.count()
        if not count:
            self.notes.append("no table keeps rows (rk up --opener): nothing was read and written meanwhile")
        elif self._rate:
            self.traffic.start(self._rate)
            self.say(f"reading and writing {count} regions, {self._rate:g} requests per second")
        threading.Event().wait(warm_up_s)

    def strike(self, phase: str) -> None:
        """Note that the drill strikes now: outages from here on are its doing."""
        self.phase(phase)
        if self.traffic is not None:
            self._struck = self.traffic.now_s()

    def count_lost_sessions(self) -> None:
        """Add the figure of sessions that the store expired since the drill struck; each costs regions an outage."""
        lost = sum(one.what in ("server-down", "no-active") for one in list(self.follower.memberships))
        self.figures.append(Figure("sessions lost", lost, "", "of the active master and of region servers; 0 is right"))

    def settle(self) -> None:
        """Wait until every region is open and answers its clients."""
        self.wait(self.at_rest, "regions did not come to rest")
        traffic = self.traffic
        if traffic is not None and traffic.is_running:
            self.wait(lambda: not traffic.waiting, "regions do not answer their clients")

    # --- waiting ---

    def news(self) -> None:
        """Something has happened that may be waited for. Any thread."""
        self._news.set()

    def wait(self, look: Callable[[], T | None], what: str, timeout_s: float = DEADLINE_S) -> T:
        """Look whenever the follower has news, until there is an answer. Raises CliError naming `what` when late."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._news.clear()
            try:
                found = look()
            except (KazooException, KazooTimeoutError):
                found = None  # the store is what the drill takes away
            if found:
                return found
            if time.monotonic() > deadline:
                raise CliError(
                    f"{what}: not within {timeout_s:.0f} s",
                    f"Look: rk status --data-dir {self._data_dir}; logs in {self._data_dir}/logs",
                )
            self._news.wait(_PAUSE_S)

    def membership(self, what: str, since_ms: int, *, address: str = "", not_uuid: str = "") -> int | None:
        """Return when `what` first happened at or after `since_ms`; None if it has not."""
        for one in list(self.follower.memberships):
            fits = one.what == what and one.at_ms >= since_ms and address in ("", one.address)
            if fits and (not not_uuid or one.uuid != not_uuid):
                return one.at_ms
        return None

    def changes_since(self, since_ms: int) -> list[Change]:
        """Recorded changes from then on."""
        return [change for change in list(self.follower.history.changes) if change.at_ms >= since_ms]

    def status(self) -> messages.MasterStatus | None:
        """Return the active master's figures; None while no master is active."""
        try:
            return self.cluster.ask_master(messages.GetMasterStatus(), messages.MasterStatus, timeout_s=1.0)
        except CliError:
            return None

    def at_rest(self) -> messages.MasterStatus | None:
        """The active master's figures once every region is open and none is in transition."""
        found = self.status()
        if found is None or found.role != "active" or found.rit or found.open < found.replicas:
            return None
        return None if self.follower.history.in_transition else found

    def require_rest(self, *, masters: int = 1, servers: int = 2, store_nodes: int = 0) -> messages.MasterStatus:
        """The state before the drill. Raises CliError when the cluster is too small, not whole or not at rest."""
        self.phase("look")
        if len(self.local.coord) < store_nodes:
            raise CliError(
                f"this drill needs a store of {store_nodes} nodes or more, run by `rk up`",
                "A store of one node has no failover; --store-nodes 3 is the default of `rk up`.",
            )
        if len(self.local.masters) < masters:
            raise CliError(f"this drill needs {masters} masters", "Start the cluster with --masters 2 or more.")
        if len(self.local.servers) < servers:
            raise CliError(f"this drill needs {servers} region servers", "Start the cluster with --servers 2 or more.")
        found = self._wait_healthy()
        if not found.replicas:
            raise CliError(
                "there are no regions to drill with",
                "Create a table: rk table create NAME --regions 40 --from FILE.csv",
            )
        self.phase("load")
        return found

    def _wait_healthy(self) -> messages.MasterStatus:
        """Wait until every daemon runs and every region is open. Raises CliError that names what is missing."""
        began_s = time.monotonic()
        while True:
            why = self._ailment()
            found = None if why else self.at_rest()
            if found is not None:
                return found
            if time.monotonic() - began_s > (AWAY_DEADLINE_S if why else REST_DEADLINE_S):
                break
            self._news.wait(4 * _PAUSE_S)
        where = f"`rk status --data-dir {self._data_dir}` shows it; logs in {self._data_dir}/logs"
        if not why:
            status = self.status()
            why = (
                "no master is active"
                if status is None
                else f"{status.open} of {status.replicas} regions are open, {status.rit} in transition"
            )
        raise CliError(f"the cluster is not well before the drill: {why}", f"Nothing was touched. {where}")

    def _ailment(self) -> str:
        """Return what is missing of the daemons, in words; "" if all run and are registered."""
        for one in self.daemons().values():
            if not one.pid:
                return f"{one.name} does not run ({one.status})"
        if len(self.cluster.masters()) < len(self.local.masters):
            return "not all masters are registered"
        if len(self.cluster.servers()) < len(self.local.servers):
            return "not all region servers are registered"
        return ""

    # --- ending ---

    def finish(self, name: str, *, new_epoch_after: int | None = None) -> DrillReport:
        """Stop the load, check everything, and sum up."""
        self.settle()
        self.phase("checks")
        traffic = None
        if self.traffic is not None and self.traffic.is_running:
            self.say("stopping the load: every row it wrote is read again")
            traffic, checks = self.traffic.stop(self._struck)
            self.checks = [*checks, *self.checks]
        self.say("checking: every server is asked what it has open, and the store what it knows")
        self.checks += check_at_rest(observe(self.cluster))
        self.checks += check_history(self.follower.history, self.follower.epochs, new_epoch_after=new_epoch_after)
        self.checks.append(self._nobody_else_died())
        self.phase("")
        history = self.follower.history
        return DrillReport(
            drill=name,
            victim=self.victim,
            figures=self.figures,
            checks=self.checks,
            transitions=sum(1 + change.missed for change in history.changes),
            steps_unseen=history.steps_missed,
            notes=self.notes,
            action=self.action,
            seed=self.seed,
            seconds=round(self.elapsed_s(), 3),
            phases=self._phases,
            traffic=traffic,
        )

    def _nobody_else_died(self) -> InvariantCheck:
        """`rk up` starts again what dies, so a death that the drill did not order would go unseen."""
        broken = []
        now = self.daemons()
        for name, one in now.items():
            if not one.pid:
                broken.append(f"{name} does not run: {one.status}")
            elif name not in self._touched and one.pid != self._pids.get(name):
                broken.append(f"{name} died ({one.status}) and was started again: see {one.log}")
        return check("every daemon runs, none died by itself", broken, f"{len(now)} daemons")

    def moves(self, since_ms: int) -> dict[str, list[Span]]:
        """When each region was not open, by the store's history: seconds on the clock of the changes."""
        return moves_of(self.changes_since(since_ms))

    def all_regions(self) -> list[messages.RegionStatus]:
        """Every region of every table."""
        tables = self.cluster.ask_master(messages.ListTables(), messages.Tables).tables
        found = []
        for one in tables:
            found += self.cluster.ask_master(messages.DescribeTable(one.table.table_id), messages.Regions).regions
        return found

    def daemon_of(self, host: str, port: int) -> str:
        """Name of the local daemon at that address. Raises CliError for one that `rk up` does not run."""
        for one in self.local.daemons():
            if one.address == f"{host}:{port}":
                return one.name
        raise CliError(
            f"{host}:{port} is not a daemon of this `rk up`", "Drills kill only processes that they can start again."
        )

    def servers(self) -> list[ServerRecord]:
        """Live servers."""
        return self.cluster.servers()


@contextlib.contextmanager
def open_cluster_under_test(given: Globals) -> Iterator[ClusterUnderTest]:
    """Everything drills need, checked before anything is killed. Raises CliError."""
    ask(given.data_path, ControlRequest("list"))  # an `rk up` must be there: it brings the victims back
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with open_cluster(given) as cluster:
            if cluster.local is None:
                raise UnreachableError(f"the store {cluster.hosts} is not that of the cluster in {given.data_path}")
            with ReactorThread() as reactor:
                yield ClusterUnderTest(given, cluster, cluster.local, reactor)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def open_drill(target: ClusterUnderTest, seed: int, rate: float, *, is_startup: bool = False) -> Iterator[Drill]:
    """One drill; whatever it has left behind is put back. `is_startup`: a cluster start is part of it."""
    reactor, cluster = target.reactor, target.cluster

    async def make() -> Follower:
        root = cluster.layout.root or "/"
        return Follower(reactor.reactor, cluster.hosts, root, access=cluster.access, wipe_allowed=is_startup)

    follower = reactor.run(make)
    try:
        reactor.run(follower.start)
    except (CoordError, TimeoutError) as error:
        raise UnreachableError(f"cannot follow the transitions: {error}") from error
    drill = Drill(target, follower, seed, rate)
    try:
        yield drill
    except KeyboardInterrupt:
        drill.say("interrupted: putting everything back")
        raise
    finally:
        with _uninterrupted():
            drill.put_back()
            with contextlib.suppress(CoordError, TimeoutError):
                reactor.run(follower.stop, timeout_s=5.0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM have to wait: half of a clean-up leaves a cluster in pieces."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spans(changes: list[Change]) -> Iterator[tuple[str, int, int]]:
    """(replica, from, to) in ms of each time that it was not open: from leaving its server to being OPENED again."""
    began: dict[str, int] = {}
    for change in changes:
        if change.after in ("CLOSING", "CLOSED", "OFFLINE", "OPENING"):
            began.setdefault(change.key, change.at_ms)
        elif change.after in ("OPENED", NONE) and change.key in began:
            yield change.key, began.pop(change.key), change.at_ms


def moves_of(changes: list[Change]) -> dict[str, list[Span]]:
    """Return when each region was moving, in seconds; each span begins early, as steps are seen late."""
    seen = [(key, start_ms, end_ms) for key, start_ms, end_ms in spans(changes)]
    unseen = [
        (change.key, change.at_ms, change.at_ms)
        for change in changes
        if change.missed and change.after in ("OPENED", NONE)
    ]
    found: dict[str, list[Span]] = {}
    for key, start_ms, end_ms in seen + unseen:
        found.setdefault(parse_replica_key(key)[0], []).append(((start_ms - SEEN_LATE_MS) / 1000, end_ms / 1000))
    return found


def outages(changes: list[Change]) -> list[float]:
    """Seconds for which each replica was not open, each time of each."""
    return [(end_ms - start_ms) / 1000 for _, start_ms, end_ms in spans(changes)]
