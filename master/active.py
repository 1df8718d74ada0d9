"""The active master, from the write of its epoch until another master may be active: one tenure.

The active master loads the store into an `Assigner`. Then watch events and replies become events of the assigner, and
the assigner's effects become fenced multis, orders and plans.

A lost store connection pauses the active master:

- While paused, the master writes nothing, orders nothing and acknowledges nothing.
- When the session may have expired by the master's own monotonic clock, the master also stops answering reads.
- When the client has reconnected in the same session, the master checks its epoch, reads the znodes that may have
  changed while events were missed (the watches report a gap), treats every write without a known outcome as rejected,
  and resumes.

The tenure ends when the session has expired or another master has raised the epoch. The service then enters the next
election.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import EVENT_GAP, SessionState
from coord.client.watches import Event
from coord.errors import CoordError, RetryableError
from master.assignment.balancer import Balancing
from master.assignment.dispatch import Dispatcher
from master.assignment.effects import AssignerEffects
from master.assignment.history_writer import HistoryWriter
from master.assignment.misplaced import MisplacedReplicas
from master.assignment.registry import Registry, take_over
from master.assignment.server_events import ServerEvents
from master.assignment.transitions import TransitionReader, TransitionWriter, read_missed_changes
from master.assignment.waiters import Waiters, wait_within
from master.assignment.write_queue import Outcome
from master.beginning.content import find_content, wipe
from master.beginning.roll_call import wait_ms
from master.beginning.slices import in_slices
from master.catalog import store
from master.catalog.ddl import TableOperations
from master.catalog.forgetting import Forgetting
from master.catalog.formats import Formats
from master.catalog.janitor import Janitor
from master.catalog.purging import Purging
from master.catalog.undelete import Undelete
from master.causes import acting, log_begun
from master.leadership.fence import Deposed, Fence
from master.leadership.store_session import StoreSession
from master.phases import Phases
from master.plans.applying import Applying
from master.plans.bulk import BulkPlans
from master.plans.planner import Planner
from master.resharding.work import ReshardingWork
from master.runs import Runs
from master.settings import MasterSettings
from master.standby.watcher import Warm
from master.tablets.keeping import TabletKeeping
from regions.assign.assigner import Assigner
from regions.balance.sizes import RegionSizes
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.history import StepLog
from regions.cluster.state import ClusterState
from regions.diagnose.live.work_in_progress import WorkInProgress, look
from regions.diagnose.problems import problems
from regions.liveness.reports import Reports
from regions.messages import Purged
from regions.messages.heartbeat import Report
from regions.records.model import BarRecord, FenceRecord, Incarnation, Move, RunRecord, ServerRecord
from regions.records.znodes import decode_region

log = Logger()

TICK_S: Final = 0.5
#: Pause between two turns with work that `_act_in_time` has left.
CHECK_PAUSE_S: Final = 0.01
#: Returns the mirror that this master kept as a standby, brought up to date; None without a complete mirror.
HandOver = Callable[[], Awaitable[Warm | None]]


async def _nothing_kept() -> Warm | None:
    return None


class ActiveMaster:
    """One tenure of the active master; see the module docstring.

    `ended(reason)` is called once, at the end of the tenure. `token(n)` returns n random bytes for names.
    """

    def __init__(
        self,
        reactor: Any,
        fence: Fence,
        settings: MasterSettings,
        planner: Planner,
        phases: Phases,
        now_ms: Callable[[], int],
        ended: Callable[[str], None],
        token: Callable[[int], bytes],
        uuid: str = "",
        hand_over: HandOver = _nothing_kept,
    ) -> None:
        """`hand_over` returns the mirror that this master kept as a standby."""
        self._reactor = reactor
        self.fence = fence
        self._hand_over = hand_over
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
        self.history_writer = HistoryWriter(fence, self.assigner.history, now_ms, self._failed)
        self.runs = Runs(fence, RunRecord(fence.epoch, uuid, f"{settings.host}:{settings.port}", "", 0, ()))
        #: True while the store is being asked whether the epoch is still valid.
        self._checking_epoch = False
        self._pump_due = False
        self._has_selected = False  # True if the assigner has left replicas for the next turn
        self._writer = TransitionWriter(fence, self._written, self._pump, self._failed, self.history_writer)
        self._reader = TransitionReader(fence, self._read, self._pump, self._failed)
        self.dispatcher = Dispatcher(
            reactor, fence.epoch, self.handle_soon, self.check_epoch, self._failed, fence.cluster_id
        )
        self._effects = AssignerEffects(self, self._writer, self._reader, self.dispatcher, now_ms, self._failed)
        self.reports = Reports(self.assigner.world)
        self.resharding = ReshardingWork(self, self._failed)
        self.keeper = TabletKeeping(self, reactor, settings.limits, now_ms, self._failed)
        self.assigner.reshardings.serve_tablets(self.keeper.keeper, settings.limits.start_timeout_ms)
        self.server_events = ServerEvents(
            reactor, self.assigner, self.history_writer, self.reports, now_ms, self._shutdown_canceled, self.guarded
        )
        self.misplaced = MisplacedReplicas(
            fence, self.assigner.world, self.reports, self.dispatcher, now_ms, self._failed, self.assigner.causes
        )
        self.applying = Applying(self, now_ms)
        period_ms = int(settings.balance_period_s * 1000)
        self.balancing = Balancing(fence, self.assigner, settings.balancer, period_ms, now_ms, self.applying.running)
        #: How the tenure began, "startup" or "failover"; "" until the store has been read.
        self.path = ""
        #: True if the tenure began with the mirror that this master kept as a standby.
        self.is_warm = False
        #: True from the end of loading to the end of the tenure: only then are events and requests processed.
        self.is_open = False
        self.is_over = False
        #: True if an unexpected exception has ended the tenure.
        self.has_failed = False
        #: State of the store session; see the module docstring.
        self.store_session = StoreSession(reactor, self._client, self._resume, self.end, self._failed)
        self.began_ms = now_ms()
        #: Returns problems of other parts of the process, for `rk status`.
        self.other_problems: Callable[[], list[str]] = list
        #: Returns whether this start of a server has sent this process a heartbeat of late.
        self.has_heard: Callable[[Incarnation], bool] = lambda _: True
        self.bulk_plans = BulkPlans(self, planner, now_ms, token)
        self.balancing.sizes = self.bulk_plans.sizes = lambda: RegionSizes(self.reports.sizes, self.keeper.measure)
        self.operations = TableOperations(self, now_ms, token, int(settings.purge_after_s * 1000))
        self.purging = Purging(self, self.operations.locks, now_ms, int(settings.purge_after_s * 1000))
        self.operations.undelete = Undelete(self, self.operations.locks, self.purging.forget).perform
        forgetting = Forgetting(self, self.operations.locks, now_ms, int(settings.forget_after_s * 1000))
        self.janitor = Janitor(self, self.operations, now_ms, forgetting, self.purging.finished)
        self.formats = Formats(fence, now_ms)
        self._ticking: IDelayedCall | None = None
        self._checking: IDelayedCall | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._waiters = Waiters()
        self._beginning: Deferred[None] | None = None

    @property
    def may_act(self) -> bool:
        """True while this master may write and order: the store has been read, and the connection is not lost."""
        return self.is_open and not self.store_session.is_paused

    # --- beginning and end ------------------------------------------------------------------------------------------

    def start(self, history: StepLog | None = None) -> None:
        """Begin to load the store. `history` is the step log of this process's previous tenure, to be continued."""
        if history is not None:
            self.assigner.history = self.history_writer.log = history
        self._stop_listening = self._client.on_state(self._session_changed)
        self._beginning = ensureDeferred(self._begin())
        self._beginning.addErrback(self._failed)
        self._ticking = self._reactor.callLater(TICK_S, self._tick)

    async def _begin(self) -> None:
        """Watch, load, then decide (MF-01 to MF-03). A startup also wipes transitions and waits for servers."""
        self.phases.begin("load")
        await self._client.watch_below(self._layout.unassigned, self._unassigned_events)
        await self.registry.start()
        await self.balancing.load()
        patience_ms = wait_ms(self._settings.session_timeout_ms)
        kept = await self._hand_over()
        content = await find_content(self._reactor, self.fence, self.registry, kept, self.has_heard, patience_ms)
        loaded, startup, warm = content.loaded, content.is_startup, content.warm
        self.is_warm = warm is not None
        self.path = "startup" if startup else "failover"
        self.bulk_plans.load([plan for plan in loaded.plans if not plan.by_moves])
        self.applying.load(loaded.plans)
        content.log(self.fence.epoch, len(self.registry.servers) + len(self.registry.fences))
        stopping = loaded.cluster.clean_shutdown and not startup
        if not stopping:
            await self._clear_clean_shutdown()
        transitions = loaded.transitions
        found = [] if startup else [record for record, _ in transitions]
        await self.history_writer.begin(self._uuid, f"{self._settings.host}:{self._settings.port}")
        if startup:
            await wipe(self.fence, self.history_writer, self.phases, content, self.assigner.causes.current)
            transitions = []
            self.phases.begin("servers")
            pause_s = self._settings.registration_pause_ms / 1000
            await self.server_events.wait_for(self._settings.min_servers, pause_s, len(self.registry.servers))
        self.phases.begin("recover")
        # Events that arrive between the slices wait: changes of transitions in the reader, those of servers in the
        # registry. `is_open` is False until everything is loaded.
        known = self.registry.lists
        servers, draining, _, bars = known
        await in_slices(self._reactor, take_over(self.assigner, loaded, transitions, self.registry, self._now_ms()))
        self.keeper.servers_changed(servers, draining, bars)
        self.server_events.took_over(servers, draining)
        moving = [*loaded.transitions, *(() if warm is None else warm.tablets)]
        await in_slices(self._reactor, self.keeper.take_over(moving, loaded.intents))
        if stopping:
            self.server_events.await_shutdown(servers)
        await in_slices(self._reactor, self.assigner.beginning(self._now_ms(), startup=startup))
        self.is_open = True
        if warm is not None and warm.regions:
            self.persist(partial(self.read_regions, warm.regions))
        self.keeper.begin()
        if self.registry.lists != known:
            self._servers_changed(*self.registry.lists)
        if startup:
            self.applying.give_up("the cluster was restarted: no region is open that could be moved")
        self._pump()
        self.phases.end()
        run = self.runs.beginning(self.path, self.phases, self.world, len(found), self._now_ms())
        # From here on a lost connection is only a pause, after which an interrupted write is repeated.
        await self.retry_write(partial(self.janitor.clear, loaded.orphans))
        await self.retry_write(partial(self.bulk_plans.prune, loaded.plans))
        await self.retry_write(partial(self.runs.add, run))

    async def _clear_clean_shutdown(self) -> None:
        """Clear the clean-shutdown flag: the next shutdown is clean only if it is announced again (X7)."""
        await store.write_clean_shutdown(self.fence, clean=False, now_ms=self._now_ms())

    def _shutdown_canceled(self) -> None:
        self.persist(self._clear_clean_shutdown)
        self._pump()

    def end(self, reason: str) -> None:
        """End the tenure. The epoch fences writes and orders that are still on their way."""
        if self.is_over:
            return
        self.is_over = True
        self.is_open = False
        if self.store_session.is_paused:
            self.history_writer.outage(self.store_session.paused_s, f"this master gave up: {reason}")
        self._writer.close()
        self.history_writer.close()
        self._reader.close()
        self.dispatcher.close()
        self.keeper.close()
        self.registry.close()
        self.store_session.close()
        self._planner.cancel()
        if self._beginning is not None:
            self._beginning.cancel()
        for timer in (self._ticking, self._checking):
            if timer is not None and timer.active():
                timer.cancel()
        self.server_events.close()
        if self._stop_listening is not None:
            self._stop_listening()
        if self._client.state is SessionState.CONNECTED:
            # A later tenure in the same session adds its own watch.
            self._client.remove_watch(self._layout.unassigned, self._unassigned_events).addErrback(lambda _: None)
        self.operations.locks.fail(Deposed(reason))
        self._waiters.fail(Deposed(reason))
        self.store_session.fail(Deposed(reason))
        self._ended(reason)

    def _failed(self, failure: Failure) -> None:
        """Handle a failed store request: pause after a lost connection, otherwise end the tenure.

        An unexpected exception is logged with its traceback and ends the tenure, too.
        """
        if self.is_over:
            return
        error = failure.value
        if isinstance(error, CancelledError):
            return
        if isinstance(error, Deposed):
            self.end("another master is active")
        elif isinstance(error, RetryableError) and self.is_open:
            self.store_session.suspend()
        elif isinstance(error, CoordError):
            self.end(f"a store request failed: {error}")
        else:
            log.failure("internal error, this master gives up being active", failure=failure)
            self.has_failed = True
            self.end(f"internal error: {error}")

    # --- a suspended store session ------------------------------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            return  # the watches report a gap as soon as they are set again
        if state is SessionState.SUSPENDED and self.is_open:
            self.store_session.suspend()
        else:
            self.end(f"session {state.value}")

    def _gap(self) -> None:
        """Resume after missed events: the watches are set again."""
        if not self.is_open:
            self.end("events may have been missed")
            return
        self.store_session.begin_resume()

    async def _resume(self) -> None:
        """Verify the epoch, read the znodes that may have changed while events were missed, and resume."""
        await self.fence.verify()
        events = await read_missed_changes(self._client, self._layout, self.assigner.world)
        orphans = await store.load_orphans(self._client, self._layout)
        if self.is_over or self._client.state is not SessionState.CONNECTED:
            return
        self._writer.fail_unknown()
        self.keeper.fail_unknown()
        for event in events:
            self._handle(event)
        self.keeper.missed({one.record.key for one in events if isinstance(one, ev.TransitionRead) and one.record})
        log.info("reconnected to the store, the active master of epoch {epoch} resumes", epoch=self.fence.epoch)
        self.history_writer.outage(self.store_session.paused_s, "the session lived on")
        self.store_session.resumed()
        self._pump()
        self.persist(partial(self.janitor.clear, orphans))

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        """Perform an idempotent write, repeated after each lost connection. Raise Deposed at the end of the tenure."""
        return await self.store_session.retry_write(write)

    def persist(self, write: Callable[[], Any]) -> None:
        """Start `retry_write` in the background."""
        ensureDeferred(self.retry_write(write)).addErrback(self._failed)

    def check_epoch(self, message: str) -> None:
        """Read the epoch from the store because a server has reported a higher one; one read at a time."""
        if self._checking_epoch or self.store_session.is_paused or self.is_over:
            return
        log.info("checking whether epoch {epoch} is still valid: {message}", epoch=self.fence.epoch, message=message)
        self._checking_epoch = True
        ensureDeferred(self.fence.verify()).addErrback(self._failed).addBoth(self._epoch_checked)

    def _epoch_checked(self, _result: object) -> None:
        self._checking_epoch = False

    # --- heartbeats (master/heartbeats.py) ----------------------------------------------------------------------------

    def reported(self, server: Incarnation, report: Report) -> None:
        """Process a server's report of all its replicas, or of those that have changed (HB-03, HB-15)."""
        self.guarded(lambda: self._take_report(server, report))

    def _take_report(self, server: Incarnation, report: Report) -> None:
        self.reports.take(server, report, self._now_ms())
        self.keeper.reported(server, report)
        if report.replicas and self.is_open:
            self.assigner.handle(ev.ReplicasReported(server, report.replicas), self._now_ms())
            self.schedule()

    def problems(self, limit: int, work: WorkInProgress | None = None) -> list[str]:
        """Return at most `limit` lines for the operator. `work` None: examine the replicas with work first."""
        world, unplaceable = self.assigner.world, self.assigner.unplaceable()
        work = work or look(world.active.values(), unplaceable)
        found = problems(world, work, unplaceable, self.assigner.config, self._now_ms(), limit)
        found += [*self.keeper.problems(), *self.balancing.problems(), *self.misplaced.problems()]
        return [*found, *self.other_problems()][:limit]

    # --- events -------------------------------------------------------------------------------------------------------

    def _unassigned_events(self, events: list[Event]) -> None:
        if not self.is_over:
            self.guarded(lambda: self._see_unassigned(events))

    def _see_unassigned(self, events: list[Event]) -> None:
        if events[0][0] == EVENT_GAP:
            self._gap()
            return
        world, tablets = self.assigner.world, self.keeper.keeper.tablets
        others = self._reader.changed.see(events, self._layout.unassigned, world, tablets, self._now_ms())
        for event_type, region_id, number in others:
            self.keeper.watch_event(event_type, region_id, number)
        if others or self._reader.changed.queued:
            self.schedule()

    def _servers_changed(
        self, servers: list[ServerRecord], draining: list[str], fences: list[FenceRecord], bars: list[BarRecord]
    ) -> None:
        self.server_events.counted(len(servers))
        if self.is_open:
            if self.server_events.changed(servers, draining, fences, bars):
                deferLater(self._reactor, 0, self.registry.repeat).addErrback(self._failed)
            self.keeper.servers_changed(servers, draining, bars)
            self._pump()

    def handle_soon(self, event: ev.Event) -> None:
        """Hand an event to the assigner, and carry out its effects in the next reactor turn."""
        self._handle(event)
        self.schedule()

    def _handle(self, event: ev.Event) -> None:
        origin = acting()
        if self.is_open and not self.keeper.observe(event, origin):
            self.assigner.handle(event, self._now_ms(), origin)

    def _read(self, events: list[ev.TransitionRead]) -> None:
        """Hand transitions that were read to the keeper and the assigner."""
        if self.is_open:
            self.assigner.handle_all(self.keeper.take_own(events), self._now_ms())

    def _written(self, outcomes: list[Outcome]) -> None:
        """Process the outcomes of writes."""
        if self.bulk_plans.running:
            self.bulk_plans.count(outcomes)
        self.assigner.handle_all([event for _, event in outcomes], self._now_ms())

    def _tick(self) -> None:
        self._ticking = self._reactor.callLater(TICK_S, self._tick)
        if self.may_act:
            self.guarded(self._act_in_time)
            self._pump()

    def _act_in_time(self) -> None:
        """Carry out the actions that are due by time."""
        self.assigner.tick(self._now_ms())
        if self._checking is None or not self._checking.active():
            self._checking = self._reactor.callLater(CHECK_PAUSE_S, self._go_on)
        self._reader.changed.due(self._now_ms())
        self.keeper.tick()
        self.balancing.act(self.history_writer)
        self.applying.tick()
        self.misplaced.tick()
        self.purging.tick()
        self.history_writer.tick()
        if self.janitor.prune_is_due():
            self.persist(self.janitor.prune)
            self.persist(self.bulk_plans.forget)
        if self.formats.is_due():
            self.persist(self.formats.look)
        if self._writer.is_idle:
            self.bulk_plans.finish_stuck()

    def _go_on(self) -> None:
        """Continue the work of `_act_in_time`, one part in each turn: times of orders, rounds of the balancer."""
        if self.may_act and (self.assigner.has_unchecked or self.balancing.is_counting or self.keeper.balancing.is_due):
            self.guarded(self._do_part)
            self._pump()
            if not self.is_over:
                self._checking = self._reactor.callLater(CHECK_PAUSE_S, self._go_on)

    def _do_part(self) -> None:
        if self.assigner.has_unchecked:
            self.assigner.check_orders(self._now_ms())
        if self.balancing.is_counting:
            self.balancing.act(self.history_writer)
        self.keeper.balancing.go_on()

    # --- the event loop -----------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Carry out effects, and send queued writes and reads, in the next reactor turn."""
        if not self._pump_due and not self.is_over:
            self._pump_due = True
            self._reactor.callLater(0, self._pump)

    def _pump(self) -> None:
        """Carry out the assigner's effects, then send the queued writes and reads."""
        self._pump_due = False
        if not self.may_act:
            return
        self.guarded(self._carry_out)
        if self.is_open:
            if self._waiters.waiting:
                self._waiters.wake()
            if self._has_selected:
                self.schedule()

    def _carry_out(self) -> None:
        """Have the parts with work decide. Most turns are about one of them, so the others are not called."""
        now_ms, assigner = self._now_ms(), self.assigner
        effects = assigner.take(now_ms) if assigner.has_work else []
        self._has_selected = assigner.has_selected
        if assigner.causes.begun:
            log_begun(assigner.causes)
        if effects:
            self._effects.carry_out(effects)
        if self._writer.queue.waiting or self._writer.retries:
            self._writer.flush()
        if self._reader.changed.queued:
            self._reader.flush()
        self.keeper.pump(now_ms)

    def guarded(self, act: Callable[[], None]) -> None:
        """Call `act`. After an exception the state in memory cannot be trusted: end the tenure."""
        try:
            act()
        except Exception:  # the next active master starts from the store
            self._failed(Failure())  # type: ignore[no-untyped-call]

    def bar_of(self, server: ServerRecord, reason: str, bar_ms: int) -> BarRecord:
        """Return the bar that keeps regions from `server` for `bar_ms` from now on, or until an operator ends it."""
        now_ms = self._now_ms()
        until_ms = 0 if bar_ms == fx.BAR_FOR_EVER else now_ms + bar_ms
        return BarRecord(server.uuid, server.start_code, reason, until_ms, self.fence.epoch, now_ms)

    def order_purge(self, server: ServerRecord, table_id: str) -> Deferred[Purged]:
        """Order `server` to remove the rows of a deleted table; the result fails with RpcError."""
        origin = self.assigner.causes.begin(f"timer: remove the rows of deleted table {table_id}")
        return self.dispatcher.purge(server, table_id, origin.cause_id)

    async def read_region(self, table_id: str, region_id: str) -> None:
        """Read a region's record again: the record in memory may be out of date."""
        await self.read_regions([self._layout.region(table_id, region_id)])

    async def read_regions(self, paths: list[str]) -> None:
        """Read regions' records again."""
        for record, version in store.decoded(await store.read_all(self._client, paths), decode_region):
            self._handle(ev.RegionSeen(record, version))
        self.schedule()

    @property
    def world(self) -> ClusterState:
        """The cluster state on which the assigner bases its decisions."""
        return self.assigner.world

    @property
    def multis(self) -> int:
        """Number of multis sent for transitions."""
        return self._writer.multis

    @property
    def multis_refused(self) -> int:
        """Number of multis that the store refused because of a lost race."""
        return self._writer.refused

    @property
    def reads(self) -> int:
        """Number of batched reads of transitions."""
        return self._reader.reads

    # --- waiting ------------------------------------------------------------------------------------------------------

    def when(self, holds: Callable[[], bool]) -> Deferred[None]:
        """Return a Deferred that fires at the first step after which `holds()`, and fails with Deposed."""
        if self.is_over:
            return fail(Deposed("this master is not active any more"))
        waiter = self._waiters.when(holds)
        self.schedule()
        return waiter

    async def wait(self, holds: Callable[[], bool], wait_ms: int, so_far: Callable[[], str]) -> None:
        """Wait until `holds()`, if `wait_ms` is positive. Raise RpcError(TIMED_OUT), or Deposed after the tenure."""
        if wait_ms > 0:
            await wait_within(self.when(holds), self._reactor, wait_ms, so_far)

    async def room_for_placements(self, are_wanted: Callable[[], bool]) -> None:
        """Wait for a later turn in which few writes of transitions are queued. Raise Deposed."""
        await deferLater(self._reactor, 0)
        await self.when(lambda: self._writer.has_room and are_wanted())

    async def accept_moves(self, moves: list[Move], reason: str, plan_id: str = "") -> None:
        """Persist moves in as few writes as possible, then begin them (FW-03).

        When this returns the moves survive a failover, so the caller may acknowledge them. Raise as a fenced write.
        """
        common = (reason, plan_id, self.fence.epoch, self._now_ms(), acting())
        batches = store.move_batches(moves, lambda: f"{self.fence.epoch:06d}-{self._token(4).hex()}", *common)
        await store.accept_moves(self.fence, batches)
        for batch in batches:
            self.observe(ev.MovesAccepted(batch))

    def observe(self, event: ev.Event) -> None:
        """Hand an event of an operator's request to the assigner and carry out its effects before returning.

        Raise Deposed if that has failed and ended the tenure: the caller must not report the request as done.
        """
        self.guarded(lambda: self._handle(event))
        self._pump()
        if self.has_failed:
            raise Deposed("this master has given up being active; its log says why")
