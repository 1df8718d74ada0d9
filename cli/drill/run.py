"""What every drill needs: a cluster of `rk up`, a follower that records it, the power to kill, waits with deadlines."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from cli import output
from cli.connect import Cluster, open_cluster
from cli.control import ControlRequest, DaemonState, ask
from cli.drill.invariants import judge, judge_history, observe
from cli.drill.report import Check, Figure, Report
from cli.errors import CliError, UnreachableError
from cli.follow import Follower, ReactorThread
from cli.local import LocalCluster
from cli.names import Names
from cli.options import Globals
from coord.errors import CoordError
from regions import messages
from regions.model import ServerRecord
from regions.sights import NONE, Change

T = TypeVar("T")

#: Longest time for any one thing a drill waits for. Far above what a healthy cluster needs: beyond it the drill fails.
DEADLINE_S: Final = 90.0
#: Longest time between two looks at a condition; news from the follower wakes the drill at once.
_PAUSE_S: Final = 0.05


class Drill:
    """One drill on one cluster. Runs on the main thread; the follower fills in what it sees on the reactor's."""

    def __init__(
        self, given: Globals, cluster: Cluster, local: LocalCluster, reactor: ReactorThread, follower: Follower
    ) -> None:
        self.cluster = cluster
        self.local = local
        self.follower = follower
        self.reactor = reactor
        self.names = Names(cluster.servers(), local)
        self.notes: list[str] = []
        self.figures: list[Figure] = []
        self._data_dir: Path = given.data_path
        self._dead: set[str] = set()
        self._news = threading.Event()
        self._console = output.console(stderr=given.json)
        self._began_s = time.monotonic()
        follower.on_change = lambda _: self._news.set()
        follower.on_membership = lambda _: self._news.set()

    # --- telling ---

    def say(self, text: str) -> None:
        """One line about what happens, with the seconds since the drill began."""
        self._console.print(f"{time.monotonic() - self._began_s:7.2f} s  {text}", markup=False, soft_wrap=True)

    def figure(self, name: str, seconds: float, meaning: str) -> None:
        """Note a duration and say it."""
        self.figures.append(Figure(name, round(seconds, 3), "s", meaning))
        self.say(f"{name}: {output.seconds(seconds)}")

    # --- acting ---

    def now_ms(self) -> int:
        """Now, on the clock of the recorded changes."""
        return self.follower.clock.now_ms()

    def daemons(self) -> dict[str, DaemonState]:
        """The daemons of this cluster, by name."""
        return {one.name: one for one in ask(self._data_dir, ControlRequest("list"))}

    def kill(self, name: str) -> int:
        """SIGKILL a daemon; returns the time at which it was sent."""
        ask(self._data_dir, ControlRequest("kill", name, signal.SIGKILL))
        at_ms = self.now_ms()
        self._dead.add(name)
        self.say(f"killed {name} (SIGKILL)")
        return at_ms

    def restart(self, name: str) -> None:
        """Have `rk up` start a daemon again."""
        ask(self._data_dir, ControlRequest("start", name))
        self._dead.discard(name)
        self.say(f"started {name} again")

    def restart_all(self) -> None:
        """Bring back whom a drill that could not be finished has left dead."""
        for name in sorted(self._dead):
            self.restart(name)

    def on_reactor(self, work: Callable[[], Awaitable[T]], timeout_s: float = DEADLINE_S) -> T:
        """Run a coroutine beside the follower. Raises CliError instead of the store's own errors."""
        try:
            return self.reactor.run(work, timeout_s)
        except (CoordError, TimeoutError) as error:
            raise CliError(f"the drill lost the store: {error}") from error

    # --- waiting ---

    def wait(self, look: Callable[[], T | None], what: str, timeout_s: float = DEADLINE_S) -> T:
        """Look whenever the follower has news, until there is an answer. Raises CliError naming `what` when late."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._news.clear()
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                raise CliError(
                    f"{what}: not within {timeout_s:.0f} s",
                    f"Look: rk status --data-dir {self._data_dir}; logs in {self._data_dir}/logs",
                )
            self._news.wait(_PAUSE_S)

    def membership(self, what: str, since_ms: int, *, address: str = "", not_uuid: str = "") -> int | None:
        """When `what` happened first at or after `since_ms`; None if it has not."""
        for one in list(self.follower.memberships):
            fits = one.what == what and one.at_ms >= since_ms and address in ("", one.address)
            if fits and (not not_uuid or one.uuid != not_uuid):
                return one.at_ms
        return None

    def changes_since(self, since_ms: int) -> list[Change]:
        """Recorded changes from then on."""
        return [change for change in list(self.follower.history.changes) if change.at_ms >= since_ms]

    def status(self) -> messages.MasterStatus | None:
        """The active master's figures; None while nobody is active."""
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

    def require_rest(self, *, masters: int = 1, servers: int = 2) -> messages.MasterStatus:
        """The state before the drill. Raises CliError when the cluster is too small or not at rest."""
        if len(self.cluster.masters()) < masters:
            raise CliError(f"this drill needs {masters} live masters", "Start the cluster with --masters 2 or more.")
        if len(self.cluster.servers()) < servers:
            raise CliError(
                f"this drill needs {servers} live region servers", "Start the cluster with --servers 2 or more."
            )
        found = self.wait(self.at_rest, "the cluster did not come to rest before the drill", 30.0)
        if not found.replicas:
            raise CliError(
                "there are no regions to drill with",
                "Create a table: rk table create NAME --regions 40 --from FILE.csv",
            )
        return found

    # --- ending ---

    def report(self, drill: str, victim: str, checks: list[Check]) -> Report:
        """The report, from what was recorded."""
        history = self.follower.history
        steps = sum(1 + change.missed for change in history.changes)
        return Report(drill, victim, self.figures, checks, steps, history.steps_missed, self.notes)

    def invariants(self, *, new_epoch_after: int | None = None) -> list[Check]:
        """All checks that every drill ends with."""
        self.say("checking: every server is asked what it has open, and the store what it knows")
        return [
            *judge(observe(self.cluster)),
            *judge_history(self.follower.history, self.follower.epochs, new_epoch_after=new_epoch_after),
        ]

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
def open_drill(given: Globals) -> Iterator[Drill]:
    """Everything a drill needs, checked before anything is killed. Raises CliError."""
    ask(given.data_path, ControlRequest("list"))  # an `rk up` must be there: it brings the victims back
    with open_cluster(given) as cluster:
        if cluster.local is None:
            raise UnreachableError(f"the store {cluster.hosts} is not that of the cluster in {given.data_path}")
        with ReactorThread() as reactor:
            follower = reactor.run(lambda: _make(reactor, cluster))
            try:
                reactor.run(follower.start)
            except (CoordError, TimeoutError) as error:
                raise UnreachableError(f"cannot follow the transitions: {error}") from error
            drill = Drill(given, cluster, cluster.local, reactor, follower)
            try:
                yield drill
            finally:
                with contextlib.suppress(CliError):
                    drill.restart_all()
                with contextlib.suppress(CoordError, TimeoutError):
                    reactor.run(follower.stop, timeout_s=5.0)


async def _make(reactor: ReactorThread, cluster: Cluster) -> Follower:
    return Follower(reactor.reactor, cluster.hosts, cluster.layout.root or "/", access=cluster.access)


def outages(changes: list[Change], from_states: tuple[str, ...] = ("CLOSING", "CLOSED", "OFFLINE")) -> list[float]:
    """Seconds for which each replica was not open: from leaving its server to being OPENED again."""
    began: dict[str, int] = {}
    found = []
    for change in changes:
        if change.after in from_states:
            began.setdefault(change.key, change.at_ms)
        elif change.after in ("OPENED", NONE) and change.key in began:
            found.append((change.at_ms - began.pop(change.key)) / 1000)
    return found
