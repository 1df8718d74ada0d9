"""The replicas on this server, at work: orders in, znode steps and the opener's work out.

`regionserver.replica.machine` decides; this class carries its effects out and brings the answers back. Everything
here runs on the reactor's thread, except the opener's own methods.

Batches. The results of one turn are taken together and acted on together, so the steps they cause leave together: that,
and nothing else, makes thousands of opens cheap. Regions to be opened gather while others are being prepared, so an
opener that does something dear once for many regions does it rarely when there are many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import GetData, ReadResult
from coord.env import Clock
from coord.errors import NoNode, OperationError
from regions.messages import (
    AlterOrder,
    AlterResults,
    CloseOrder,
    HostedReplica,
    OpenOrder,
    OrderOutcome,
    OrderResult,
    OrderResults,
)
from regions.records import znodes
from regions.records.kinds import KV, can_open
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation, TransitionRecord, WorkOrigin
from regions.records.znodes import CorruptZnode, Layout
from regionserver.metrics import Metrics
from regionserver.opener import Opening, OwnerHeld, RegionOpener
from regionserver.replica.effects import (
    AskAlive,
    CloseRegion,
    Decided,
    Effect,
    OpenRegion,
    ReadBack,
    ReadOwner,
    SchemaChanged,
    Stop,
    WriteStep,
)
from regionserver.replica.machine import Replicas
from regionserver.replica.states import Phase
from regionserver.replica.step_writer import StepWriter, Store
from regionserver.replica.step_writer import TimerReactor as TimerReactor
from regionserver.workers import Pool, Workers
from regionserver.workers import ThreadReactor as ThreadReactor

log = Logger()
T = TypeVar("T")
#: What asks for a look at a replica's transition and its region.
Looking = TypeVar("Looking", ReadBack, ReadOwner)
#: Record, version and last zxid of a znode.
Read = tuple[T | None, int, int]

#: Regions that are prepared together.
PREPARE_MAX: Final = 512
#: Pause before a read is tried again after the connection broke.
READ_AGAIN_S: Final = 0.1
FAILURES_SHOWN_MS: Final = 10 * 60 * 1000
#: Nobody waits longer for an answer, whatever the command says.
ANSWER_WITHIN_MS_MAX: Final = 60_000


class HostReactor(TimerReactor, ThreadReactor):
    """The part of a reactor that Host uses: timers, and calls from threads."""


class _Batch:
    """A command's orders, some of them undecided: answered when the last one is decided, or when time is up."""

    def __init__(self, keys: list[tuple[str, int]], causes: list[str], results: list[OrderResult | None]) -> None:
        self.keys = keys
        #: Cause id of each order.
        self.causes = causes
        self.results = results
        self.missing = sum(result is None for result in results)
        self.answer: Deferred[OrderResults] = Deferred()
        self.timer: IDelayedCall | None = None

    def decided(self, at: int, result: OrderResult) -> None:
        """One more order has come to its end."""
        assert result.outcome is not OrderOutcome.STARTED, f"{result} is not an end"
        if self.results[at] is None:
            self.results[at] = result
            self.missing -= 1
            if self.missing == 0:
                self.finish()

    def finish(self) -> None:
        """Answer with what is known."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        if not self.answer.called:
            found = [one or _started(*key) for key, one in zip(self.keys, self.results, strict=True)]
            pairs = zip(found, self.causes, strict=True)
            self.answer.callback(OrderResults([replace(one, cause_id=cause_id) for one, cause_id in pairs]))


def _causes_of(what: str, origins: Iterable[WorkOrigin | None]) -> list[str]:
    """Return the cause id of each order; log how many orders of each cause there are."""
    causes = ["" if one is None else one.cause_id for one in origins]
    for cause_id, number in Counter(causes).items():
        log.info("ordered to {what} {number} regions, cause {cause}", what=what, number=number, cause=cause_id or "-")
    return causes


def _started(region_id: str, replica: int) -> OrderResult:
    return OrderResult(region_id, replica, OrderOutcome.STARTED)


class Host:
    """The shell around `Replicas`. One per process; `begin` and `end` frame each incarnation."""

    def __init__(
        self,
        reactor: HostReactor,
        clock: Clock,
        opener: RegionOpener,
        paths: Layout,
        metrics: Metrics,
        *,
        threads: int,
        stop: Callable[[str], None],
        workers: Pool = Workers,
    ) -> None:
        """`stop` is called when only the end of this process can keep the rules; `workers` makes the pool."""
        self._reactor = reactor
        self._clock = clock
        self._opener = opener
        self._paths = paths
        self._metrics = metrics
        self._stop = stop
        self._workers = workers(reactor, threads, self._drain, self._fatal)
        self._store: Store | None = None
        self._steps: StepWriter | None = None
        self._batches: dict[int, list[tuple[_Batch, int]]] = {}
        self._unprepared: list[OpenRegion] = []
        self._is_preparing = False
        self._emptied: Deferred[None] | None = None
        #: Runs of `_drain`, one or more for each event, and how many there were at the last `validate`.
        self._drains = 0
        self._drains_validated = 0
        self.replicas = Replicas(Incarnation("", 0))
        self.is_serving = False

    # --- sessions ---

    def begin(self, me: Incarnation, store: Store) -> None:
        """A session has begun and `me` is registered."""
        assert self._store is None, "a session begins before the former one has ended"
        self.replicas.rejoined(me)
        self._store = store
        self._steps = StepWriter(self._reactor, store, self._paths, self, self._fatal)

    def end(self) -> Deferred[None]:
        """The session is over, or is about to be ended: close everything. Fires when nothing is open any more."""
        if self._steps is not None:
            self._steps.stop()
        self._store = self._steps = None
        self.set_serving(False)
        self.replicas.session_lost(self._clock.wall_ms())
        self._emptied = Deferred()
        emptied = self._emptied
        self._drain()
        return emptied

    def set_serving(self, is_serving: bool) -> None:
        """The lease has begun or ended."""
        assert self._store is not None or not is_serving, "regions are served without a session"
        if is_serving != self.is_serving:
            self.is_serving = is_serving
            self._opener.serving_changed(is_serving)

    def in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` in one of the threads; `done` gets what it returned or raised, on the reactor's thread."""
        self._workers.submit(work, done)

    def tables(self) -> set[str]:
        """Return the ids of the tables of which a replica is here, in whatever phase."""
        return {one.table_id for one in self.hosted(0)}

    def stop_workers(self, timeout_s: float) -> bool:
        """End the threads; False if the opener does not return."""
        return self._workers.stop(timeout_s)

    def validate(self) -> None:
        """Check every invariant of the replicas if an event has come since the last call. For simulations.

        Raises:
            AssertionError: an invariant does not hold.
        """
        if self._drains != self._drains_validated:
            self._drains_validated = self._drains
            self.replicas.validate()

    # --- orders and questions ---

    def open_regions(self, orders: list[OpenOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Take OPEN orders. Fires with a result for each, in their order."""
        now_ms = self._clock.wall_ms()
        self._metrics.orders.labels("open").inc(len(orders))
        keys = [(order.transition.region_id, order.transition.replica) for order in orders]
        taken = [self._of_another_kind(order) or self.replicas.order_open(order, epoch, now_ms) for order in orders]
        causes = _causes_of("open", (order.transition.origin for order in orders))
        return self._answer(keys, causes, taken, answer_within_ms)

    def _of_another_kind(self, order: OpenOrder) -> OrderResult | None:
        """Return the failure of an order to open a region of another kind of service than this server's.

        No master that knows of kinds sends one, unless the order rests on a transition that an earlier build began.
        """
        kind = self._opener.kind
        if not order.kind or can_open(kind, order.kind):
            return None
        record, why = order.transition, f"the server is of kind {kind or KV}, the table of kind {order.kind}"
        return OrderResult(record.region_id, record.replica, OrderOutcome.FAILED, error=why)

    def close_regions(self, orders: list[CloseOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Take CLOSE orders; fires as `open_regions`."""
        now_ms = self._clock.wall_ms()
        self._metrics.orders.labels("close").inc(len(orders))
        keys = [(order.region_id, order.replica) for order in orders]
        taken = [self.replicas.order_close(order, epoch, now_ms) for order in orders]
        causes = _causes_of("close", (order.origin for order in orders))
        return self._answer(keys, causes, taken, answer_within_ms)

    def alter_regions(self, orders: list[AlterOrder]) -> AlterResults:
        """Tell replicas of their tables' schema versions; what each has now, in the orders' order."""
        self._metrics.orders.labels("alter").inc(len(orders))
        results = AlterResults([self.replicas.alter(order) for order in orders])
        self._drain()
        return results

    def review(self, keys: list[tuple[str, int]]) -> OrderResults:
        """Have the store asked whose these replicas are; what is not ours is dropped. DONE: not here (any more)."""
        results = [self.replicas.order_review(key) for key in keys]
        self._drain()
        return OrderResults(results)

    def hosted(self, limit: int = 0) -> list[HostedReplica]:
        """Return the replicas on this server and the failed opens that are remembered."""
        self.replicas.forget_failures(self._clock.wall_ms() - FAILURES_SHOWN_MS)
        return self.replicas.hosted(limit)

    def served(self, key: tuple[str, int]) -> tuple[RegionRecord, ReplicaLocation] | None:
        """Record and location of a replica that is open; None for any other."""
        return self.replicas.served(key)

    def damaged(self, key: tuple[str, int], why: str) -> bool:
        """Note what the opener found wrong with a replica's data; return whether it is news for the masters."""
        is_news = self.replicas.damaged(key, why)
        if is_news:
            log.error("{region}-{replica} is damaged, reporting it to the masters, which close it: {why}",
                      region=key[0], replica=key[1], why=why)  # fmt: skip
        return is_news

    def phases_now(self) -> dict[Phase, int]:
        """Return the number of replicas in each phase."""
        return self.replicas.phases()

    def phases(self) -> dict[Phase, int]:
        """As `phases_now`; also moves the gauges."""
        phases = self.replicas.phases()
        for phase, count in phases.items():
            self._metrics.replicas.labels(phase.value).set(count)
        self._metrics.failed.set(self.replicas.failed())
        return phases

    def _answer(
        self, keys: list[tuple[str, int]], causes: list[str], taken: list[OrderResult | int], answer_within_ms: int
    ) -> Deferred[OrderResults]:
        batch = _Batch(keys, causes, [None if isinstance(one, int) else one for one in taken])
        for at, ticket in enumerate(taken):
            if isinstance(ticket, int):
                self._batches.setdefault(ticket, []).append((batch, at))
        if batch.missing == 0 or answer_within_ms <= 0:
            batch.finish()
        else:
            within_s = min(answer_within_ms, ANSWER_WITHIN_MS_MAX) / 1000
            batch.timer = self._reactor.callLater(within_s, batch.finish)
        self._drain()
        return batch.answer

    # --- effects ---

    def _drain(self) -> None:
        """Carry out what the replicas want, until they want nothing more."""
        self._drains += 1
        while effects := self.replicas.take_effects():
            for effect in effects:
                self._carry_out(effect)
        self._prepare_waiting()
        if self._emptied is not None and len(self.replicas) == 0:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, WriteStep):
            if self._steps is not None:
                self._steps.write(effect)
        elif isinstance(effect, Decided):
            self._metrics.outcomes.labels(effect.result.outcome.value).inc()
            for batch, at in self._batches.pop(effect.ticket, []):
                batch.decided(at, effect.result)
        elif isinstance(effect, OpenRegion):
            self._unprepared.append(effect)
        elif isinstance(effect, SchemaChanged):
            self._opener.schema_changed(effect.region, effect.key[1], effect.schema_version)
        elif isinstance(effect, CloseRegion):
            self._close(effect)
        elif isinstance(effect, ReadBack):
            self._read_back(effect)
        elif isinstance(effect, ReadOwner):
            self._read_owner(effect)
        elif isinstance(effect, AskAlive):
            self._ask_alive(effect)
        else:
            assert isinstance(effect, Stop), f"nobody carries out {effect}"
            self._stop(effect.reason)

    # --- the opener's work ---

    def _prepare_waiting(self) -> None:
        """Hand what has gathered to the opener, one batch at a time."""
        if self._is_preparing or not self._unprepared:
            return
        jobs, self._unprepared = self._unprepared[:PREPARE_MAX], self._unprepared[PREPARE_MAX:]
        openings = [self._opening(job) for job in jobs]
        self._is_preparing = True

        def prepared(result: object) -> None:
            assert self._is_preparing, "an answer to a batch that was not prepared"
            self._is_preparing = False
            if isinstance(result, Exception) and len(jobs) > 1:
                log.warn("{count} regions could not be prepared together: {error}", count=len(jobs), error=result)
            for job, opening in zip(jobs, openings, strict=True):
                if not isinstance(result, Exception):
                    self._open(job, opening, is_prepared=True)
                elif len(jobs) > 1:
                    self._open(job, opening, is_prepared=False)
                else:
                    self._open_failed(job, result)

        self._workers.submit(lambda: self._opener.prepare(openings), prepared)

    def _opening(self, job: OpenRegion) -> Opening:
        def progress() -> None:
            self._reactor.callFromThread(self._progressed, job)

        return Opening(
            job.region, job.key[1], self.replicas.me, job.epoch, job.evict, progress, job.token, job.schema_version
        )

    def _open(self, job: OpenRegion, opening: Opening, *, is_prepared: bool) -> None:
        assert opening.region.region_id == job.key[0], f"{opening.region.region_id} is opened for {job.key[0]}"

        def open_it() -> float:
            began_s = time.perf_counter()
            if not is_prepared:
                self._opener.prepare([opening])
            self._opener.open(opening)
            return time.perf_counter() - began_s

        def opened(result: float | Exception) -> None:
            now_ms = self._clock.wall_ms()
            if isinstance(result, OwnerHeld):
                self.replicas.owner_held(job.key, job.number, result.holder, now_ms)
            elif isinstance(result, Exception):
                self._open_failed(job, result)
            else:
                self._metrics.open_s.observe(result)
                if job.evict is not None:
                    self._metrics.evictions.inc()
                    log.warn(
                        "took over {region} from {holder}, whose session has expired",
                        region=job.key[0],
                        holder=str(job.evict),
                    )
                self.replicas.opened(job.key, job.number, now_ms)

        self._workers.submit(open_it, opened)

    def _open_failed(self, job: OpenRegion, error: Exception) -> None:
        log.warn("{region}-{replica} could not be opened: {error} (cause {cause})",
                 region=job.key[0], replica=job.key[1], error=error, cause=job.cause_id or "-")  # fmt: skip
        self.replicas.open_failed(job.key, job.number, _one_line(error), self._clock.wall_ms())

    def _progressed(self, job: OpenRegion) -> None:
        self.replicas.progressed(job.key, job.number, self._clock.wall_ms())
        self._drain()

    def _close(self, job: CloseRegion) -> None:
        assert job.region.region_id == job.key[0], f"{job.region.region_id} is closed for {job.key[0]}"

        def close_it() -> float:
            began_s = time.perf_counter()
            self._opener.close(job.region, job.key[1])
            return time.perf_counter() - began_s

        def closed(result: float | Exception) -> None:
            now_ms = self._clock.wall_ms()
            if isinstance(result, Exception):
                log.error("{region}-{replica} could not be closed: {error} (cause {cause})",
                          region=job.key[0], replica=job.key[1], error=result,
                          cause=job.cause_id or "-")  # fmt: skip
                self.replicas.close_failed(job.key, job.number, _one_line(result), now_ms)
            else:
                self._metrics.close_s.observe(result)
                self.replicas.closed(job.key, job.number, now_ms)

        self._workers.submit(close_it, closed)

    # --- the store's answers (regionserver.replica.step_writer.Outcomes) ---

    def step_done(self, step: WriteStep, version: int, region_version: int, zxid: int) -> None:
        """A step was taken."""
        self._metrics.steps.labels("taken").inc()
        self.replicas.step_done(step.key, step.number, version, region_version, self._clock.wall_ms(), zxid)

    def step_failed(self, step: WriteStep, error: str, is_refused: bool) -> None:
        """A step was refused, or is in doubt."""
        self._metrics.steps.labels("refused" if is_refused else "unknown").inc()
        self.replicas.step_failed(step.key, step.number, error, is_refused)

    def steps_settled(self) -> None:
        """A run of answers is complete."""
        self._drain()

    # --- reads ---

    def _read_back(self, effect: ReadBack) -> None:
        def take(seen: Read[TransitionRecord], place: Read[RegionRecord]) -> None:
            (found, version, zxid), (record, region_version, _) = seen, place
            now_ms = self._clock.wall_ms()
            self.replicas.read_back(effect.key, effect.number, found, version, record, region_version, now_ms, zxid)

        self._read_both(effect, take, self._read_back)

    def _read_owner(self, effect: ReadOwner) -> None:
        def take(seen: Read[TransitionRecord], place: Read[RegionRecord]) -> None:
            self.replicas.reviewed(effect.key, effect.number, seen[0], place[0], self._clock.wall_ms())

        self._read_both(effect, take, self._read_owner)

    def _read_both(
        self,
        effect: Looking,
        take: Callable[[Read[TransitionRecord], Read[RegionRecord]], None],
        again: Callable[[Looking], None],
    ) -> None:
        """Read a replica's transition and its region's record as they are now."""
        store = self._store
        if store is None:
            return
        transition = self._paths.transition(*effect.key)
        region = self._paths.region(effect.table_id, effect.key[0])
        # Our write may have been accepted by a server that this one has not caught up with: sync first.
        store.sync(transition).addErrback(lambda _failure: None)
        reading = store.multi_read([GetData(transition), GetData(region)])

        def read(results: list[ReadResult]) -> None:
            assert len(results) == 2, f"two znodes were asked for, {len(results)} came"
            if self._store is store:
                seen = _record(results[0], znodes.decode_transition, transition)
                take(seen, _record(results[1], znodes.decode_region, region))
                self._drain()

        reading.addCallback(read).addErrback(self._not_read, store, again, effect)
        reading.addErrback(self._fatal)

    def _ask_alive(self, effect: AskAlive) -> None:
        store = self._store
        if store is None:
            return
        assert effect.holder != self.replicas.me, f"this server asks whether it is alive: {effect.key}"
        path = self._paths.server(effect.holder.uuid)
        store.sync(path).addErrback(lambda _failure: None)
        reading = store.multi_read([GetData(path)])

        def read(results: list[ReadResult]) -> None:
            if self._store is store:
                record, _, _ = _record(results[0], znodes.decode_server, path)
                is_alive = record is not None and record.incarnation == effect.holder
                now_ms = self._clock.wall_ms()
                self.replicas.holder_seen(effect.key, effect.number, effect.holder, is_alive, now_ms)
                self._drain()

        reading.addCallback(read).addErrback(self._not_read, store, self._ask_alive, effect)
        reading.addErrback(self._fatal)

    def _not_read(
        self, failure: Failure, store: Store, ask: Callable[[Any], None], effect: ReadBack | ReadOwner | AskAlive
    ) -> Failure | None:
        """Without a connection: once more a little later, as long as this session lives.

        A znode whose value is not what it should be leaves its replica waiting for an operator; the others go on.
        """
        error = failure.value
        if isinstance(error, OperationError):
            if self._store is store:
                self._reactor.callLater(READ_AGAIN_S, ask, effect)
            return None
        if isinstance(error, CorruptZnode):
            log.error("{region}: {error}", region=effect.key[0], error=error)
            return None
        return failure

    def _fatal(self, failure: Failure) -> None:
        """A broken rule of our own: never go on after it."""
        log.failure("internal error of the region server", failure=failure)
        self._stop(f"a fault of this program: {_one_line(failure.value or RuntimeError())}")


def _record(result: object, decode: Callable[[bytes, str], T], path: str) -> Read[T]:
    """Record, version and last zxid of one part of a multi-read; (None, -1, 0) if there is no such znode."""
    if isinstance(result, NoNode):
        return None, -1, 0
    if isinstance(result, OperationError):
        raise result
    assert isinstance(result, tuple), f"a read is answered by a pair, not by {result!r}"
    data, stat = result
    return decode(data, path), stat.version, stat.mzxid


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
