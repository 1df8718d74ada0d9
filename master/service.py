"""The master process: store sessions, elections and tenures as active master, until SIGTERM.

    connect -> register -> standby -> active -> (lost session or epoch) -> standby ...

A master does not exit when it loses leadership (MF-14). A lost session or a refused write only ends the tenure. The
process then enters the next election, with the same uuid and under a new session if the old one has expired.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord import logs
from coord.client.session import SessionState, ZkClient
from coord.daemon import allow_many_files, collect_rarely, listen
from coord.env import System, steady_wall_clock
from coord.env_os import os_system
from coord.errors import ConfigError, CoordError, NoAuth
from coord.http import AdminHttp
from coord.metrics.spans import LONG_BOUNDS_S, SpansByName
from coord.metrics.turns import TurnTimes
from coord.peers.reactor import install
from coord.rpc.server import RpcServer
from coord.security import process
from coord.security.principal import MASTER, Principal
from master.access.checking import MasterChecks
from master.active import ActiveMaster
from master.api.requests import MasterApi
from master.api.resharding.automatic import AutomaticResharding
from master.api.roles import is_for_standby
from master.assignment.transition_times import TransitionTimes
from master.catalog import store
from master.health import MasterHealth
from master.heartbeats import HeartbeatReceiver
from master.leadership.election import Election
from master.leadership.fence import Fence
from master.leadership.identity import MasterIdentity
from master.metrics import MasterMetrics
from master.page.assembly import LivePage
from master.phases import Phases
from master.plans.planner import Planner
from master.settings import MasterSettings
from master.standby.auditor import Auditor, Sources, UnreadOf
from master.standby.shortfall import ShortfallCheck, list_reader
from master.standby.watcher import StoreWatcher
from regions.cluster.entities import Replica
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.health import judge_figures
from regions.diagnose.live.doubts import QUIET_MS, SettledList
from regions.liveness.reports import Suspect
from regions.messages import ListContacts, MasterRequest
from regions.messages.codes import check_cluster
from regions.messages.heartbeat import Heartbeat
from regions.records.model import Incarnation, MasterRecord
from regions.records.znodes import CorruptZnode, Layout, decode_master

__all__ = ["MasterService", "MasterSettings", "run"]

log = Logger()

#: Pause before the next election. The pause doubles up to RETRY_MAX_S after a failed election or a short tenure.
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
#: A tenure of at least this long resets the pause.
LASTED_MS: Final = 5_000
#: Time limit of an orderly stop. After it the session is left to expire.
STOP_S: Final = 3.0


class MasterService:
    """One master process; see the module docstring."""

    def __init__(
        self,
        reactor: Any,
        settings: MasterSettings,
        identity: MasterIdentity,
        *,
        system: System | None = None,
        planner: Planner | None = None,
    ) -> None:
        """`system` and `planner` default to those of this machine."""
        self._reactor = reactor
        self._settings = settings
        self._identity = identity
        self._layout = Layout(settings.root)
        system = system or os_system()
        self.token = system.entropy.token
        clock = system.clock
        self.now_ms: Callable[[], int] = steady_wall_clock(clock)
        self._started_ms = self.now_ms()
        self.client = ZkClient(
            reactor,
            settings.store,
            settings.session_timeout_ms,
            name="master",
            access=settings.access,
            server_rights=self._layout.server_rights,
            clock=clock,
            rng=system.rng,
        )
        self.election: Election | None = None
        self.active_master: ActiveMaster | None = None
        #: Times for the metrics: phases of activations, transitions.
        self.phase_times = SpansByName(LONG_BOUNDS_S)
        self.transition_times = TransitionTimes()
        #: Times that this process has become the active master.
        self.tenures = 0
        self.phases = Phases(lambda: clock.monotonic_ms() / 1000, self.phase_times.add)
        #: Live masters, sorted by address.
        self.registered: list[MasterRecord] = []
        self._planner = planner or Planner(
            reactor,
            settings.plan_dir or settings.data_dir / "plans",
            engine=settings.plan_engine,
            deadline_s=settings.plan_deadline_s,
            spark_master=settings.spark_master,
            spark_conf=settings.spark_conf,
            spark_min=settings.spark_min,
            blocks=settings.plan_blocks,
        )
        self._history: Any = None
        self.auditor: Auditor | None = None
        self.watcher: StoreWatcher | None = None
        self.make_watcher: Callable[..., StoreWatcher] = StoreWatcher
        #: Number of alarms that auditors of former sessions have raised.
        self.alarms_before = 0
        self._electing: Deferred[None] | None = None
        self._pause_s = RETRY_S
        self._active_since_ms = 0
        self._stopping = False
        #: True if the process must exit with a failure status.
        self.is_broken = False
        self.cluster_id = ""  #: "" until the first session has read the cluster record.
        self.heartbeats = HeartbeatReceiver(self, self.now_ms)
        self.api = MasterApi(self, reactor)
        self._rpc = RpcServer(
            self._dispatch,
            requests=MasterRequest,
            receiver=lambda: f"master {self.uuid} at {self.address}",
            check=lambda request: check_cluster(request.cluster, self.cluster_id, "master"),
            authorize=self._authorize,
        )
        self.rpc_times = self._rpc.times
        self.checks: MasterChecks | None = None
        if self._rpc.credentials is not None:
            self.checks = MasterChecks(
                reactor, self._layout.grants, self, lambda: clock.monotonic_ms() / 1000, is_for_standby
            )
        self._registry = CollectorRegistry()
        MasterMetrics(self, self._registry)
        self._admin_port: Any = None
        self.page: LivePage | None = None
        self._is_listening = False
        self.health = MasterHealth(self.now_ms, settings.session_timeout_ms)

    # --- state of the process -------------------------------------------------------------------------------------

    @property
    def uuid(self) -> str:
        """This master's uuid."""
        return self._identity.uuid

    @property
    def role(self) -> str:
        """standby, activating or active."""
        if self.active_master is None:
            return "standby"
        return (
            "active"
            if self.active_master.is_open and not self.active_master.store_session.may_be_over
            else "activating"
        )

    @property
    def address(self) -> str:
        """The "host:port" of this master's RPC server."""
        return f"{self._settings.host}:{self._settings.port}"

    @property
    def limits(self) -> AssignerConfig:
        """Limits that the active master applies. A standby uses the same limits after a failover."""
        return self._settings.limits

    @property
    def masters(self) -> int:
        """Number of live masters."""
        return len(self.registered)

    @property
    def active_since_ms(self) -> int:
        """Time at which this master won its latest election; 0 before the first."""
        return self._active_since_ms

    def uptime_ms(self) -> int:
        """Return the milliseconds since the start of the process."""
        return self.now_ms() - self._started_ms

    @property
    def start_code(self) -> int:
        """Start code of this process."""
        return self._identity.start_code

    def caller(self) -> str:
        """Return the sender's address of the request that is being dispatched."""
        return self._rpc.caller()

    def caller_principal(self) -> Principal:
        """Return the sender's proved identity of the request that is being dispatched, NOBODY on an open cluster."""
        return self._rpc.caller_principal()

    def _authorize(self, who: Principal, request: MasterRequest) -> None:
        """Raise RpcError if `who` may not make this request: the one place for all requests to a master."""
        if self.checks is not None:
            self.checks.check(who, request)

    def _dispatch(self, request: MasterRequest) -> msgspec.Struct | Awaitable[msgspec.Struct]:
        """Dispatch a request. Heartbeats are answered without a coroutine: there may be a thousand a second."""
        if isinstance(request, Heartbeat):
            return self.heartbeats.answer(request)
        if isinstance(request, ListContacts):
            return self.heartbeats.contacts()
        return self.api.dispatch(request)

    @property
    def turns(self) -> TurnTimes | None:
        """The counted turns of the main loop; None in a simulation, whose loop does not count them."""
        return getattr(self._reactor, "turns", None)

    # --- life -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Listen for requests and on the admin port. Raise ConfigError when an address is taken."""
        settings = self._settings
        listen(self._rpc, self._reactor, "address", settings.host, settings.port)
        self._is_listening = True
        if settings.admin_port:
            host = settings.admin_host or settings.host
            self.page = LivePage(self._reactor, self, settings)
            admin = AdminHttp(
                registry=self._registry,
                health=self._health,
                ready=self._is_ready,
                status=self.api.status,
                front=self.page.site,
                names={host, settings.host, *settings.admin_names},
            )
            self._admin_port = listen(admin, self._reactor, "admin address", host, settings.admin_port)

    def start(self) -> None:
        """Listen, unless the process listens already, and connect to the store; the session starts the election."""
        if not self._is_listening:
            self.listen()
        if self.page is not None:
            self.page.feed.start()
        if self.checks is not None:
            self.checks.keep_revocations(self._settings.data_dir)
        self.client.on_state(self._session_changed)
        self.client.connect().addErrback(lambda _: None)
        log.info("master {uuid} start code {code}", uuid=self.uuid, code=self._identity.start_code)

    async def stop(self) -> None:
        """Stop in an orderly way, and delete `/active` so that a standby need not wait for the session to expire."""
        self._stopping = True
        if self.page is not None:
            self.page.feed.stop()
        if self._electing is not None:
            self._electing.cancel()
        if self.auditor is not None:
            self.auditor.stop()
        if self.watcher is not None:
            self.watcher.stop()
        if self.checks is not None:
            self.checks.stop()
        if self.active_master is not None:
            self.active_master.end("stopping")
        if self.client.state is SessionState.CONNECTED and self.election is not None:
            try:
                await self.election.release()
            except CoordError as error:
                log.info("could not delete /active, a standby waits for this session to expire: {error}", error=error)
        await self.client.close()
        await self._rpc.stop()
        if self._admin_port is not None:
            await self._admin_port.stopListening()
        self._identity.release()

    @property
    def grants_problem(self) -> str:
        """Description of a fault in the grants in the store, or ""."""
        return "" if self.checks is None else self.checks.problem()

    def _health(self) -> tuple[bool, dict[str, object]]:
        is_activating = self.active_master is not None and self.role == "activating"
        began_ms = self._active_since_ms if is_activating else None
        reasons = self.health.reasons(self.client.trouble, began_ms, self.phases.current)
        degraded = [self.grants_problem] if self.grants_problem else []
        found: dict[str, object] = {"uuid": self.uuid, "reasons": reasons, "degraded": degraded}
        if self.role == "active":
            # The verdict of `rk health` from this master's figures alone. It does not affect `healthy`, because a
            # restart of this master would not repair the cluster.
            verdict = judge_figures(self.api.status())
            found |= {"cluster": verdict.verdict, "cluster_reasons": [one.text for one in verdict.reasons]}
        return not reasons, found

    def _is_ready(self) -> tuple[bool, dict[str, object]]:
        ready = self.client.state is SessionState.CONNECTED and self.role != "activating"
        return ready, {"role": self.role, "session": self.client.state.value}

    def _session_changed(self, state: SessionState) -> None:
        log.info("session {state}", state=state.value)
        self.health.session(state is SessionState.CONNECTED)
        if self._stopping:
            return
        if state is SessionState.CONNECTED:
            if self.checks is not None:
                self.checks.follow(self.client)
            self._start_election()
            return
        if self._electing is not None:
            self._electing.cancel()
        if state is SessionState.AUTH_FAILED:
            self.is_broken = True
            log.critical(
                "the store refuses the credential of --store-sasl or --store-auth, or requires one that is not given:"
                " correct it and start again"
            )
            self._reactor.stop()
        if state is SessionState.EXPIRED:
            self._reactor.callLater(0, self._connect_again)

    def _connect_again(self) -> None:
        if not self._stopping:
            self.client.connect().addErrback(lambda _: None)

    def _start_election(self) -> None:
        """Enter the election, unless this master is in it or active already."""
        if self._electing is not None or self.active_master is not None or self._stopping:
            return
        if self.client.state is not SessionState.CONNECTED:
            return
        electing = self._electing = ensureDeferred(self._elect())
        electing.addBoth(self._election_ended)

    async def _elect(self) -> None:
        now = self.now_ms
        cluster = await store.initialize_root(self.client, self._layout, now(), self.token, self.cluster_id)
        self.cluster_id = cluster.cluster_id
        self._begin_session()
        assert self.watcher is not None, "every session has its watcher"
        if self._settings.mirror:
            self.watcher.follow()
        election = self.election = Election(self._reactor, self.client, self._layout, self._settings, self._identity)
        await election.register()
        await self.client.add_watch(self._layout.masters, self._masters_changed, recursive=True)
        await self._count_masters()
        self.health.election_entered()
        epoch = await election.win(now, self._election_begins)
        log.info("master {uuid} is active, epoch {epoch}", uuid=self.uuid, epoch=epoch)
        fence = Fence(self.client, self._layout, epoch, self.cluster_id)
        self.active_master = ActiveMaster(
            self._reactor,
            fence,
            self._settings,
            self._planner,
            self.phases,
            now,
            self._active_master_ended,
            self.token,
            self.uuid,
            self.watcher.hand_over,
        )
        reports = self.active_master.reports
        self.active_master.balancing.loads = lambda: reports.loads
        self.active_master.misplaced.orphan_found = self._orphan_found
        self.active_master.other_problems = self.heartbeats.problems
        self.active_master.has_heard = self.heartbeats.has_heard
        self._active_since_ms = now()
        self.active_master.start(self._history)
        AutomaticResharding(self._reactor, self.active_master, now).start()
        self.tenures += 1
        self.transition_times.new_tenure()
        self.active_master.assigner.history.listener = self.transition_times.take

    def _begin_session(self) -> None:
        """Start the watcher and the auditor of a new session, in every role."""
        if self.auditor is not None and self.watcher is not None:
            if self.auditor.session_id == self.client.session_id:
                return
            self.alarms_before += self.auditor.alarms
            self.auditor.stop()
            self.watcher.stop()
        unread: UnreadOf = lambda paths: () if self.watcher is None else self.watcher.unread(paths)  # noqa: E731
        auditor = Auditor(
            self._reactor,
            self.client,
            self._layout,
            self.now_ms,
            self.uuid,
            Sources(self._at_rest, self._served_replicas, self._home_of, self._settled_replicas, self._copy, unread),
            ShortfallCheck(
                self.client,
                self._layout,
                lambda: self.watcher if self.active_master is None else None,
                self.heartbeats.roster,
                list_reader(self._reactor),
                self.now_ms,
            ),
        )
        self.heartbeats.doubted = auditor.doubt
        watcher = self.make_watcher(self._reactor, self.client, self._layout, self.now_ms, auditor)
        self.auditor, self.watcher = auditor, watcher
        watcher.start()
        auditor.start()

    def _orphan_found(self, orphan: Suspect) -> None:
        if self.auditor is not None:
            self.auditor.orphan(orphan.key, orphan.server)

    def _served_replicas(self) -> dict[Incarnation, Collection[str]]:
        """Return the replicas that each server with recent heartbeats has reported; empty on a standby."""
        active_master = self.active_master
        if active_master is None:
            return {}
        heard = self.heartbeats.roster.is_recent
        now_ms = self.now_ms()
        return {one: held.versions.keys() for one, held in active_master.reports.lists().items() if heard(one, now_ms)}

    def _settled_replicas(self) -> dict[Incarnation, SettledList] | None:
        """As `_served_replicas`, for servers whose last report with changes is QUIET_MS old. Add their last heartbeats.

        None on a standby.
        """
        active_master, now_ms = self.active_master, self.now_ms()
        if active_master is None:
            return None
        held, found = active_master.reports.lists(), {}
        for one, keys in self._served_replicas().items():
            member = self.heartbeats.roster.find(one.uuid)
            if member is not None and now_ms - held[one].reported_ms >= QUIET_MS:
                found[one] = SettledList(keys, member.received_ms)
        return found

    def _deciding(self) -> ActiveMaster | None:
        """Return the active master of this process if it may decide now."""
        one = self.active_master
        return one if one is not None and one.may_act else None

    def _home_of(self, key: str) -> Incarnation | None:
        """Return what `Reports.home_at_rest` returns. `_at_rest` leaves out CLOSING alone: it is compared later, when
        an open must have ended."""
        active_master = self._deciding()
        return None if active_master is None else active_master.reports.home_at_rest(key)

    def _copy(self) -> ClusterState | None:
        """Return the state by which this master decides, or would decide after a failover."""
        if self.active_master is not None:
            return None if (one := self._deciding()) is None else one.world
        mirror = None if self.watcher is None else self.watcher.mirror
        return mirror.world if mirror is not None and mirror.is_complete else None

    def _at_rest(self, server: Incarnation) -> set[str] | None:
        """Return the replicas that are open on a server, not in transition, and not being closed by it (N5).

        A server that reports CLOSING continues to serve until the store has the transition. Return None if this master
        must not decide.
        """
        active_master = self._deciding()
        if active_master is None:
            return None
        known = active_master.world.alive(server)
        found = set() if known is None else {key for key, one in known.open.items() if _is_at_rest(one)}
        return found.difference(active_master.reports.closing(server))

    def _election_begins(self) -> None:
        """Start the phase "election": `/active` is free."""
        self.phases = Phases(self.phases.seconds, self.phase_times.add)
        self.phases.begin("election")

    def _election_ended(self, result: Any) -> None:
        """Log why the election failed, if it did, and enter the next one after a pause."""
        self._electing = None
        if not isinstance(result, Failure) or self._stopping:
            return
        error = result.value
        if isinstance(error, ConfigError):
            self.is_broken = True
            log.critical("{error}", error=error)
            self._reactor.stop()
            return
        if isinstance(error, NoAuth):
            log.error(
                "the store denies this master access ({error}): the access lists name another identity, or the password"
                " is wrong; check the credential of --store-auth",
                error=error,
            )
        elif isinstance(error, CorruptZnode):
            log.error(
                "this master cannot enter the election: {error}; restore the value from a backup (rk coord restore); a"
                " master that was running before the damage repairs the znode itself",
                error=error,
            )
        elif not isinstance(error, CoordError | CancelledError):
            log.failure("election", failure=result)
        if not isinstance(error, CancelledError):
            self.health.election_failed(str(error) or type(error).__name__)
        self._retry_election()

    def _retry_election(self) -> None:
        """Enter the election again after a pause. Without a session, the next session starts the election."""
        if not self._stopping:
            self._reactor.callLater(self._pause_s, self._start_election)
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    def _active_master_ended(self, reason: str) -> None:
        active_master, self.active_master = self.active_master, None
        if self.election is not None:
            self.election.active = None  # unknown until this master has read /active again
        if active_master is not None:
            self._history = active_master.assigner.history
            log.info(
                "no longer active, epoch {epoch} has ended: {reason}", epoch=active_master.fence.epoch, reason=reason
            )
            if active_master.has_failed and self.election is not None and not self._stopping:
                self.election.leave()
        if self.now_ms() - self._active_since_ms > LASTED_MS:
            self._pause_s = RETRY_S
        self._retry_election()

    async def _count_masters(self) -> None:
        paths = await store.list_all(self.client, [self._layout.masters])
        found = store.decoded(await store.read_all(self.client, paths), decode_master)
        self.registered = sorted((record for record, _ in found), key=lambda one: (one.host, one.port))
        if self.election is not None and self.uuid not in [one.uuid for one in self.registered]:
            await self.election.restore_registration()

    def _masters_changed(self, *_event: Any) -> Deferred[None]:
        counted = ensureDeferred(self._count_masters())
        return counted.addErrback(lambda _: None)


