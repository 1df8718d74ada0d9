"""The master process: one session after another, one reign after another, until it is told to stop.

    connect -> register -> stand by -> active -> (stood down) -> stand by ...

A master never dies of losing its place (MF-14): a lost session or a refused write only end the reign. It goes back to
the store and stands for election again, with the same uuid under a new session if need be.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.python.failure import Failure

from coord.client.session import SessionState, ZkClient
from coord.daemon import listen
from coord.env import System
from coord.env_os import os_system
from coord.errors import ConfigError, CoordError, NoAuth
from coord.http import AdminHttp
from coord.rpc.server import RpcServer
from master.active import ActiveMaster
from master.api.requests import MasterApi
from master.catalog import store
from master.health import MasterHealth
from master.heartbeats import HeartbeatReceiver
from master.leadership.election import Election
from master.leadership.fence import Fence
from master.leadership.identity import MasterIdentity
from master.metrics import MasterMetrics
from master.phases import Phases
from master.plans.planner import Planner
from master.settings import MasterSettings
from master.standby.auditor import Auditor
from master.standby.watcher import StoreWatcher
from regions.cluster.limits import AssignerConfig
from regions.liveness.reports import Suspect
from regions.messages import ListContacts, MasterRequest
from regions.messages.cluster_check import check_cluster
from regions.messages.heartbeat import Heartbeat
from regions.records.model import Incarnation, MasterRecord
from regions.records.znodes import CorruptZnode, Layout, decode_master

__all__ = ["MasterService", "MasterSettings", "run"]

log = Logger()

#: Collector settings for a process with a hundred thousand regions in memory, none of them part of a cycle: by default
#: loading them takes half as long again.
GC_THRESHOLDS: Final = (50_000, 20, 10)
#: Pause after a reign or an election that went wrong; it doubles up to the maximum while nothing lasts.
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
#: A reign of at least this long counts as one that lasted.
LASTED_MS: Final = 5_000
#: How long an orderly stop may take before the session is left to expire.
STOP_S: Final = 3.0


class MasterService:
    """One master; see the module docstring."""

    def __init__(
        self,
        reactor: Any,
        settings: MasterSettings,
        identity: MasterIdentity,
        *,
        system: System | None = None,
        planner: Planner | None = None,
    ) -> None:
        """`system` and `planner` are this machine's unless given."""
        self._reactor = reactor
        self._settings = settings
        self._identity = identity
        self._layout = Layout(settings.root)
        system = system or os_system()
        self.token = system.entropy.token
        clock = system.clock
        # Wall time that never goes back: a jump of the clock must not expire deadlines.
        offset = clock.wall_ms() - clock.monotonic_ms()
        self.now_ms: Callable[[], int] = lambda: clock.monotonic_ms() + offset
        self._started_ms = self.now_ms()
        self.client = ZkClient(
            reactor,
            settings.store,
            settings.session_timeout_ms,
            name="master",
            access=settings.access,
            clock=clock,
            rng=system.rng,
        )
        self.election: Election | None = None
        self.active_master: ActiveMaster | None = None
        self.phases = Phases(lambda: clock.monotonic_ms() / 1000)
        #: Live masters by address.
        self.registered: list[MasterRecord] = []
        self._planner = planner or Planner(
            reactor,
            settings.plan_dir or settings.data_dir / "plans",
            engine=settings.plan_engine,
            deadline_s=settings.plan_deadline_s,
            spark_master=settings.spark_master,
            spark_conf=settings.spark_conf,
            spark_min=settings.spark_min,
        )
        self._history: Any = None
        self.auditor: Auditor | None = None
        self.watcher: StoreWatcher | None = None
        self.make_watcher: Callable[..., StoreWatcher] = StoreWatcher
        #: Alarms raised in former sessions.
        self.alarms_before = 0
        self._electing: Deferred[None] | None = None
        self._pause_s = RETRY_S
        self._active_since_ms = 0
        self._stopping = False
        #: The process has to end with a failure.
        self.is_broken = False
        #: Known from the first session on.
        self.cluster_id = ""
        self.heartbeats = HeartbeatReceiver(self, self.now_ms)
        self.api = MasterApi(self)
        self._rpc = RpcServer(
            self._dispatch,
            requests=MasterRequest,
            receiver=lambda: f"master {self.uuid} at {self.address}",
            check=lambda request: check_cluster(request.cluster, self.cluster_id, "master"),
        )
        self._registry = CollectorRegistry()
        MasterMetrics(self, self._registry)
        self._admin_port: Any = None
        self._is_listening = False
        self.health = MasterHealth(self.now_ms, settings.session_timeout_ms)

    # --- what others look at --------------------------------------------------------------------------------------

    @property
    def uuid(self) -> str:
        """This master's uuid."""
        return self._identity.uuid

    @property
    def role(self) -> str:
        """standby, activating or active."""
        if self.active_master is None:
            return "standby"
        return "active" if self.active_master.is_open and not self.active_master.store_session.may_be_over else "activating"

    @property
    def address(self) -> str:
        """Where this master answers."""
        return f"{self._settings.host}:{self._settings.port}"

    @property
    def limits(self) -> AssignerConfig:
        """The bounds by which it reigns, or would."""
        return self._settings.limits

    @property
    def masters(self) -> int:
        """How many masters live."""
        return len(self.registered)

    def uptime_ms(self) -> int:
        """Since the start of the process."""
        return self.now_ms() - self._started_ms

    def call_later(self, seconds: float, action: Any) -> Any:
        """The reactor's timer."""
        return self._reactor.callLater(seconds, action)

    @property
    def start_code(self) -> int:
        """Which start of this master it is."""
        return self._identity.start_code

    def caller(self) -> str:
        """Return the address that the request came from which is being dispatched."""
        return self._rpc.caller()

    def _dispatch(self, request: MasterRequest) -> msgspec.Struct | Awaitable[msgspec.Struct]:
        """Heartbeats are answered on the spot: there may be a thousand a second."""
        if isinstance(request, Heartbeat):
            return self.heartbeats.answer(request)
        if isinstance(request, ListContacts):
            return self.heartbeats.contacts()
        return self.api.dispatch(request)

    # --- life -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Listen for requests and on the admin port. Raise ConfigError when an address is taken."""
        settings = self._settings
        listen(self._rpc, self._reactor, "address", settings.host, settings.port)
        self._is_listening = True
        if settings.admin_port:
            admin = AdminHttp(
                registry=self._registry, health=self._health, ready=self._is_ready, status=self.api.status
            )
            host = settings.admin_host or settings.host
            self._admin_port = listen(admin, self._reactor, "admin address", host, settings.admin_port)

    def start(self) -> None:
        """Listen, unless that was done before; connect, stand for election."""
        if not self._is_listening:
            self.listen()
        self.client.on_state(self._session_changed)
        self.client.connect().addErrback(lambda _: None)
        log.info("master {uuid} start code {code}", uuid=self.uuid, code=self._identity.start_code)

    async def stop(self) -> None:
        """Step down in order: the epoch stays, the place is given up at once."""
        self._stopping = True
        if self._electing is not None:
            self._electing.cancel()
        if self.auditor is not None:
            self.auditor.stop()
        if self.watcher is not None:
            self.watcher.stop()
        if self.active_master is not None:
            self.active_master.end("stopping")
        if self.client.state is SessionState.CONNECTED and self.election is not None:
            try:
                await self.election.release()
            except CoordError as error:
                log.info("place not given up: {error}", error=error)
        await self.client.close()
        await self._rpc.stop()
        if self._admin_port is not None:
            await self._admin_port.stopListening()
        self._identity.release()

    def _health(self) -> tuple[bool, dict[str, object]]:
        is_activating = self.active_master is not None and self.role == "activating"
        began_ms = self._active_since_ms if is_activating else None
        reasons = self.health.reasons(self.client.trouble, began_ms, self.phases.current)
        return not reasons, {"uuid": self.uuid, "reasons": reasons}

    def _is_ready(self) -> tuple[bool, dict[str, object]]:
        ready = self.client.state is SessionState.CONNECTED and self.role != "activating"
        return ready, {"role": self.role, "session": self.client.state.value}

    def _session_changed(self, state: SessionState) -> None:
        log.info("session {state}", state=state.value)
        self.health.session(state is SessionState.CONNECTED)
        if self._stopping:
            return
        if state is SessionState.CONNECTED:
            self._start_election()
            return
        if self._electing is not None:
            self._electing.cancel()
        if state is SessionState.AUTH_FAILED:
            self.is_broken = True
            log.critical("the store refuses the credential of --store-sasl or --store-auth")
            self._reactor.stop()
        if state is SessionState.EXPIRED:
            self._reactor.callLater(0, self._connect_again)

    def _connect_again(self) -> None:
        if not self._stopping:
            self.client.connect().addErrback(lambda _: None)

    def _start_election(self) -> None:
        """Stand for election, unless that is what we are doing."""
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
        assert self.watcher is not None, "every session has its feed"
        if self._settings.mirror:
            self.watcher.follow()
        election = self.election = Election(self._reactor, self.client, self._layout, self._settings, self._identity)
        await election.register()
        await self.client.add_watch(self._layout.masters, self._masters_changed, recursive=True)
        await self._count_masters()
        self.health.stands()
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
        self._active_since_ms = now()
        self.active_master.start(self._history)

    def _begin_session(self) -> None:
        """One feed and one auditor for each session, whatever this master's role."""
        if self.auditor is not None and self.watcher is not None:
            if self.auditor.session_id == self.client.session_id:
                return
            self.alarms_before += self.auditor.alarms
            self.auditor.stop()
            self.watcher.stop()
        auditor = Auditor(self._reactor, self.client, self._layout, self.now_ms, self.uuid, self._at_rest, self._served_replicas)
        watcher = self.make_watcher(self._reactor, self.client, self._layout, self.now_ms, auditor)
        self.auditor, self.watcher = auditor, watcher
        watcher.start()
        auditor.start()

    def _orphan_found(self, orphan: Suspect) -> None:
        if self.auditor is not None:
            self.auditor.orphan(orphan.key, orphan.server)

    def _served_replicas(self) -> dict[Incarnation, Collection[str]]:
        """What servers that are heard have told that they serve, while this master reigns."""
        active_master = self.active_master
        if active_master is None:
            return {}
        heard = self.heartbeats.roster.is_heard
        now_ms = self.now_ms()
        return {one: held.versions.keys() for one, held in active_master.reports.lists().items() if heard(one, now_ms)}

    def _at_rest(self) -> dict[str, Incarnation] | None:
        """Where replicas at rest are, while this master reigns."""
        active_master = self.active_master
        if active_master is None or not active_master.is_open or active_master.store_session.is_paused:
            return None
        return {
            one.key: one.home
            for one in active_master.assigner.world.replicas.values()
            if one.home is not None and one.transition is None and not one.is_writing and one.open_on is not None
        }

    def _election_begins(self) -> None:
        """The place is free: from here on the election is timed."""
        self.phases = Phases(self.phases.seconds)
        self.phases.begin("election")

    def _election_ended(self, result: Any) -> None:
        """The election is over for this time: won, or broken off."""
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
                "the store does not let this master do its work ({error}): access lists there are for somebody else;"
                " --store-auth names the credential (a wrong password looks the same)",
                error=error,
            )
        elif isinstance(error, CorruptZnode):
            log.error(
                "this master cannot stand for election: {error}; a backup has the value (rk coord backup, restore), and"
                " a master that runs since before puts it right",
                error=error,
            )
        elif not isinstance(error, CoordError | CancelledError):
            log.failure("election", failure=result)
        if not isinstance(error, CancelledError):
            self.health.election_failed(str(error) or type(error).__name__)
        self._retry_election()

    def _retry_election(self) -> None:
        """Try again after a pause; a lost session comes back by itself and then finds us waiting."""
        if not self._stopping:
            self._reactor.callLater(self._pause_s, self._start_election)
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    def _active_master_ended(self, reason: str) -> None:
        active_master, self.active_master = self.active_master, None
        if self.election is not None:
            self.election.active = None  # whoever it is now, we have yet to read it
        if active_master is not None:
            self._history = active_master.assigner.history
            log.info("epoch {epoch} is over for this master: {reason}", epoch=active_master.fence.epoch, reason=reason)
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
    """Run a master until SIGTERM or SIGINT; returns the exit status.

    Raises ConfigError when the data directory or an address cannot be used.
    """
    from twisted.internet import reactor

    predicate = LogLevelFilterPredicate(LogLevel.info)
    observer = FilteringLogObserver(textFileLogObserver(sys.stderr), [predicate])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)

    identity = MasterIdentity(settings.data_dir)
    gc.set_threshold(*GC_THRESHOLDS)
    loop: Any = reactor
    # Twisted's timers follow the wall clock; deadlines must go on when somebody sets it back by an hour.
    loop.seconds = time.monotonic
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
