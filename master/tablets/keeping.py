"""The keeper of tablets during one tenure: its inputs, and the execution of its effects.

Shared regions belong to the assigner, tablets to the keeper. Both read the same watches, lists of servers and
heartbeats; the names, tables and regions of both are in one `ClusterState`, where tablets have no replicas, so nothing
there plans or opens them. A write of the keeper changes the `ClusterState` once it has committed.

Large inputs (a new table's regions, a server's full report) wait in a queue, and each reactor turn handles a part of
them.

After a reconnect, a write with an unknown outcome counts as rejected: the keeper reads the record and decides again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from coord.wire.records import EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED
from master.assignment.dispatch import Dispatcher
from master.assignment.transitions import TransitionReader, TransitionWriter
from master.assignment.write_queue import Outcome, Write
from master.catalog import store
from master.catalog.forgetting import forgotten_ms
from master.catalog.tablet_progress import CountProgress
from master.causes import acting
from master.context import EffectContext
from master.plans.tablets import is_of_tablets
from master.tablets.balancing import TabletBalancing
from master.tablets.intents import IntentBook
from master.tablets.loading import load_tablets, unread_numbers
from master.tablets.plan_moves import PlanMoves
from master.tablets.purging import TabletPurges
from master.tablets.reports import ReportQueue
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.cluster.reads.changed import OPENING_UNREAD_MS, event_of_write
from regions.diagnose.member_intents import obstacle_to_empty, stuck_lines, tablets_on
from regions.diagnose.tablets import TabletWatch, is_listed, problem_lines
from regions.messages.heartbeat import Measure, Report
from regions.records.intents import TabletIntents
from regions.records.members import Member
from regions.records.model import (
    BarRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TabletState,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.znodes import decode_region, decode_table
from regions.replication.effects import BeginTablet, ChangeMembers, HandOver, KeeperEffect, Unseal, WriteRegion
from regions.replication.keeper import Keeper
from regions.replication.policy.intents import objection_to_new_count
from regions.replication.siting import has_room
from regions.replication.tablet import MemberWork, Tablet, TabletTable
from regions.transitions.purging import remains
from regions.transitions.states import Cause
from regions.transitions.steps import master_step, steps_since

if TYPE_CHECKING:
    from twisted.python.failure import Failure

log = Logger()

#: Regions of a new table that the keeper takes in one reactor turn: some milliseconds of work.
REGIONS_PER_TURN: Final = 100
#: Region records in one read.
READ_MAX: Final = 500
#: Interval at which a replica without a record in memory is looked up in the store.
UNKNOWN_RECHECK_MS: Final = 60_000
#: Orphans and parked members that `rk status` names.
SHOWN_MAX: Final = 5


class TabletKeeping:
    """See the module docstring."""

    def __init__(
        self,
        active_master: EffectContext,
        reactor: Any,
        config: AssignerConfig,
        now_ms: Callable[[], int],
        failed: Callable[[Failure], None],
    ) -> None:
        """`failed` handles a failed store request."""
        fence = active_master.fence
        self._active_master = active_master
        self._now_ms = now_ms
        self._failed = failed
        self._layout = fence.layout
        #: The decisions. Requests of operators read the keeper; only this object feeds it.
        self.keeper = Keeper(fence.epoch, config, active_master.assigner.causes)
        policy = self.keeper.policy
        policy.has_reported, policy.have_all_reported = self._has_reported, self._have_all_reported
        policy.tablets = self.keeper.tablets
        self._writer = TransitionWriter(
            fence, self._written, active_master.schedule, failed, active_master.history_writer
        )
        self._reader = TransitionReader(fence, self._transitions_read, active_master.schedule, failed)
        self._dispatcher = Dispatcher(
            reactor, fence.epoch, self._orders_event, active_master.check_epoch, failed, fence.cluster_id
        )
        self._reports = ReportQueue(self.keeper)
        #: Intents of operators, plans and the balancer about members of single tablets.
        self.intents = IntentBook(active_master, self.keeper)
        #: Moves of members that plans want.
        self.plan_moves = PlanMoves(self.keeper, self.intents, now_ms)
        #: Leaders spread over servers, and members over disks.
        self.balancing = TabletBalancing(active_master, self.keeper, self.plan_moves, config, now_ms)
        #: Health of the tablets, for operators; `tick` keeps it up to date.
        self.watch = TabletWatch(self.keeper, self._has_reported, now_ms())
        #: Regions of new tables that have not been passed to the keeper yet.
        self._regions: deque[tuple[RegionRecord, int]] = deque()
        self._purges = TabletPurges(fence.client, self._layout, self.keeper, self._regions)
        #: Tables, and regions with their tables, that are to be read.
        self._tables_to_read: dict[str, None] = {}
        self._regions_to_read: dict[str, str] = {}
        self._is_reading = False
        #: When an unknown region that a server reports was looked up last.
        self._looked_up_ms: dict[str, int] = {}
        #: Free bytes of the servers' disks, by their heartbeats.
        self._disk_free: dict[str, int] = {}
        #: Deleted tables whose end is written once their replicas have closed.
        self._finishing: dict[str, fx.FinishTable] = {}

    # --- beginning and end ------------------------------------------------------------------------------------------

    def take_over(
        self, transitions: Iterable[tuple[TransitionRecord, int]], intents: Iterable[TabletIntents] = ()
    ) -> Iterator[None]:
        """Load everything, in steps: the caller does one in each turn."""
        world, now = self._active_master.world, self._now_ms()
        yield from load_tablets(self.keeper, world, transitions, now, self._regions_to_read)
        self.intents.load(intents)

    def begin(self) -> None:
        """Begin to decide. A cluster startup is handled in the same way."""
        self.keeper.begin(self._now_ms())

    def close(self) -> None:
        """Stop at the end of the tenure."""
        self._writer.close()
        self._reader.close()
        self._dispatcher.close()
        self._regions.clear()
        self._reports.clear()

    def fail_unknown(self) -> None:
        """Take the writes without a known outcome for refused, because the connection is back."""
        self._writer.fail_unknown()

    def missed(self, present: Collection[str]) -> None:
        """End in memory the transitions that ended while events were missed; `present` are the keys of all others."""
        now = self._now_ms()
        for tablet in list(self.keeper.tablets.values()):
            for work in list(tablet.work.values()):
                if work.transition is not None and work.key not in present:
                    self.keeper.transition_seen(tablet.region_id, work.number, None, -1, now)

    # --- what the store says ----------------------------------------------------------------------------------------

    def observe(self, event: ev.Event, origin: WorkOrigin | None = None) -> bool:
        """Feed the keeper with an event of the request `origin`. Return True if the assigner does not need it."""
        keeper = self.keeper
        match event:
            case ev.TransitionRead():
                return self._take_transition(event)
            case ev.TableSeen() if event.record.is_tablet:
                keeper.table_seen(event.record, event.version, origin)
                self._regions.extend(event.regions)
            case ev.RegionSeen() if event.record.table_id in keeper.tables:
                for number in unread_numbers(keeper, event.record):
                    self._reader.changed.put(event.record.region_id, number)
                keeper.region_seen(event.record, event.version, origin)
            case ev.RegionReplaced() if event.region_id in keeper.tablets:
                keeper.replaced(event.region_id, event.fresh, event.version)
            case ev.ReplaceFailed():
                keeper.region_refused(event.region_id)
            case ev.PlanReady() if is_of_tablets(event.keys, self._active_master.world):
                keeper.plan_ready(event.plan_id, event.keys, event.placements)
                return True
        return False

    def take_own(self, events: list[ev.TransitionRead]) -> list[ev.TransitionRead]:
        """Take the tablets' transitions out of `events`, which the assigner's reader has read. Return the others."""
        return [one for one in events if not self._take_transition(one)] if self.keeper.tables else events

    def _take_transition(self, event: ev.TransitionRead) -> bool:
        """Take a transition that the assigner's reader has read. Return False if it is the assigner's."""
        if event.region_id in self.keeper.tablets:
            self._transitions_read([event])
            return True
        if event.record is None or event.record.table_id not in self.keeper.tables:
            return False
        self._regions_to_read[event.region_id] = event.record.table_id
        return True

    def _transitions_read(self, events: list[ev.TransitionRead]) -> None:
        for event in events:
            tablet, now = self.keeper.tablets.get(event.region_id), self._now_ms()
            if tablet is None:
                continue
            work = tablet.work.get(event.replica)
            if work is None or not work.is_writing:
                former, version = (None, -1) if work is None else (work.transition, work.version)
                history, epoch = self._active_master.assigner.history, self._active_master.fence.epoch
                if event.record is not None and (event.record, event.version) != (former, version):
                    history.extend(steps_since(former, version, event.record, event.version, now))
                elif event.record is None and former is not None:
                    history.append(master_step(former, None, None, epoch, now))
            self.keeper.transition_seen(event.region_id, event.replica, event.record, event.version, now)

    def watch_event(self, event_type: int, region_id: str, number: int) -> None:
        """Read a tablet's transition that has changed, unless the change is this master's own write."""
        tablet = self.keeper.tablets[region_id]
        work = tablet.work.get(number)
        if _is_own_write(tablet, work, event_type):
            return  # if another process made the change, our write is refused, and the znode is read then
        begun = event_type == EVENT_DATA_CHANGED and work is not None and _is_only_begun(work)
        # A server takes OFFLINE only to OPENING, and OPENING needs no action of the master (RT-18).
        if not begun or not self._reader.changed.put_later(region_id, number, self._now_ms() + OPENING_UNREAD_MS):
            self._reader.changed.put(region_id, number)

    def servers_changed(
        self, servers: Iterable[ServerRecord], draining: Iterable[str], bars: Iterable[BarRecord]
    ) -> None:
        """Feed the keeper with the registered servers. Draining and barred servers get no new members."""
        retiring = frozenset(draining)
        self.keeper.servers_closed(retiring, retiring | {bar.uuid for bar in bars})
        alive = {one.uuid: one for one in servers}
        for uuid in [uuid for uuid in self.keeper.servers if uuid not in alive]:
            self.keeper.server_down(uuid)
            self._disk_free.pop(uuid, None)
        for record in alive.values():
            self.keeper.server_up(self._with_disk(record))

    # --- what servers say -------------------------------------------------------------------------------------------

    def reported(self, server: Incarnation, report: Report) -> None:
        """Queue a heartbeat's reports of tablets."""
        if report.tablets or report.gone or report.begins or report.ends:
            self._reports.put(server, report)
            self._active_master.schedule()

    def disk_seen(self, server: Incarnation, free: int) -> None:
        """Take the free bytes of a server's disk from its heartbeat. The registration has the value at the start."""
        known = self.keeper.servers.get(server.uuid)
        if free and known is not None and known.incarnation == server and known.disk_free != free:
            self._disk_free[server.uuid] = free
            self.keeper.server_up(self._with_disk(known))

    def _with_disk(self, record: ServerRecord) -> ServerRecord:
        free = self._disk_free.get(record.uuid, record.disk_free)
        return msgspec.structs.replace(record, disk_free=free)

    def has_room(self, uuid: str) -> bool:
        """Return False for a server whose disk has less free space than its reserve."""
        server = self.keeper.servers.get(uuid)
        return server is None or has_room(server)

    def _orders_event(self, event: ev.Event) -> None:
        match event:
            case ev.OrdersAnswered():
                self.keeper.orders_answered(event.batch, event.results, self._now_ms())
            case ev.OrdersLost():
                self.keeper.orders_lost(event.batch, self._now_ms())
        self._active_master.schedule()

    def _change_answered(self, ask: int, answer: str) -> None:
        log.debug("change {ask} of a tablet's members: {answer}", ask=ask, answer=answer)
        self.keeper.change_answered(ask)
        self._active_master.schedule()

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Process everything that is due. Called twice a second."""
        now = self._now_ms()
        self.keeper.tick(now)
        self._reader.changed.due(now)
        self._look_up(now)
        self.intents.tick()
        self.balancing.tick()
        self.watch.look_on(now)

    def pump(self, now_ms: int) -> None:
        """Work on a part of the queues, carry out the effects, and send the queued writes and reads."""
        if self._regions or self._reports.parts or self.keeper.has_work(now_ms):
            self._decide(now_ms)
        if self._finishing:
            self._finish_closed()
        if self._writer.queue.waiting or self._writer.retries:
            self._writer.flush()
        if self._reader.changed.queued:
            self._reader.flush()
        if (self._tables_to_read or self._regions_to_read) and not self._is_reading:
            self._is_reading = True
            self._active_master.persist(self._read_records)

    def _decide(self, now_ms: int) -> None:
        for _ in range(min(REGIONS_PER_TURN, len(self._regions))):
            self.keeper.region_seen(*self._regions.popleft())
        self._reports.take_some()
        self.keeper.tick(now_ms)
        if self._regions or self._reports.parts or self.keeper.is_looking:
            self._active_master.schedule()
        for effect in self.keeper.take(now_ms, more_comes=bool(self._regions)):
            self._carry_out(effect)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: KeeperEffect) -> None:
        match effect:
            case fx.SendOpen() | fx.SendClose():
                self._dispatcher.send(effect)
            case ChangeMembers() | HandOver() | Unseal():
                log.info("tablet {tablet}: {change} (cause {cause})", tablet=effect.region_id, change=effect.why,
                         cause=effect.cause_id)  # fmt: skip
                self._dispatcher.change(effect, self._change_answered)
            case fx.ReadTransition():
                self._reader.changed.put(effect.region_id, effect.replica)
            case fx.ReadRegion():
                self._regions_to_read[effect.region_id] = effect.table_id
            case fx.ReadTable():
                self._tables_to_read[effect.table_id] = None
            case fx.RequestPlan():
                ensureDeferred(self._active_master.bulk_plans.make(effect)).addErrback(self._failed)
            case fx.ReplaceRegion():
                self._active_master.persist(partial(self._active_master.janitor.replace_region, effect))
            case _:
                self._writer.put(effect)

    def _written(self, outcomes: list[Outcome]) -> None:
        for effect, event in outcomes:
            self._written_one(effect, event)

    def _written_one(self, effect: Write, event: ev.WriteDone | ev.WriteFailed) -> None:
        keeper, now = self.keeper, self._now_ms()
        if isinstance(effect, BeginTablet | WriteRegion):
            if isinstance(event, ev.WriteFailed):
                keeper.region_refused(effect.key)
                return
            self._active_master.world.put_region(effect.record, event.version)
            if isinstance(effect, WriteRegion):
                keeper.region_written(effect)
                return
            for record in effect.transitions:
                made = fx.WriteOffline(record.key, record, None, -1, Cause.ASSIGN, origin=effect.origin)
                self._add_step(made, now)
            keeper.begun(effect, now)
        elif isinstance(event, ev.WriteFailed):
            keeper.write_failed(event.key, event.table_version)
        else:
            self._add_step(effect, now)
            keeper.write_done(event.key, event.version, now)

    def _add_step(self, effect: fx.WriteOffline | fx.DeleteTransition, now_ms: int) -> None:
        """Add an own step to the latest steps in memory. The store has the step in the history, by the same multi."""
        record = effect.record if isinstance(effect, fx.WriteOffline) else None
        epoch = self._active_master.fence.epoch
        step = master_step(effect.former, record, effect.cause, epoch, now_ms, effect.origin)
        self._active_master.assigner.history.append(step)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read_records(self) -> None:
        """Read the requested tables and regions, and pass them to all components that keep them in memory."""
        try:
            while self._tables_to_read or self._regions_to_read:
                tables, self._tables_to_read = self._tables_to_read, {}
                regions, self._regions_to_read = self._regions_to_read, {}
                try:
                    await self._read(tables, regions)
                except BaseException:
                    self._tables_to_read = {**tables, **self._tables_to_read}
                    self._regions_to_read = {**regions, **self._regions_to_read}
                    raise
        finally:
            self._is_reading = False

    async def _read(self, tables: Iterable[str], regions: dict[str, str]) -> None:
        active_master = self._active_master
        client = active_master.fence.client
        paths = [self._layout.table(table_id) for table_id in tables]
        for record, version in store.decoded(await store.read_all(client, paths), decode_table):
            active_master.handle_soon(ev.TableSeen(record, version))
        paths = [self._layout.region(table_id, region_id) for region_id, table_id in regions.items()]
        for at in range(0, len(paths), READ_MAX):
            found = await store.read_all(client, paths[at : at + READ_MAX])
            for region, version in store.decoded(found, decode_region):
                active_master.handle_soon(ev.RegionSeen(region, version))

    def _look_up(self, now_ms: int) -> None:
        """Read the records of reported regions that are not in memory.

        Regions of deleted tables and replaced regions are not loaded: their replicas are deleted as they are reported.
        A replica without a record in the store is an orphan, and is not touched (FN-04).
        """
        unknown = {view.report.region_id: view.report.table_id for view in self.keeper.orphans.values()}
        self._looked_up_ms = {one: at_ms for one, at_ms in self._looked_up_ms.items() if one in unknown}
        for region_id, table_id in unknown.items():
            if now_ms >= self._looked_up_ms.get(region_id, 0):
                self._looked_up_ms[region_id] = now_ms + UNKNOWN_RECHECK_MS
                self._active_master.persist(partial(self._load, table_id, region_id))

    async def _load(self, table_id: str, region_id: str) -> None:
        """Pass a region to the keeper alone; the cluster state keeps nothing about it."""
        client = self._active_master.fence.client
        path = self._layout.table(table_id)
        for table, version in store.decoded(await store.read_all(client, [path]), decode_table):
            self.keeper.table_seen(table, version)
        path = self._layout.region(table_id, region_id)
        for region, version in store.decoded(await store.read_all(client, [path]), decode_region):
            for number in unread_numbers(self.keeper, region):
                self._reader.changed.put(region_id, number)
            self.keeper.region_seen(region, version)
        if table_id not in self.keeper.tables:
            await self._load_forgotten(table_id, region_id)
        self._active_master.schedule()

    async def _load_forgotten(self, table_id: str, region_id: str) -> None:
        """Have replicas of a deleted table deleted even if its records are removed (MD-06)."""
        purged_ms = await forgotten_ms(self._active_master.fence, table_id)
        configs = [one.report.config_id for one in self.keeper.orphans.values() if one.report.region_id == region_id]
        if purged_ms and configs:
            table, region = remains(table_id, region_id, purged_ms, max(configs))
            self.keeper.table_seen(table, 0)
            self.keeper.region_seen(region, 0)

    # --- tables -----------------------------------------------------------------------------------------------------

    def counts(self, table_id: str) -> TabletTable | None:
        """Return a table with the counts of its tablets, or None if the table has no tablets."""
        return self.keeper.tables.get(table_id)

    def transition(self, region_id: str, number: int) -> TransitionRecord | None:
        """Return the transition of a tablet's member, or None if it has none."""
        found = self.transition_of(region_id, number)
        return None if found is None else found[1]

    def takes_part(self, region_id: str, member: Member) -> bool | None:
        """Return whether a member's replica takes part, according to its server; None before the first report."""
        tablet, server = self.keeper.tablets.get(region_id), self.keeper.servers.get(member.uuid)
        if tablet is None or (server is not None and not self._has_reported(server.incarnation)):
            return None
        view = tablet.view.replicas.get(member.uuid)
        return view is not None and view.report.number == member.number and view in tablet.view.takes_part

    def in_transition(self, table_id: str = "") -> list[tuple[int, TransitionRecord]]:
        """Return the transitions of members, of one table or of all, each with the time at which it was read."""
        return [
            (work.seen_ms, work.transition)
            for tablet in self.keeper.tablets.values()
            if table_id in ("", tablet.record.table_id)
            for work in tablet.work.values()
            if work.transition is not None
        ]

    def transition_of(self, region_id: str, number: int) -> tuple[int, TransitionRecord] | None:
        """Return the transition of a member with the time at which it was read, or None if the member is at rest."""
        tablet = self.keeper.tablets.get(region_id)
        work = None if tablet is None else tablet.work.get(number)
        return None if work is None or work.transition is None else (work.seen_ms, work.transition)

    def measure(self, region_id: str) -> Measure | None:
        """Return the measured size of a tablet, or None if no replica has reported one."""
        tablet = self.keeper.tablets.get(region_id)
        return None if tablet is None else tablet.measure

    def finish(self, effect: fx.FinishTable) -> None:
        """Write the end of a deleted table once no replica takes part any more."""
        self._finishing[effect.record.table_id] = effect

    def _finish_closed(self) -> None:
        for table_id, effect in list(self._finishing.items()):
            if self.is_closed(table_id):
                del self._finishing[table_id]
                self._active_master.persist(partial(self._active_master.janitor.finish_table, effect))

    def is_closed(self, table_id: str) -> bool:
        """Return True if no replica of the table takes part, as all live servers report."""
        if not self.keeper.is_closed(table_id) or any(one.table_id == table_id for one, _ in self._regions):
            return False
        return self._have_all_reported()

    def _have_all_reported(self) -> bool:
        """Return True if the keeper knows all replicas of each live server that takes tablets."""
        complete = self._active_master.reports.lists()
        has_all = all(one.incarnation in complete for one in self.keeper.servers.values() if one.tablets)
        return has_all and not self._reports.parts

    def _has_reported(self, server: Incarnation) -> bool:
        """Return True if the keeper knows all replicas of a server."""
        holding = self._active_master.reports.holding(server)
        return holding is not None and holding.is_complete and not self._reports.parts

    async def purge(self, table_id: str) -> int:
        """Order the deletion of a purged table's replicas. Return how much is left (`purging.py`)."""
        return await self._purges.purge(table_id, self._active_master.schedule, self._have_all_reported)

    def purged(self, table_id: str) -> None:
        """Forget a table whose rows are removed."""
        self._purges.purged(table_id)

    def forgotten(self, region_id: str) -> None:
        """Forget a region that was replaced, and whose record is deleted."""
        self.keeper.forget_region(region_id)

    # --- requests about one tablet or server ------------------------------------------------------------------------

    def is_settled(self, region_id: str) -> bool:
        """Return True if the tablet's replicas take part, or rest, as is wanted."""
        tablet = self.keeper.tablets.get(region_id)
        return tablet is None or (tablet.is_led if tablet.wants_open else not tablet.serving and not tablet.work)

    def serving(self, region_id: str) -> int:
        """Return how many replicas of a tablet take part, as their servers report."""
        tablet = self.keeper.tablets.get(region_id)
        return 0 if tablet is None else tablet.serving

    def members_on(self, uuid: str) -> int:
        """Return how many tablets have a member on a server."""
        return len(tablets_on(self.keeper, uuid))

    def obstacle_to_empty(self, uuid: str) -> str:
        """Return why some member on a server cannot leave it, "" if all can."""
        return obstacle_to_empty(self.keeper, uuid)

    def objection_to_replicas(self, table: TableRecord, replicas: int) -> str:
        """Return why a table cannot have that many replicas, "" if it can. 0 means no change of the number."""
        if replicas in (0, table.replication):
            return ""
        if not table.is_tablet:
            return "its rows lie in the shared directory, where there is one copy: only tables of tablets have replicas"
        if not self.keeper.policy.is_on:
            return "this master changes no members of tablets"
        return objection_to_new_count(table, replicas, self.keeper.servers.values(), self.keeper.policy.closed)

    def with_count(self, table: TableRecord) -> CountProgress:
        """Return a view of the tablets of a table that have another number of voters than the record says."""
        tablets = self.keeper.tablets

        def of_table() -> list[Tablet]:
            return [one for one in tablets.values() if one.record.table_id == table.table_id and is_listed(one)]

        return CountProgress(table, of_table, self._now_ms)

    def retry(self, key: str) -> bool:
        """Ask a parked member's server again. Return False if the member is not parked, or its server is away."""
        asked = self.keeper.retry(key, self._now_ms(), acting())
        self._active_master.schedule()
        return asked

    def problems(self) -> list[str]:
        """Return the lines about unhealthy tablets, orphans and parked members for the operator."""
        lines = [
            f"orphan: server {uuid} has tablet {key}, which no table in the store has; the server keeps it"
            for uuid, key in self.keeper.orphans
        ]
        lines += [
            f"{work.key} is parked after {work.transition.attempt} attempts: {work.transition.last_error}"
            for tablet in self.keeper.tablets.values()
            for work in tablet.work.values()
            if work.transition is not None and work.transition.parked
        ]
        if len(lines) > SHOWN_MAX:
            lines = [*lines[:SHOWN_MAX], f"and {len(lines) - SHOWN_MAX} more tablets"]
        return [*problem_lines(self.watch, self._now_ms()), *stuck_lines(self.keeper, SHOWN_MAX), *lines]


def _is_own_write(tablet: Tablet, work: MemberWork | None, event_type: int) -> bool:
    """Return True if a watch event reports the write that is in flight for the member, or for its tablet."""
    if tablet.is_writing and tablet.record.state is TabletState.PREPARING:
        return event_type == EVENT_CREATED
    if tablet.is_writing and tablet.is_given_up:
        return event_type == EVENT_DELETED
    return work is not None and work.is_writing and event_type == event_of_write(work.transition, work.write)


def _is_only_begun(work: MemberWork) -> bool:
    """Return True if a change of the transition's data can only be the server's step from OFFLINE to OPENING."""
    transition = work.transition
    if transition is None or transition.state is not RegionState.OFFLINE or work.is_writing:
        return False
    return work.order is not None and work.order.asks > 0
