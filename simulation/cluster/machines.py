"""Masters and region servers: the real services, on simulated machines.

A machine keeps the contents of its disk: the uuid and the last start code. Its process may be killed and started any
number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from coord.env import System
from coord.rpc.server import RpcError
from master.leadership.identity import MasterIdentity
from master.plans.planner import FinishedPlan, Planner
from master.service import MasterService
from master.settings import MasterSettings as MasterSettings
from regions.assign.assigner import Assigner
from regions.cluster.limits import AssignerConfig
from regions.messages import ListTables, ServerRequest
from regions.messages.staleness import Bound
from regions.plan import Params, PlanError, Snapshot, plan
from regions.records.model import Incarnation
from regions.records.replica_key import replica_key
from regionserver.config import ServerSettings as ServerSettings
from regionserver.order_routes import Command
from regionserver.server import RegionServer
from regionserver.session.instance import FORMAT, Instance, InstanceRecord
from regionserver.session.master_link import HeartbeatState
from simulation.checks.standbys import Standbys, observed
from simulation.cluster.region_work import Opener, OpenReplicas, Threads, Work
from simulation.cluster.store import SimulatedStore
from simulation.engine.network import Network
from simulation.engine.process import Process
from simulation.engine.timeline import Timeline

RPC_PORT: Final = 9000
#: Up to this number of replicas the invariants are checked after every event of the assigner, up to twice the number
#: after every second event.
VALIDATED_REPLICAS: Final = 25
_NOWHERE: Final = Path("/simulated")


class Setting:
    """State that all machines of a run share."""

    def __init__(self, timeline: Timeline, network: Network, store: SimulatedStore, root: str) -> None:
        self.timeline = timeline
        self.network = network
        self.store = store
        self.root = root
        self.open_replicas = OpenReplicas()
        self.work = Work()
        self.session_timeout_ms = 3_000
        self.master_timeout_ms = 3_000
        self.min_servers = 1
        self.limits = AssignerConfig()
        #: How long the rows of deleted tables are kept.
        self.purge_after_s = 3_600.0
        #: Plans fail with this probability, and are late by up to this many seconds.
        self.plan_fails = 0.0
        self.plan_late_s = 0.0
        #: Checks the claims of standbys.
        self.standbys: Standbys | None = None
        #: Called with a violated invariant.
        self.violated: Callable[[str], None] = _nothing
        #: Called with each table whose rows a server removes.
        self.rows_removed: Callable[[str], None] = _nothing
        self.regions_removed: Callable[[Sequence[str]], None] = lambda _: None


def _nothing(_: str) -> None:
    pass


class Machine:
    """One machine: at most one process at a time."""

    kind = ""

    def __init__(self, setting: Setting, host: str, rate: float) -> None:
        self.setting = setting
        self.host = host
        self.rate = rate
        self.uuid = f"{host}-{setting.timeline.chance.below(1 << 20):05x}"
        self.start_code = 0
        self.starts = 0
        self.process: Process | None = None
        self.service: Any = None
        self._former: list[Any] = []
        #: The process that received SIGTERM.
        self._stopping: Process | None = None

    @property
    def is_up(self) -> bool:
        """Return True if a process runs or is frozen."""
        return self.process is not None and not self.process.is_dead

    @property
    def is_awake(self) -> bool:
        """Return True if a process runs and is not frozen."""
        return self.process is not None and not self.process.is_dead and not self.process.is_frozen

    def start(self) -> None:
        """Start a process unless one is running (the lock on its directory would reject a second one)."""
        if self.is_up:
            return
        if self.process is not None:
            # Keep the dead process's objects: they must not unwind while other processes run.
            self._former.append(self.service)
        self.starts += 1
        setting = self.setting
        process = self.process = Process(setting.timeline, setting.network, self.host, self.starts, self.rate)
        setting.timeline.note(f"{process.name} starts")
        self.begin(process)

    def begin(self, process: Process) -> None:
        """Start the service on `process`."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the process with SIGTERM."""
        process = self.process
        if process is not None and not process.is_dead:
            self._stopping = process
            self.setting.timeline.note(f"{process.name} gets SIGTERM")
            process.turn(self._stop, process)

    def _stop(self, process: Process) -> None:
        ended: Deferred[None] = ensureDeferred(self.end())

        def stop(_: object) -> None:
            process.reactor.stop()

        ended.addBoth(stop)

    async def end(self) -> None:
        """Stop the service as its own signal handler does."""
        raise NotImplementedError


