"""Start a local cluster, phase by phase, and stop it in the right order.

Each phase waits for an event: the store has a leader, a master is active, the servers are registered, the plan is made,
every region is open. If the event changes a znode, a watch wakes the phase. Each wait also ends after a short pause, to
update the display and to report daemons that died.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from cli.common import output
from cli.common.access import ask_node, is_answering, open_store
from cli.common.asking.refusals import refusal
from cli.common.asking.servers import ask_server
from cli.common.connect import Cluster, new_request_id
from cli.common.errors import CliError, UnreachableError
from cli.common.local import MASTER, SERVER, STORE, LocalCluster, local_cluster_id
from cli.common.names import Names
from cli.common.views.display import Display
from cli.tables import storage_words
from cli.up.progress import cluster_status
from cli.up.supervisor import Added, Ended, News, NotStarted, Restarted, Supervisor, last_lines
from coord.client.access import StoreAccess
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from master.client import split_address
from regions import messages
from regions.records.model import ActiveRecord, PlanState, ServerRecord, TableState
from regions.records.partitioning import RegionSpec
from regions.records.replica_key import replica_key
from regions.records.znodes import decode_region

#: Time without any progress before `rk up` gives up, while all necessary daemons run. A busy machine may need most of
#: this time.
PATIENCE_S: Final = 60.0
#: The same for the plan and the transitions: Spark reports little progress while it starts.
ASSIGN_STALL_S: Final = 150.0
#: Time for which a problem may last at the end of the start before it is shown.
PROBLEMS_PASS_S: Final = 3.0
#: Interval of the lines that name the awaited event.
REPORT_EVERY_S: Final = 10.0

#: Longest time between two checks without a watch event.
_PAUSE_S: Final = 0.1
_STATUS_TIMEOUT_S: Final = 3.0
#: Time in which a store with a leader must open a session before the next attempt.
_SESSION_TIMEOUT_S: Final = 20.0
#: The store is unreachable for a moment; kazoo reconnects on its own.
_AWAY: Final = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooTimeoutError, UnreachableError)
_MARK_TIMEOUT_S: Final = 3.0
#: Time in which each kind of daemon must stop before `rk up` kills it.
_STOP_TIMEOUT_S: Final = {MASTER: 8.0, SERVER: 10.0, STORE: 8.0}

Watch = Callable[..., None]
T = TypeVar("T")


class Assigned:
    """Outcome of the assignment phases."""

    def __init__(self) -> None:
        self.regions = 0
        self.open = 0
        self.parked = 0
        #: Regions that were already open on their servers before this start; None if there was no earlier start.
        self.kept: int | None = None
        self.engine = ""
        self.plan_seconds = 0.0
        self.master_phases: list[messages.StartupPhase] = []


class UpTable(NamedTuple):
    """The table that the first start creates."""

    name: str
    specs: list[RegionSpec]
    replicas: int
    #: The reason for a single copy of the rows if the operator did not ask for one, otherwise "".
    why_one: str = ""


class BringUp:
    """One start of one local cluster; all methods are for the main thread."""

    def __init__(
        self,
        local: LocalCluster,
        supervisor: Supervisor,
        display: Display,
        news: queue.Queue[News],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._local = local
        self._supervisor = supervisor
        self._display = display
        self._news = news
        self._now_s = now_s
        #: Progress of the current phase, and the time of its last progress.
        self._count = 0
        self._moved_at = now_s()
        #: The server of each replica before this start, by replica key.
        self._before: dict[str, str] = {}

    # --- up ---

    def start_daemons(self) -> None:
        """Start all daemons at once, so that their start-up times overlap."""
        for daemon in self._local.daemons():
            daemon.pid = self._supervisor.start(daemon.name)

    def wait_store(self) -> str:
        """Wait until the store can commit. Return the leader's name ("" for an outside store)."""
        self._display.begin(
            "store", "store has a leader" if self._local.coord else f"store {self._local.store} answers"
        )
        if not self._local.coord:
            hosts = self._local.store.split(",")
            self._until(lambda _: any(is_answering(host) for host in hosts), f"no store answers at {self._local.store}")
            self._display.end()
            return ""
        leader = ""

        def elected(_: Watch) -> bool:
            nonlocal leader
            roles = {node.name: store_role(node.address, _STATUS_TIMEOUT_S) for node in self._local.coord}
            leader = next((name for name, role in roles.items() if role in ("leader", "standalone")), "")
            return bool(leader)

        self._until(elected, "the store elected no leader")
        self._display.end(leader)
        return leader

    def connect(self, stack: contextlib.ExitStack, access: StoreAccess) -> KazooClient:
        """Open a session with the store. The session ends with `stack`."""
        session = partial(open_store, self._local.store, _SESSION_TIMEOUT_S, access)
        return self.surely(lambda: stack.enter_context(session()), "the store opened no session")

    def surely(self, work: Callable[[], T], what: str) -> T:
        """Call the idempotent `work`; retry while the store or the masters are unreachable."""
        found: list[T] = []

        def done(_: Watch) -> bool:
            found.append(work())
            return True

        self._until(done, what)
        return found[-1]

    def remember_places(self, cluster: Cluster) -> bool:
        """Read the regions' servers. Return whether the store has the data of an earlier cluster."""
        if not cluster.exists():
            return False
        for table in (one for one in cluster.tables() if one.state is not TableState.REMOVED):
            folder = cluster.layout.table_regions(table.table_id)
            for region_id, region in cluster.records(folder, decode_region).items():
                for place in region.replicas:
                    if place.uuid is not None:
                        self._before[replica_key(region_id, place.replica)] = place.uuid
        return True

    def wait_master(self, client: KazooClient, cluster: Cluster) -> str:
        """Wait until a master is active and has loaded. Return its address."""
        self._display.begin("master", "a master is active")
        address = ""

        def active(watch: Watch) -> bool:
            nonlocal address
            if client.exists(cluster.layout.active, watch=watch) is None:
                return False
            found = cluster.active()
            # After a crash of the whole cluster the store has the former master's znode until its session ends.
            address = f"{found.host}:{found.port}" if found is not None and _rules(found) else ""
            return bool(address)

        self._until(active, "no master became active")
        self._display.end(self._named(address))
        return address

    def wait_servers(self, client: KazooClient, cluster: Cluster) -> None:
        """Wait until every region server is registered."""
        wanted = len(self._local.servers)
        self._display.begin("servers", "region servers are registered", wanted)

        def registered(watch: Watch) -> bool:
            if client.exists(cluster.layout.servers, watch=watch) is None:
                return False
            client.get_children(cluster.layout.servers, watch=watch)
            found = sum(1 for server in cluster.servers() if _is_itself(server))
            self._display.update(found, wanted)
            self._come_to(found)
            return found >= self._running(SERVER)

        self._until(registered, "the region servers did not register")
        self._display.end(output.count(wanted, "server"))

    def create_table(self, cluster: Cluster, table: UpTable) -> None:
        """Create the table as soon as the active master knows the servers; its regions open in the phases that follow.

        The master reads a registration some milliseconds later than this process, and rejects a table without servers.
        """
        self._display.begin("table", f"table {table.name} is created")
        self._until(
            lambda _: cluster_status(cluster).servers >= self._running(SERVER), "the master did not see all servers"
        )
        request = messages.CreateTable(
            name=table.name, regions=table.specs, replication=table.replicas, request_id=new_request_id()
        )
        made = self.surely(lambda: cluster.ask_master(request, messages.Tables), f"table {table.name} was not created")
        kind = storage_words(made.tables[0].table) + (f": {table.why_one}" if table.why_one else "")
        self._display.end(f"{output.count(len(table.specs), 'region')}; {kind}")

    def follow_assignment(self, cluster: Cluster) -> Assigned:
        """Show the plan and the transitions until every region is open, or parked with its reason.

        Raise CliError if there is no progress for ASSIGN_STALL_S.
        """
        result = Assigned()
        self._display.begin("plan", "plan is computed")
        status = self._progress(cluster, lambda status: not _planning(status), result, planning=True)
        plan = status.plan
        self._display.end(
            f"{plan.engine}{f', {plan.note}' if plan.note else ''}"
            if plan is not None and plan.engine
            else "not needed"
        )
        what = "regions" if status.replicas == status.regions else "replicas"
        self._display.begin("open", f"{what} OPENED", status.replicas)
        status = self._progress(cluster, _settled, result, planning=False)
        result.regions, result.open, result.parked = status.replicas, status.open, status.parked
        result.master_phases = status.phases
        if self._before:
            result.kept = self.surely(lambda: self._count_kept(cluster), "the servers of the regions could not be read")
        kept = "" if result.kept is None else f"{result.kept} of {len(self._before)} on their former servers"
        self._display.end(kept)
        self.show_problems(cluster, status.problems and self._lasting_problems(cluster))
        return result

    def _lasting_problems(self, cluster: Cluster) -> list[str]:
        """Return the active master's problems that remain after PROBLEMS_PASS_S. Return [] as soon as there are none.

        The last members of tablets answer their leaders some tenths of a second after they opened.
        """
        found: list[str] = []
        began = self._now_s()

        def passed(_: object) -> bool:
            found[:] = cluster_status(cluster).problems
            return not found or self._now_s() - began >= PROBLEMS_PASS_S

        self._until(passed, "the active master did not send its status")
        return found

    def show_problems(self, cluster: Cluster, problems: list[str]) -> None:
        """Show the active master's problems, with the names of servers in place of their uuids."""
        if not problems:
            return
        names = self.surely(lambda: Names(cluster.servers(), self._local), "the servers could not be read")
        for problem in problems:
            self._display.say(f"  {names.in_sentence(problem)}", problem=problem)

    def _progress(
        self, cluster: Cluster, done: Callable[[messages.MasterStatus], bool], result: Assigned, *, planning: bool
    ) -> messages.MasterStatus:
        moved_at = time.monotonic()
        last: object = None
        pause = threading.Event()
        while True:
            status = self.surely(
                lambda: cluster_status(cluster),
                "no master sent its status",
            )
            plan = status.plan
            if plan is not None and plan.engine:
                result.engine, result.plan_seconds = plan.engine, plan.seconds
            if done(status):
                if not planning:
                    self._display.update(status.open, status.replicas)
                return status
            stage, *counts = _stage(plan) if planning else (f"{status.rit} in transition", status.open, status.replicas)
            self._display.update(counts[0], counts[1], stage)
            here = (stage, status.open, status.rit, status.parked)
            if here != last:
                last, moved_at = here, time.monotonic()
            elif time.monotonic() - moved_at > ASSIGN_STALL_S:
                raise CliError(
                    f"{status.open} of {status.replicas} regions open, and no progress for {ASSIGN_STALL_S:.0f} s",
                    f"Read {self._log_of(status.active)} and the servers' logs.",
                )
            self._handle_news()
            pause.wait(_PAUSE_S)

    def _count_kept(self, cluster: Cluster) -> int:
        kept = 0
        for table in cluster.tables():
            folder = cluster.layout.table_regions(table.table_id)
            for region_id, region in cluster.records(folder, decode_region).items():
                for place in region.replicas:
                    kept += self._before.get(replica_key(region_id, place.replica)) == place.uuid is not None
        return kept

    # --- waiting ---

    def _until(self, look: Callable[[Watch], bool], what: str) -> None:
        """Call `look` on every watch event, and after short pauses, until it returns True.

        Raise CliError that names the logs after PATIENCE_S without progress, or once too few processes run.
        """
        wake = threading.Event()

        def fired(*_: Any) -> None:
            wake.set()

        self._count = 0
        began = shown = self._moved_at = self._now_s()
        while True:
            wake.clear()
            away = ""
            try:
                if look(fired):
                    return
            except _AWAY as error:
                away = f" ({error or type(error).__name__})"
            self._handle_news()
            now = self._now_s()
            if now - self._moved_at > PATIENCE_S:
                hint = f"The logs show the reason: {self._log_directory()}"
                raise UnreachableError(f"{what} within {now - began:.0f} s{away}", hint)
            if now - shown >= REPORT_EVERY_S:
                shown = now
                seconds = round(now - began)
                self._display.say(f"  {what} in {seconds} s{away}: still waiting", waiting=what, seconds=seconds)
            wake.wait(_PAUSE_S)

    def _come_to(self, count: int) -> None:
        """Set the progress of the phase, and restart PATIENCE_S."""
        if count > self._count:
            self._moved_at = self._now_s()
        self._count = count

    def _handle_news(self) -> None:
        """Show daemons that ended; raise CliError if the cluster cannot start without them."""
        while True:
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                return
            self.show(news)
            if isinstance(news, Ended):
                self._check_enough(news)

    def show(self, news: News) -> None:
        """Show the end of a daemon, or its restart. After an unexpected end, show the last lines of its log."""
        daemon = news.daemon
        if isinstance(news, NotStarted):
            self._display.say(
                f"{_now()}  {daemon.name} cannot be started: {news.why}; next attempt in {news.again_in_s:.0f} s",
                daemon=daemon.name,
                why=news.why,
                again_in_s=news.again_in_s,
            )
            return
        if isinstance(news, Added):
            daemon.pid = news.pid
            self._display.say(f"{_now()}  {daemon.name} was added, pid {news.pid}", daemon=daemon.name, added=news.pid)
            return
        if isinstance(news, Restarted):
            daemon.pid = news.pid
            self._display.say(
                f"{_now()}  {daemon.name} was restarted, pid {news.pid}",
                daemon=daemon.name,
                pid=news.pid,
                by_itself=news.by_itself,
            )
            return
        ended = news
        daemon.pid = 0
        if ended.expected:
            self._display.say(
                f"{_now()}  {daemon.name} ended ({ended.how}), as requested", daemon=daemon.name, ended=ended.how
            )
            return
        again = "" if ended.again_in_s is None else f"; restart in {ended.again_in_s:.0f} s"
        text = f"{_now()}  {daemon.name} ended unexpectedly: {ended.how}{again}. Last lines of its log {daemon.log}:"
        self._display.say(text, daemon=daemon.name, ended=ended.how, again_in_s=ended.again_in_s)
        for line in last_lines(Path(daemon.log)):
            self._display.say(f"    {line}", daemon=daemon.name, log=line)

    def _check_enough(self, ended: Ended) -> None:
        role = ended.daemon.role
        running = self._running(role)
        needed = len(self._local.coord) // 2 + 1 if role == STORE else 1
        if running < needed:
            kind = {STORE: "store nodes", MASTER: "masters", SERVER: "region servers"}[role]
            raise CliError(f"{running} {kind} left, {needed} needed: giving up", f"The logs: {self._log_directory()}")

    def _running(self, role: str) -> int:
        return sum(1 for state in self._supervisor.states() if state.role == role and state.pid)

    def _log_directory(self) -> str:
        return str(Path(self._local.daemons()[0].log).parent)

    def _log_of(self, address: str) -> str:
        return next((one.log for one in self._local.daemons() if one.address == address), self._log_directory())

    def _named(self, address: str) -> str:
        return next((one.name for one in self._local.daemons() if one.address == address), address)

    # --- down ---

    def stop(self) -> bool:
        """Stop all daemons in order: masters, servers, store. Record the clean shutdown first. Kill late daemons.

        Return whether all ended in time.
        """
        began = time.monotonic()
        self._supervisor.stop_starting()
        self._supervisor.keep_running(False)
        self._announce()
        late: list[str] = []
        for role in (MASTER, SERVER, STORE):
            names = [one.name for one in self._local.daemons() if one.role == role]
            self._supervisor.signal(names, signal.SIGTERM)
            late += self._supervisor.wait_ended(names, _STOP_TIMEOUT_S[role])
        self._supervisor.kill_all()
        if late:
            self._display.say(f"killed because they did not stop in time: {', '.join(late)}", killed=late)
        elapsed = time.monotonic() - began
        self._display.say(f"stopped in {output.seconds(elapsed)}; the data stays", stopped_seconds=round(elapsed, 3))
        return not late

    def _announce(self) -> None:
        """Let the active master record a clean shutdown, if there is an active master."""
        for master in self._local.masters:
            if not is_answering(master.address):
                continue
            try:
                address = split_address(master.address)
                mine = local_cluster_id(self._local)
                call_blocking(
                    address, messages.ShutdownCluster(), _MARK_TIMEOUT_S, expect=messages.Accepted, cluster=mine
                )
            except RpcError as error:
                if error.code != messages.NOT_LEADER:
                    failure = refusal(error, messages.ShutdownCluster())
                    self._display.say(
                        f"clean shutdown not recorded: {failure.message}", note="clean shutdown not recorded"
                    )
            else:
                return


