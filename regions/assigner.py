"""The assigner: events about the cluster in, effects for the store and the servers out. No I/O, no clock.

It is a chain of small stages. *Observe*: an event changes the picture (`regions/world.py`). *Decide*: the replica
concerned is settled: the table in `regions/recovery.py` says what its transition needs, `_settle_resting` what one
without a transition needs. *Select*: replicas in want of a destination get one, singly by `regions/placement.py` or
together by a bulk plan. *Throttle and dispatch*: orders go out in batches, a bounded number per server at a time
(`regions/orders.py`).

Every decision is level-triggered: it is taken from what is, not from what just happened, so it may be taken again by
the next master, after a lost answer, or twice, with the same result. One write per replica is on its way at a time,
and each names the version it replaces; whoever loses such a race reads again and decides again.

Deadlines are counted by this master from the last change that it saw, never by comparing clocks of two machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from regions import effects as fx
from regions.history import StepLog, step_of
from regions.limits import AssignerConfig
from regions.messages import OrderResult, Outcome
from regions.model import (
    Incarnation,
    Intent,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.orders import OrderBook
from regions.recovery import Action, Verdict, next_action
from regions.selection import Selection
from regions.states import Actor, Cause
from regions.world import CLOSE, OPEN, Replica, Server, World

_SERVER_STATES: Final = (RegionState.OPENING, RegionState.OPENED, RegionState.CLOSING, RegionState.CLOSED)


class Assigner:
    """Decides for one reign of one master. Feed events with `handle`, then collect effects with `take`."""

    def __init__(self, epoch: int, config: AssignerConfig | None = None) -> None:
        self.epoch = epoch
        self.config = config or AssignerConfig()
        self.world = World()
        self.history = StepLog(self.config.history_max)
        self._orders = OrderBook(
            self.world,
            self.move_target,
            batch_max=self.config.batch_max,
            busy_max=self.config.busy_max,
            closes_max=self.config.closes_max,
            reask_ms=self.config.reask_ms,
        )
        self._effects: list[fx.Effect] = []
        self._selection = Selection(self.world, self.config.bulk_min)
        self._draining: frozenset[str] = frozenset()
        self._begun = False
        self._suspended = False

    # --- the shell's side ---------------------------------------------------------------------------------------

    def load(
        self,
        tables: Iterable[tuple[TableRecord, int]],
        regions: Iterable[tuple[RegionRecord, int]],
        servers: Iterable[ServerRecord],
        transitions: Iterable[tuple[TransitionRecord, int]],
        draining: Iterable[str],
        now_ms: int,
    ) -> None:
        """Take over the snapshot (MF-02). Transitions must have been read before regions; nothing is decided yet."""
        assert not self._begun, "a reign loads once"
        self._draining = frozenset(draining)
        for server in servers:
            self.world.servers[server.uuid] = Server(server, server.uuid in self._draining)
        for table, version in tables:
            self.world.put_table(table, version)
        for region, version in regions:
            self.world.put_region(region, version)
        for record, version in transitions:
            self._seen(fx.TransitionSeen(record.region_id, record.replica, record, version), now_ms)

    def begin(self, now_ms: int, *, startup: bool = False) -> None:
        """Start deciding, and settle everything that was loaded (MF-03 onwards).

        At a cluster startup nothing is open: every region wants a first place, together, by a bulk plan (RT-06).
        """
        self._begun = True
        if startup:
            for replica in self.world.replicas.values():
                if replica.open_on is None:
                    replica.home = None
        for replica in self.world.replicas.values():
            self._settle(replica, now_ms)

    def suspend(self) -> None:
        """Decide nothing any more: the cluster is shutting down in order."""
        self._suspended = True

    def handle(self, event: fx.Event, now_ms: int) -> None:
        """Observe one event and decide what follows from it."""
        match event:
            case fx.TransitionSeen():
                self._seen(event, now_ms)
            case fx.WriteDone():
                self._write_done(event, now_ms)
            case fx.OrdersAnswered():
                for replica, result in self._orders.answered(event, now_ms):
                    self._outcome(replica, result, now_ms)
            case fx.OrdersLost():
                self._orders.lost(event.batch, now_ms, self.config.reask_max_ms)
            case fx.ServerUp():
                self._server_up(event, now_ms)
            case fx.ServerDown():
                self._server_down(event.uuid, now_ms)
            case fx.WriteFailed():
                self._write_failed(event.key)
            case fx.PlanReady():
                self._plan_ready(event, now_ms)
            case fx.TableSeen():
                self._table_seen(event, now_ms)
            case fx.RegionSeen():
                self.world.put_region(event.record, event.version)
            case fx.DrainingSeen():
                self._draining_seen(event.uuids, now_ms)
            case fx.MoveRequested():
                self._move_requested(event, now_ms)
            case fx.RetryRequested():
                self._retry_requested(event.key)

    def tick(self, now_ms: int) -> None:
        """Look at deadlines and due questions; call it a few times a second."""
        if self._suspended:
            return
        for replica in list(self.world.active.values()):
            self._look_at_clock(replica, now_ms)

    def take(self, now_ms: int) -> list[fx.Effect]:
        """Select destinations, send what may be sent, and hand over all effects since the last call."""
        if self._begun and not self._suspended:
            for replica in self._selection.take(self._effects):
                self._place(replica, now_ms)
            self._orders.dispatch(self._effects, now_ms)
        taken, self._effects = self._effects, []
        return taken

    @property
    def unplaced(self) -> int:
        """Replicas that wait for a destination: for the next `take`, a plan, or an eligible server."""
        return len(self._selection)

    def problems(self, now_ms: int, limit: int) -> list[str]:
        """What an operator should look at: parked replicas, late closes, replicas without an eligible server."""
        found: list[str] = []
        for replica in self.world.active.values():
            transition = replica.transition
            if len(found) >= limit:
                break
            if transition is None:
                continue
            if transition.parked:
                found.append(f"{replica.key} is parked after {transition.attempt} attempts: {transition.last_error}")
            elif transition.state is RegionState.CLOSING:
                late_ms = now_ms - replica.seen_ms - self.config.close_timeout_ms
                if late_ms > 0:
                    found.append(f"{replica.key} is closing on {transition.source}, {late_ms / 1000:.0f} s late")
        found.extend(f"{key} has no eligible server" for key in self._selection.stranded_keys())
        return found[:limit]

    # --- observe --------------------------------------------------------------------------------------------------

    def _seen(self, event: fx.TransitionSeen, now_ms: int) -> None:
        replica = self.world.replicas.get(f"{event.region_id}-{event.replica}")
        if replica is None:
            if event.record is not None:
                self._note(f"transition of an unknown region, state {event.record.state.value}", event.region_id)
            return
        if replica.writing is not None:
            return  # our own write names a version: if this is newer, the write fails and we read again
        record = event.record
        if record == replica.transition and event.version == replica.version:
            self._unchanged(replica, now_ms)
            return
        if record is None:
            self._become(replica, None, -1, now_ms)
        else:
            self.history.append(step_of(replica, record, self._actor_of(record), None, now_ms))
            self._become(replica, record, event.version, now_ms)
        self._settle(replica, now_ms)

    @staticmethod
    def _actor_of(record: TransitionRecord) -> Actor:
        return Actor.SERVER if record.state in _SERVER_STATES else Actor.MASTER

    def _unchanged(self, replica: Replica, now_ms: int) -> None:
        """A read found what was known: if an order was refused, the refusal stands and counts as a failure."""
        refusal, replica.refusal = replica.refusal, None
        if refusal is None or refusal[0] != replica.version:
            self._settle(replica, now_ms)
            return
        transition = replica.transition
        if transition is None:
            self._note(f"move given up, the server refused to close: {refusal[1]}", replica.key)
            replica.move = None
            self._orders.drop(replica)
            self.world.relink(replica)
        elif transition.state in (RegionState.OFFLINE, RegionState.OPENING):
            self._attempt_failed(replica, Cause.OPEN_FAILED, refusal[1], now_ms)

    def _become(self, replica: Replica, record: TransitionRecord | None, version: int, now_ms: int) -> None:
        """The transition is now `record`: adjust location, order, links and counts."""
        former = replica.transition
        replica.transition = record
        replica.version = version
        replica.seen_ms = now_ms
        replica.refusal = None
        if record is not None:
            replica.move = None  # under way; steps between two looks may have been missed
        if record is None:
            self._orders.drop(replica)
            replica.failed = None
            replica.plan_id = ""
        elif record.state is RegionState.OPENED:
            self._orders.drop(replica)
            self._opened(replica, record, now_ms)
        elif record.state is RegionState.CLOSED:
            self._orders.drop(replica)
            replica.last_uuid = record.source.uuid if record.source is not None else replica.last_uuid
            replica.home = None
        elif record.state is RegionState.CLOSING and former is not None:
            self._orders.drop(replica)
        elif record.state is RegionState.OFFLINE:
            replica.home = None
            if record.attempt == 0:
                replica.failed = None
        self.world.relink(replica)

    def _opened(self, replica: Replica, record: TransitionRecord, now_ms: int) -> None:
        """The server wrote the location in the same multi as OPENED, so the region's version went up by one."""
        if record.destination is None or replica.home == record.destination:
            return
        replica.home = record.destination
        replica.last_uuid = record.destination.uuid
        region = replica.region
        location = ReplicaLocation(replica.number, record.destination.uuid, record.destination.start_code, now_ms)
        region.record = region.record.with_location(location)
        region.version += 1

    def _write_done(self, event: fx.WriteDone, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None or replica.writing is None:
            return
        cause, replica.writing = replica.writing, None
        record, replica.proposed = replica.proposed, None
        if record is None:
            assert replica.transition is not None, replica.key
            gone = msgspec.structs.replace(replica.transition, epoch=self.epoch)
            self.history.append(step_of(replica, gone, Actor.MASTER, cause, now_ms, deleted=True))
            if replica.proposed_region is not None:
                replica.region.record, replica.proposed_region = replica.proposed_region, None
                replica.region.version += 1
            self._become(replica, None, -1, now_ms)
        else:
            self.history.append(step_of(replica, record, Actor.MASTER, cause, now_ms))
            self._become(replica, record, event.version, now_ms)
        self._settle(replica, now_ms)

    def _write_failed(self, key: str) -> None:
        replica = self.world.replicas.get(key)
        if replica is None or replica.writing is None:
            return
        deleting = replica.proposed is None
        replica.writing = None
        replica.proposed = None
        replica.proposed_region = None
        self.world.relink(replica)
        record = replica.region.record
        self._effects.append(fx.ReadTransition(record.region_id, replica.number))
        if deleting:
            self._effects.append(fx.ReadRegion(record.table_id, record.region_id))

    def _server_up(self, event: fx.ServerUp, now_ms: int) -> None:
        record = event.record
        known = self.world.servers.get(record.uuid)
        if known is not None:
            if known.incarnation == record.incarnation:
                return
            self._server_down(record.uuid, now_ms)
        self.world.servers[record.uuid] = Server(record, event.draining or record.uuid in self._draining)
        for replica in self._selection.release_stranded():
            self._settle(replica, now_ms)

    def _server_down(self, uuid: str, now_ms: int) -> None:
        """RF-01, RF-02: everything that is on the dead server or on its way to it is settled again."""
        server = self.world.servers.pop(uuid, None)
        if server is None:
            return
        affected = [*server.open.values(), *server.incoming.values()]
        for replica in affected:
            self._orders.drop(replica)
            self.world.relink(replica)
        for replica in affected:
            self._settle(replica, now_ms)

    def _table_seen(self, event: fx.TableSeen, now_ms: int) -> None:
        table = self.world.put_table(event.record, event.version)
        for record, version in event.regions:
            self.world.put_region(record, version)
        for region in table.regions.values():
            for replica in region.replicas:
                self._settle(replica, now_ms)

    def _draining_seen(self, uuids: list[str], now_ms: int) -> None:
        self._draining = frozenset(uuids)
        for replica in self._selection.release_stranded():
            self._settle(replica, now_ms)
        for server in self.world.servers.values():
            server.marked = server.uuid in self._draining
            if server.draining:
                for replica in list(server.open.values()):
                    self._settle(replica, now_ms)

    def _move_requested(self, event: fx.MoveRequested, now_ms: int) -> None:
        replica = self.world.replicas.get(event.key)
        if replica is None:
            return
        replica.move = event.destination
        replica.move_plan = event.plan_id
        self._settle(replica, now_ms)

    def _retry_requested(self, key: str) -> None:
        replica = self.world.replicas.get(key)
        if replica is None or replica.transition is None or not replica.transition.parked:
            return
        replica.failed = None
        replica.cause = Cause.REPLAN
        replica.transition = msgspec.structs.replace(replica.transition, attempt=0)
        self._selection.add(replica)

    def _plan_ready(self, event: fx.PlanReady, now_ms: int) -> None:
        for replica in self._selection.planned(event.keys):
            replica.plan_id = event.plan_id
            server = self.world.servers.get(event.placements.get(replica.key, ""))
            if server is not None and not server.draining:
                self._write_offline(replica, server.incarnation, replica.cause, now_ms)
            else:
                self._selection.add(replica)

    # --- decide ---------------------------------------------------------------------------------------------------

    def _settle(self, replica: Replica, now_ms: int) -> None:
        """Do what the replica needs now; nothing while a write for it is on its way."""
        if not self._begun or self._suspended or replica.writing is not None:
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
        action = verdict.action
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

    def _settle_resting(self, replica: Replica, now_ms: int) -> None:
        """No transition: open where it should be open, closed where it should be closed, or one of the two to come."""
        table = replica.region.table
        server = replica.open_on
        if server is None:
            self._orders.drop(replica)
            replica.move = None
            if table.wants_open:
                replica.cause = Cause.ASSIGN if replica.home is None else Cause.SERVER_DEATH
                self._selection.add(replica)
        elif not table.wants_open or replica.move is not None or (server.draining and self._elsewhere(replica)):
            if replica.order is None:
                self._orders.put(replica, CLOSE, server, -1, now_ms, now_ms)
        elif replica.order is not None:
            self._orders.drop(replica)
        self.world.relink(replica)

    def _order_open(self, replica: Replica, transition: TransitionRecord, now_ms: int) -> None:
        order = replica.order
        if order is not None and order.kind == OPEN and order.version == replica.version:
            return
        self._orders.drop(replica)
        server = self.world.alive(transition.destination)
        assert server is not None, replica.key
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
        kind = CLOSE if closing else OPEN
        self._orders.put(replica, kind, server, replica.version, now_ms + self.config.reask_ms, now_ms)

    def _delete(self, replica: Replica, transition: TransitionRecord, verdict: Verdict) -> None:
        """Delete the transition; one that ends with a closed region also takes the location out of the record."""
        effect = fx.DeleteTransition(
            replica.key,
            transition.region_id,
            transition.replica,
            transition.state,
            replica.version,
            verdict.cause,
        )
        if verdict.cause is Cause.DO_NOT_REOPEN:
            region = replica.region
            effect.table_check = (region.table.record.table_id, region.table.version)
            location = region.record.location(replica.number)
            if location.start_code is not None:
                closed = msgspec.structs.replace(location, start_code=None)
                effect.region = replica.proposed_region = region.record.with_location(closed)
                effect.region_version = region.version
        replica.writing = verdict.cause
        replica.proposed = None
        self._effects.append(effect)

    def _elsewhere(self, replica: Replica) -> bool:
        return self._selection.choose(replica, exclude_home=True) is not None

    # --- select ---------------------------------------------------------------------------------------------------

    def _place(self, replica: Replica, now_ms: int) -> None:
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
    ) -> None:
        """Create or force OFFLINE; the order to open follows when the write has committed."""
        former = replica.transition
        region = replica.region.record
        if former is None:
            source, intent, plan_id, attempts, last_error = replica.home, Intent.OPEN, replica.plan_id, 0, ""
        else:
            source, intent, plan_id = former.source, former.intent, former.plan_id
            attempts, last_error = former.attempt, former.last_error
        record = TransitionRecord(
            region.region_id,
            region.table_id,
            replica.number,
            RegionState.OFFLINE,
            source,
            destination,
            intent,
            self.epoch,
            plan_id,
            attempts if attempt is None else attempt,
            cause.value,
            now_ms,
            now_ms + self.config.start_timeout_ms,
            last_error if error is None else error,
            parked,
        )
        replica.writing = cause
        replica.proposed = record
        self._orders.drop(replica)
        self.world.relink(replica)  # it counts as the destination's load from now on
        before = None if former is None else former.state
        self._effects.append(fx.WriteOffline(replica.key, record, before, replica.version, cause))

    # --- outcomes and time ------------------------------------------------------------------------------------------

    def _outcome(self, replica: Replica, result: OrderResult, now_ms: int) -> None:
        """A server's answer about a current order. The store's word counts; an answer only says where to look."""
        order = replica.order
        assert order is not None, replica.key
        if replica.writing is not None:
            return
        if result.outcome is Outcome.FAILED:
            if order.kind == CLOSE:
                self._note(f"close failed on {order.server.uuid}: {result.error}", replica.key)
                return
            if result.version > replica.version and replica.transition is not None:
                # The server went to OPENING before it failed; the watch has not told us yet.
                opening = msgspec.structs.replace(replica.transition, state=RegionState.OPENING)
                self._become(replica, opening, result.version, now_ms)
            self._attempt_failed(replica, Cause.OPEN_FAILED, result.error, now_ms)
        elif result.outcome is Outcome.REFUSED:
            replica.refusal = (replica.version, result.error)
            record = replica.region.record
            self._effects.append(fx.ReadTransition(record.region_id, replica.number))
            if order.kind == CLOSE:
                self._effects.append(fx.ReadRegion(record.table_id, record.region_id))

    def _attempt_failed(self, replica: Replica, cause: Cause, error: str, now_ms: int) -> None:
        """An open did not succeed: elsewhere, later, and not for ever (RT-11, X11)."""
        transition = replica.transition
        assert transition is not None, replica.key
        attempt = transition.attempt + 1
        if transition.destination is not None:
            if replica.failed is None:
                replica.failed = set()
            replica.failed.add(transition.destination.uuid)
        if attempt >= self.config.attempts_max:
            self._note(f"parked after {attempt} attempts: {error}", replica.key)
            self._write_offline(replica, None, cause, now_ms, attempt=attempt, error=error, parked=True)
            return
        pause_ms = min(self.config.retry_base_ms << (attempt - 1), self.config.retry_max_ms)
        replica.not_before_ms = now_ms + pause_ms
        destination = self._selection.choose(replica)
        self._write_offline(replica, destination, cause, now_ms, attempt=attempt, error=error)

    def _look_at_clock(self, replica: Replica, now_ms: int) -> None:
        if replica.writing is not None:
            return
        order = replica.order
        transition = replica.transition
        if order is None:
            return
        config = self.config
        if transition is not None and order.kind == OPEN:
            if transition.state is RegionState.OFFLINE:
                if order.first_sent_ms and now_ms - order.first_sent_ms > config.start_timeout_ms:
                    self._attempt_failed(replica, Cause.DEADLINE, "the server did not begin to open in time", now_ms)
                    return
            elif now_ms - replica.seen_ms > config.open_timeout_ms:
                self._attempt_failed(replica, Cause.DEADLINE, "the server did not finish opening in time", now_ms)
                return
        if order.queued or order.sent or order.next_ms > now_ms:
            return
        if order.done:
            record = replica.region.record
            order.next_ms = now_ms + config.reask_ms
            self._effects.append(fx.ReadTransition(record.region_id, replica.number))
        elif transition is None and replica.move is not None and order.asks >= config.move_asks_max:
            self._note("move given up, the server does not answer", replica.key)
            replica.move = None
            self._orders.drop(replica)
            self.world.relink(replica)
        else:
            self._orders.enqueue(replica, order)

    def move_target(self, replica: Replica) -> Incarnation | None:
        """Destination to put into a CLOSE order; None if there is none now (it is chosen again at CLOSED)."""
        if replica.move:
            server = self.world.servers.get(replica.move)
            return None if server is None else server.incarnation
        return self._selection.choose(replica, exclude_home=True)

    def _note(self, text: str, subject: str) -> None:
        self._effects.append(fx.Note(text, subject))
