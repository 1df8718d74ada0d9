"""Shared by all drills: a cluster of `rk up`, a follower that records it, a load, faults, waits.

A drill restores everything, even after an error, Ctrl-C or SIGTERM: killed daemons are started, frozen ones continue,
cut links are restored, and the drill's rows and znodes are deleted.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from cli.common import output
from cli.common.errors import CliError, UnreachableError
from cli.common.names import Names
from cli.common.views.display import output_may_fail
from cli.diagnose.follow import Follower
from cli.drill.cleanup import deferred_signals
from cli.drill.histories import CLIENTS, HistoryClients
from cli.drill.invariants import check_at_rest, check_history, observe
from cli.drill.load import LoadOperation
from cli.drill.records.journal import DrillJournal
from cli.drill.report import DrillPhase, DrillReport, Figure, ForecastOutcome, InvariantCheck, check, spread
from cli.drill.tablets import check_gaps, check_tablets, check_unmoved, longest_gaps, running_tablets
from cli.drill.target.cluster import ClusterUnderTest
from cli.drill.target.moves import moves_of
from cli.drill.target.processes import Watched
from cli.drill.traffic import Running, Span, enabled, has_columns
from cli.up.control import DaemonState
from cli.up.progress import cluster_status
from coord.errors import CoordError
from regions import messages
from regions.records.acts.drills import DrillVerdict
from regions.records.model import RegionRecord, ServerRecord
from regions.transitions.observed import Change
from regionserver.client import DataError

T = TypeVar("T")

#: Time limit of every wait, after which the drill fails. A healthy cluster needs far less.
DEADLINE_S: Final = 90.0
#: Time limit for a cluster to come to rest before the drill.
REST_DEADLINE_S: Final = 20.0
#: Time limit for a daemon to restart: `rk up` restarts a daemon at once after its first death.
AWAY_DEADLINE_S: Final = 6.0
#: Time limit for the replicas of tablets to have applied the same entries after the last write.
WHOLE_DEADLINE_S: Final = 20.0
#: The same where tablets may have other members: the balancer may still give them to a server that has come back.
MOVES_DEADLINE_S: Final = 120.0
#: Longest time between two evaluations of a condition; events of the follower wake the drill at once.
_PAUSE_S: Final = 0.05
#: A kill that takes longer is mentioned in the report, because its exact time is not known.
_SLOW_KILL_MS: Final = 100
#: The load runs for this time before the fault, plus a random part of the second value.
WARM_UP_S: Final = 1.0
WARM_UP_MORE_S: Final = 2.0


class Drill:
    """One drill on one cluster. Runs on the main thread; the follower records on the reactor's thread."""

    def __init__(self, target: ClusterUnderTest, follower: Follower, name: str, seed: int, rate: float) -> None:
        self.cluster = target.cluster
        self.local = target.local
        self.follower = follower
        self.name = name
        #: True if the cluster had ended before the drill.
        self.is_gone = False
        self.reactor = target.reactor
        self.names = Names(target.cluster.servers(), target.local)
        self.rng = random.Random(seed)
        self.journal = DrillJournal(target.cluster.client, target.cluster.layout)
        self.report: DrillReport | None = None
        self.notes: list[str] = []
        self.figures: list[Figure] = []
        self.checks: list[InvariantCheck] = []
        self.forecast: list[ForecastOutcome] = []
        self.victim = ""
        self.arguments = ""
        self.action = "was killed with SIGKILL"
        self.traffic: Running | None = None
        #: Clients of tablets whose histories are checked; None without tablets or load.
        self.histories: HistoryClients | None = None
        #: Tablets before the fault.
        self.tablets: dict[str, RegionRecord] = {}
        #: The check of their members at the end.
        self.check_members = check_unmoved
        self.given = target.given
        self.seed = seed
        self._rate = rate
        self._processes = target.processes
        self._pids: dict[str, int] = {}
        #: Daemons that this drill has ended at some time, and those that it has not started again.
        self._touched: set[str] = set()
        self._dead: set[str] = set()
        self._frozen: set[str] = set()
        self._endings: list[Callable[[], object]] = []
        self._struck: dict[str, float] = {}
        self._struck_s = self._struck_at_s = 0.0
        #: Operations and failures of the clients with histories.
        self._timings: list[LoadOperation] = []
        self._failed: list[str] = []
        self._phases: list[DrillPhase] = []
        self._changed = threading.Event()
        self._console = output.console(stderr=target.given.json)
        self._began_s = time.monotonic()
        follower.on_change = lambda _: self.wake()
        follower.on_membership = lambda _: self.wake()

    # --- output ---

    def say(self, text: str) -> None:
        """Print one line, with the seconds since the drill began.

        Writes to a closed terminal fail. The drill restores everything nevertheless.
        """
        self.journal.note(self.elapsed_s(), text)
        with output_may_fail():
            self._console.print(f"{self.elapsed_s():7.2f} s  {text}", markup=False, soft_wrap=True)

    def elapsed_s(self) -> float:
        """Return seconds since the drill began."""
        return time.monotonic() - self._began_s

    def figure(self, name: str, seconds: float, meaning: str) -> None:
        """Record a duration and print it."""
        self.figures.append(Figure(name, round(seconds, 3), "s", meaning))
        self.say(f"{name}: {output.seconds(seconds)}")

    def phase(self, name: str) -> None:
        """End the present phase and begin the next one; "" ends the last phase."""
        now_s = self.elapsed_s()
        if self._phases and not self._phases[-1].seconds:
            self._phases[-1].seconds = round(now_s - self._phases[-1].began_s, 3)
        if name:
            self._phases.append(DrillPhase(name, round(now_s, 3), 0.0))

    # --- actions ---

    def now_ms(self) -> int:
        """Return the present time on the clock of the recorded changes."""
        return self.follower.clock.now_ms()

    def daemons(self) -> dict[str, DaemonState]:
        """Return the daemons of this cluster, by name."""
        return self._processes.daemons()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, is_quiet: bool = False) -> int:
        """End a daemon with a signal; return the time just before the signal.

        The cluster may notice the death before an operator's command returns, but no event of the death is earlier than
        this time.
        """
        self._touched.add(name)
        self._dead.add(name)
        at_ms = self.now_ms()
        self._processes.send(name, number)
        took_ms = self.now_ms() - at_ms
        if number == signal.SIGKILL and not is_quiet:
            self.say(f"killed {name} (SIGKILL)")
        if took_ms > _SLOW_KILL_MS:
            self.notes.append(
                f"the command that killed {name} took {output.seconds(took_ms / 1000)}: "
                "times from the kill count from its start"
            )
        return at_ms

    def restart(self, name: str, *, is_quiet: bool = False) -> None:
        """Let `rk up` start a daemon again."""
        self._processes.start(name)
        self._dead.discard(name)
        if not is_quiet:
            self.say(f"started {name} again")

    def freeze(self, name: str, *, is_quiet: bool = False) -> int:
        """Send SIGSTOP to a daemon; return the time at which it was sent."""
        self._frozen.add(name)
        self._processes.send(name, signal.SIGSTOP)
        if not is_quiet:
            self.say(f"froze {name} (SIGSTOP)")
        return self.now_ms()

    def unfreeze(self, name: str, *, is_quiet: bool = False) -> int:
        """Send SIGCONT to a daemon; return the time at which it was sent."""
        self._processes.send(name, signal.SIGCONT)
        self._frozen.discard(name)
        if not is_quiet:
            self.say(f"continued {name} (SIGCONT)")
        return self.now_ms()

    def expect_restarts(self) -> None:
        """Let any process end and start during this drill: faults come from elsewhere."""
        self._touched.update(self.daemons())

    def at_end(self, work: Callable[[], object]) -> None:
        """Call `work` at the end of the drill in any case; the last one given is called first."""
        self._endings.append(work)

    def close(self, verdict: DrillVerdict, error: str = "") -> None:
        """Undo the remaining faults, and write the drill's record."""
        self.restore()
        if not self.is_gone:
            self.journal.end(verdict, self.report, victim=self.victim, action=self.action, error=error)

    def restore(self) -> None:
        """Undo the faults of an unfinished drill: continue frozen daemons, start dead ones, heal cuts, stop clients.

        If `rk up` has ended, stop the clients without reading and deleting their rows.
        """
        with self._processes.watch(self._abandon) as watch:
            self._restore(watch)
        self.is_gone = watch.is_gone
        if watch.is_gone:
            self.say("no `rk up` runs any more: the drill's rows and znodes were not deleted")

    def _abandon(self) -> None:
        """End the clients at once: the cluster has gone. Called in another thread."""
        if self.histories is not None:
            self.histories.abandon()
        if self.traffic is not None:
            self.traffic.abandon()

    def _restore(self, watch: Watched) -> None:
        for name in sorted(self._frozen):
            with contextlib.suppress(CliError):
                self.unfreeze(name)
        for name in sorted(self._dead):
            with contextlib.suppress(CliError):
                self.restart(name)
        for work in reversed(self._endings):
            if watch.is_gone:
                break
            with contextlib.suppress(CliError, CoordError, TimeoutError, KazooException, KazooTimeoutError):
                work()
        if self.histories is not None:
            if not watch.is_gone:
                self.say("stopping the clients of tablets and deleting their rows")
            with contextlib.suppress(CliError):
                self._stop_histories()
        if self.traffic is not None:
            if self.traffic.is_running and not watch.is_gone:
                self.say("stopping the load and deleting its rows")
            with contextlib.suppress(CliError, KazooException, KazooTimeoutError):
                self.traffic.close()

    def on_reactor(self, work: Callable[[], Awaitable[T]], timeout_s: float = DEADLINE_S) -> T:
        """Run a coroutine on the reactor's thread. Raise CliError instead of the store's own errors."""
        try:
            return self.reactor.run(work, timeout_s)
        except (CoordError, TimeoutError) as error:
            raise CliError(f"the drill lost the store: {error}") from error

    # --- the load ---

    def begin(self) -> None:
        """Record the daemons' pids, start the load, and let it run for a random time."""
        self._pids = {name: one.pid for name, one in self.daemons().items()}
        self.journal.begin(self.name, self.seed, self.victim)
        warm_up_s = WARM_UP_S + WARM_UP_MORE_S * self.rng.random()
        self.traffic = Running(self.cluster.hosts, self.cluster.layout.root, self.cluster.access)
        tables = enabled(self.cluster.tables())
        self.traffic.find_tables([one.name for one in tables if not has_columns(one)])
        left_out = [one.name for one in tables if has_columns(one)]
        if left_out:
            self.notes.append(f"no reads and writes of tables with columns: {', '.join(left_out)}")
        count = self.traffic.tables.count()
        if not count:
            self.notes.append("no table stores rows (rk up --opener): the drill ran without reads and writes")
        elif self._rate:
            self.traffic.start(self._rate)
            self.say(f"reading and writing {count} regions, {self._rate:g} requests per second")
            self._start_histories(self.traffic)
        self.tablets = running_tablets(self.cluster)
        threading.Event().wait(warm_up_s)

    def _start_histories(self, traffic: Running) -> None:
        """Start the clients whose histories are checked, if there are tablets."""
        tablets = {name: found for name, found in traffic.tables.regions.items() if found[0].is_tablet}
        if not tablets:
            return
        self.histories = HistoryClients(traffic.locator, tablets, self._rate, self.seed)
        try:
            self.histories.start()
        except DataError as error:
            raise CliError(f"tablets cannot be read: {error}", "`rk tablet list` shows what is wrong.") from error
        self.say(f"{CLIENTS} clients read, write, and compare and set rows of {self.histories.tablets} tablets")

    def _stop_histories(self) -> list[InvariantCheck]:
        """End the clients of tablets and check their histories."""
        if self.histories is None:
            return []
        clients = self.histories
        found = clients.stop()
        self.histories = None
        self._timings = clients.timings()
        self._failed = clients.failures
        return [found]

    def await_answers(self, count: int, what: str) -> None:
        """Wait until each client of tablets has `count` operations answered that began after now."""
        clients, since_s = self.histories, time.monotonic()
        if clients is not None:
            self.wait(lambda: clients.answered_since(since_s) >= count, what)

    def strike(self, phase: str) -> None:
        """Begin the phase of the fault: later outages are caused by the drill."""
        self.phase(phase)
        self._struck_s = time.monotonic()
        self._struck_at_s = self.elapsed_s()
        if self.traffic is not None:
            self._struck = self.traffic.now_s()

    def count_lost_sessions(self) -> None:
        """Add the number of sessions that the store expired since the fault; each causes an outage of regions."""
        lost = sum(one.what in ("server-down", "no-active") for one in list(self.follower.memberships))
        self.figures.append(Figure("sessions lost", lost, "", "of the active master and of region servers; 0 is right"))

    def await_rest(self) -> None:
        """Wait until every region is open and answers its clients."""
        self.wait(self.at_rest, "regions did not come to rest")
        traffic = self.traffic
        if traffic is not None and traffic.is_running:
            self.wait(lambda: not traffic.waiting, "regions do not answer their clients")

    # --- waiting ---

    def wake(self) -> None:
        """Evaluate the awaited condition again. Thread-safe."""
        self._changed.set()

    def wait(self, look: Callable[[], T | None], what: str, timeout_s: float = DEADLINE_S) -> T:
        """Evaluate `look` after every event until it returns a value. Raise CliError naming `what` after the time
        limit."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._changed.clear()
            try:
                found = look()
            except (KazooException, KazooTimeoutError):
                found = None  # the drill may have taken the store away
            if found:
                return found
            if time.monotonic() > deadline:
                raise CliError(
                    f"{what}: not within {timeout_s:.0f} s",
                    f"Check `rk status`, and {self._processes.logs}.",
                )
            self._changed.wait(_PAUSE_S)

    def wait_until(self, at_ms: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until `now_ms` reaches `at_ms`. Raise CliError after the time limit."""
        self.wait(lambda: self.now_ms() >= at_ms, "the clock stands still", timeout_s)

    def membership(self, what: str, since_ms: int, *, address: str = "", not_uuid: str = "") -> int | None:
        """Return the time at which `what` first happened at or after `since_ms`; None if it has not happened."""
        for one in list(self.follower.memberships):
            fits = one.what == what and one.at_ms >= since_ms and address in ("", one.address)
            if fits and (not not_uuid or one.uuid != not_uuid):
                return one.at_ms
        return None

    def changes_since(self, since_ms: int) -> list[Change]:
        """Return the recorded changes since then."""
        return [change for change in list(self.follower.history.changes) if change.at_ms >= since_ms]

    def status(self) -> messages.MasterStatus | None:
        """Return the active master's figures, tablets included; None while no master is active."""
        try:
            return cluster_status(self.cluster, timeout_s=1.0)
        except CliError:
            return None

    def at_rest(self, away: int = 0) -> messages.MasterStatus | None:
        """Return the active master's figures if every region is open and none is in transition, else None.

        `away`: number of tablets' replicas whose servers the drill has ended.
        """
        found = self.status()
        if found is None or found.role != "active" or found.rit or found.open < found.replicas - away:
            return None
        return None if self.follower.history.in_transition else found

    def require_rest(self, *, masters: int = 1, servers: int = 2, store_nodes: int = 0) -> messages.MasterStatus:
        """Return the state before the drill. Raise CliError if the cluster is too small, incomplete or not at rest."""
        self.phase("check")
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
                "the cluster has no regions",
                "Create a table: rk table create NAME --regions 40 --from FILE.csv",
            )
        self.phase("load")
        return found

    def _wait_healthy(self) -> messages.MasterStatus:
        """Wait until every daemon runs and every region is open. Raise CliError that names the missing ones."""
        began_s = time.monotonic()
        while True:
            why = self._missing()
            found = None if why else self.at_rest()
            if found is not None:
                return found
            if time.monotonic() - began_s > (AWAY_DEADLINE_S if why else REST_DEADLINE_S):
                break
            self._changed.wait(4 * _PAUSE_S)
        where = f"`rk status` shows it; see also {self._processes.logs}."
        if not why:
            status = self.status()
            why = (
                "no master is active"
                if status is None
                else f"{status.open} of {status.replicas} regions are open, {status.rit} in transition"
            )
        raise CliError(f"the cluster is not healthy before the drill: {why}", f"Nothing was changed. {where}")

    def _missing(self) -> str:
        """Return which daemon is missing, or "" if all run and are registered."""
        for one in self.daemons().values():
            if not one.pid:
                return f"{one.name} is not running ({one.status})"
        if len(self.cluster.masters()) < len(self.local.masters):
            return "not all masters are registered"
        if len(self.cluster.servers()) < len(self.local.servers):
            return "not all region servers are registered"
        return ""

    # --- the end ---

    def finish(
        self,
        name: str,
        *,
        new_epoch_after: int | None = None,
        gap_max_s: float | None = None,
        rests: bool = True,
    ) -> DrillReport:
        """Stop the load, check everything, and return the report.

        `gap_max_s`: longest time for which a tablet may leave its clients without an answer; None: only show the
        longest gaps. `rests`: wait until the cluster is at rest. False if the caller has already waited without
        success.
        """
        if rests:
            self.await_rest()
        self.phase("checks")
        traffic = None
        if self.traffic is not None and self.traffic.is_running:
            self.say("stopping the load: reading every row again")
            of_tablets = self._stop_histories()
            traffic, checks = self.traffic.stop(self._struck)
            self.checks = [*checks, *of_tablets, *self.checks]
            self._judge_tablets(self.traffic, gap_max_s)
        self.say("checking: reading the open regions from every server, and the locations from the store")
        self.checks += self._check_at_rest()
        self.checks += check_history(self.follower.history, self.follower.epochs, new_epoch_after=new_epoch_after)
        self.checks.append(self._check_deaths())
        self.phase("")
        history = self.follower.history
        self.report = DrillReport(
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
            struck_s=round(self._struck_at_s, 3),
            phases=self._phases,
            traffic=traffic,
            forecast=self.forecast,
            arguments=self.arguments,
        )
        return self.report

    def _judge_tablets(self, traffic: Running, gap_max_s: float | None) -> None:
        """Add the longest gap of each tablet to the figures. With `gap_max_s`, check gaps and failed requests."""
        if not self.tablets:
            return
        asked = {one.region_id for regions in traffic.tables.regions.values() for one in regions} & self.tablets.keys()
        gaps = longest_gaps([*traffic.timings, *self._timings], asked, self._struck_s)
        self.figures += spread("tablet without an answer", list(gaps.values()), "the longest gap of each tablet")
        failed = self._failed + [
            f"{one.region_id}: {one.kind} failed after {one.ended_s - one.began_s:.1f} s: {one.error}"
            for one in traffic.timings
            if one.outcome != "ok" and one.region_id in asked
        ]
        if gap_max_s is not None:
            self.checks += [
                check_gaps(gaps, gap_max_s),
                check("no request to a tablet failed", failed, f"requests to {len(asked)} tablets"),
            ]
        elif failed:
            self.notes.append(f"{output.count(len(failed), 'request')} to tablets failed: {failed[0]}")

    def _check_at_rest(self) -> list[InvariantCheck]:
        """Check the cluster at rest. The last writes need a moment to reach every replica, and moves to end."""
        may_move = self.check_members is not check_unmoved
        deadline_s = time.monotonic() + (MOVES_DEADLINE_S if may_move else WHOLE_DEADLINE_S)
        while True:
            seen = observe(self.cluster)
            found = check_at_rest(seen)
            found += [self.check_members(self.tablets, seen.tablets)] if self.tablets else []
            # The balancer may move regions to a server that has come back: while it does, nothing can be judged.
            waits = not all(one.held for one in found) if may_move else bool(seen.transitions)
            waits = waits or bool(check_tablets(seen.tablets, seen.views))
            if not waits or time.monotonic() >= deadline_s:
                return found
            self._changed.wait(_PAUSE_S)
            self._changed.clear()

    def _check_deaths(self) -> InvariantCheck:
        """Check that no other daemon died: `rk up` restarts a dead daemon, which would hide the death."""
        broken = []
        now = self.daemons()
        for name, one in now.items():
            if not one.pid:
                broken.append(f"{name} is not running: {one.status}")
            elif name not in self._touched and one.pid != self._pids.get(name):
                broken.append(f"{name} died ({one.status}) and was restarted: see {one.log}")
        return check("every daemon runs, none died by itself", broken, f"{len(now)} daemons")

    def moves(self, since_ms: int) -> dict[str, list[Span]]:
        """Return when each region was not open, by the store's history, in seconds on the clock of the changes."""
        return moves_of(self.changes_since(since_ms))

    def all_regions(self) -> list[messages.RegionStatus]:
        """Return every region of every table."""
        tables = self.cluster.ask_master(messages.ListTables(), messages.Tables).tables
        found = []
        for one in tables:
            found += self.cluster.ask_master(messages.DescribeTable(one.table.table_id), messages.Regions).regions
        return found

    def daemon_of(self, host: str, port: int) -> str:
        """Return the name of the local daemon at this address. Raise CliError if `rk up` does not run it."""
        for one in self.local.daemons():
            if one.address == f"{host}:{port}":
                return one.name
        raise CliError(
            f"{host}:{port} is not a known process of this cluster", "Drills kill only processes that they can restart."
        )

    def servers(self) -> list[ServerRecord]:
        """Return the live servers."""
        return self.cluster.servers()