def _now() -> str:
    return output.clock(int(time.time() * 1000))


def store_role(address: str, timeout_s: float = 1.0) -> str:
    """Return `leader`, `follower` or `standalone` from a store node's `srvr`; "" if the node does not serve."""
    return ask_node(address, "srvr", timeout_s).fields.get("Mode", "")


def _rules(active: ActiveRecord) -> bool:
    """Return True if the master at that address reports that it is active."""
    try:
        address = (active.host, active.port)
        status = call_blocking(address, messages.GetMasterStatus(), _STATUS_TIMEOUT_S, expect=messages.MasterStatus)
    except RpcError:
        return False
    return status.uuid == active.uuid and status.role != "standby"


def _is_itself(server: ServerRecord) -> bool:
    """Return whether the server at that address is the registered incarnation, and not a later one."""
    try:
        status = ask_server(server, messages.GetServerStatus(server.uuid), messages.ServerStatus, _STATUS_TIMEOUT_S)
    except RpcError:
        return False
    return status.server.incarnation == server.incarnation


def _planning(status: messages.MasterStatus) -> bool:
    if status.role != "active":
        return True
    return status.plan is not None and status.plan.state == PlanState.PLANNING


def _stage(plan: messages.PlanProgress | None) -> tuple[str, int, int]:
    """Return the stage of a plan and its progress. A stage such as `tables 3/7` includes its progress."""
    if plan is None:
        return "", 0, 0
    name, _, count = (plan.stage or plan.state).rpartition(" ")
    done, slash, total = count.partition("/")
    if slash and done.isdigit() and total.isdigit():
        return f"{plan.engine}: {name}", int(done), int(total)
    return plan.engine, 0, 0


def _settled(status: messages.MasterStatus) -> bool:
    return not _planning(status) and status.open + status.parked >= status.replicas and status.rit <= status.parked
