"""The life cycle of every replica on this server: orders and results in, effects out. Pure.

The table in `regionserver.replica.states` defines the meaning of events, the table in `regionserver.replica.orders`
that of orders. This module keeps the replicas, looks events and orders up, and emits the effects. Three rules:

- A replica expects at most one result from the store and one from the opener. Every result carries the number of its
  effect; a result with another number is stale and is dropped.
- After a failed step the znode is read back, whatever the error was (`regionserver.replica.readback`).
- Orders are idempotent (`regionserver.replica.orders`).

After the loss of the session every replica is DROPPING: it is closed and nothing is written, because the store has
already assigned the replica to another server.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from coord.errors import InvalidTransition
from regions.messages import AlterOrder, AlterResult, CloseOrder, HostedReplica, OpenOrder, OrderOutcome, OrderResult
from regions.messages.heartbeat import ReplicaReport
from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TransitionRecord
from regions.transitions.states import Cause
from regionserver.replica import effects as fx
from regionserver.replica import invariants, orders, step_records
from regionserver.replica.effects import Key
from regionserver.replica.finished_orders import FinishedOrder, FinishedOrders
from regionserver.replica.local_replica import LocalReplica, OrderId, WaitingOrder
from regionserver.replica.orders import Treatment
from regionserver.replica.readback import Readback, is_disowned, resolve
from regionserver.replica.states import ALTERED, MOVES, SERVED, Event, Phase

#: Rejections of a step whose znode looks as expected, before the order fails.
REFUSALS_MAX: Final = 5
#: Attempts to close a replica that belongs to another server, before the process stops.
DROPS_MAX: Final = 3
#: Latest moves, of all replicas together, that the message of an InvalidTransition shows.
STORY_MAX: Final = 2_000
#: Largest number of progress writes of a long open within its timeout.
PROGRESS_PER_TIMEOUT: Final = 4
# Members of enums: a compiled module reads its own constant several times as fast.
_STATE_OPENING: Final = RegionState.OPENING
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = Phase.OPENING
_ANNOUNCING: Final = Phase.ANNOUNCING
_OPEN: Final = Phase.OPEN
_STEP_TAKEN: Final = Event.STEP_TAKEN
_OPEN_ORDER: Final = Cause.OPEN_ORDER
_PROGRESS: Final = Cause.PROGRESS
_SESSION_LOST: Final = Event.SESSION_LOST


class Replicas:
    """All replicas of one incarnation after the other. Call one method per event, then `take_effects`."""

    def __init__(self, me: Incarnation) -> None:
        self.me = me
        self._replicas: dict[Key, LocalReplica] = {}
        self._finished = FinishedOrders()
        self.effects: list[fx.Effect] = []  # those that `take_effects` has not returned yet
        self._story: deque[tuple[int, Key, str, str, str]] = deque(maxlen=STORY_MAX)
        self._last_number = 0
        #: Number of replicas in each phase; only `_set_phase` changes it.
        self._counts = dict.fromkeys(Phase, 0)
        #: Replicas that are new, gone or changed since the last heartbeat.
        self._changed: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def take_effects(self) -> list[fx.Effect]:
        """Return the effects since the last call, in order, and clear the list."""
        effects, self.effects = self.effects, []
        return effects

    def phases(self) -> dict[Phase, int]:
        """Return the number of replicas in each phase."""
        return dict(self._counts)

    def take_changed(self) -> list[Key]:
        """Return the replicas that are new, gone or changed since the last call (HB-03), and clear the list."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def keys(self) -> list[Key]:
        """Return the keys of all replicas on this server."""
        return list(self._replicas)

    def report(self, key: Key) -> ReplicaReport | None:
        """Return a replica's report for a heartbeat, or None."""
        replica = self._replicas.get(key)
        return None if replica is None else replica.report()

    def failed(self) -> int:
        """Return the number of failed opens that are kept."""
        return len(self._finished.failures())

    def hosted(self, limit: int = 0) -> list[HostedReplica]:
        """Return replicas and failed opens, sorted by region id and replica; `limit` 0: all."""
        shown = [*(one.hosted() for one in self._replicas.values()), *self._finished.failures()]
        shown.sort(key=lambda one: (one.region_id, one.replica))
        return shown[:limit] if limit else shown

    def served(self, key: Key) -> tuple[RegionRecord, ReplicaLocation] | None:
        """Return record and location of a replica that may be served (its OPENED is in the store), or None."""
        replica = self._replicas.get(key)
        if replica is None or replica.location is None or replica.phase not in SERVED:
            return None
        return replica.region, replica.location

    def story(self, key: Key) -> list[str]:
        """Return the latest moves of one replica, oldest first."""
        return [
            f"{at_ms} {before} --{event}--> {after}" for at_ms, of, before, event, after in self._story if of == key
        ]

    def validate(self) -> None:
        """Check every invariant of `regionserver.replica.invariants`. Reads everything; for tests and simulations.

        Raises:
            AssertionError: naming every invariant that does not hold.
        """
        finished, number = self._finished.kept, self._last_number
        wrong = invariants.violations(
            invariants.Contents(self.me, self._replicas, finished, self._counts, number, DROPS_MAX, self.effects)
        )
        assert not wrong, f"replicas of {self.me}: " + "; ".join(wrong)

    # --- orders ---

    def order_open(self, order: OpenOrder, epoch: int, now_ms: int) -> OrderResult | int:
        """Accept an OPEN order. Return the result if it is certain, else the ticket of the order's `OrderFinished`."""
        record = order.transition
        key = (record.region_id, record.replica)
        if key in self._replicas:
            self.alter(AlterOrder(*key, order.schema_version))
        if record.state is _STATE_OPENING and record.destination == self.me:
            return self._repeated_open(key)
        if record.state is not _OFFLINE or record.destination != self.me:
            why = f"the order's transition is {record.state} with destination {record.destination}"
            return _result(key, OrderOutcome.REFUSED, error=why)
        order_id = OrderId.of(order)
        replica = self._replicas.get(key)
        if replica is None:
            past = self._finished.opens(key, order_id) if key in self._finished.kept else None
            if past is not None:
                return past
            return self._claim(LocalReplica(key, order.region, now_ms), order, epoch, self._number(), now_ms)
        is_same = replica.order_id == order_id
        treatment = orders.of_open(replica.phase, is_same=is_same)
        if treatment is Treatment.BEGIN:
            return self._claim(replica, order, epoch, self._number(), now_ms)
        if treatment is Treatment.WAIT:
            return self._wait(replica, order, epoch)
        return self._same_open(replica, treatment, f"the order is finished and the replica is {replica.phase}")

    def _repeated_open(self, key: Key) -> OrderResult | int:
        """Answer a master that reads OPENING in the store and repeats the order.

        The first order may have come from another master. A long open must not count as a failed one (MF-07, RT-11):
        the transition's deadline limits it.
        """
        replica = self._replicas.get(key)
        if replica is None:
            past = self._finished.opens(key)
            return past or _result(key, OrderOutcome.REFUSED, error="the replica is not being opened on this server")
        return self._same_open(replica, orders.of_open(replica.phase, is_same=True), f"the replica is {replica.phase}")

    def _same_open(self, replica: LocalReplica, treatment: Treatment, why_not: str) -> OrderResult | int:
        """Answer an OPEN order that is repeated."""
        if treatment is Treatment.JOIN:
            return replica.ticket
        if treatment is Treatment.DONE:
            return _result(replica.key, OrderOutcome.DONE, replica.version)
        assert treatment is Treatment.REFUSE, f"unexpected treatment of a repeated order for {replica}: {treatment}"
        return _result(replica.key, OrderOutcome.REFUSED, replica.version, why_not)

    def order_close(self, order: CloseOrder, epoch: int, now_ms: int) -> OrderResult | int:
        """Accept a CLOSE order; returns as `order_open` does."""
        key = (order.region_id, order.replica)
        replica = self._replicas.get(key)
        if replica is None:
            past = self._finished.closes(key)
            return past or _result(key, OrderOutcome.REFUSED, error="the replica is not open on this server")
        treatment = orders.of_close(replica.phase, is_newer_master=epoch > replica.epoch)
        if treatment is Treatment.BEGIN and replica.phase is _OPEN:
            return self._mark_closing(replica, order, epoch, self._number(), now_ms)
        if treatment is Treatment.BEGIN:
            replica.ticket = self._number()
            self._advance(replica, Event.CLOSE_ORDERED, now_ms)
        if treatment in (Treatment.BEGIN, Treatment.JOIN):
            return replica.ticket
        if treatment is Treatment.WAIT:
            return self._wait(replica, order, epoch)
        assert treatment is Treatment.REFUSE, f"unexpected treatment of an order to close {replica}: {treatment}"
        return _result(key, OrderOutcome.REFUSED, replica.version, f"the replica is {replica.phase}")

    def alter(self, order: AlterOrder) -> AlterResult:
        """Set a replica's schema version (DD-07) and return the version that it has afterwards.

        The version never decreases, because an order may arrive late or twice. Return -1 for a replica that is not on
        this server or is being closed.
        """
        replica = self._replicas.get((order.region_id, order.replica))
        if replica is None or replica.phase not in ALTERED:
            return AlterResult(order.region_id, order.replica, -1)
        self._raise_schema(replica, order.schema_version)
        return AlterResult(order.region_id, order.replica, replica.schema_version)

    def damaged(self, key: Key, why: str) -> bool:
        """Record damage of an open replica's rows; return True if the masters must be informed."""
        replica = self._replicas.get(key)
        if replica is None or not replica.is_open or replica.damage:
            return False
        replica.damage = why
        self._changed[key] = None
        return True

    def order_review(self, key: Key) -> OrderResult:
        """Begin to check the ownership that a master doubts: the store decides, not the master (FN-03)."""
        replica = self._replicas.get(key)
        if replica is None:
            return _result(key, OrderOutcome.DONE)
        if replica.phase is _OPEN and not replica.review_number:
            replica.review_number = self._number()
            self.effects.append(fx.ReadOwner(key, replica.review_number, replica.region.table_id))
        return _result(key, OrderOutcome.STARTED)

    # --- results from the store ---

    def reviewed(
        self, key: Key, number: int, found: TransitionRecord | None, region: RegionRecord | None, now_ms: int
    ) -> None:
        """Process the result of ReadOwner: drop the replica if the store does not place it on this server."""
        replica = self._replicas.get(key)
        if replica is None or replica.review_number != number:
            return
        replica.review_number = 0
        if replica.phase is _OPEN and is_disowned(self.me, key[1], found, region):
            self._advance(replica, Event.DISOWNED, now_ms)

    def step_done(self, key: Key, number: int, version: int, region_version: int, now_ms: int, zxid: int = 0) -> None:
        """Process a committed step.

        `version` is the transition's version after the step, `region_version` the region record's if the step wrote it.
        `zxid` is the write's zxid from the znode's Stat (0 for a creation, whose zxid is not used).
        """
        replica = self._awaiting_step(key, number)
        if replica is None:
            return
        assert replica.step is not None, f"{replica} expects the result of a step, but none is in progress"
        step, replica.step, replica.refusals = replica.step, None, 0
        replica.record, replica.version = step.record, version
        if step.region is not None:
            replica.region, replica.region_version = step.region, region_version
        if step.cause is _OPEN_ORDER:
            replica.token = zxid
        if step.cause is not _PROGRESS:
            self._advance(replica, _STEP_TAKEN, now_ms)
        elif replica.is_open:
            # The opener finished before the progress was written; the replica has waited for this write.
            self._advance(replica, Event.OPENED, now_ms)

    def step_failed(self, key: Key, number: int, error: str, is_refused: bool) -> None:
        """Read the znode back after a step that the store rejected, or (not `is_refused`) whose reply was lost."""
        replica = self._awaiting_step(key, number)
        if replica is None or replica.step is None:
            return
        replica.error = error
        assert number > 0, f"{replica} expects no result"
        replica.refusals += is_refused
        replica.step_number = self._number()
        self.effects.append(fx.ReadBack(key, replica.step_number, replica.region.table_id))

    def read_back(
        self,
        key: Key,
        number: int,
        found: TransitionRecord | None,
        version: int,
        region: RegionRecord | None,
        region_version: int,
        now_ms: int,
        zxid: int = 0,
    ) -> None:
        """Process the store's content after a failed step. `found` None: no such znode. `zxid`: its last write."""
        replica = self._awaiting_step(key, number)
        if replica is None or replica.step is None:
            return
        step = replica.step
        is_same, location = version == step.version, replica.location
        what = resolve(step.cause, self.me, found, same_version=is_same, region=region, location=location)
        if what is Readback.LOST or (what is Readback.AGAIN and replica.refusals >= REFUSALS_MAX):
            replica.step, replica.refusals = None, 0
            self._step_lost(replica, step.cause, found, version, now_ms)
            return
        if region is not None:
            # Keep the changes that others made to the record; the step adds the location to them.
            replica.region, replica.region_version = region, region_version
        if what is Readback.TAKEN:
            step.record, step.region = found if found is not None else step.record, None
            replica.step_number = number
            self.step_done(key, number, version, region_version, now_ms, zxid)
            return
        if step.before is not None and found is not None:
            replica.version = version
        self._write(replica, step.cause, step.before, step_records.again(step, found))

    def holder_seen(self, key: Key, number: int, holder: Incarnation, is_alive: bool, now_ms: int) -> None:
        """Process the result of ReadHolder: open the replica after all if its former owner is dead."""
        replica = self._awaiting_step(key, number)
        if replica is None or replica.phase is not _OPENING:
            return
        if is_alive:
            self._open_failed(replica, f"server {holder} holds the replica and is alive", now_ms)
        else:
            self._open(replica, evict=holder)

    # --- results from the opener ---

    def opened(self, key: Key, number: int, now_ms: int) -> None:
        """Process a successful open."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        replica.is_open = True
        self._raise_schema(replica, replica.schema_version)
        if replica.step is None:
            self._advance(replica, Event.OPENED, now_ms)

    def open_failed(self, key: Key, number: int, error: str, now_ms: int) -> None:
        """Process a failed open, after which the opener holds nothing of the replica."""
        replica = self._awaiting_job(key, number)
        if replica is not None:
            self._open_failed(replica, error, now_ms)

    def owner_held(self, key: Key, number: int, holder: Incarnation, now_ms: int) -> None:
        """Process an open that found another incarnation as owner: only a dead owner may be evicted."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        if replica.phase is _OPENING and replica.step is None and holder != self.me:
            replica.step_number = self._number()
            self.effects.append(fx.ReadHolder(key, replica.step_number, holder))
        else:
            self._open_failed(replica, f"server {holder} holds the replica", now_ms)

    def closed(self, key: Key, number: int, now_ms: int) -> None:
        """Process a successful close."""
        replica = self._awaiting_job(key, number)
        if replica is not None:
            replica.is_open = False
            self._advance(replica, Event.CLOSED, now_ms)

    def close_failed(self, key: Key, number: int, error: str, now_ms: int) -> None:
        """Process a failed close, after which the replica must be assumed to be open."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        replica.error = error
        replica.drops += replica.phase is Phase.DROPPING
        self._advance(replica, Event.CLOSE_FAILED, now_ms, error)

    def progressed(self, key: Key, number: int, now_ms: int) -> None:
        """Extend the deadline of an open that makes progress, at most PROGRESS_PER_TIMEOUT times per timeout."""
        replica = self._replicas.get(key)
        if replica is None or replica.phase is not _OPENING or replica.job_number != number:
            return
        span_ms = replica.open_timeout_ms // PROGRESS_PER_TIMEOUT
        if replica.step is not None or now_ms - replica.progress_ms < span_ms:
            return
        replica.progress_ms = now_ms
        self._write(replica, _PROGRESS, _STATE_OPENING, step_records.progress(replica, now_ms))

    # --- the session ---

    def session_lost(self, now_ms: int) -> None:
        """Drop all replicas without writing: the store has reassigned them. Clear the results of finished orders."""
        self._finished.clear()
        for replica in list(self._replicas.values()):
            replica.step, replica.step_number = None, 0
            self._advance(replica, _SESSION_LOST, now_ms, "this server has lost its session")
        assert all(one.phase is Phase.DROPPING for one in self._replicas.values()), "every replica must be DROPPING"

    def rejoined(self, me: Incarnation) -> None:
        """Begin a new incarnation. All replicas of the former one must be gone."""
        assert not self._replicas, f"{len(self._replicas)} replicas are left of {self.me}"
        self.me = me

    def forget_failures(self, before_ms: int) -> None:
        """Drop failed opens older than `before_ms`."""
        self._finished.forget_failures(before_ms)

    # --- inside ---

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _awaiting_step(self, key: Key, number: int) -> LocalReplica | None:
        replica = self._replicas.get(key)
        if replica is None or replica.step_number != number:
            return None
        replica.step_number = 0
        return replica

    def _awaiting_job(self, key: Key, number: int) -> LocalReplica | None:
        replica = self._replicas.get(key)
        if replica is None or replica.job_number != number:
            return None
        replica.job_number = 0
        return replica

    def _advance(self, replica: LocalReplica, event: Event, now_ms: int, error: str = "") -> None:
        """Make the move that the life cycle defines for `event`: finish the order, enter the next phase.

        Raises:
            InvalidTransition: the table has no row; the exception contains the replica's moves.
        """
        is_held = replica.is_open or replica.job_number != 0
        row = MOVES.get((replica.phase, event, is_held))
        if row is None:
            state = f"{replica.phase or 'none'} ({'' if is_held else 'not '}held by the opener)"
            raise InvalidTransition(str(replica), state, event, self.story(replica.key))
        self._story.append((now_ms, replica.key, replica.phase or "none", event, row.after or "none"))
        self._set_phase(replica, row.after, now_ms)
        result = None if row.outcome is None else self._decide(replica, row.outcome, error)
        if event is _SESSION_LOST:
            self._supersede(replica, error)
        self._enter(replica, event, result, now_ms)

    def _set_phase(self, replica: LocalReplica, after: Phase | None, now_ms: int) -> None:
        """Change the replica's phase and everything that is counted or indexed by phase."""
        before = replica.phase
        if before is None:
            assert replica.key not in self._replicas, f"{replica} is on this server twice"
            self._replicas[replica.key] = replica
        else:
            assert self._counts[before] > 0, f"{replica} leaves {before}, but no replica is counted there"
            self._counts[before] -= 1
        if after is None:
            del self._replicas[replica.key]
        else:
            self._counts[after] += 1
        replica.phase = after
        replica.since_ms = now_ms
        self._changed[replica.key] = None

    def _enter(self, replica: LocalReplica, event: Event, result: OrderResult | None, now_ms: int) -> None:
        """Do the work of the phase just entered. CLAIMING, MARKING: the order writes the step. STUCK: no work."""
        phase = replica.phase
        if phase is None:
            self._gone(replica, event, result, now_ms)
        elif phase is _OPENING:
            replica.progress_ms = now_ms
            self._open(replica)
        elif phase is _ANNOUNCING:
            self._announce(replica, now_ms)
        elif phase is _OPEN:
            self._next_order(replica, now_ms)
        elif phase is Phase.CLOSING:
            self._close(replica)
        elif phase is Phase.RELEASING:
            self._write(replica, Cause.CLOSE_DONE, RegionState.CLOSING, step_records.closed(replica, now_ms))
        elif phase is Phase.DROPPING:
            self._drop(replica, event)

    def _drop(self, replica: LocalReplica, event: Event) -> None:
        """Close a replica that belongs to another server; stop the process if it cannot be closed."""
        if event is Event.CLOSE_FAILED and replica.drops >= DROPS_MAX:
            self.effects.append(fx.Stop(f"{replica} belongs to another server and cannot be closed: {replica.error}"))
        elif replica.job_number == 0:
            self._close(replica)

    def _claim(self, replica: LocalReplica, order: OpenOrder, epoch: int, ticket: int, now_ms: int) -> int:
        """Begin an OPEN order; return its ticket."""
        assert ticket > 0, f"an order for {replica} has no ticket"
        self._advance(replica, Event.OPEN_ORDERED, now_ms)
        self._finished.kept.pop(replica.key, None)
        replica.region, replica.region_version = order.region, order.region_version
        replica.order_id, replica.version = OrderId.of(order), order.version
        replica.epoch, replica.ticket, replica.error = epoch, ticket, ""
        replica.open_timeout_ms = order.open_timeout_ms
        self._raise_schema(replica, order.schema_version)
        record = step_records.claim(order, self.me, epoch, now_ms)
        self._write(replica, _OPEN_ORDER, _OFFLINE, record)
        return ticket

    def _mark_closing(self, replica: LocalReplica, order: CloseOrder, epoch: int, ticket: int, now_ms: int) -> int:
        """Begin a CLOSE order; return its ticket."""
        assert ticket > 0, f"an order for {replica} has no ticket"
        self._advance(replica, Event.CLOSE_ORDERED, now_ms)
        replica.epoch, replica.ticket, replica.error = epoch, ticket, ""
        replica.version = -1
        record = step_records.closing(order, self.me, epoch, replica.damage, now_ms)
        self._write(replica, Cause.CLOSE_ORDER, None, record)
        return ticket

    def _announce(self, replica: LocalReplica, now_ms: int) -> None:
        """Write OPENED, and this server's location into the region's record."""
        token = replica.opened_token
        replica.location = ReplicaLocation(replica.key[1], self.me.uuid, self.me.start_code, now_ms, token)
        self._write(replica, Cause.OPEN_DONE, _STATE_OPENING, step_records.opened(replica, now_ms))

    def _write(self, replica: LocalReplica, cause: Cause, before: RegionState | None, record: TransitionRecord) -> None:
        assert replica.step_number == 0, f"{replica} already expects result {replica.step_number} from the store"
        replica.step_number = self._number()
        replica.step = step_records.write_step(replica, replica.step_number, cause, before, record)
        self.effects.append(replica.step)

    def _open(self, replica: LocalReplica, evict: Incarnation | None = None) -> None:
        assert replica.job_number == 0, f"the opener already works on {replica}"
        replica.job_number = self._number()
        replica.opened_token = replica.token
        job = fx.OpenRegion(replica.key, replica.job_number, replica.region, replica.epoch, evict)
        job.token, job.schema_version, job.cause_id = replica.token, replica.schema_version, replica.cause_id
        self.effects.append(job)
        replica.schema_passed = replica.schema_version

    def _raise_schema(self, replica: LocalReplica, version: int) -> None:
        """Raise the schema version; pass a later version to the opener while the replica is open."""
        if version > replica.schema_version:
            replica.schema_version = version
            self._changed[replica.key] = None
        if replica.is_open and replica.schema_version > replica.schema_passed:
            replica.schema_passed = replica.schema_version
            self.effects.append(fx.SchemaChanged(replica.key, replica.region, replica.schema_version))

    def _close(self, replica: LocalReplica) -> None:
        assert replica.job_number == 0, f"the opener already works on {replica}"
        replica.job_number = self._number()
        self.effects.append(fx.CloseRegion(replica.key, replica.job_number, replica.region, replica.cause_id))

    def _open_failed(self, replica: LocalReplica, error: str, now_ms: int) -> None:
        replica.error = error
        self._advance(replica, Event.OPEN_FAILED, now_ms, error)

    def _step_lost(
        self, replica: LocalReplica, cause: Cause, found: TransitionRecord | None, version: int, now_ms: int
    ) -> None:
        """End a step that can no longer succeed, because the transition belongs to another server or order."""
        there = "gone" if found is None else f"{found.state} of epoch {found.epoch} at version {version}"
        if cause is _OPEN_ORDER:
            # The order was not executed, so a repetition of it must not be answered with DONE.
            replica.order_id = None
        self._advance(replica, Event.STEP_LOST, now_ms, f"the transition is {there} ({replica.error})")

    def _decide(self, replica: LocalReplica, outcome: OrderOutcome, error: str = "") -> OrderResult:
        assert outcome is not OrderOutcome.STARTED, f"the order for {replica} is finished"
        result = _result(replica.key, outcome, replica.version, error)
        if replica.ticket:
            self.effects.append(fx.OrderFinished(replica.ticket, result))
        replica.ticket = 0
        return result

    def _wait(self, replica: LocalReplica, order: OpenOrder | CloseOrder, epoch: int) -> int:
        """Queue `order` behind the order in progress. Only the latest order waits; an earlier one is rejected."""
        waiting = replica.waiting
        if waiting is not None and waiting.order == order:
            return waiting.ticket
        self._supersede(replica, "a later order has arrived")
        replica.waiting = WaitingOrder(order, epoch, self._number())
        return replica.waiting.ticket

    def _supersede(self, replica: LocalReplica, why: str) -> None:
        waiting, replica.waiting = replica.waiting, None
        if waiting is not None:
            result = _result(replica.key, OrderOutcome.REFUSED, error=why)
            self.effects.append(fx.OrderFinished(waiting.ticket, result))

    def _next_order(self, replica: LocalReplica, now_ms: int) -> None:
        """Begin the waiting order when the replica is open or gone."""
        assert replica.phase in (None, _OPEN), f"{replica} is {replica.phase}, so its next order must wait"
        waiting, replica.waiting = replica.waiting, None
        if waiting is None:
            return
        if isinstance(waiting.order, OpenOrder):
            self._claim(replica, waiting.order, waiting.epoch, waiting.ticket, now_ms)
        elif replica.phase is _OPEN:
            self._mark_closing(replica, waiting.order, waiting.epoch, waiting.ticket, now_ms)
        else:
            result = _result(replica.key, OrderOutcome.REFUSED, error="the replica is not open on this server")
            self.effects.append(fx.OrderFinished(waiting.ticket, result))

    def _gone(self, replica: LocalReplica, event: Event, result: OrderResult | None, now_ms: int) -> None:
        """Keep the order's result for a master that repeats the order, and begin the waiting order."""
        if result is not None and event is Event.OPEN_FAILED:
            shown = replica.failed_open(now_ms)
            self._finished.keep(replica.key, FinishedOrder(replica.order_id, result, shown))
        elif result is not None and event is _STEP_TAKEN:
            self._finished.keep(replica.key, FinishedOrder(None, result, None))
        if replica.waiting is not None:
            fresh = LocalReplica(replica.key, replica.region, now_ms)
            fresh.waiting = replica.waiting
            self._next_order(fresh, now_ms)


def _result(key: Key, outcome: OrderOutcome, version: int = -1, error: str = "") -> OrderResult:
    return OrderResult(key[0], key[1], outcome, version, error)