@contextlib.contextmanager
def open_drill(
    target: ClusterUnderTest, name: str, seed: int, rate: float, *, is_startup: bool = False
) -> Iterator[Drill]:
    """Yield one drill, and restore everything at its end. `is_startup`: a cluster startup is part of it."""
    reactor, cluster = target.reactor, target.cluster

    async def make() -> Follower:
        root = cluster.layout.root or "/"
        return Follower(reactor.reactor, cluster.hosts, root, access=cluster.access, wipe_allowed=is_startup)

    follower = reactor.run(make)
    try:
        reactor.run(follower.start)
    except (CoordError, TimeoutError) as error:
        raise UnreachableError(f"cannot follow the transitions: {error}") from error
    drill = Drill(target, follower, name, seed, rate)
    verdict, why = DrillVerdict.FAILED, ""
    try:
        yield drill
        verdict = DrillVerdict.HELD if drill.report is not None and drill.report.held else DrillVerdict.BROKEN
    except KeyboardInterrupt:
        verdict = DrillVerdict.INTERRUPTED
        drill.say("interrupted: restoring everything")
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise
    finally:
        with deferred_signals(drill.say):
            drill.close(verdict, why)
            with contextlib.suppress(CoordError, TimeoutError):
                reactor.run(follower.stop, timeout_s=5.0)
