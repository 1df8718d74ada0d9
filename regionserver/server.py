"""One region server: one incarnation after the other, until it is stopped.

    lock the data directory -> listen -> [ session -> register -> serve under the lease -> session lost: close all ]*

`stop` first moves the regions to other servers while they are served (`regionserver/session/drain.py`). Then the server
accepts no more orders, closes the remaining regions and closes its session, so that the masters notice its end at once.
If a region cannot be closed after the loss of the session, the process stops, because only its end releases the
region's files.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import SessionState, ZkClient
from coord.daemon import listen
from coord.env import System
from coord.env_os import boot_time_s, os_system
from coord.errors import ConfigError, ConnectionLoss, OperationError
from coord.http import AdminHttp
from coord.rpc.server import RpcError, RpcServer
from coord.security import process
from regions.messages import (
    NO_LEASE,
    UNKNOWN_EPOCH,
    WRONG_SERVER,
    AlterRegions,
    ChangeConfig,
    CloseRegions,
    GetServerStatus,
    ListDirectories,
    ListOpen,
    OpenList,
    OpenRegions,
    PurgeTable,
    ReplicaList,
    ReshardingOrder,
    ReviewReplicas,
    SealTablet,
    ServerReply,
    ServerRequest,
    ServerStatus,
    ShowReplicas,
    TransferLeadership,
)
from regions.messages.codes import check_cluster
from regions.messages.heartbeat import ReplicaReport, TabletReport
from regions.records.formats import KNOWN
from regions.records.model import Incarnation, ServerRecord
from regions.records.znodes import Layout
from regionserver.config import ServerSettings
from regionserver.figures import figures, hosted_with_load, with_figures
from regionserver.health import HealthFacts, HealthWatch
from regionserver.metrics import Metrics
from regionserver.opener import RegionOpener, kind_of
from regionserver.order_routes import Command, OrderRoutes, objection
from regionserver.replica.effects import Key
from regionserver.replica.host import Host
from regionserver.request_gate import Serving
from regionserver.session.checking import ServerChecks
from regionserver.session.drain import drain
from regionserver.session.epochs import Epochs
from regionserver.session.heartbeats import HeartbeatSender
from regionserver.session.instance import Instance
from regionserver.session.lease import Lease
from regionserver.session.master_link import HeartbeatState
from regionserver.session.registration import Registration
from regionserver.shared_directory import Admission
from regionserver.storage.purging import Purges
from regionserver.storage.resharding import ReshardingService
from regionserver.tablets.server_tablets import MakeTablets
from regionserver.workers import Pool, Workers

log = Logger()

#: Interval of the log lines while the store cannot be reached.
LOG_EVERY_S: Final = 5.0
#: Pause before a rejected registration is retried.
RETRY_S: Final = 1.0
#: Time limit for closing the regions after SIGTERM; then the process ends without closing the rest.
CLOSE_WITHIN_S: Final = 10.0


class RegionServer:
    """One region server in this process. `start`, then `stop` once; both on the reactor's thread."""

    def __init__(
        self,
        reactor: Any,
        settings: ServerSettings,
        instance: Instance,
        opener: RegionOpener,
        *,
        died: Callable[[str], None],
        system: System | None = None,
        boot_s: Callable[[], float] = boot_time_s,
        workers: Pool = Workers,
        tablets: MakeTablets | None = None,
    ) -> None:
        """`died` is called with the reason if the process must end. Raise ConfigError if `opener` declares no kind.

        `tablets` creates the host of tablets; None: the server takes no tablets. `system`, `boot_s` (the lease's clock)
        and `workers` default to those of this machine.
        """
        self._reactor = reactor
        self._settings = settings
        self._instance = instance
        self._died = died
        self._system = system or os_system()
        self._clock = self._system.clock
        self._boot_s = boot_s
        self._paths = paths = Layout(settings.root)
        self._lease = Lease()
        self._metrics = Metrics()
        self._host = Host(
            reactor, self._clock, opener, paths, self._metrics, threads=settings.threads, stop=died, workers=workers
        )
        self._opener = opener
        self._kind = kind_of(opener)
        self._tablets = None if tablets is None else tablets(self._metrics, self._fatal, self._report_soon)
        of_tablets = () if self._tablets is None else self._tablets.requests
        self._orders = OrderRoutes(self._host, self._tablets)
        self._checks = ServerChecks(reactor, self._paths, settings.data_dir, boot_s, self._host.served, self._tablets)
        self._rpc = RpcServer(
            self.dispatch,
            requests=functools.reduce(operator.or_, (*opener.requests, *of_tablets), ServerRequest),
            receiver=lambda: (
                f"server {self._record.uuid} at {self._record.host}:{self._record.port}, kind {self._kind},"
            ),
            check=lambda request: check_cluster(request.cluster, self._instance.cluster_id, "server"),
            authorize=self._checks.check,
        )
        self._admin_port: IListeningPort | None = None
        self._client: ZkClient | None = None
        self._registration: Registration | None = None
        self._heartbeats: HeartbeatSender | None = None
        self._record = ServerRecord(instance.uuid, settings.host, settings.port, 0)
        #: The highest epoch that the store has confirmed.
        self._epoch = -1
        self._epochs = Epochs(reactor, self._read_epoch, self._epoch_begun)
        self._metrics.read(self.status, self._rpc.times, reactor)
        self._began_s = self._boot_s()
        self._closing_since_s: float | None = None
        check = (lambda: None) if opener.shared is None else opener.shared.check
        self._health = HealthWatch(
            reactor, self._boot_s, settings.session_timeout_ms, check, self._health_facts, self._tablets
        )
        self._is_leaving = False
        self._is_stopping = False
        self._living: Deferred[None] | None = None
        self._serving = Serving(
            reactor,
            self._metrics.registry,
            lambda: self._record.incarnation,
            self._holds,
            self._host.served,
            workers,
            self._region_damaged,
        )
        self._purges = Purges(
            opener, self._host.in_thread, lambda one: self._session().read_table(one), self._host.tables
        )
        self._reshardings = ReshardingService(opener, self._host.in_thread, self._read_region, self._host.served)
        opener.attach(self._serving)

    @property
    def lease(self) -> Lease:
        """Return the lease, to be checked before any request for a region is answered."""
        return self._lease

    def validate(self) -> None:
        """Check every invariant of the replicas if there was an event since the last call. For simulations.

        Raise AssertionError if an invariant does not hold.
        """
        self._host.validate()

    # --- start and stop ---

    def start(self) -> None:
        """Listen, and begin to register. Raise ConfigError if an address is in use."""
        settings, tablets = self._settings, self._tablets
        self._checks.is_open = self._rpc.credentials is None
        peer_port = 0 if tablets is None else tablets.listen()
        if tablets is not None:
            tablets.open(self._instance.cluster_id)
        _, port = self._listen(self._rpc, "address", settings.host, settings.port)
        admin_port = 0
        if settings.admin_host is not None:
            admin = AdminHttp(
                registry=self._metrics.registry,
                health=self._health.report,
                ready=self._ready,
                status=self.status,
                names={settings.admin_host, settings.host, *settings.admin_names},
            )
            self._admin_port, admin_port = self._listen(
                admin, "admin address", settings.admin_host, settings.admin_port
            )
            admin.actions |= {} if tablets is None else tablets.admin_actions((settings.admin_host, admin_port))
            self._health.start()
        self._record = ServerRecord(
            uuid=self._instance.uuid,
            host=settings.host,
            port=port,
            start_code=0,
            rack=settings.rack,
            weight=settings.weight,
            group=settings.group,
            admin_port=admin_port,
            kind=self._kind,
            format=KNOWN,
            tablets=tablets is not None,
            peer_port=peer_port,
        )
        self._living = ensureDeferred(self._live())
        self._living.addErrback(self._fatal)

    def _listen(self, server: RpcServer | AdminHttp, what: str, host: str, port: int) -> tuple[IListeningPort, int]:
        opened = listen(server, self._reactor, what, host, port)
        address: Any = opened.getHost()
        return opened, int(address.port)

    async def stop(self) -> None:
        """Move regions away, close the remaining ones, close the session, stop listening."""
        if self._is_leaving:
            return
        self._is_leaving = True
        registration = self._registration
        if self._client is not None and registration is not None and registration.is_joined:
            limit_s = self._settings.handover_s
            await drain(
                self._reactor,
                self._client,
                self._paths,
                self._record,
                registration.announce,
                self._replica_count,
                limit_s,
            )
        self._is_stopping = True
        self._checks.stop()
        log.info("stopping: {open} regions to close", open=len(self._host.replicas))
        registration, client = self._registration, self._client
        if registration is not None:
            registration.end("this server is stopping")
        emptied = self._host.end()
        emptied.addTimeout(CLOSE_WITHIN_S, self._reactor)
        try:
            await emptied
        except Exception as error:  # one region that does not close must not delay the reassignment of the others
            log.error("{left} regions are still open: {error!r}", left=len(self._host.replicas), error=error)
        if client is not None:
            await client.close()
        if self._tablets is not None:
            await self._tablets.stop()
        await self._rpc.stop()
        self._health.stop()
        if self._admin_port is not None:
            stopped = self._admin_port.stopListening()
            if stopped is not None:
                await stopped
        self._host.stop_workers(1.0)
        self._opener.stop()

    def _replica_count(self) -> int:
        return len(self._host.replicas)

    def _fatal(self, failure: Failure) -> None:
        if isinstance(failure.value, ConfigError):
            self._died(failure.getErrorMessage())
            return
        log.failure("internal error of the region server, ending the process", failure=failure)
        self._died(f"internal error: {failure.getErrorMessage()}")

    # --- one incarnation after the other ---

    async def _live(self) -> None:
        while not self._is_stopping:
            client = self._client = ZkClient(
                self._reactor,
                self._settings.store,
                self._settings.session_timeout_ms,
                name="region server",
                clock=self._clock,
                rng=self._system.rng,
                access=self._settings.access,
                server_rights=self._paths.server_rights,
            )
            logging = LoopingCall(self._log_unreachable, client)
            logging.clock = self._reactor
            logging.start(LOG_EVERY_S, now=False)
            try:
                await client.connect()
            except OperationError as error:
                if not self._is_stopping:
                    raise ConfigError(f"the store rejected this server's session: {error}") from error
                return
            finally:
                logging.stop()
            self._checks.follow(client)
            await self._one_incarnation(client)
            if not self._is_stopping:
                await client.close()

    async def _one_incarnation(self, client: ZkClient) -> None:
        me = self._instance.next_incarnation(self._clock.wall_ms())
        self._record = msgspec.structs.replace(
            self._record,
            start_code=me.start_code,
            session_ms=client.timeout_ms,
            leaving=False,
            disk_free=0 if self._tablets is None else self._tablets.disk_free(),
        )
        registration = self._registration = Registration(
            self._reactor,
            client,
            self._paths,
            self._lease,
            self._boot_s,
            self._lease_changed,
            self._adopt,
            belongs=bool(self._instance.cluster_id),
            admission=self._admission(),
            rivals=self._instance.rivals,
        )
        self._metrics.sessions.inc()
        try:
            await registration.join(self._record)
        except OperationError as error:
            registration.end(f"not registered: {error}")
            if not self._is_stopping:
                log.warn("the store rejected the registration, retrying: {error}", error=error)
                await deferLater(self._reactor, RETRY_S)
            return
        if self._is_stopping:
            return
        self._epoch = max(self._epoch, registration.epoch)
        self._host.begin(me, client)
        if self._tablets is not None:
            self._tablets.begin(me, client)
        self._host.set_serving(self._lease.holds(self._boot_s()))
        log.info("registered as {me} at {host}:{port}", me=str(me), host=self._record.host, port=self._record.port)
        heartbeats = self._heartbeats = HeartbeatSender(
            self._reactor,
            client,
            self._paths,
            self,
            period_s=self._settings.heartbeat_period_s,
            static=self._settings.masters,
        )
        heartbeats.start()
        try:
            reason = await registration.over
        finally:
            heartbeats.stop()
            if self._tablets is not None:
                self._tablets.end()
        if self._is_stopping:
            return
        count = len(self._host.replicas)
        log.warn("{reason}: closing {count} regions, then registering again", reason=reason, count=count)
        self._closing_since_s = self._boot_s()
        await self._host.end()
        self._closing_since_s = None

    def _admission(self) -> Admission | None:
        shared = self._opener.shared
        if shared is None:
            return None
        return Admission(shared, self._paths, f"{self._record.host}:{self._record.port}", self._clock.wall_ms)

    def _adopt(self, cluster_id: str) -> None:
        """Check that the store holds this server's cluster. Raise ConfigError if it is another cluster."""
        self._instance.adopt(cluster_id, f"the cluster at {self._settings.store} below {self._settings.root or '/'}")
        if self._tablets is not None:
            self._tablets.open(cluster_id)

    def _log_unreachable(self, client: ZkClient) -> None:
        if client.state is not SessionState.CONNECTED:
            why = client.trouble or "no reply"
            log.warn("no session with the store {store}: {why}; retrying", store=self._settings.store, why=why)

    def _region_damaged(self, key: Key, why: str) -> None:
        if self._host.damaged(key, why):
            self._report_soon()

    def _report_soon(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.send_soon()

    def _lease_changed(self, holds: bool) -> None:
        registration = self._registration
        if registration is None or not registration.is_joined or self._is_stopping:
            return
        self._host.set_serving(holds)
        if holds:
            log.info("lease renewed, serving regions again")
        elif not registration.is_over:
            self._metrics.lease_lapses.inc()
            log.warn("lease expired without a reply from the store, not serving regions until the store replies")

    # --- commands ---

    def dispatch(self, request: Any) -> Any:
        """Answer one RPC. Raise RpcError(STALE_EPOCH, WRONG_SERVER, NO_LEASE), or an error of the opener."""
        if isinstance(request, self._opener.requests):
            return self._opener.answer(request)
        if self._tablets is not None and isinstance(request, self._tablets.requests):
            return self._tablets.answer(request)
        return self._dispatch(request)

    def _dispatch(self, request: ServerRequest) -> ServerReply | Deferred[Any]:
        if isinstance(request, Command) and request.epoch > self._epoch and not self._objection(request)[0]:
            return self._epochs.claim(request.epoch, lambda: self._obey(request))
        return self._obey(request)

    def _obey(self, request: ServerRequest) -> ServerReply | Deferred[Any]:
        if isinstance(request, OpenRegions):
            self._admit(request)
            return self._orders.open_regions(request.orders, request.epoch, request.answer_within_ms)
        if isinstance(request, CloseRegions):
            self._admit(request)
            return self._orders.close_regions(request.orders, request.epoch, request.answer_within_ms)
        if isinstance(request, AlterRegions):
            self._admit(request)
            answer = self._host.alter_regions(request.orders)
            self._report_soon()  # a client waits for the table to leave ALTERING
            return answer
        if isinstance(request, ReviewReplicas):
            self._admit(request)
            return self._host.review(request.replicas)
        if isinstance(request, ChangeConfig | SealTablet):
            self._admit(request)
            return self._orders.change_tablet(request)
        if isinstance(request, PurgeTable):
            self._admit(request)
            return ensureDeferred(self._purges.purge(request.table_id))
        if isinstance(request, ReshardingOrder):
            self._admit(request)
            return self._orders.reshard(request, self._reshardings)
        if request.recipient not in ("", self._record.uuid):
            raise RpcError(WRONG_SERVER, f"this server is {self._record.uuid}")
        if isinstance(request, ListOpen):
            hosted = hosted_with_load(self._host.hosted(request.limit), self._serving.rates())
            directory = "" if self._opener.shared is None else self._opener.shared.directory_id
            of_tablets = [] if self._tablets is None else self._tablets.hosted(request.limit)
            return OpenList(self._record.uuid, self._record.start_code, hosted, directory, of_tablets)
        if isinstance(request, TransferLeadership):
            return self._orders.transfer(request)
        if isinstance(request, ListDirectories):
            return ensureDeferred(self._purges.directories())
        if isinstance(request, ShowReplicas):
            own = ([], "") if self._tablets is None else self._tablets.own_replicas(request)
            return ReplicaList(self._record.uuid, self._record.start_code, *own)
        assert isinstance(request, GetServerStatus), f"unexpected request {request}"
        return self.status()

    def _admit(self, command: Command) -> None:
        """Reject a command unless the latest master sent it to this incarnation and the lease holds."""
        code, why = self._objection(command)
        if not code and command.epoch > self._epoch:
            code, why = (
                UNKNOWN_EPOCH,
                f"the store has not confirmed epoch {command.epoch}; epoch {self._epoch} is current",
            )
        if code:
            self._metrics.refused_commands.labels(code).inc()
            raise RpcError(code, why)

    def _session(self) -> Registration:
        if self._registration is None:
            raise ConnectionLoss("", "no session with the store")
        return self._registration

    async def _read_region(self, table_id: str, region_id: str) -> bytes:
        return await self._session().read_region(table_id, region_id)

    async def _read_epoch(self) -> int:
        return await self._session().read_epoch()

    def _epoch_begun(self, epoch: int) -> None:
        """Adopt an epoch that the store has confirmed."""
        if epoch > self._epoch:
            log.info("accepting commands of epoch {epoch}", epoch=epoch)
            self._epoch = epoch

    def _objection(self, command: Command) -> tuple[str, str]:
        me = Incarnation(self._record.uuid, self._record.start_code)
        code, why = objection(command, me, self._instance.cluster_id, self._epoch)
        if not code and not self._holds():
            return NO_LEASE, "this server is stopping" if self._is_stopping else "this server holds no lease"
        return code, why

    def _holds(self) -> bool:
        """Return True if requests for regions may be answered now. Thread-safe."""
        return not self._is_stopping and self._host.is_serving and self._lease.holds(self._boot_s())

    # --- content of heartbeats (regionserver.session.heartbeats.HeartbeatSource) ---

    def heartbeat_state(self) -> HeartbeatState:
        """Return the present state of this server."""
        phases = self._host.replicas.phases()
        rates, tablets = self.rates(), self._tablets
        report_of, size_of = self._host.replicas.report, self._serving.sizes.of

        def describe(key: Key) -> ReplicaReport | TabletReport | None:
            found = report_of(key)
            if found is None:
                return None if tablets is None else tablets.describe(key)
            return with_figures(found, rates.get(key), size_of(key))

        def keys() -> list[Key]:
            return [*self._host.replicas.keys(), *([] if tablets is None else tablets.keys())]

        return HeartbeatState(
            self._instance.cluster_id,
            self._record,
            self._epoch,
            figures(phases, rates, None if tablets is None else tablets.recent_figures()),
            describe,
            keys,
        )

    def take_changed(self) -> list[Key]:
        """Return the replicas that have changed since the last call."""
        of_tablets = [] if self._tablets is None else self._tablets.take_changed()
        sized = self._serving.sizes.take_changed(self._reactor.seconds()) if self._serving.sizes.noted else []
        return [*self._host.replicas.take_changed(), *sized, *of_tablets]

    def rates(self) -> Mapping[Key, float]:
        """Return recent requests per second."""
        return self._serving.rates() if self._tablets is None else {**self._serving.rates(), **self._tablets.rates()}

    def learn_epoch(self, epoch: int) -> int:
        """Verify an epoch that a master of this cluster claims (FN-05), and return the epoch known now. After the store
        has confirmed the epoch, orders with a lower epoch are rejected."""
        if epoch > self._epoch:
            self._epochs.verify(epoch)
        return self._epoch

    def heartbeat_ended(self, *, is_answered: bool) -> None:
        """Count a heartbeat that was acknowledged, or rejected or lost."""
        self._metrics.heartbeats.labels("answered" if is_answered else "failed").inc()

    # --- status and health ---

    def status(self) -> ServerStatus:
        """Return the server's own figures."""
        of_tablets = None if self._tablets is None else self._tablets.figures()
        counts = figures(self._host.phases(), {}, of_tablets)
        left_s = self._lease.left_s(self._boot_s())
        self._metrics.epoch.set(self._epoch)
        self._metrics.lease_left_s.set(left_s)
        self._metrics.serving.set(self._host.is_serving)
        self._metrics.grants_damaged.set(bool(self._checks.problem()))
        return ServerStatus(
            server=self._record,
            epoch=self._epoch,
            open=counts.open,
            opening=counts.opening,
            closing=counts.closing,
            failed=self._host.replicas.failed() + (0 if self._tablets is None else self._tablets.failed()),
            lease_ms_left=int(left_s * 1000),
            uptime_ms=int((self._boot_s() - self._began_s) * 1000),
            cluster_id=self._instance.cluster_id,
            masters=[] if self._heartbeats is None else self._heartbeats.reach(),
            tablets=of_tablets,
            expiring=process.expiring(),
            open_door=process.open_door(self._record.host),
            shares_credential=self._settings.access.shares_credential(),
        )

    def _ready(self) -> tuple[bool, Mapping[str, object]]:
        registration = self._registration
        is_joined = registration is not None and registration.is_joined and not registration.is_over
        return is_joined and self._host.is_serving, {"registered": is_joined, "serving": self._host.is_serving}

    def _health_facts(self) -> HealthFacts:
        is_serving, why = self._ready()[0] and self._holds(), self._why_unserving()
        return HealthFacts(is_serving, self._is_leaving, why, self._closing_since_s, self._checks.problem())

    def _why_unserving(self) -> str:
        client, registration = self._client, self._registration
        if client is None or client.state is not SessionState.CONNECTED:
            trouble = "" if client is None else client.trouble
            return f"no session with the store ({trouble or 'no node replies'})"
        if registration is None or not registration.is_joined:
            return "the server is not registered"
        return "the lease does not hold" if not self._holds() else "the server is leaving"