class SimulatedIdentity(MasterIdentity):
    """A master's directory, without files."""

    def __init__(self, uuid: str, start_code: int) -> None:
        self.uuid = uuid
        self.start_code = start_code

    def release(self) -> None:
        """Do nothing, because no file is locked."""


class SimulatedPlanner(Planner):
    """The greedy engine, with a duration; a plan may fail or be late."""

    def __init__(self, process: Process, setting: Setting) -> None:
        super().__init__(None, _NOWHERE, engine="greedy", deadline_s=120, spark_master="", spark_min=1 << 30)
        self._process = process
        self._setting = setting

    async def make(
        self,
        plan_id: str,
        epoch: int,
        snapshot: Snapshot,
        engine: str,
        progress: Callable[[str], None],
    ) -> FinishedPlan:
        """See Planner.make."""
        progress(engine)
        chance, setting = self._process.chance, self._setting
        is_faulty = self._process.timeline.now < setting.work.until
        pause: Deferred[None] = Deferred()
        span = chance.between(0.001, 0.1) + (chance.between(0, setting.plan_late_s) if is_faulty else 0)
        self._process.reactor.callLater(span, pause.callback, None)
        await pause
        if is_faulty and chance.happens(setting.plan_fails):
            raise PlanError("injected failure of a plan")
        made = plan(snapshot, Params(snapshot_id=plan_id, master_epoch=epoch), lambda: 100.0, engine="greedy")
        placements: dict[str, str] = {
            replica_key(region_id, replica): server_id for region_id, replica, server_id in made.rows
        }
        return FinishedPlan(placements, "greedy", made.digest)


def _refused(failure: Failure) -> None:
    failure.trap(RpcError)  # type: ignore[no-untyped-call]


