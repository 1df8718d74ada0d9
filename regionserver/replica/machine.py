"""The life of every replica on this server: orders and answers in, effects out. Pure.

`regionserver.replica.states` has the whole life cycle as data; a move that is not in it raises InvalidTransition with
the replica's story. Three things keep it simple:

- A replica awaits at most one answer from the store and one from its handler; anything else that arrives is stale.
- A step that failed, for whatever reason, is settled by reading the znode back (`regionserver.replica.readback`).
- Orders are idempotent. The same order again gets the same ticket while it runs and the same result afterwards. An
  order that contradicts a running one waits for its end, and then the store decides by compare-and-set whether it still
  stands.

A lost session sends every replica to DROPPING: closed without a word to the store, which has given it away already.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from msgspec.structs import replace

from coord.errors import InvalidTransition
from regions.messages import AlterOrder, AlterResult, CloseOrder, HostedReplica, OpenOrder, OrderOutcome, OrderResult
from regions.messages.heartbeat import ReplicaReport
from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TransitionRecord
from regions.transitions import states, trail
from regions.transitions.states import Actor, Cause
from regionserver.replica.effects import (
    AskAlive,
    CloseRegion,
    Decided,
    Effect,
    Key,
    OpenRegion,
    ReadBack,
    ReadOwner,
    SchemaChanged,
    Stop,
    WriteStep,
)
from regionserver.replica.readback import Readback, is_disowned, judge
from regionserver.replica.states import LEGAL, SHOWN, LocalReplica, Mark, Phase, Waiting, mark_of

#: How often the store may refuse a step whose znode looks as it should, before the order is given up.
REFUSALS_MAX: Final = 5
#: Attempts to close a replica of a lost session before the process ends itself.
DROPS_MAX: Final = 3
#: Failed and finished orders remembered for masters that ask again.
PAST_MAX: Final = 20_000
STORY_MAX: Final = 2_000
#: Steps that do not write the region's record, and are refused if it has changed.
_PINNED: Final = (Cause.OPEN_ORDER, Cause.PROGRESS, Cause.CLOSE_ORDER)
#: Phases in which a replica is here to stay, and is told of its table's schema.
_ALTERED: Final = (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING, Phase.OPEN, Phase.MARKING)
#: A long open may write its progress this often within the time it has.
PROGRESS_PER_TIMEOUT: Final = 4


class FinishedOrder(NamedTuple):
    """The end of an order, for a master that asks again."""

    mark: Mark | None
    result: OrderResult
    hosted: HostedReplica | None


class Replicas:
    """All replicas of one incarnation after the other. Call a method per event, then `take_effects`."""

    def __init__(self, me: Incarnation) -> None:
        self.me = me
        self._replicas: dict[Key, LocalReplica] = {}
        self._past: dict[Key, FinishedOrder] = {}
        self._effects: list[Effect] = []
        self._story: deque[tuple[int, Key, str, str, str]] = deque(maxlen=STORY_MAX)
        self._last_number = 0
        #: How many replicas are in each phase.
        self._counts = dict.fromkeys(Phase, 0)
        #: Replicas of which masters may have to be told something new.
        self._changed: dict[Key, None] = {}

    # --- reading ---

    def __len__(self) -> int:
        return len(self._replicas)

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call, in order. The caller keeps the list."""
        effects, self._effects = self._effects, []
        return effects

    def phases(self) -> dict[Phase, int]:
        """How many replicas are in each phase."""
        return dict(self._counts)

    def take_changed(self) -> list[Key]:
        """Replicas that came, went or changed since the last call (HB-03)."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def keys(self) -> list[Key]:
        """All replicas here."""
        return list(self._replicas)

    def report(self, key: Key) -> ReplicaReport | None:
        """A replica as a heartbeat tells of it; None if it is not here."""
        replica = self._replicas.get(key)
        if replica is None or replica.phase is None:
            return None
        shown = SHOWN[replica.phase]
        return ReplicaReport(
            key[0], replica.region.table_id, key[1], shown, replica.schema_version, damage=replica.damage
        )

    def failed(self) -> int:
        """How many failed opens are remembered."""
        return sum(past.hosted is not None for past in self._past.values())

    def hosted(self, limit: int = 0) -> list[HostedReplica]:
        """Replicas and remembered failures, by region id and replica; `limit` 0: all."""
        shown = [
            HostedReplica(
                one.key[0],
                one.region.table_id,
                one.key[1],
                SHOWN[one.phase],
                one.since_ms,
                one.damage or one.error,
                schema_version=one.schema_version,
                token=0 if one.location is None else one.location.token,
            )
            for one in self._replicas.values()
            if one.phase is not None
        ]
        shown += [past.hosted for past in self._past.values() if past.hosted is not None]
        shown.sort(key=lambda one: (one.region_id, one.replica))
        return shown[:limit] if limit else shown

    def served(self, key: Key) -> tuple[RegionRecord, ReplicaLocation] | None:
        """Record and location of a replica whose requests may be answered; None unless its OPENED is in the store."""
        replica = self._replicas.get(key)
        if replica is None or replica.location is None or replica.phase not in (Phase.OPEN, Phase.MARKING):
            return None
        return replica.region, replica.location

    def story(self, key: Key) -> list[str]:
        """The latest moves of one replica, oldest first."""
        return [
            f"{at_ms} {before} --{event}--> {after}" for at_ms, of, before, event, after in self._story if of == key
        ]

    # --- orders ---

    def order_open(self, order: OpenOrder, epoch: int, now_ms: int) -> OrderResult | int:
        """Take an OPEN order: its result if that is certain now, else the ticket that `Decided` will name."""
        record = order.transition
        key = (record.region_id, record.replica)
        self.alter(AlterOrder(*key, order.schema_version))
        if record.state is RegionState.OPENING and record.destination == self.me:
            return self._asked_again(key)
        if record.state is not RegionState.OFFLINE or record.destination != self.me:
            return _result(
                key, OrderOutcome.REFUSED, error=f"the order's record is {record.state} for {record.destination}"
            )
        mark = mark_of(order)
        replica = self._replicas.get(key)
        if replica is None:
            past = self._past.get(key)
            if past is not None and past.mark == mark:
                return past.result
            replica = LocalReplica(key, order.region, now_ms)
            return self._claim(replica, order, epoch, self._number(), now_ms)
        if replica.mark == mark:
            if replica.phase is Phase.OPEN:
                return _result(key, OrderOutcome.DONE, replica.version)
            if replica.phase in (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING):
                return replica.ticket
            return _result(key, OrderOutcome.REFUSED, replica.version, f"that order is over, it is {replica.phase} now")
        if replica.phase is Phase.OPEN:
            return self._claim(replica, order, epoch, self._number(), now_ms)
        return self._wait(replica, order, epoch)

    def _asked_again(self, key: Key) -> OrderResult | int:
        """What became of an open that has begun: a master asks that sees OPENING, perhaps not the one that ordered it.

        A long open must not be taken for a failed one (MF-07, RT-11): its deadline is the transition's.
        """
        replica = self._replicas.get(key)
        if replica is None:
            past = self._past.get(key)
            if past is not None and past.mark is not None:
                return past.result
            return _result(key, OrderOutcome.REFUSED, error="it is not being opened here")
        if replica.phase is Phase.OPEN:
            return _result(key, OrderOutcome.DONE, replica.version)
        if replica.phase in (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING):
            return replica.ticket
        return _result(key, OrderOutcome.REFUSED, replica.version, f"it is {replica.phase}")

    def order_close(self, order: CloseOrder, epoch: int, now_ms: int) -> OrderResult | int:
        """Take a CLOSE order; answers as `order_open`."""
        key = (order.region_id, order.replica)
        replica = self._replicas.get(key)
        if replica is None:
            past = self._past.get(key)
            if past is not None and past.mark is None:
                return past.result
            return _result(key, OrderOutcome.REFUSED, error="it is not open here")
        if replica.phase is Phase.OPEN:
            return self._mark_closing(replica, order, epoch, self._number(), now_ms)
        if replica.phase is Phase.STUCK:
            replica.ticket = self._number()
            self._move(replica, "close ordered", Phase.CLOSING, now_ms)
            self._close(replica)
            return replica.ticket
        if replica.phase is Phase.MARKING and epoch > replica.epoch:
            # The store refuses the step of a master that has been replaced; then this one's turn comes.
            return self._wait(replica, order, epoch)
        if replica.phase in (Phase.MARKING, Phase.CLOSING, Phase.RELEASING):
            return replica.ticket
        if replica.phase is Phase.ANNOUNCING:
            return self._wait(replica, order, epoch)
        return _result(key, OrderOutcome.REFUSED, replica.version, f"it is {replica.phase}")

    def alter(self, order: AlterOrder) -> AlterResult:
        """Tell a replica of its table's schema version (DD-07); one that is not here, or leaves, gets none.

        It never goes back: an order may come late, or twice.
        """
        replica = self._replicas.get((order.region_id, order.replica))
        if replica is None or replica.phase not in _ALTERED:
            return AlterResult(order.region_id, order.replica, -1)
        self._learn_schema(replica, order.schema_version)
        return AlterResult(order.region_id, order.replica, replica.schema_version)

    def damaged(self, key: Key, why: str) -> bool:
        """Note what the opener found wrong with an open replica's rows; return whether it is news for the masters."""
        replica = self._replicas.get(key)
        if replica is None or not replica.is_open or replica.damage:
            return False
        replica.damage = why
        self._changed[key] = None
        return True

    def order_review(self, key: Key) -> OrderResult:
        """A master doubts that an open replica is ours: the store's word decides, not the master's (FN-03)."""
        replica = self._replicas.get(key)
        if replica is None:
            return _result(key, OrderOutcome.DONE)
        if replica.phase is Phase.OPEN and not replica.review_number:
            replica.review_number = self._number()
            self._effects.append(ReadOwner(key, replica.review_number, replica.region.table_id))
        return _result(key, OrderOutcome.STARTED)

    # --- answers of the store ---

    def reviewed(
        self, key: Key, number: int, found: TransitionRecord | None, region: RegionRecord | None, now_ms: int
    ) -> None:
        """The answer to ReadOwner. What is not ours is closed without a word to the store, which knows better."""
        replica = self._replicas.get(key)
        if replica is None or replica.review_number != number:
            return
        replica.review_number = 0
        if replica.phase is Phase.OPEN and is_disowned(self.me, key[1], found, region):
            self._move(replica, "disowned", Phase.DROPPING, now_ms)
            self._close(replica)

    def step_done(self, key: Key, number: int, version: int, region_version: int, now_ms: int, zxid: int = 0) -> None:
        """The step is in the store; `version` is the znode's now, `region_version` the region record's if written.

        `zxid` is that of the write, as the znode's Stat has it (0 for a creation, whose zxid nobody needs).
        """
        replica = self._awaiting_step(key, number)
        if replica is None:
            return
        assert replica.step is not None, f"{key} awaits a step it did not take"
        step, replica.step, replica.refusals = replica.step, None, 0
        replica.record, replica.version = step.record, version
        if step.region is not None:
            replica.region, replica.region_version = step.region, region_version
        if step.cause is Cause.OPEN_ORDER:
            replica.token = zxid
            if replica.is_open:
                self._move(replica, "step taken", Phase.ANNOUNCING, now_ms)
                self._announce(replica, now_ms)
            else:
                self._move(replica, "step taken", Phase.OPENING, now_ms)
                replica.progress_ms = now_ms
                self._open(replica)
        elif step.cause is Cause.PROGRESS:
            if replica.is_open:
                self._move(replica, "opened", Phase.ANNOUNCING, now_ms)
                self._announce(replica, now_ms)
        elif step.cause is Cause.OPEN_DONE:
            self._move(replica, "step taken", Phase.OPEN, now_ms)
            self._decide(replica, OrderOutcome.DONE)
            self._next_order(replica, now_ms)
        elif step.cause is Cause.CLOSE_ORDER:
            self._move(replica, "step taken", Phase.CLOSING, now_ms)
            self._close(replica)
        else:
            result = self._decide(replica, OrderOutcome.DONE)
            self._forget(replica, "step taken", FinishedOrder(None, result, None), now_ms)

    def step_failed(self, key: Key, number: int, error: str, is_refused: bool) -> None:
        """The step was refused by the store, or (not `is_refused`) nobody knows: read the znode back."""
        replica = self._awaiting_step(key, number)
        if replica is None or replica.step is None:
            return
        replica.error = error
        replica.refusals += is_refused
        replica.step_number = self._number()
        self._effects.append(ReadBack(key, replica.step_number, replica.region.table_id))

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
        """What is in the store at a step that failed; None: no such znode. `zxid`: the transition's last write."""
        replica = self._awaiting_step(key, number)
        if replica is None or replica.step is None:
            return
        step = replica.step
        verdict = judge(
            step.cause,
            self.me,
            found,
            same_version=version == step.version,
            region=region,
            location=replica.location,
        )
        if verdict is Readback.AGAIN and replica.refusals >= REFUSALS_MAX:
            verdict = Readback.LOST
        if verdict is Readback.LOST:
            replica.step = None
            self._step_lost(replica, step.cause, found, version, now_ms)
            return
        if region is not None:
            # Whatever else the record says by now stands; the step adds the location to it.
            replica.region, replica.region_version = region, region_version
        if verdict is Readback.TAKEN:
            step.record, step.region = found if found is not None else step.record, None
            replica.step_number = number
            self.step_done(key, number, version, region_version, now_ms, zxid)
            return
        record = step.record
        if step.before is not None and found is not None:
            replica.version = version
            # A step before this one may be in the store although it was not known here: the znode has them all.
            record = replace(record, took=trail.add(found.took, record.took[-1]))
        self._write(replica, step.cause, step.before, record)

    def holder_seen(self, key: Key, number: int, holder: Incarnation, is_alive: bool, now_ms: int) -> None:
        """The answer to AskAlive."""
        replica = self._awaiting_step(key, number)
        if replica is None or replica.phase is not Phase.OPENING:
            return
        if is_alive:
            self._open_failed(replica, f"server {holder} holds it, and is alive", now_ms)
        else:
            self._open(replica, evict=holder)

    # --- answers of the handler ---

    def opened(self, key: Key, number: int, now_ms: int) -> None:
        """The handler has the replica open."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        replica.is_open = True
        self._learn_schema(replica, replica.schema_version)
        if replica.phase is Phase.DROPPING:
            self._move(replica, "opened", Phase.DROPPING, now_ms)
            self._close(replica)
        elif replica.step is None:
            self._move(replica, "opened", Phase.ANNOUNCING, now_ms)
            self._announce(replica, now_ms)

    def open_failed(self, key: Key, number: int, error: str, now_ms: int) -> None:
        """The handler could not open the replica, and holds nothing of it."""
        replica = self._awaiting_job(key, number)
        if replica is not None:
            self._open_failed(replica, error, now_ms)

    def owner_held(self, key: Key, number: int, holder: Incarnation, now_ms: int) -> None:
        """The handler found the replica held by another incarnation: only a dead one may be evicted."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        if replica.phase is Phase.OPENING and replica.step is None and holder != self.me:
            replica.step_number = self._number()
            self._effects.append(AskAlive(key, replica.step_number, holder))
        else:
            self._open_failed(replica, f"server {holder} holds it", now_ms)

    def closed(self, key: Key, number: int, now_ms: int) -> None:
        """The handler has closed the replica."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        replica.is_open = False
        if replica.phase is Phase.DROPPING:
            self._forget(replica, "closed", None, now_ms)
            return
        self._move(replica, "closed", Phase.RELEASING, now_ms)
        assert replica.record is not None, f"{key} closes without a transition"
        took = trail.add(replica.record.took, now_ms)
        record = replace(
            replica.record,
            state=RegionState.CLOSED,
            since_ms=now_ms,
            deadline_ms=0,
            took=took,
            damage=replica.damage,
        )
        self._write(replica, Cause.CLOSE_DONE, RegionState.CLOSING, record)

    def close_failed(self, key: Key, number: int, error: str, now_ms: int) -> None:
        """The handler could not close the replica, and must be taken to have it open still."""
        replica = self._awaiting_job(key, number)
        if replica is None:
            return
        replica.error = error
        if replica.phase is not Phase.DROPPING:
            self._move(replica, "close failed", Phase.STUCK, now_ms)
            self._decide(replica, OrderOutcome.FAILED, error)
            return
        self._move(replica, "close failed", Phase.DROPPING, now_ms)
        replica.drops += 1
        if replica.drops >= DROPS_MAX:
            self._effects.append(Stop(f"{key[0]}-{key[1]} belongs to another server and cannot be closed: {error}"))
        else:
            self._close(replica)

    def progressed(self, key: Key, number: int, now_ms: int) -> None:
        """The handler is still opening and says that it gets on: extend the deadline, not too often."""
        replica = self._replicas.get(key)
        if replica is None or replica.phase is not Phase.OPENING or replica.job_number != number:
            return
        span_ms = replica.open_timeout_ms // PROGRESS_PER_TIMEOUT
        if replica.step is not None or now_ms - replica.progress_ms < span_ms:
            return
        replica.progress_ms = now_ms
        assert replica.record is not None, f"{key} opens without a transition"
        took = trail.add(replica.record.took, now_ms)
        record = replace(replica.record, deadline_ms=now_ms + replica.open_timeout_ms, took=took)
        self._write(replica, Cause.PROGRESS, RegionState.OPENING, record)

    # --- the session ---

    def session_lost(self, now_ms: int) -> None:
        """The store has given everything away: close it all, write nothing. Nothing is remembered for old orders."""
        self._past.clear()
        for replica in list(self._replicas.values()):
            replica.step, replica.step_number = None, 0
            if replica.phase is not Phase.DROPPING:
                self._decide(replica, OrderOutcome.FAILED, "this server has lost its session")
            self._supersede(replica, "this server has lost its session")
            if not replica.is_open and replica.job_number == 0:
                self._forget(replica, "session lost", None, now_ms)
                continue
            self._move(replica, "session lost", Phase.DROPPING, now_ms)
            if replica.job_number == 0:
                self._close(replica)

    def rejoined(self, me: Incarnation) -> None:
        """A new incarnation begins. Only with nothing left of the former one."""
        assert not self._replicas, f"{len(self._replicas)} replicas are left of {self.me}"
        self.me = me

    def forget_failures(self, before_ms: int) -> None:
        """Stop showing failed opens older than that; a master has long asked, or placed the replica elsewhere."""
        for key, past in list(self._past.items()):
            if past.hosted is not None and past.hosted.since_ms < before_ms:
                del self._past[key]

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

    def _move(self, replica: LocalReplica, event: str, after: Phase | None, now_ms: int) -> None:
        before = replica.phase
        self._story.append((now_ms, replica.key, before or "none", event, after or "none"))
        if (before, event, after) not in LEGAL:
            name = f"{replica.key[0]}-{replica.key[1]}"
            raise InvalidTransition(name, before or "none", f"{event} to {after or 'none'}", self.story(replica.key))
        if before is not None:
            self._counts[before] -= 1
        if after is not None:
            self._counts[after] += 1
        replica.phase = after
        replica.since_ms = now_ms
        self._changed[replica.key] = None

    def _claim(self, replica: LocalReplica, order: OpenOrder, epoch: int, ticket: int, now_ms: int) -> int:
        self._move(replica, "open ordered", Phase.CLAIMING, now_ms)
        self._replicas[replica.key] = replica
        self._past.pop(replica.key, None)
        replica.region, replica.region_version = order.region, order.region_version
        replica.mark, replica.version = mark_of(order), order.version
        replica.epoch, replica.ticket, replica.error = epoch, ticket, ""
        replica.open_timeout_ms = order.open_timeout_ms
        self._learn_schema(replica, order.schema_version)
        record = replace(
            order.transition,
            state=RegionState.OPENING,
            destination=self.me,
            epoch=epoch,
            since_ms=now_ms,
            deadline_ms=now_ms + order.open_timeout_ms,
            took=(now_ms,),
        )
        self._write(replica, Cause.OPEN_ORDER, RegionState.OFFLINE, record)
        return ticket

    def _mark_closing(self, replica: LocalReplica, order: CloseOrder, epoch: int, ticket: int, now_ms: int) -> int:
        self._move(replica, "close ordered", Phase.MARKING, now_ms)
        replica.epoch, replica.ticket, replica.error = epoch, ticket, ""
        record = TransitionRecord(
            region_id=order.region_id,
            table_id=order.table_id,
            replica=order.replica,
            state=RegionState.CLOSING,
            source=self.me,
            destination=order.destination,
            intent=order.intent,
            epoch=epoch,
            plan_id=order.plan_id,
            attempt=order.attempt,
            reason=order.reason,
            since_ms=now_ms,
            deadline_ms=now_ms + order.close_timeout_ms,
            took=(now_ms,),
            damage=replica.damage,
        )
        replica.version = -1
        self._write(replica, Cause.CLOSE_ORDER, None, record)
        return ticket

    def _announce(self, replica: LocalReplica, now_ms: int) -> None:
        assert replica.record is not None, f"{replica.key} is announced without a transition"
        token = replica.opened_token
        replica.location = ReplicaLocation(replica.key[1], self.me.uuid, self.me.start_code, now_ms, token)
        took = trail.add(replica.record.took, now_ms)
        record = replace(
            replica.record, state=RegionState.OPENED, since_ms=now_ms, deadline_ms=0, token=token, took=took
        )
        self._write(replica, Cause.OPEN_DONE, RegionState.OPENING, record)

    def _write(self, replica: LocalReplica, cause: Cause, before: RegionState | None, record: TransitionRecord) -> None:
        states.check(Actor.SERVER, before, record.state, cause, subject=record.key)
        replica.step_number = self._number()
        step = WriteStep(replica.key, replica.step_number, cause, before, record, replica.version)
        if cause in (Cause.OPEN_ORDER, Cause.CLOSE_ORDER):
            step.epoch = replica.epoch
        if cause in _PINNED:
            step.region_version = replica.region_version
        if cause is Cause.OPEN_DONE:
            assert replica.location is not None, f"{replica.key} is announced without a location"
            step.region = replica.region.with_location(replica.location)
            step.region_version = replica.region_version
        replica.step = step
        self._effects.append(step)

    def _open(self, replica: LocalReplica, evict: Incarnation | None = None) -> None:
        replica.job_number = self._number()
        replica.opened_token = replica.token
        self._effects.append(
            OpenRegion(
                replica.key,
                replica.job_number,
                replica.region,
                replica.epoch,
                evict,
                replica.token,
                replica.schema_version,
            )
        )
        replica.schema_told = replica.schema_version

    def _learn_schema(self, replica: LocalReplica, version: int) -> None:
        """Versions only grow; the handler hears of those that come while it has the replica open."""
        if version > replica.schema_version:
            replica.schema_version = version
            self._changed[replica.key] = None
        if replica.is_open and replica.schema_version > replica.schema_told:
            replica.schema_told = replica.schema_version
            self._effects.append(SchemaChanged(replica.key, replica.region, replica.schema_version))

    def _close(self, replica: LocalReplica) -> None:
        replica.job_number = self._number()
        self._effects.append(CloseRegion(replica.key, replica.job_number, replica.region))

    def _open_failed(self, replica: LocalReplica, error: str, now_ms: int) -> None:
        if replica.phase is Phase.DROPPING:
            self._forget(replica, "open failed", None, now_ms)
            return
        replica.error = error
        result = self._decide(replica, OrderOutcome.FAILED, error)
        region_id, number = replica.key
        hosted = HostedReplica(region_id, replica.region.table_id, number, "FAILED", now_ms, error, schema_version=-1)
        self._forget(replica, "open failed", FinishedOrder(replica.mark, result, hosted), now_ms)

    def _step_lost(
        self, replica: LocalReplica, cause: Cause, found: TransitionRecord | None, version: int, now_ms: int
    ) -> None:
        """The transition is somebody else's: undo what was done for it, write nothing more."""
        there = "gone" if found is None else f"{found.state} of epoch {found.epoch} at version {version}"
        error = f"the transition is {there} ({replica.error})"
        if cause is Cause.OPEN_ORDER and not replica.is_open:
            self._decide(replica, OrderOutcome.REFUSED, error)
            self._forget(replica, "step lost", None, now_ms)
        elif cause in (Cause.OPEN_ORDER, Cause.CLOSE_ORDER):
            self._move(replica, "step lost", Phase.OPEN, now_ms)
            if cause is Cause.OPEN_ORDER:
                replica.mark = None  # that order was not carried out: asked again it must not hear DONE
            self._decide(replica, OrderOutcome.REFUSED, error)
            self._next_order(replica, now_ms)
        elif cause is Cause.CLOSE_DONE:
            self._decide(replica, OrderOutcome.REFUSED, error)
            self._forget(replica, "step lost", None, now_ms)
        else:
            self._move(replica, "step lost", Phase.DROPPING, now_ms)
            self._decide(replica, OrderOutcome.REFUSED, error)
            if replica.job_number == 0:
                self._close(replica)

    def _decide(self, replica: LocalReplica, outcome: OrderOutcome, error: str = "") -> OrderResult:
        result = _result(replica.key, outcome, replica.version, error)
        if replica.ticket:
            self._effects.append(Decided(replica.ticket, result))
        replica.ticket = 0
        return result

    def _wait(self, replica: LocalReplica, order: OpenOrder | CloseOrder, epoch: int) -> int:
        """Let `order` wait for the end of the present one; the latest order waits, an earlier one is superseded."""
        waiting = replica.waiting
        if waiting is not None and waiting.order == order:
            return waiting.ticket
        self._supersede(replica, "a later order has come")
        replica.waiting = Waiting(order, epoch, self._number())
        return replica.waiting.ticket

    def _supersede(self, replica: LocalReplica, why: str) -> None:
        waiting, replica.waiting = replica.waiting, None
        if waiting is not None:
            self._effects.append(Decided(waiting.ticket, _result(replica.key, OrderOutcome.REFUSED, error=why)))

    def _next_order(self, replica: LocalReplica, now_ms: int) -> None:
        """Begin the order that has waited, now that the replica is open or gone."""
        waiting, replica.waiting = replica.waiting, None
        if waiting is None:
            return
        if isinstance(waiting.order, OpenOrder):
            self._claim(replica, waiting.order, waiting.epoch, waiting.ticket, now_ms)
        elif replica.phase is Phase.OPEN:
            self._mark_closing(replica, waiting.order, waiting.epoch, waiting.ticket, now_ms)
        else:
            result = _result(replica.key, OrderOutcome.REFUSED, error="it is not open here")
            self._effects.append(Decided(waiting.ticket, result))

    def _forget(self, replica: LocalReplica, event: str, past: FinishedOrder | None, now_ms: int) -> None:
        """The replica is no longer on this server."""
        self._move(replica, event, None, now_ms)
        del self._replicas[replica.key]
        if past is not None:
            self._past[replica.key] = past
            if len(self._past) > PAST_MAX:
                del self._past[next(iter(self._past))]
        if replica.waiting is not None:
            waiting = replica.waiting
            fresh = LocalReplica(replica.key, replica.region, now_ms)
            fresh.waiting = waiting
            self._next_order(fresh, now_ms)


def _result(key: Key, outcome: OrderOutcome, version: int = -1, error: str = "") -> OrderResult:
    return OrderResult(key[0], key[1], outcome, version, error)
