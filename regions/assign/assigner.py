"""The assigner: receives events about the cluster and returns effects for the store and the servers. No I/O, no clock.

Each event passes these stages:

    observe   this module: the event changes the cluster state (`regions/cluster/state.py`)
    decide    `decisions.py` decides what each affected replica needs
    select    `selection.py` finds destinations, one by one or by a bulk plan
    dispatch  `orders.py` sends orders in batches, a limited number per server at a time
    follow    `order_followup.py` handles the servers' replies, and deadlines

Each replica has at most one write in flight, and each write names the version that it replaces. If the store rejects a
write, the assigner reads the znode and decides again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from regions.assign.catalog.schema_rollout import AlterBook
from regions.assign.catalog.takeover import TakeOver
from regions.assign.catalog.updates import CatalogUpdates
from regions.assign.decisions import Decisions
from regions.assign.moves import MoveBook
from regions.assign.order_followup import OrderFollowUp
from regions.assign.orders import OrderBook
from regions.assign.outbox import Outbox
from regions.assign.placement import objection_to
from regions.assign.replacement import Replacements
from regions.assign.resharding.book import Reshardings
from regions.assign.selection import Selection
from regions.assign.servers import ServerTracker
from regions.assign.validation import check_progress
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import Causes, continued, replica_of
from regions.cluster.entities import Replica
from regions.cluster.history import StepLog
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.cluster.validation import validate
from regions.cluster.work import WriteState
from regions.records.model import (
    Incarnation,
    RegionState,
    TableState,
    TransitionRecord,
    WorkOrigin,
)
from regions.transitions.states import Cause
from regions.transitions.steps import master_step, steps_since
from regions.transitions.writes import TransitionRead, WriteDone

# Members of enums: a compiled module reads its own constant several times as fast.
_REPLACED: Final = Cause.REPLACED
_REPLAN: Final = Cause.REPLAN
_CLOSED: Final = RegionState.CLOSED
_CLOSING: Final = RegionState.CLOSING
_OFFLINE: Final = RegionState.OFFLINE
_OPENED: Final = RegionState.OPENED
_REMOVED: Final = TableState.REMOVED
_IDLE: Final = WriteState.IDLE
_UNREAD: Final = WriteState.UNREAD

#: Limits of one turn: orders whose times are checked, and orders that are handled because they are late or due to be
#: sent again. The caller returns soon for the others; the shortest time limit is some seconds.
TIMED_MAX: Final = 4_000
ACTED_MAX: Final = 200


class Assigner:
    """The assigner of one tenure. The caller passes events to `handle` and collects effects with `take`."""

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
            resend_ms=self.config.resend_ms,
            resend_max_ms=self.config.resend_max_ms,
            open_timeout_ms=self.config.open_timeout_ms,
        )
        self._outbox = Outbox(self.world, self.causes)
        self._moves = MoveBook(self.world, self._outbox.emit)
        self._alters = AlterBook(
            self.world,
            self.causes,
            self._outbox.emit,
            batch_max=self.config.alters_max,
            pause_max_ms=self.config.resend_max_ms,
        )
        self._replacements = Replacements(
            self.world,
            self._outbox.emit,
            timeout_ms=self.config.create_timeout_ms,
            replacements_max=self.config.replacements_max,
        )
        self.reshardings = Reshardings(
            self.world,
            self._outbox.emit,
            self._moves,
            epoch,
            timeout_ms=self.config.resharding_timeout_ms,
            retry_ms=self.config.resend_ms,
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
            self.reshardings,
        )
        self.reshardings.shared.decide = self._decisions.decide
        self._catalog = CatalogUpdates(
            self.world,
            self.causes,
            self._alters,
            self._replacements,
            self._orders,
            self._outbox.emit,
            self._decisions.decide,
            self.config.resend_ms,
        )
        self._servers = ServerTracker(
            self.world,
            self.causes,
            self.config,
            self._orders,
            self._selection,
            self._outbox.emit,
            self._decisions.decide,
            self._catalog.finish,
        )
        self._follow_up = OrderFollowUp(
            self.config, self._outbox, self._orders, self._moves, self._decisions, self._servers
        )
        parts = (self._servers, self._moves, self._alters, self._replacements, self.reshardings, self._catalog)
        self.takeover = TakeOver(epoch, self.world, self.causes, *parts, self._decisions.decide, self._seen)
        self._suspended = False
        #: Events and ticks so far. Simulations check the invariants whenever this has grown.
        self.handled = 0

    # --- the caller's side --------------------------------------------------------------------------------------

    def load(self, *args: Any, **more: Any) -> None:
        """Load everything at once; `takeover.loading` does so in steps."""
        for _ in self.takeover.loading(*args, **more):
            pass

    def adopt(self, *args: Any, **more: Any) -> None:
        """Take over a mirror's cluster state at once; `takeover.adopting` does so in steps."""
        for _ in self.takeover.adopting(*args, **more):
            pass

    def begin(self, now_ms: int, *, startup: bool = False) -> None:
        """Start deciding at once; `beginning` does so in steps."""
        for _ in self.beginning(now_ms, startup=startup):
            pass

    def beginning(self, now_ms: int, *, startup: bool = False) -> Iterator[None]:
        """Start deciding, and decide about everything that was loaded, in steps (`catalog/takeover.py`)."""
        self._decisions.is_deciding = not self._suspended
        return self.takeover.beginning(now_ms, startup=startup)

    def suspend(self) -> None:
        """Stop deciding, because the cluster is being shut down."""
        self._suspended = True
        self._decisions.is_deciding = False

    def unsuspend(self, now_ms: int) -> None:
        """Decide again, because the cluster still runs after an announced shutdown."""
        self._suspended = False
        self._decisions.is_deciding = self._catalog.has_begun
        self.causes.act_for(None, "timer: the cluster still runs after an announced shutdown")
        for replica in self.world.in_order():
            self._decisions.decide(replica, now_ms)

    def handle(self, event: ev.Event, now_ms: int, origin: WorkOrigin | None = None) -> None:
        """Observe one event and decide about the affected replicas.

        `origin` is the event's origin, unless the event continues other work.
        """
        self._handle(event, now_ms, origin)
        if self.history.noted:
            self.history.add_noted()

    def handle_all(self, events: Sequence[ev.Event], now_ms: int, origin: WorkOrigin | None = None) -> None:
        """Handle events in order. Most events of a bulk assignment come this way, hundreds at a time."""
        for event in events:
            self._handle(event, now_ms, origin)
        self.history.add_noted()

    def _handle(self, event: ev.Event, now_ms: int, origin: WorkOrigin | None) -> None:
        self.handled += 1
        replica = replica_of(event, self.world)
        self.causes.act_for((continued(event) if replica is None else replica.origin) or origin, event)
        # Almost all events are of these two kinds, and `isinstance` is faster than a pattern.
        if isinstance(event, TransitionRead):
            self._seen(replica, event, now_ms)
            return
        if isinstance(event, WriteDone):
            if replica is not None:
                self._write_done(replica, event, now_ms)
            return
        match event:
            case ev.OrdersAnswered():
                for replica, result in self._orders.answered(event, now_ms):
                    self._follow_up.answered(replica, result, now_ms)
            case ev.OrdersLost():
                self._orders.lost(event.batch, now_ms)
            case ev.ServerUp():
                self._servers.up(event, now_ms)
            case ev.ServersEnded():
                self._servers.ended(event.starts)
            case ev.ServerDown():
                self._alters.server_gone(event.uuid)
                self._servers.gone(event.uuid, now_ms)
            case ev.WriteFailed():
                if replica is not None:
                    self._write_failed(replica, event, now_ms)
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
                self._record_end(event.region_id, now_ms)
                self._catalog.region_replaced(event, now_ms)
            case ev.ReplaceFailed():
                self._catalog.replace_failed(event.region_id)
            case _:
                self._handle_request(event, now_ms)

    def _handle_request(self, event: ev.Event, now_ms: int) -> None:
        """Handle requests of operators and the balancer, and the outcome of fences."""
        match event:
            case ev.DrainingSeen():
                self._servers.drain(event.uuids, now_ms)
            case ev.BarsSeen():
                self._servers.bars_seen(event.bars, now_ms)
            case ev.ServerFenced():
                self._servers.fenced(event.fence, now_ms)
            case ev.FenceFailed():
                self._servers.fence_failed(event.uuid)
            case ev.FenceRequested():
                server = self.world.servers.get(event.uuid)
                if server is not None:
                    self._servers.fence(server, event.reason, event.bar_ms)
            case ev.MoveRequested():
                self._move_requested(event, now_ms)
            case ev.MovesAccepted():
                for replica in self._moves.accept(event.batch, event.batch.origin or self.causes.current()):
                    self._decisions.decide(replica, now_ms)
            case ev.MovesWithdrawn():
                for replica in self._moves.withdraw(event.plan_id):
                    self._decisions.decide(replica, now_ms)
            case ev.RetryRequested():
                self._retry_requested(event.key)
            case _:
                self._handle_resharding(event, now_ms)

    def _handle_resharding(self, event: ev.Event, now_ms: int) -> None:
        match event:
            case ev.ReshardingSeen():
                self.reshardings.seen(event.record, event.version, now_ms)
            case ev.ReshardingEnded():
                self.reshardings.ended(event.region_id, now_ms)
            case ev.DaughtersPrepared():
                self.reshardings.prepared(event, now_ms)
            case ev.ParentSealed():
                self.reshardings.sealed(event, now_ms)
            case ev.ParentsReplaced():
                self.reshardings.replaced(event, now_ms)
                for region_id in event.record.parents:
                    self._record_end(region_id, now_ms)
                self._catalog.parents_replaced(event, now_ms)
                self.reshardings.seen(event.record, event.version, now_ms)
            case ev.ParentsRemoved():
                self.reshardings.removed(event, now_ms)

    def tick(self, now_ms: int) -> None:
        """Check deadlines and repeat orders and reads that are due. Called a few times a second."""
        if self._suspended:
            return
        self.handled += 1
        self._servers.tick(now_ms)
        self._catalog.checks.tick(now_ms)
        self.reshardings.tick(now_ms)
        for region in self._replacements.tick(now_ms):
            for replica in region.replicas:
                self._decisions.decide(replica, now_ms)
        self.check_orders(now_ms)

    def check_orders(self, now_ms: int) -> None:
        """Check the times of the next orders. If `has_unchecked` is true then, call again soon, in another turn.

        After a pause of the store, all orders may be too late at once, and each replica gets another destination.
        """
        acted = 0
        self._selection.begin_many()
        for replica in self._orders.timed(TIMED_MAX):
            order = replica.order
            if order is not None and replica.write_state is _IDLE:
                acted += self._follow_up.check_deadlines(replica, order, now_ms)
                if acted >= ACTED_MAX:
                    break
        self._selection.placed()

    @property
    def has_unchecked(self) -> bool:
        """True if the times of some orders are to be checked before the next tick."""
        return self._orders.is_in_round and not self._suspended

    @property
    def has_selected(self) -> bool:
        """True if `take` has left replicas for the next turn."""
        return bool(self._selection.selected) and self._decisions.is_deciding

    @property
    def has_work(self) -> bool:
        """False if `take` would do nothing and return nothing."""
        if self._outbox.effects:
            return True
        waits = self._selection.unplaced or self._selection.order or self._orders.pending or self._alters.tables
        return bool(waits) and self._decisions.is_deciding

    def take(self, now_ms: int) -> list[fx.Effect]:
        """Select destinations, dispatch orders, and return all effects since the last call."""
        outbox, selection = self._outbox, self._selection
        if self._decisions.is_deciding:
            if selection.unplaced or selection.order or self._orders.pending:
                for replica in selection.take(outbox.effects):
                    self._decisions.place(replica, now_ms)
                # An order to close names the destination of its move, which is chosen when the order is sent.
                self._orders.dispatch(outbox.effects, now_ms)
                selection.placed()
            if self._alters.tables:
                self._alters.dispatch(outbox.effects, now_ms)
        effects, outbox.effects = outbox.effects, []
        return effects

    @property
    def unplaced(self) -> int:
        """Number of replicas that wait for a destination: for the next `take`, a plan, or an eligible server."""
        return len(self._selection)

    @property
    def moves_pending(self) -> int:
        """Number of accepted moves that have not begun."""
        return self._moves.pending

    def plan_left(self, plan_id: str) -> tuple[int, int]:
        """Return how many moves of a plan have not begun, and how many are in progress (without parked ones)."""
        transitions = [one.transition for one in self.world.active.values() if one.transition is not None]
        moving = sum(1 for one in transitions if one.plan_id == plan_id and not one.parked)
        return self._moves.pending_of(plan_id), moving

    def unplaceable(self) -> list[Replica]:
        """Return the replicas for which no live server is eligible."""
        return self._selection.unplaceable()

    def validate(self) -> None:
        """Recompute every index, count and invariant from the records. Raise AssertionError if one does not hold.

        All invariants hold between calls of the other methods. The cost is proportional to the size of the cluster.
        """
        validate(self.world)
        self._selection.validate()
        self._orders.validate()
        self._moves.validate()
        self._catalog.validate()
        self.reshardings.validate()
        if self._decisions.is_deciding:
            check_progress(self.world, self._selection, self._replacements)

    # --- observe --------------------------------------------------------------------------------------------------

    def _seen(self, replica: Replica | None, event: TransitionRead, now_ms: int) -> None:
        if replica is None:
            region_id = event.region_id
            region = self.world.regions.get(region_id)
            is_tablet = region is not None and region.record.is_tablet
            if event.record is not None and not is_tablet:
                self._outbox.note(f"transition of an unknown region, state {event.record.state.value}", region_id)
            return
        if replica.write is not None:
            return  # if the znode is newer than the version of our write, the store refuses it, and we read again
        if replica.write_state is _UNREAD:
            self.world.has_read(replica)
        record = event.record
        if record == replica.transition and event.version == replica.version:
            self._follow_up.read_unchanged(replica, now_ms)
            return
        if self._catalog.has_begun:  # transitions that a new master loads are not steps
            self._record_steps(replica, record, event.version, now_ms)
        failure = replica.failure
        if record is None:
            self._set_transition(replica, None, -1, now_ms)
            if replica.region.table.record.state is _REMOVED:
                self._catalog.finish(replica.region.table)
        else:
            self._set_transition(replica, record, event.version, now_ms)
            if failure is not None and failure[0] >= event.version:
                replica.failure = failure
                if self._follow_up.failed_earlier(replica, now_ms):
                    return
        self._decisions.decide(replica, now_ms)

    def _record_steps(self, replica: Replica, record: TransitionRecord | None, version: int, now_ms: int) -> None:
        """Note the steps of servers, and those of this master whose reply was lost."""
        former = replica.transition
        if record is not None:
            self.history.noted.extend(steps_since(former, replica.version, record, version, now_ms, replica.key))
        elif former is not None:
            self.history.noted.append(master_step(former, None, None, self.epoch, now_ms, key=replica.key))

    def _set_transition(self, replica: Replica, record: TransitionRecord | None, version: int, now_ms: int) -> None:
        """Set the replica's transition, and adjust its location, order, links and counts."""
        former, former_home = replica.transition, replica.home
        self.world.set_transition(replica, record, version, now_ms)
        self._transition_changed(replica, former, former_home, now_ms)

    def _transition_changed(
        self, replica: Replica, former: TransitionRecord | None, former_home: Incarnation | None, now_ms: int
    ) -> None:
        record = replica.transition
        replica.refusal = replica.failure = None
        if record is not None:
            if record.origin is not None and (
                replica.origin is None or replica.origin.cause_id != record.origin.cause_id
            ):
                replica.origin = record.origin
            if replica.move is not None:
                self._moves.drop(replica)  # the move has begun; steps between two reads may have been missed
            if record.destination is not None:
                self._replacements.server_chosen(replica.region, now_ms)
        if former is None or record is None or former.state is not record.state:
            replica.last_error = ""
        if record is None:
            if replica.order is not None:
                self._orders.drop(replica)
            replica.failed = None
            replica.plan_id = ""
            replica.forget_work(now_ms)
            if replica.region.creating_since_ms:
                self._replacements.transition_ended(replica.region)
        elif record.state is _OPENED:
            self._orders.drop(replica)
            if record.destination != former_home:
                self._catalog.opened(replica, record)
        elif record.state is _CLOSED:
            self._orders.drop(replica)
            replica.damage = None
        elif record.state is _CLOSING and former is not None:
            self._orders.drop(replica)
        elif record.state is _OFFLINE and record.attempt == 0:
            replica.failed = None
        assert record is None or replica.move is None, f"{replica.key} is in transition, and a move of it would begin"
        if record is None and len(replica.region.replicas) > 1:
            self._decisions.decide_peers(replica, now_ms)

    def _write_done(self, replica: Replica, event: WriteDone, now_ms: int) -> None:
        if replica.write is None:
            return
        former, former_home = replica.transition, replica.home
        write = self.world.commit_write(replica, event.version, now_ms)
        assert not replica.is_writing, f"the write of {replica.key} is done, and would be awaited"
        step = master_step(former, write.record, write.cause, self.epoch, now_ms, replica.origin, replica.key)
        self.history.noted.append(step)
        if write.region is not None:
            replica.region.record = write.region
            replica.region.version += 1
        self._transition_changed(replica, former, former_home, now_ms)
        if write.record is None and replica.region.table.record.state is _REMOVED:
            self._catalog.finish(replica.region.table)
        self._decisions.decide(replica, now_ms)

    def _write_failed(self, replica: Replica, event: ev.WriteFailed, now_ms: int) -> None:
        if replica.write is None:
            return
        if event.table_version is not None:
            self._catalog.checks.refused(replica, event.table_version, now_ms)
            return
        deleting = self.world.abandon_write(replica, _UNREAD).record is None
        self._outbox.read_transition(replica)
        if deleting:
            self._outbox.read_region(replica)

    def _record_end(self, region_id: str, now_ms: int) -> None:
        """Record the end of the transitions of a replaced region, which were deleted with it (DD-03)."""
        region = self.world.regions.get(region_id)
        for replica in region.replicas if region is not None else ():
            if replica.transition is not None:
                self.history.noted.append(master_step(replica.transition, None, _REPLACED, self.epoch, now_ms))

    def _move_requested(self, event: ev.MoveRequested, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None:
            return
        self._moves.want(replica, event.destination, event.plan_id, event.reason, self.causes.current())
        self._decisions.decide(replica, now_ms)

    def _damage_reported(self, event: ev.ReplicasReported, now_ms: int) -> None:
        for report in event.replicas:
            replica = self.world.replicas.get(report.key) if report.damage else None
            if replica is not None and replica.damage != (event.server, report.damage):
                replica.damage = (event.server, report.damage)
                self._outbox.note(f"server {event.server} reports damaged rows: {report.damage}", replica.key)
                self._decisions.decide(replica, now_ms)

    def _retry_requested(self, key: str) -> None:
        replica = self.world.replicas.get(key)
        if replica is None or replica.transition is None or not replica.transition.parked:
            return
        replica.failed = None
        replica.cause = _REPLAN
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
            # Servers may have changed since the plan was computed, and plans ignore the versions of kinds.
            peers = self.world.peers(replica)[0] if len(replica.region.replicas) > 1 else []
            if server is not None and not objection_to(server, replica, peers):
                self._decisions.write_offline(replica, server.incarnation, replica.cause, now_ms)
            else:
                self._selection.add(replica)