def run(settings: MasterSettings) -> int:
    """Run a master until SIGTERM or SIGINT and return the exit status.

    Raise ConfigError when the data directory or an address cannot be used.
    """
    loop: Any = install()
    allow_many_files()
    logs.begin(loop)

    identity = MasterIdentity(settings.data_dir)
    collect_rarely()
    process.use_daemon(settings.certs_dir, Principal(MASTER, identity.uuid))
    service = MasterService(loop, settings, identity)

    def stop(*_: object) -> None:
        loop.callFromThread(_stop_once)

    stopping: list[bool] = []

    def _stop_once() -> None:
        if stopping:
            return
        stopping.append(True)
        loop.callLater(STOP_S, _quit)
        ensureDeferred(service.stop()).addErrback(lambda failure: log.failure("stop", failure=failure)).addBoth(_quit)

    def _quit(*_: object) -> None:
        if loop.running:
            loop.stop()

    try:
        service.listen()
    except ConfigError:
        identity.release()
        raise
    loop.callWhenRunning(service.start)
    loop.callWhenRunning(signal.signal, signal.SIGTERM, stop)
    loop.callWhenRunning(signal.signal, signal.SIGINT, stop)
    loop.run(installSignalHandlers=True)
    return 1 if service.is_broken else 0


def _is_at_rest(replica: Replica) -> bool:
    """Return True for a replica that is open and not in transition."""
    return replica.transition is None and not replica.is_writing and replica.open_on is not None
