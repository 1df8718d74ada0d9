"""The assigner: events about the cluster in, effects for the store and the servers out. No I/O, no clock.

It is a chain of small stages. *Observe*: an event changes the picture (`regions/cluster/state.py`). *Decide*: the
replica
concerned is settled: the table in `regions/transitions/next_action.py` says what its transition needs,
`_settle_resting` what one
without a transition needs. *Select*: replicas in want of a destination get one, singly by
`regions/assign/placement.py` or
together by a bulk plan. *Throttle and dispatch*: orders go out in batches, a bounded number per server at a time
(`regions/assign/orders.py`).

Every decision is level-triggered: it is taken from what is, not from what just happened, so it may be taken again by
the next master, after a lost answer, or twice, with the same result. One write per replica is on its way at a time,
and each names the version it replaces; whoever loses such a race reads again and decides again.

Deadlines are counted by this master from the last change that it saw, never by comparing clocks of two machines.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from regions.assign import transition_writes
from regions.assign.moves import MoveBook
from regions.assign.orders import OrderBook
from regions.assign.placement import objection_to
from regions.assign.replacement import Replacements
from regions.assign.schema_rollout import AlterBook
from regions.assign.selection import Selection
from regions.assign.servers import ServerTracker
from regions.assign.tables import Catalogue
from regions.assign.validation import check_progress
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import Causes, continued, is_part_of, origin_of_close
from regions.cluster.deadlines import close_overdue, open_overdue
from regions.cluster.entities import CLOSE, OPEN, Order, Replica
from regions.cluster.history import StepLog, master_step, steps_since
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.cluster.validation import validate
from regions.cluster.work import OrderState, WriteState
from regions.messages import OrderOutcome, OrderResult
from regions.records.model import (
    BarRecord,
    FenceRecord,
    Incarnation,
    Intent,
    MoveBatch,
    RegionRecord,
    RegionState,
    ServerRecord,
    TableRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.replica_key import replica_key
from regions.transitions.hazards import deaths_after, hazard
from regions.transitions.next_action import Action, NextStep, next_action
from regions.transitions.states import Cause


class Assigner:
    """Decides for one reign of one master. Feed events with `handle`, then collect effects with `take`."""

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
        self._effects: list[fx.Effect] = []
        self._moves = MoveBook(self.world, self._emit)
        self._alters = AlterBook(
            self.world,
            self.causes,
            self._emit,
            batch_max=self.config.alters_max,
            pause_max_ms=self.config.reask_max_ms,
        )
        self._replacements = Replacements(
            self.world,
            self._emit,
            timeout_ms=self.config.create_timeout_ms,
            replacements_max=self.config.replacements_max,
        )
        self._catalog = Catalogue(
            self.world,
            self.causes,
            self._alters,
            self._replacements,
            self._orders,
            self._emit,
            self._settle,
            self._write_offline,
            self.config.reask_ms,
        )
        self._fleet = ServerTracker(
            self.world,
            self.causes,
            self.config,
            self._orders,
            self._selection,
            self._emit,
            self._settle,
            self._catalog.finish,
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
        assert not self._begun, "a reign loads once"
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
        """`load` from a picture that a standby has kept (`regions/cluster/mirror.py`), which is ours from now on
        (FW-01).

        Deadlines are counted anew, as after a load: the former master may have had reason to be patient.
        """
        assert not self._begun, "a reign loads once"
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
        self.causes.act_for(None, f"takeover: epoch {self.epoch} begins, {'startup' if startup else 'failover'}")
        if startup:
            self._moves.drop_all(self.world.replicas.values())
            for replica in self.world.replicas.values():
                if replica.open_on is None:
                    self.world.set_home(replica, None)
        for replica in self.world.replicas.values():
            if not replica.is_at_rest:
                self._settle(replica, now_ms)
        for table in list(self.world.tables.values()):
            self._catalog.finish(table)

    def suspend(self) -> None:
        """Decide nothing any more: the cluster is shutting down in order."""
        self._suspended = True

    def unsuspend(self, now_ms: int) -> None:
        """Decide again: the shutdown did not come."""
        self._suspended = False
        self.causes.act_for(None, "timer: the announced shutdown of the cluster did not come")
        for replica in list(self.world.replicas.values()):
            self._settle(replica, now_ms)

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
                    self._outcome(replica, result, now_ms)
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
                    self._settle(replica, now_ms)
            case ev.MovesWithdrawn():
                for replica in self._moves.withdraw(event.plan_id):
                    self._settle(replica, now_ms)
            case ev.RetryRequested():
                self._retry_requested(event.key)

    def tick(self, now_ms: int) -> None:
        """Look at deadlines and due questions; call it a few times a second."""
        if self._suspended:
            return
        self.causes.act_for(None, "timer: leases, deadlines and questions that are due")
        self.handled += 1
        self._fleet.tick(now_ms)
        self._catalog.checks.tick(now_ms)
        for region in self._replacements.tick(now_ms):
            for replica in region.replicas:
                self._settle(replica, now_ms)
        for replica in list(self.world.active.values()):
            order = replica.order
            if order is None or replica.write_state is not WriteState.IDLE:
                continue
            if order.state is OrderState.QUEUED and not order.first_sent_ms:
                transition = replica.transition
                if transition is not None and transition.state is RegionState.OFFLINE:
                    continue  # nobody was asked yet: no time runs, and there may be a hundred thousand of them
            self._look_at_clock(replica, order, now_ms)

    def take(self, now_ms: int) -> list[fx.Effect]:
        """Select destinations, send what may be sent, and hand over all effects since the last call."""
        if self._begun and not self._suspended:
            for replica in self._selection.take(self._effects):
                self._place(replica, now_ms)
            self._orders.dispatch(self._effects, now_ms)
            self._alters.dispatch(self._effects, now_ms)
        taken, self._effects = self._effects, []
        return taken

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
        if self._begun and not self._suspended:
            check_progress(self.world, self._selection, self._replacements)

    # --- observe --------------------------------------------------------------------------------------------------

    def _seen(self, event: ev.TransitionRead, now_ms: int) -> None:
        replica = self.world.replicas.get(replica_key(event.region_id, event.replica))
        if replica is None:
            if event.record is not None:
                self._note(f"transition of an unknown region, state {event.record.state.value}", event.region_id)
            return
        if replica.is_writing:
            return  # our own write names a version: if this is newer, the write fails and we read again
        self.world.has_read(replica)
        record = event.record
        if record == replica.transition and event.version == replica.version:
            self._unchanged(replica, now_ms)
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
                if self._look_at_failure(replica, now_ms):
                    return
        self._settle(replica, now_ms)

    def _remember(self, replica: Replica, record: TransitionRecord | None, version: int, now_ms: int) -> None:
        """Add the steps that were not ours, or whose answer was lost, to the latest steps in memory."""
        former = replica.transition
        if record is not None:
            self.history.extend(steps_since(former, replica.version, record, version, now_ms))
        elif former is not None:
            self.history.append(master_step(former, None, None, self.epoch, now_ms))

    def _look_at_failure(self, replica: Replica, now_ms: int) -> bool:
        """Try elsewhere if the transition is still as it was when its server failed to open it. Return whether it is.

        The transition must have been read at that version: the next step writes its steps into the history.
        """
        failure, transition = replica.failure, replica.transition
        if failure is None or failure[0] != replica.version or transition is None:
            return False
        replica.failure = None
        if transition.state not in (RegionState.OFFLINE, RegionState.OPENING):
            return False
        self._attempt_failed(replica, Cause.OPEN_FAILED, failure[1], now_ms)
        return True

    def _unchanged(self, replica: Replica, now_ms: int) -> None:
        """A read found what was known: if an order was refused, the refusal stands and counts as a failure."""
        refusal, replica.refusal = replica.refusal, None
        if refusal is None or refusal[0] != replica.version:
            self._settle(replica, now_ms)
            return
        transition = replica.transition
        if transition is None:
            server = replica.open_on
            must_close = (
                replica.is_damaged
                or not replica.wants_open
                or (server is not None and server.draining and self._elsewhere(replica))
            )
            what = "it is asked again" if must_close else "the move is given up"
            self._note(f"{what}, the server refused to close: {refusal[1]}", replica.key)
            replica.last_error = refusal[1]
            self._moves.drop(replica)
            self._orders.drop(replica)
            if must_close and server is not None:
                self._orders.put(replica, CLOSE, server, -1, now_ms + self.config.reask_ms, now_ms)
        elif transition.state in (RegionState.OFFLINE, RegionState.OPENING):
            self._attempt_failed(replica, Cause.OPEN_FAILED, refusal[1], now_ms)

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
            self._free_peers(replica, now_ms)

    def _free_peers(self, replica: Replica, now_ms: int) -> None:
        """A replica has come to rest: another of its region may now leave a draining server for the one it has left."""
        for peer in replica.region.replicas:
            server = peer.open_on
            if peer is not replica and peer.transition is None and server is not None and server.draining:
                self._settle(peer, now_ms)

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
        self._settle(replica, now_ms)

    def _write_failed(self, event: ev.WriteFailed, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None or not replica.is_writing:
            return
        if event.table_version is not None:
            self._catalog.checks.refused(replica, event.table_version, now_ms)
            return
        deleting = self.world.abandon_write(replica, WriteState.UNREAD).record is None
        self._read_transition(replica)
        if deleting:
            self._read_region(replica)

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
        self._settle(replica, now_ms)

    def _damage_reported(self, event: ev.ReplicasReported, now_ms: int) -> None:
        for report in event.replicas:
            replica = self.world.replicas.get(report.key) if report.damage else None
            if replica is not None and replica.damage != (event.server, report.damage):
                replica.damage = (event.server, report.damage)
                self._note(f"damaged on {event.server}: {report.damage}", replica.key)
                self._settle(replica, now_ms)

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
                self._write_offline(replica, server.incarnation, replica.cause, now_ms)
            else:
                self._selection.add(replica)

    # --- decide ---------------------------------------------------------------------------------------------------

    def _settle(self, replica: Replica, now_ms: int) -> None:
        """Do what the replica needs now; nothing while a write for it is on its way, or its transition is unread."""
        if not self._begun or self._suspended or replica.write_state is not WriteState.IDLE:
            return
        if replica.region.is_given_up and self._catalog.settle_given_up(replica, now_ms):
            return
        transition = replica.transition
        if transition is None:
            self._settle_resting(replica, now_ms)
            return
        if transition.parked and replica.wants_open:
            return
        world = self.world
        verdict = next_action(
            transition.state,
            world.party(transition.source),
            world.party(transition.destination),
            reopen=replica.wants_open,
        )
        why = hazard(transition, verdict.cause, world.departed) if replica.wants_open else ""
        if why:
            self._park(replica, transition, verdict, why, now_ms)
            return
        action = verdict.action
        if verdict.cause is Cause.SERVER_DEATH and is_part_of(replica.origin, transition):
            replica.origin = self.causes.current()
        if action is Action.ORDER_OPEN:
            self._order_open(replica, transition, now_ms)
        elif action is Action.WAIT:
            self._keep_asking(replica, transition, now_ms)
        elif action is Action.ACKNOWLEDGE:
            self._delete(replica, transition, verdict)
        elif action is Action.REASSIGN:
            replica.cause = verdict.cause
            self._selection.add(replica)
        elif action is Action.KEEP_PLAN:
            self._write_offline(replica, transition.destination, verdict.cause, now_ms)
        elif action is Action.PUT_DOWN:
            self._write_offline(replica, None, verdict.cause, now_ms)
        else:
            self._delete(replica, transition, verdict)

    def _park(self, replica: Replica, transition: TransitionRecord, verdict: NextStep, why: str, now_ms: int) -> None:
        """No server gets it until an operator has it tried again (`regions/transitions/hazards.py`)."""
        self._note(f"parked: {why}", replica.key)
        cause = Cause.DAMAGED if transition.state is RegionState.CLOSED else verdict.cause
        attempt = transition.attempt + (cause is not Cause.DAMAGED)
        self._write_offline(replica, None, cause, now_ms, attempt=attempt, error=why, parked=True)

    def _settle_resting(self, replica: Replica, now_ms: int) -> None:
        """No transition: open where it should be open, closed where it should be closed, or one of the two to come."""
        server = replica.open_on
        if server is None:
            self._orders.drop(replica)
            if replica.move is not None:
                if self.world.servers.get(replica.move) is not None:
                    replica.last_uuid = replica.move  # its server has died: the move's destination gets it all the same
                self._moves.drop(replica)
            if not replica.wants_open:
                replica.origin = None
            else:
                replica.origin = self.causes.told(replica.origin)
                replica.cause = Cause.ASSIGN if replica.home is None else Cause.SERVER_DEATH
                self._selection.add(replica)
        elif server.fencing:
            self._orders.drop(replica)
        elif (
            not replica.wants_open
            or replica.move is not None
            or replica.is_damaged
            or (server.draining and self._elsewhere(replica))
        ):
            if replica.order is None:
                replica.origin = self.causes.told(origin_of_close(replica, server))
                self._orders.put(replica, CLOSE, server, -1, now_ms, now_ms)
        else:
            replica.origin = None
            self._orders.drop(replica)

    def _order_open(self, replica: Replica, transition: TransitionRecord, now_ms: int) -> None:
        order = replica.order
        if order is not None and order.kind == OPEN and order.version == replica.version:
            return
        self._orders.drop(replica)
        server = self.world.alive(transition.destination)
        assert server is not None, replica.key
        if server.fenced_until_ms is not None:
            return
        self._orders.put(replica, OPEN, server, replica.version, max(now_ms, replica.not_before_ms), now_ms)

    def _keep_asking(self, replica: Replica, transition: TransitionRecord, now_ms: int) -> None:
        """A server is at work: make sure that it will be asked, in case its answer is lost (X10, MF-05, MF-07)."""
        closing = transition.state is RegionState.CLOSING
        order = replica.order
        if order is not None and order.kind == (CLOSE if closing else OPEN):
            order.version = replica.version
            return
        self._orders.drop(replica)
        server = self.world.alive(transition.source if closing else transition.destination)
        assert server is not None, replica.key
        if server.fenced_until_ms is not None:
            return
        kind = CLOSE if closing else OPEN
        self._orders.put(replica, kind, server, replica.version, now_ms + self.config.reask_ms, now_ms)

    def _delete(self, replica: Replica, transition: TransitionRecord, verdict: NextStep) -> None:
        effect = transition_writes.delete(
            replica, transition, verdict.cause, transition.origin or replica.origin or self.causes.current()
        )
        self.world.begin_write(replica, verdict.cause, None, effect.region)
        self._emit(effect)

    def _elsewhere(self, replica: Replica) -> bool:
        return self._selection.choose(replica, exclude_home=True) is not None

    # --- select ---------------------------------------------------------------------------------------------------

    def _place(self, replica: Replica, now_ms: int) -> None:
        if replica.region.is_given_up:
            return
        destination = self._selection.choose(replica)
        if destination is None:
            self._selection.strand(replica)
            return
        self._write_offline(replica, destination, replica.cause, now_ms)

    def _write_offline(
        self,
        replica: Replica,
        destination: Incarnation | None,
        cause: Cause,
        now_ms: int,
        *,
        attempt: int | None = None,
        error: str | None = None,
        parked: bool = False,
        intent: Intent = Intent.OPEN,
    ) -> None:
        """Create or force OFFLINE; the order to open follows when the write has committed."""
        if replica.origin is None or replica.transition is None or replica.transition.origin is None:
            replica.origin = self.causes.told(replica.origin)
        effect = transition_writes.offline(
            replica,
            destination,
            cause,
            origin=replica.origin,
            epoch=self.epoch,
            now_ms=now_ms,
            start_timeout_ms=self.config.start_timeout_ms,
            attempt=attempt,
            error=error,
            parked=parked,
            intent=intent,
            deaths=deaths_after(replica.transition, cause, self.world.departed),
        )
        self.world.begin_write(replica, cause, effect.record)
        self._orders.drop(replica)
        self._emit(effect)

    # --- outcomes and time ------------------------------------------------------------------------------------------

    def _outcome(self, replica: Replica, result: OrderResult, now_ms: int) -> None:
        """A server's answer about a current order. The store's word counts; an answer only says where to look."""
        order = replica.order
        assert order is not None, replica.key
        if replica.write_state is not WriteState.IDLE:
            return  # what is known of the transition is out of date: the order is looked at again when it is known
        if result.outcome is OrderOutcome.FAILED:
            if order.kind == CLOSE:
                replica.last_error = result.error
                self._note(f"close failed on {order.server.uuid}: {result.error}", replica.key)
                return
            replica.failure = (result.version, result.error)
            if result.version > replica.version and replica.transition is not None:
                # The server went to OPENING before it failed; the watch has not told us yet.
                self._read_transition(replica)
                return
            replica.failure = None
            self._attempt_failed(replica, Cause.OPEN_FAILED, result.error, now_ms)
        elif result.outcome is OrderOutcome.REFUSED:
            replica.refusal = (replica.version, result.error)
            self._read_transition(replica)
            if order.kind == CLOSE:
                self._read_region(replica)

    def _read_transition(self, replica: Replica) -> None:
        self._emit(fx.ReadTransition(replica.region.record.region_id, replica.number, origin=replica.origin))

    def _read_region(self, replica: Replica) -> None:
        record = replica.region.record
        self._emit(fx.ReadRegion(record.table_id, record.region_id, origin=replica.origin))

    def _attempt_failed(self, replica: Replica, cause: Cause, error: str, now_ms: int) -> None:
        """An open did not succeed: elsewhere, later, and not for ever (RT-11, X11)."""
        transition = replica.transition
        assert transition is not None, replica.key
        attempt = transition.attempt + 1
        if transition.destination is not None:
            if replica.failed is None:
                replica.failed = set()
            replica.failed.add(transition.destination.uuid)
        used_up = attempt >= self.config.attempts_max
        # If its table was disabled or removed while a server tried, no other server is asked.
        if not replica.wants_open or self._replacements.gives_up(replica.region, now_ms, used_up=used_up):
            self._write_offline(replica, None, cause, now_ms, attempt=attempt, error=error, intent=Intent.CLOSE)
            return
        if used_up:
            self._note(f"parked after {attempt} attempts: {error}", replica.key)
            self._write_offline(replica, None, cause, now_ms, attempt=attempt, error=error, parked=True)
            return
        pause_ms = min(self.config.retry_base_ms << (attempt - 1), self.config.retry_max_ms)
        replica.not_before_ms = now_ms + pause_ms
        destination = self._selection.choose(replica)
        self._write_offline(replica, destination, cause, now_ms, attempt=attempt, error=error)

    def _look_at_clock(self, replica: Replica, order: Order, now_ms: int) -> None:
        if order.server.fencing:
            return
        if order.kind == OPEN:
            late = open_overdue(replica, order, self.config, now_ms)
            if late:
                self._attempt_failed(replica, Cause.DEADLINE, late, now_ms)
        else:
            late = close_overdue(replica, order, self.config, now_ms)
            if late:
                self._fleet.fence(order.server, late)
        if late or order.state in (OrderState.QUEUED, OrderState.SENT) or order.next_ms > now_ms:
            return
        if order.state is OrderState.DONE:
            order.next_ms = now_ms + self.config.reask_ms
            self._read_transition(replica)
        elif replica.transition is None and replica.move is not None and order.asks >= self.config.move_asks_max:
            self._give_up_move(replica)
            self._settle(replica, now_ms)
        else:
            self._orders.enqueue(replica, order)

    def _give_up_move(self, replica: Replica) -> None:
        self._note("move given up, the server does not answer", replica.key)
        self._moves.drop(replica)
        self._orders.drop(replica)

    def _emit(self, effect: fx.Effect) -> None:
        if effect.origin is None:
            effect.origin = self.causes.current()
        self._effects.append(effect)

    def _note(self, text: str, subject: str) -> None:
        replica = self.world.replicas.get(subject)
        self._emit(fx.Note(text, subject, origin=None if replica is None else replica.origin))
