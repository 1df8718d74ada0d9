"""The assigner: events about the cluster in, effects for the store and the servers out. No I/O, no clock.

This module is the entry, and takes in what has happened. The stages are modules of their own:

    observe   here: an event changes the cluster state (`regions/cluster/state.py`)
    decide    `decisions.py` settles each replica concerned
    select    `selection.py` finds destinations, singly or by way of a bulk plan
    dispatch  `orders.py` sends orders in batches, a bounded number per server at a time
    follow    `order_followup.py` handles the servers' answers, and deadlines

One write per replica is on its way at a time, and each write names the version that it replaces. Whoever loses such a
race reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from regions.assign.catalog.catalogue import Catalogue
from regions.assign.catalog.schema_rollout import AlterBook
from regions.assign.decisions import Decisions
from regions.assign.moves import MoveBook
from regions.assign.order_followup import OrderFollowUp
from regions.assign.orders import OrderBook
from regions.assign.outbox import Outbox
from regions.assign.placement import objection_to
from regions.assign.replacement import Replacements
from regions.assign.selection import Selection
from regions.assign.servers import ServerTracker
from regions.assign.validation import check_progress
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import Causes, continued, is_part_of
from regions.cluster.entities import Replica
from regions.cluster.history import StepLog, master_step, steps_since
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.cluster.validation import validate
from regions.cluster.work import OrderState, WriteState
from regions.records.model import (
    BarRecord,
    FenceRecord,
    Incarnation,
    MoveBatch,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.replica_key import replica_key
from regions.transitions.states import Cause


class Assigner:
    """Decides for one tenure of an active master. Feed events with `handle`, then collect effects with `take`."""

    def __init__(self, epoch: int, config: AssignerConfig | None = None) -> None:
        self.epoch = epoch
        self.config = config or AssignerConfig()
        self.world = ClusterState()
        self.causes = Causes(epoch)
        self.history = StepLog(self.config.history_max)
        self._selection = Selection(self.world, self.config.bulk_min)
        self.move_target = self._selection.target_of_move
        self._orders = OrderBook(
            self.world,
            self.move_target,
            batch_max=self.config.batch_max,
            busy_max=self.config.busy_max,
            closes_max=self.config.closes_max,
            reask_ms=self.config.reask_ms,
            reask_max_ms=self.config.reask_max_ms,
            open_timeout_ms=self.config.open_timeout_ms,
        )
        self._outbox = Outbox(self.world, self.causes)
        self._moves = MoveBook(self.world, self._outbox.emit)
        self._alters = AlterBook(
            self.world,
            self.causes,
            self._outbox.emit,
            batch_max=self.config.alters_max,
            pause_max_ms=self.config.reask_max_ms,
        )
        self._replacements = Replacements(
            self.world,
            self._outbox.emit,
            timeout_ms=self.config.create_timeout_ms,
            replacements_max=self.config.replacements_max,
        )
        self._decisions = Decisions(
            epoch,
            self.config,
            self.world,
            self.causes,
            self._outbox,
            self._orders,
            self._selection,
            self._moves,
            self._replacements,
        )
        self._catalog = Catalogue(
            self.world,
            self.causes,
            self._alters,
            self._replacements,
            self._orders,
            self._outbox.emit,
            self._decisions.settle,
            self.config.reask_ms,
        )
        self._fleet = ServerTracker(
            self.world,
            self.causes,
            self.config,
            self._orders,
            self._selection,
            self._outbox.emit,
            self._decisions.settle,
            self._catalog.finish,
        )
        self._follow_up = OrderFollowUp(
            self.config, self._outbox, self._orders, self._moves, self._decisions, self._fleet
        )
        self._begun = False
        self._suspended = False
        #: Events and ticks so far. Simulations check the invariants whenever this has grown.
        self.handled = 0

    # --- the shell's side ---------------------------------------------------------------------------------------

    def load(
        self,
        tables: Iterable[tuple[TableRecord, int]],
        regions: Iterable[tuple[RegionRecord, int]],
        servers: Iterable[ServerRecord],
        transitions: Iterable[tuple[TransitionRecord, int]],
        draining: Iterable[str],
        now_ms: int,
        *,
        fences: Iterable[FenceRecord] = (),
        bars: Iterable[BarRecord] = (),
        moves: Iterable[MoveBatch] = (),
    ) -> None:
        """Take over the snapshot (MF-02). Transitions must have been read before regions; nothing is decided yet."""
        assert not self._begun, "an assigner loads once"
        self._fleet.load(servers, draining, fences, now_ms, bars)
        for table, version in tables:
            self.world.put_table(table, version)
        for region, version in regions:
            self.world.put_region(region, version)
        for record, version in transitions:
            self._seen(ev.TransitionRead(record.region_id, record.replica, record, version), now_ms)
        self._take_in(moves)

    def adopt(
        self,
        world: ClusterState,
        servers: Iterable[ServerRecord],
        draining: Iterable[str],
        now_ms: int,
        *,
        fences: Iterable[FenceRecord] = (),
        bars: Iterable[BarRecord] = (),
        moves: Iterable[MoveBatch] = (),
    ) -> None:
        """`load` from the cluster state that a standby has kept (`regions/cluster/mirror.py`), ours from now on
        (FW-01).

        Deadlines are counted anew, as after a load: the former master may have had reason to be patient.
        """
        assert not self._begun, "an assigner loads once"
        self.world.adopt(world)
        for replica in self.world.active.values():
            replica.seen_ms = now_ms
            replica.origin = None if replica.transition is None else replica.transition.origin
            if replica.transition is not None and replica.transition.destination is not None:
                self._replacements.offered(replica.region, now_ms)
        self._fleet.adopt(servers, draining, fences, now_ms, bars)
        self._take_in(moves)

    def _take_in(self, moves: Iterable[MoveBatch]) -> None:
        for batch in moves:
            self._moves.accept(batch, batch.origin or self.causes.current())
        for found in self.world.tables.values():
            self._alters.table_seen(found, -1)

    def begin(self, now_ms: int, *, startup: bool = False) -> None:
        """Start deciding, and settle everything that was loaded (MF-03 onwards).

        At a cluster startup nothing is open: every region wants a first place, together, by a bulk plan (RT-06).
        """
        self._begun = self._catalog.has_begun = True
        self._decisions.is_deciding = not self._suspended
        self.causes.act_for(None, f"takeover: epoch {self.epoch} begins, {'startup' if startup else 'failover'}")
        if startup:
            self._moves.drop_all(self.world.replicas.values())
            for replica in self.world.replicas.values():
                if replica.open_on is None:
                    self.world.set_home(replica, None)
        for replica in self.world.replicas.values():
            if not replica.is_at_rest:
                self._decisions.settle(replica, now_ms)
        for table in list(self.world.tables.values()):
            self._catalog.finish(table)

    def suspend(self) -> None:
        """Decide nothing any more: the cluster is shutting down in order."""
        self._suspended = True
        self._decisions.is_deciding = False

    def unsuspend(self, now_ms: int) -> None:
        """Decide again: the shutdown did not come."""
        self._suspended = False
        self._decisions.is_deciding = self._begun
        self.causes.act_for(None, "timer: the announced shutdown of the cluster did not come")
        for replica in list(self.world.replicas.values()):
            self._decisions.settle(replica, now_ms)

    def handle(self, event: ev.Event, now_ms: int, origin: WorkOrigin | None = None) -> None:
        """Observe one event and decide what follows; `origin` began it, unless the event continues other work."""
        self.causes.act_for(continued(event, self.world) or origin, event)
        self.handled += 1
        match event:
            case ev.TransitionRead():
                self._seen(event, now_ms)
            case ev.WriteDone():
                self._write_done(event, now_ms)
            case ev.OrdersAnswered():
                for replica, result in self._orders.answered(event, now_ms):
                    self._follow_up.answered(replica, result, now_ms)
            case ev.OrdersLost():
                self._orders.lost(event.batch, now_ms)
            case ev.ServerUp():
                self._fleet.up(event, now_ms)
            case ev.ServerDown():
                self._alters.server_gone(event.uuid)
                self._fleet.gone(event.uuid, now_ms)
            case ev.WriteFailed():
                self._write_failed(event, now_ms)
            case ev.PlanReady():
                self._plan_ready(event, now_ms)
            case ev.TableSeen():
                self._catalog.table_seen(event, now_ms)
            case ev.FinishAnswered():
                self._catalog.finish_answered(event)
            case ev.RegionSeen():
                self._catalog.region_seen(event, now_ms)
            case ev.ReplicasReported():
                self._alters.reported(event.server, event.replicas)
                self._damage_reported(event, now_ms)
            case ev.AltersAnswered():
                self._alters.answered(event, now_ms)
            case ev.AltersLost():
                self._alters.lost(event.batch, now_ms)
            case ev.RegionReplaced():
                self._remember_end(event.region_id, now_ms)
                self._catalog.region_replaced(event, now_ms)
            case ev.ReplaceFailed():
                self._catalog.replace_failed(event.region_id)
            case _:
                self._wish(event, now_ms)

    def _wish(self, event: ev.Event, now_ms: int) -> None:
        """What operators and balancers want, and what became of fences."""
        match event:
            case ev.DrainingSeen():
                self._fleet.drain(event.uuids, now_ms)
            case ev.BarsSeen():
                self._fleet.bars_seen(event.bars, now_ms)
            case ev.ServerFenced():
                self._fleet.fenced(event.fence, now_ms)
            case ev.FenceFailed():
                self._fleet.fence_failed(event.uuid)
            case ev.FenceRequested():
                server = self.world.servers.get(event.uuid)
                if server is not None:
                    self._fleet.fence(server, event.reason, event.bar_ms)
            case ev.MoveRequested():
                self._move_requested(event, now_ms)
            case ev.MovesAccepted():
                for replica in self._moves.accept(event.batch, event.batch.origin or self.causes.current()):
                    self._decisions.settle(replica, now_ms)
            case ev.MovesWithdrawn():
                for replica in self._moves.withdraw(event.plan_id):
                    self._decisions.settle(replica, now_ms)
            case ev.RetryRequested():
                self._retry_requested(event.key)

    def tick(self, now_ms: int) -> None:
        """Look at deadlines and due questions; call it a few times a second."""
        if self._suspended:
            return
        self.handled += 1
        self._fleet.tick(now_ms)
        self._catalog.checks.tick(now_ms)
        for region in self._replacements.tick(now_ms):
            for replica in region.replicas:
                self._decisions.settle(replica, now_ms)
        for replica in list(self.world.active.values()):
            order = replica.order
            if order is None or replica.write_state is not WriteState.IDLE:
                continue
            if order.state is OrderState.QUEUED and not order.first_sent_ms:
                transition = replica.transition
                if transition is not None and transition.state is RegionState.OFFLINE:
                    continue  # nobody was asked yet: no time runs, and there may be a hundred thousand of them
            self._follow_up.look_at_clock(replica, order, now_ms)

    def take(self, now_ms: int) -> list[fx.Effect]:
        """Select destinations, send what may be sent, and hand over all effects since the last call."""
        if self._decisions.is_deciding:
            for replica in self._selection.take(self._outbox.effects):
                self._decisions.place(replica, now_ms)
            self._orders.dispatch(self._outbox.effects, now_ms)
            self._alters.dispatch(self._outbox.effects, now_ms)
        return self._outbox.take()

    @property
    def unplaced(self) -> int:
        """Replicas that wait for a destination: for the next `take`, a plan, or an eligible server."""
        return len(self._selection)

    @property
    def moves_pending(self) -> int:
        """Accepted moves that have not begun."""
        return self._moves.pending

    def plan_left(self, plan_id: str) -> tuple[int, int]:
        """Moves of a plan that have not begun, and those that are under way; parked ones are not."""
        transitions = [one.transition for one in self.world.active.values() if one.transition is not None]
        moving = sum(1 for one in transitions if one.plan_id == plan_id and not one.parked)
        return self._moves.pending_of(plan_id), moving

    def unplaceable(self) -> list[Replica]:
        """Return the replicas that want a server while no live server may take them."""
        return self._selection.stranded()

    def validate(self) -> None:
        """Recompute every index, count and invariant from the records. Raise AssertionError if one does not hold.

        Between two calls of the other methods all of them hold. It takes time in proportion to the whole cluster.
        """
        validate(self.world)
        self._selection.validate()
        self._orders.validate()
        self._moves.validate()
        self._catalog.validate()
        if self._decisions.is_deciding:
            check_progress(self.world, self._selection, self._replacements)

    # --- observe --------------------------------------------------------------------------------------------------

    def _seen(self, event: ev.TransitionRead, now_ms: int) -> None:
        replica = self.world.replicas.get(replica_key(event.region_id, event.replica))
        if replica is None:
            if event.record is not None:
                self._outbox.note(f"transition of an unknown region, state {event.record.state.value}", event.region_id)
            return
        if replica.is_writing:
            return  # our own write names a version: if this is newer, the write fails and we read again
        self.world.has_read(replica)
        record = event.record
        if record == replica.transition and event.version == replica.version:
            self._follow_up.read_unchanged(replica, now_ms)
            return
        if self._begun:  # what a new master finds is no step
            self._remember(replica, record, event.version, now_ms)
        failure = replica.failure
        if record is None:
            self._become(replica, None, -1, now_ms)
            self._catalog.finish(replica.region.table)
        else:
            self._become(replica, record, event.version, now_ms)
            if failure is not None and failure[0] >= event.version:
                replica.failure = failure
                if self._follow_up.failed_earlier(replica, now_ms):
                    return
        self._decisions.settle(replica, now_ms)

    def _remember(self, replica: Replica, record: TransitionRecord | None, version: int, now_ms: int) -> None:
        """Add the steps that were not ours, or whose answer was lost, to the latest steps in memory."""
        former = replica.transition
        if record is not None:
            self.history.extend(steps_since(former, replica.version, record, version, now_ms))
        elif former is not None:
            self.history.append(master_step(former, None, None, self.epoch, now_ms))

    def _become(self, replica: Replica, record: TransitionRecord | None, version: int, now_ms: int) -> None:
        """The transition is now `record`: adjust location, order, links and counts."""
        former, former_home = replica.transition, replica.home
        self.world.set_transition(replica, record, version, now_ms)
        self._became(replica, former, former_home, now_ms)

    def _became(
        self, replica: Replica, former: TransitionRecord | None, former_home: Incarnation | None, now_ms: int
    ) -> None:
        record = replica.transition
        replica.refusal = replica.failure = None
        if record is not None:
            if record.origin is not None and (replica.origin is None or not is_part_of(replica.origin, record)):
                replica.origin = record.origin
            self._moves.drop(replica)  # under way; steps between two looks may have been missed
            if record.destination is not None:
                self._replacements.offered(replica.region, now_ms)
        if former is None or record is None or former.state is not record.state:
            replica.last_error = ""
        if record is None:
            self._orders.drop(replica)
            replica.failed = None
            replica.plan_id = ""
            self._replacements.ended(replica.region)
        elif record.state is RegionState.OPENED:
            self._orders.drop(replica)
            if record.destination != former_home:
                self._catalog.opened(replica, record)
        elif record.state is RegionState.CLOSED:
            self._orders.drop(replica)
            replica.damage = None
        elif record.state is RegionState.CLOSING and former is not None:
            self._orders.drop(replica)
        elif record.state is RegionState.OFFLINE and record.attempt == 0:
            replica.failed = None
        if record is None:
            self._decisions.settle_peers(replica, now_ms)

    def _write_done(self, event: ev.WriteDone, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None or not replica.is_writing:
            return
        former, former_home = replica.transition, replica.home
        write = self.world.commit_write(replica, event.version, now_ms)
        self.history.append(master_step(former, write.record, write.cause, self.epoch, now_ms, replica.origin))
        if write.region is not None:
            replica.region.record = write.region
            replica.region.version += 1
        self._became(replica, former, former_home, now_ms)
        if write.record is None:
            self._catalog.finish(replica.region.table)
        self._decisions.settle(replica, now_ms)

    def _write_failed(self, event: ev.WriteFailed, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None or not replica.is_writing:
            return
        if event.table_version is not None:
            self._catalog.checks.refused(replica, event.table_version, now_ms)
            return
        deleting = self.world.abandon_write(replica, WriteState.UNREAD).record is None
        self._outbox.read_transition(replica)
        if deleting:
            self._outbox.read_region(replica)

    def _remember_end(self, region_id: str, now_ms: int) -> None:
        """The transitions of a region that was replaced went with it (DD-03)."""
        region = self.world.regions.get(region_id)
        for replica in region.replicas if region is not None else ():
            if replica.transition is not None:
                self.history.append(master_step(replica.transition, None, Cause.REPLACED, self.epoch, now_ms))

    def _move_requested(self, event: ev.MoveRequested, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None:
            return
        self._moves.want(replica, event.destination, event.plan_id, event.reason, self.causes.current())
        self._decisions.settle(replica, now_ms)

    def _damage_reported(self, event: ev.ReplicasReported, now_ms: int) -> None:
        for report in event.replicas:
            replica = self.world.replicas.get(report.key) if report.damage else None
            if replica is not None and replica.damage != (event.server, report.damage):
                replica.damage = (event.server, report.damage)
                self._outbox.note(f"damaged on {event.server}: {report.damage}", replica.key)
                self._decisions.settle(replica, now_ms)

    def _retry_requested(self, key: str) -> None:
        replica = self.world.replicas.get(key)
        if replica is None or replica.transition is None or not replica.transition.parked:
            return
        replica.failed = None
        replica.cause = Cause.REPLAN
        replica.origin = self.causes.current()
        again = msgspec.structs.replace(replica.transition, attempt=0, deaths=0)
        self.world.set_transition(replica, again, replica.version, replica.seen_ms)
        self._selection.add(replica)

    def _plan_ready(self, event: ev.PlanReady, now_ms: int) -> None:
        for replica in self._selection.planned(event.keys):
            replica.plan_id = event.plan_id
            if replica.region.is_given_up:
                continue
            server = self.world.servers.get(event.placements.get(replica.key, ""))
            # The plan is older than the servers, and knows nothing of the versions of kinds.
            if server is not None and not objection_to(server, replica, self.world.peers(replica)[0]):
                self._decisions.write_offline(replica, server.incarnation, replica.cause, now_ms)
            else:
                self._selection.add(replica)
