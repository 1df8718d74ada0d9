"""One reign: what a master does from the moment its epoch is written until another's could be.

It loads the store into an `Assigner`, then turns the wheel: watch events and answers become events of the assigner,
its effects become fenced multis, orders and plans. A reign never repairs itself. When it can no longer be sure of
what it sees or may do (the session lost its connection or ended, the epoch moved on), it ends, and the service
decides whether this master stands for election again; if its session still lives, the next reign begins at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Create, Delete, SetData
from coord.client.session import EVENT_GAP, SessionState
from coord.errors import CoordError
from coord.wire.records import EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED
from master import catalog
from master.balancing import Balancing
from master.chronicle import Chronicle
from master.dispatch import Dispatcher
from master.fence import Deposed, Fence, in_batches
from master.phases import BulkPlan, Phases
from master.planning import Planner, snapshot_of
from master.registry import Registry
from master.runs import Runs
from master.settings import Settings
from master.transitions import TransitionReader, TransitionWriter, Write, wipe_ops
from regions import effects as fx
from regions.assigner import Assigner
from regions.history import SERVER_DOWN, SERVER_UP, StepLog
from regions.layout import decode_region, encode
from regions.model import ClusterRecord, PlanRecord, PlanState, RegionState, RunRecord, ServerRecord
from regions.plan import PlanError
from regions.recovery import is_cluster_startup
from regions.states import Cause
from regions.world import Replica

log = Logger()

TICK_S: Final = 0.5
#: Plan records that stay in the store.
PLANS_KEPT: Final = 20
#: An OPENING region is read after so long, should OPENED not come before.
OPENING_UNREAD_MS: Final = 1_500


def _only_begun(replica: Replica) -> bool:
    """Whether the change of a transition's data can only be the server's first step, from OFFLINE to OPENING."""
    transition = replica.transition
    if transition is None or transition.state is not RegionState.OFFLINE or replica.writing is not None:
        return False
    return replica.order is not None and replica.order.first_sent_ms > 0


class Reign:
    """See the module docstring.

    `ended(reason)` is called once, when the reign is over for whatever reason; `token(n)` gives n bytes for names.
    """

    def __init__(
        self,
        reactor: Any,
        fence: Fence,
        settings: Settings,
        planner: Planner,
        phases: Phases,
        now_ms: Callable[[], int],
        ended: Callable[[str], None],
        token: Callable[[int], bytes],
        uuid: str = "",
    ) -> None:
        self._reactor = reactor
        self.fence = fence
        self._client = fence.client
        self._layout = fence.layout
        self._settings = settings
        self._planner = planner
        self.phases = phases
        self._now_ms = now_ms
        self._ended = ended
        self._token = token
        self._uuid = uuid
        self.assigner = Assigner(fence.epoch, settings.limits)
        self.registry = Registry(self._client, self._layout, self._servers_changed, self._failed)
        self.chronicle = Chronicle(fence, self.assigner.history, self.assigner.world, now_ms, self._failed)
        self.runs = Runs(fence, phases, RunRecord(fence.epoch, uuid, f"{settings.host}:{settings.port}", "", 0, ()))
        self._writer = TransitionWriter(fence, self._written, self._pump, self._failed, self.chronicle)
        self._reader = TransitionReader(fence, self._handle, self._pump, self._failed)
        self._dispatcher = Dispatcher(reactor, fence.epoch, self._heard, self._stale)
        self.balancing = Balancing(
            fence, self.assigner, settings.balancer, int(settings.balance_period_s * 1000), now_ms, dict
        )
        self.cluster = ClusterRecord("")
        self.cluster_version = 0
        #: "startup" or "failover" once it is known.
        self.path = ""
        self.is_open = False
        self.is_over = False
        #: The latest bulk plan, for the status; those being carried out, by plan id.
        self.bulk: BulkPlan | None = None
        self._bulks: dict[str, BulkPlan] = {}
        self._unfinished: PlanRecord | None = None
        self._pump_due = False
        self._ticking: IDelayedCall | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._waiters: list[tuple[Callable[[], bool], Deferred[None]]] = []
        self._servers_seen: Deferred[None] | None = None
        self._beginning: Deferred[None] | None = None
        #: One plan is made at a time.
        self._plan_lock = DeferredLock()

    # --- beginning and end ------------------------------------------------------------------------------------------

    def start(self, history: StepLog | None = None) -> None:
        """Begin; `history` goes on that of a former reign."""
        if history is not None:
            self.assigner.history = self.chronicle.log = history
        self._stop_listening = self._client.on_state(self._session_changed)
        self._beginning = ensureDeferred(self._begin())
        self._beginning.addErrback(self._failed)
        self._ticking = self._reactor.callLater(TICK_S, self._tick)

    async def _begin(self) -> None:
        """MF-01 to MF-03: watch first, load, then decide; a startup wipes and waits for servers in between."""
        self.phases.begin("load")
        await self._client.add_watch(self._layout.unassigned, self._unassigned_event, recursive=True)
        await self.registry.start()
        await self.balancing.load()
        loaded = await catalog.load(self._client, self._layout)
        self.cluster, self.cluster_version = loaded.cluster, loaded.cluster_version
        alive = [one.incarnation for one in self.registry.servers]
        regions = [region for region, _ in loaded.regions]
        startup = is_cluster_startup(regions, [one for one, _ in loaded.transitions], alive)
        self.path = "startup" if startup else "failover"
        running = [plan for plan in loaded.plans if plan.state in (PlanState.PLANNING, PlanState.APPLYING)]
        self._unfinished = running[-1] if running else None
        log.info(
            "epoch {epoch}: {path}{mark}, {tables} tables, {regions} regions, {rit} in transition, {servers} servers",
            epoch=self.fence.epoch,
            path=self.path,
            mark=" after an orderly shutdown" if loaded.cluster.clean_shutdown else "",
            tables=len(loaded.tables),
            regions=len(loaded.regions),
            rit=len(loaded.transitions),
            servers=len(alive),
        )
        self.cluster_version = await catalog.mark_run(
            self.fence, self.cluster, self.cluster_version, clean=False, now_ms=self._now_ms()
        )
        transitions = loaded.transitions
        found = [] if startup else [record for record, _ in transitions]
        address = f"{self._settings.host}:{self._settings.port}"
        await self.chronicle.begin(self._uuid, address, found)
        if startup:
            await self._wipe(loaded)
            transitions = []
            await self._wait_for_servers()
        self.phases.begin("recover")
        self.assigner.load(
            loaded.tables, loaded.regions, self.registry.servers, transitions, self.registry.draining, self._now_ms()
        )
        self.is_open = True
        self.assigner.begin(self._now_ms(), startup=startup)
        self._pump()
        self.phases.end()
        for table_id, name_path in loaded.orphans:
            await catalog.remove_orphan(self.fence, table_id, name_path)
        await self._prune_plans(loaded.plans)
        await self.runs.begin(self._run_facts(len(found)))

    def _run_facts(self, found: int) -> dict[str, object]:
        """What there is to tell of this reign's beginning besides its phases."""
        replicas = len(self.assigner.world.replicas)
        return {
            "path": self.path,
            "at_ms": self._now_ms(),
            "servers": len(self.registry.servers),
            "replicas": replicas,
            "found": found,
        }

    async def _wipe(self, loaded: catalog.Loaded) -> None:
        """RT-04: nothing is open anywhere, so no transition means anything. Fenced, by version, repeatable (X8)."""
        if not loaded.transitions:
            return
        self.phases.begin("wipe")
        at = 0
        for batch in in_batches(wipe_ops(self._layout, loaded.transitions)):
            records = [record for record, _ in loaded.transitions[at : at + len(batch)]]
            at += len(batch)
            await self.fence.write([*batch, *self.chronicle.wipe(records)])

    async def _wait_for_servers(self) -> None:
        """RT-03, DD-10: until the minimum has registered, or, with a minimum of one, nobody came for a while."""
        self.phases.begin("servers")
        while not self._enough_servers():
            self._servers_seen = Deferred()
            await self._servers_seen
        if self._settings.min_servers == 1:
            known = -1
            while known != len(self.registry.servers):
                known = len(self.registry.servers)
                pause: Deferred[None] = Deferred()
                self._reactor.callLater(self._settings.settle_ms / 1000, pause.callback, None)
                await pause

    def _enough_servers(self) -> bool:
        return len(self.registry.servers) >= self._settings.min_servers

    def end(self, reason: str) -> None:
        """Stop everything; what is on its way in the store is fenced, what is on its way to servers is too."""
        if self.is_over:
            return
        self.is_over = True
        self.is_open = False
        self._writer.close()
        self.chronicle.close()
        self._reader.close()
        self._dispatcher.close()
        self.registry.close()
        self._planner.cancel()
        if self._beginning is not None:
            self._beginning.cancel()
        if self._ticking is not None and self._ticking.active():
            self._ticking.cancel()
        if self._stop_listening is not None:
            self._stop_listening()
        if self._client.state is SessionState.CONNECTED:
            # A later reign of this session watches anew.
            self._client.remove_watch(self._layout.unassigned, self._unassigned_event).addErrback(lambda _: None)
        for _, waiter in self._waiters:
            waiter.errback(Deposed(reason))
        self._waiters.clear()
        self._ended(reason)

    def _failed(self, failure: Failure) -> None:
        """An answer did not come, or said that we are deposed: end the reign. A fault of ours ends it too, loudly."""
        if self.is_over:
            return
        error = failure.value
        if isinstance(error, Deposed):
            self.end("another master is active")
        elif isinstance(error, CoordError):
            self.end(f"lost sight of the store: {error}")
        else:
            log.failure("the reign ends because of a fault", failure=failure)
            self.end(f"fault: {error}")

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self.end(f"session {state.value}")

    def _stale(self, message: str) -> None:
        """A server knows a higher epoch: ask the store, which decides."""
        log.info("a server refused epoch {epoch}: {message}", epoch=self.fence.epoch, message=message)
        ensureDeferred(self.fence.stands()).addErrback(self._failed)

    # --- events -------------------------------------------------------------------------------------------------------

    def _unassigned_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the znode tells more
        if self.is_over:
            return
        if event_type == EVENT_GAP:
            self.end("events may have been missed")
            return
        found = self._layout.parse_transition(path)
        if found is None:
            return
        replica = self.assigner.world.replicas.get(f"{found[0]}-{found[1]}")
        if replica is not None and replica.writing is not None:
            own = EVENT_DELETED if replica.proposed is None else EVENT_DATA_CHANGED
            if replica.transition is None:
                own = EVENT_CREATED
            if event_type == own:
                return  # ours; and if it was not, our write is refused and the znode is read then
        begun = replica is not None and event_type == EVENT_DATA_CHANGED and _only_begun(replica)
        # From OFFLINE a server goes to OPENING and nowhere else, which asks nothing of us (RT-18).
        if begun and self._reader.put_later(*found, self._now_ms() + OPENING_UNREAD_MS):
            return
        self._reader.put(*found)
        self._schedule()

    def _servers_changed(self, servers: list[ServerRecord], draining: list[str]) -> None:
        waiting, self._servers_seen = self._servers_seen, None
        if waiting is not None and self._enough_servers():
            waiting.callback(None)
        else:
            self._servers_seen = waiting
        if not self.is_open:
            return
        now = self._now_ms()
        alive = {one.uuid: one for one in servers}
        for uuid, known in list(self.assigner.world.servers.items()):
            if uuid not in alive:
                log.warn("server {server} is gone", server=known.record.name)
                self.chronicle.membership(known.record, SERVER_DOWN)
                self.assigner.handle(fx.ServerDown(uuid), now)
        for record in servers:
            known_server = self.assigner.world.servers.get(record.uuid)
            if known_server is None or known_server.incarnation != record.incarnation:
                log.info("server {server} has registered", server=record.name)
                self.chronicle.membership(record, SERVER_UP)
                self.assigner.handle(fx.ServerUp(record, record.uuid in draining), now)
        self.assigner.handle(fx.DrainingSeen(draining), now)
        self._pump()

    def _heard(self, event: fx.Event) -> None:
        self._handle(event)
        self._schedule()

    def _handle(self, event: fx.Event) -> None:
        if self.is_open:
            self.assigner.handle(event, self._now_ms())

    def _written(self, effect: Write, event: fx.WriteDone | fx.WriteFailed) -> None:
        if self._bulks and isinstance(event, fx.WriteDone):
            self._count(effect)
        self.assigner.handle(event, self._now_ms())

    def _count(self, effect: Write) -> None:
        """Follow the bulk plans' progress through our own writes."""
        if isinstance(effect, fx.WriteOffline):
            bulk = self._bulks.get(effect.record.plan_id)
            if bulk is not None and effect.before is None:
                bulk.offline += 1
                if bulk.offline == len(bulk.keys) and bulk is self.bulk:
                    self.phases.begin("open")
        elif effect.cause is Cause.DONE:
            transition = self.assigner.world.replicas[effect.key].transition
            bulk = self._bulks.get("" if transition is None else transition.plan_id)
            if bulk is not None:
                bulk.assigned += 1
                if bulk.assigned == len(bulk.keys):
                    self._finish_bulk(bulk)

    def _tick(self) -> None:
        self._ticking = self._reactor.callLater(TICK_S, self._tick)
        if self.is_open:
            self.assigner.tick(self._now_ms())
            self._reader.due(self._now_ms())
            self._finish_stuck_bulks()
            for move in self.balancing.tick():
                self._handle(move)
            self.chronicle.tick()
            self._pump()

    # --- the wheel ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._pump_due and not self.is_over:
            self._pump_due = True
            self._reactor.callLater(0, self._pump)

    def _pump(self) -> None:
        """Carry out what the assigner wants, then send what has gathered."""
        self._pump_due = False
        if not self.is_open:
            return
        try:
            for effect in self.assigner.take(self._now_ms()):
                self._carry_out(effect)
            self._writer.flush()
            self._reader.flush()
        except Exception:  # a broken invariant: this reign must not go on, the next one starts from the store
            self._failed(Failure())  # type: ignore[no-untyped-call]
            return
        self._wake()

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.WriteOffline() | fx.DeleteTransition():
                self._writer.put(effect)
            case fx.SendOpen() | fx.SendClose():
                self._dispatcher.send(effect)
            case fx.ReadTransition():
                self._reader.put(effect.region_id, effect.replica)
            case fx.ReadRegion():
                ensureDeferred(self._read_region(effect)).addErrback(self._failed)
            case fx.RequestPlan():
                ensureDeferred(self._bulk(effect)).addErrback(self._failed)
            case fx.Note():
                log.warn("{region}: {text}", region=effect.region_id, text=effect.text)

    async def _read_region(self, effect: fx.ReadRegion) -> None:
        path = self._layout.region(effect.table_id, effect.region_id)
        for _, data, stat in await catalog.read_all(self._client, [path]):
            self._handle(fx.RegionSeen(decode_region(data, path), stat.version))
        self._schedule()

    # --- bulk plans --------------------------------------------------------------------------------------------------

    async def _bulk(self, request: fx.RequestPlan) -> None:
        """RT-06 to RT-08: have a plan made, store its record, hand the placements to the assigner."""
        bulk = self._new_bulk(request)
        plan_id = bulk.record.plan_id
        self.bulk = self._bulks[plan_id] = bulk
        await self._plan_lock.acquire()
        try:
            placements = await self._plan(bulk, request)
        finally:
            self._plan_lock.release()
        if self.is_over:
            return
        bulk.stage = ""
        await self._store_plan(bulk)
        self._handle(fx.PlanReady(plan_id, request.keys, placements))
        self._pump()

    async def _plan(self, bulk: BulkPlan, request: fx.RequestPlan) -> dict[str, str]:
        """Placements, by whichever engine; none at all if no engine can plan: the assigner then places singly."""
        self.phases.restart_from("plan")
        self.phases.begin("plan")
        plan_id = bulk.record.plan_id
        replicas = [self.assigner.world.replicas[key] for key in request.keys]
        snapshot = snapshot_of(self.assigner.world, replicas)

        def progress(stage: str) -> None:
            bulk.stage = stage

        try:
            made = await self._planner.make(plan_id, self.fence.epoch, snapshot, bulk.record.engine, progress)
            placements = made.placements
            note = "; ".join(filter(None, (bulk.record.note, made.note)))
            bulk.change(engine=made.engine, digest=made.digest, note=note, state=PlanState.APPLYING)
        except PlanError as error:
            log.warn("no bulk plan, regions are placed one by one: {error}", error=error)
            placements = {}
            bulk.change(engine="single", note=str(error), state=PlanState.APPLYING)
        if not self.is_over:
            self.phases.begin("OFFLINE")
        return placements

    def _new_bulk(self, request: fx.RequestPlan) -> BulkPlan:
        """A plan's record; one that a former master left unfinished goes on under its id (X8)."""
        unfinished, self._unfinished = self._unfinished, None
        engine, note = self._planner.engine_for(len(request.keys))
        if unfinished is not None:
            plan_id, note = unfinished.plan_id, f"begun under epoch {unfinished.epoch}"
        else:
            plan_id = f"{self.fence.epoch:06d}-{self._token(3).hex()}"
        record = PlanRecord(
            plan_id,
            self.fence.epoch,
            request.reason,
            engine=engine,
            regions=len(request.keys),
            note=note,
            created_ms=self._now_ms(),
        )
        return BulkPlan(record, request.keys, lambda: self._now_ms() / 1000)

    async def _store_plan(self, bulk: BulkPlan) -> None:
        path = self._layout.plan(bulk.record.plan_id)
        exists = await self._client.exists(path) is not None
        data = encode(bulk.record)
        await self.fence.write([SetData(path, data) if exists else Create(path, data)])

    def _finish_stuck_bulks(self) -> None:
        """A plan is over, too, when nothing moves any more although not all of it arrived: parked, disabled."""
        if not self._bulks or self.assigner.unplaced or not self._writer.is_idle:
            return
        if all(one.transition is not None and one.transition.parked for one in self.assigner.world.active.values()):
            for bulk in list(self._bulks.values()):
                if bulk.record.state is PlanState.APPLYING and bulk.offline:
                    self._finish_bulk(bulk)

    def _finish_bulk(self, bulk: BulkPlan) -> None:
        del self._bulks[bulk.record.plan_id]
        if bulk is self.bulk:
            self.phases.end()
        bulk.change(state=PlanState.DONE, assigned=bulk.assigned, finished_ms=self._now_ms())
        log.info(
            "plan {plan} is carried out: {count} replicas, {phases}",
            plan=bulk.record.plan_id,
            count=bulk.assigned,
            phases=", ".join(f"{phase.name} {phase.seconds:.2f} s" for phase in self.phases.report()),
        )
        ensureDeferred(self._store_plan(bulk)).addErrback(self._failed)
        facts = {"planned": bulk.record.regions, "engine": bulk.record.engine}
        ensureDeferred(self.runs.save(facts)).addErrback(self._failed)

    async def _prune_plans(self, plans: list[PlanRecord]) -> None:
        """Close the record of a plan that left nothing to do, and remove records of long ago."""
        if self._unfinished is not None:
            record = msgspec.structs.replace(
                self._unfinished,
                state=PlanState.DONE,
                note="finished by later masters",
                finished_ms=self._now_ms(),
            )
            self._unfinished = None
            await self.fence.write([SetData(self._layout.plan(record.plan_id), encode(record))])
        for old in sorted(plans, key=lambda plan: plan.created_ms)[:-PLANS_KEPT]:
            await self.fence.write([Delete(self._layout.plan(old.plan_id))])

    @property
    def multis(self) -> int:
        """Multis of transitions sent."""
        return self._writer.multis

    @property
    def multis_refused(self) -> int:
        """Those refused because of a lost race."""
        return self._writer.refused

    @property
    def reads(self) -> int:
        """Batched reads of transitions."""
        return self._reader.reads

    # --- waiting ------------------------------------------------------------------------------------------------------

    def when(self, holds: Callable[[], bool]) -> Deferred[None]:
        """Fires as soon as `holds()` after some step; fails with Deposed if the reign ends before."""
        waiter: Deferred[None] = Deferred()
        self._waiters.append((holds, waiter))
        self._schedule()
        return waiter

    def _wake(self) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for holds, waiter in waiters:
            if waiter.called:
                continue
            if holds():
                waiter.callback(None)
            else:
                self._waiters.append((holds, waiter))

    def observe(self, event: fx.Event) -> None:
        """Hand an operator's event to the assigner and act on it before returning."""
        self._handle(event)
        self._pump()