class MasterMachine(Machine):
    """A machine with a master."""

    kind = "master"
    service: MasterService
    #: The assigner that was validated last, and the number of events that it had handled then.
    _validated: Assigner | None = None
    _validated_at = 0

    def begin(self, process: Process) -> None:
        """See Machine.begin."""
        setting = self.setting
        self.start_code = max(process.wall_ms(), self.start_code + 1)
        settings = MasterSettings(
            store=setting.store.address,
            data_dir=_NOWHERE,
            host=self.host,
            port=RPC_PORT,
            root=setting.root,
            session_timeout_ms=setting.master_timeout_ms,
            min_servers=setting.min_servers,
            purge_after_s=setting.purge_after_s,
            limits=setting.limits,
        )
        self.service = MasterService(
            process.reactor,
            settings,
            SimulatedIdentity(self.uuid, self.start_code),
            system=System(process, process.chance, process.chance),
            planner=SimulatedPlanner(process, setting),
        )
        process.on_death.append(lambda: self._dead(process))
        service, standbys = self.service, setting.standbys
        assert standbys is not None, "the cluster sets it"
        self.service.make_watcher = lambda *given: observed(
            standbys, process, lambda: 0 if service.active_master is None else service.active_master.fence.epoch, *given
        )
        process.turn(self.service.start)
        process.reactor.callLater(process.chance.between(0, 2), self._ask, process, service)

    def _ask(self, process: Process, service: MasterService) -> None:
        """List the tables with a random bound on the age, again and again. `Standbys` checks the answers."""
        process.reactor.callLater(process.chance.between(0.1, 2), self._ask, process, service)
        if service.active_master is None:
            max_ms = process.chance.pick((0, 100, 1_500, 10_000))
            asked = ensureDeferred(service.api.dispatch(ListTables(Bound(max_ms))))
            asked.addErrback(_refused)

    def validate(self) -> None:
        """Check every invariant of the active master's assigner if it has handled an event since the last check.

        A check takes time in proportion to the cluster. A larger cluster is checked after every few events, and at
        the end.
        """
        active = self.service.active_master if self.is_awake else None
        if active is None:
            return
        assigner = active.assigner
        if assigner is not self._validated:
            self._validated, self._validated_at = assigner, 0
        if assigner.handled - self._validated_at >= max(1, len(assigner.world.replicas) // VALIDATED_REPLICAS):
            self._validated_at = assigner.handled
            try:
                assigner.validate()
            except AssertionError as error:
                self.setting.violated(f"invariant of {self.host}: {error}")

    def _dead(self, process: Process) -> None:
        """Check that a master ends only on SIGTERM, whatever the store rejects (MF-14)."""
        if process.has_ended and self._stopping is not process:
            self.setting.violated(f"MF-14: {process.name} ended by itself")

    async def end(self) -> None:
        """See Machine.end."""
        await self.service.stop()


class SimulatedInstance(Instance):
    """A region server's directory; the machine keeps the start codes."""

    def __init__(self, machine: ServerMachine) -> None:
        super().__init__(_NOWHERE, -1, InstanceRecord(FORMAT, machine.uuid, machine.start_code, machine.cluster_id))
        self._machine = machine

    def _write(self) -> None:
        self._machine.start_code = self._record.start_code
        self._machine.cluster_id = self._record.cluster_id

    def close(self) -> None:
        """Do nothing, because no file is open."""


class ObservedServer(RegionServer):
    """A region server that checks the epochs of the orders that it obeys."""

    setting: Setting
    #: The highest epoch that this server has obeyed, has read from the store, or has sent to a master.
    highest_epoch = -1

    def _obey(self, request: ServerRequest) -> Any:
        """See RegionServer._obey. Check that no order has a lower epoch than one that the server knows (FW-11).

        An order with a higher epoch waits until the server has read the epoch from the store. It has not been obeyed
        before this method is called. A rejected order raises RpcError and has not been obeyed either.
        """
        answer = super()._obey(request)
        if isinstance(request, Command):
            if request.epoch < self.highest_epoch:
                self.setting.violated(
                    f"FW-11: server {request.recipient} obeyed epoch {request.epoch} after epoch {self.highest_epoch}"
                )
            self.highest_epoch = max(self.highest_epoch, request.epoch)
        return answer

    def _epoch_begun(self, epoch: int) -> None:
        """See RegionServer._epoch_begun."""
        super()._epoch_begun(epoch)
        self.highest_epoch = max(self.highest_epoch, epoch)

    def heartbeat_state(self) -> HeartbeatState:
        """See RegionServer.us."""
        registration = super().heartbeat_state()
        self.highest_epoch = max(self.highest_epoch, registration.epoch)
        return registration


class ServerMachine(Machine):
    """A machine with a region server."""

    kind = "server"
    service: ObservedServer
    opener: Opener
    rack = "default"
    cluster_id = ""

    def begin(self, process: Process) -> None:
        """See Machine.begin."""
        setting = self.setting
        opener = self.opener = Opener(
            process, setting.open_replicas, setting.work, setting.rows_removed, setting.regions_removed
        )
        settings = ServerSettings(
            store=setting.store.address,
            data_dir=_NOWHERE,
            shared_dir=_NOWHERE / "shared",
            host=self.host,
            port=RPC_PORT,
            rack=self.rack,
            root=setting.root,
            session_timeout_ms=setting.session_timeout_ms,
        )
        self.service = ObservedServer(
            process.reactor,
            settings,
            SimulatedInstance(self),
            opener,
            died=lambda reason: self._died(process, reason),
            system=System(process, process.chance, process.chance),
            boot_s=process.monotonic_s,
            workers=lambda _reactor, threads, delivered, fatal: Threads(process, opener, threads, delivered, fatal),
        )
        self.service.setting = setting
        process.turn(self.service.start)

    def _died(self, process: Process, reason: str) -> None:
        setting = self.setting
        setting.timeline.note(f"{process.name} ends by itself: {reason}")
        if "cannot be closed" not in reason or not setting.work.failing_close:
            setting.violated(f"{process.name} ended by itself: {reason}")
        process.reactor.stop()

    async def end(self) -> None:
        """See Machine.end."""
        await self.service.stop()

    @property
    def incarnation(self) -> Incarnation:
        """Return the latest start of the machine's server."""
        return Incarnation(self.uuid, self.start_code)

    def may_serve(self) -> bool:
        """Return True if the server would answer a request now: alive, awake, serving, and holding its lease."""
        process = self.process
        return (
            process is not None
            and not process.is_dead
            and not process.is_frozen
            and self.opener.is_serving
            and self.service.lease.holds(process.monotonic_s())
        )
