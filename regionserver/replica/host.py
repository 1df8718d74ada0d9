"""The replicas on this server: carries out the effects of the state machine.

`regionserver.replica.machine` decides. This class carries its effects out and returns the results. Everything runs on
the reactor's thread except the opener's own methods.

Batches: the results of one turn are processed together, so the steps that they cause are sent together. This makes
thousands of opens cheap. Regions wait while others are being prepared, so an opener with an expensive operation per
batch runs it rarely when there are many regions.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.defer import Deferred
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
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation, TransitionRecord
from regions.records.znodes import CorruptZnode, Layout
from regionserver.errors import RegionError
from regionserver.metrics import Metrics
from regionserver.opener import Opening, OwnerHeld, RegionOpener
from regionserver.replica.effects import (
    CloseRegion,
    Effect,
    OpenRegion,
    OrderFinished,
    ReadBack,
    ReadHolder,
    ReadOwner,
    SchemaChanged,
    Stop,
    WriteStep,
)
from regionserver.replica.machine import Replicas
from regionserver.replica.order_batch import OrderBatch, causes_of
from regionserver.replica.states import Phase
from regionserver.replica.step_writer import StepWriter, Store
from regionserver.replica.step_writer import TimerReactor as TimerReactor
from regionserver.workers import Pool, Workers
from regionserver.workers import ThreadReactor as ThreadReactor

log = Logger(__name__)
T = TypeVar("T")
#: Record, version and last zxid of a znode.
Read = tuple[T | None, int, int]

#: Regions that are prepared in one batch.
PREPARE_MAX: Final = 512
#: Pause before a read is repeated after the connection broke.
READ_AGAIN_S: Final = 0.1
FAILURES_SHOWN_MS: Final = 10 * 60 * 1000


class HostReactor(TimerReactor, ThreadReactor, Protocol):
    """The part of a reactor that Host uses: timers, and calls from threads."""


class Host:
    """The shell around `Replicas`. One per process; `begin` and `end` delimit each incarnation."""

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
        """`stop` is called when only the end of this process keeps the rules; `workers` makes the pool."""
        self._reactor = reactor
        self._clock = clock
        self._opener = opener
        self._paths = paths
        self._metrics = metrics
        # A count in a metric takes a lock, so steps and ends of orders are counted here and added many at a time.
        self._steps_taken = 0
        self._ended: Counter[OrderOutcome] = Counter()
        self._stop = stop
        self._workers = workers(reactor, threads, self._drain, self._fatal)
        self._store: Store | None = None
        self._steps: StepWriter | None = None
        self._batches: dict[int, list[tuple[OrderBatch, int]]] = {}
        self._unprepared: list[OpenRegion] = []
        self._is_preparing = False
        self._emptied: Deferred[None] | None = None
        #: Calls of `_drain`, one or more for each event, and their number at the last `validate`.
        self._drains = 0
        self._drains_validated = 0
        self.replicas = Replicas(Incarnation("", 0))
        self.is_serving = False

    # --- sessions ---

    def begin(self, me: Incarnation, store: Store) -> None:
        """Begin a session in which `me` is registered."""
        assert self._store is None, "a session begins before the former one has ended"
        self.replicas.rejoined(me)
        self._store = store
        self._steps = StepWriter(self._reactor, store, self._paths, self, self._fatal)

    def end(self) -> Deferred[None]:
        """End the session and close everything. Fires when no replica is open."""
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
        """Set whether the lease holds."""
        assert self._store is not None or not is_serving, "regions cannot be served without a session"
        if is_serving != self.is_serving:
            self.is_serving = is_serving
            self._opener.serving_changed(is_serving)

    def in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` in a worker thread; call `done` with its result or exception on the reactor's thread."""
        self._workers.submit(work, done)

    def tables(self) -> set[str]:
        """Return the ids of the tables with a replica on this server, in any phase."""
        return {one.table_id for one in self.hosted(0)}

    def stop_workers(self, timeout_s: float) -> bool:
        """Stop the threads; return False if the opener does not return in time."""
        return self._workers.stop(timeout_s)

    def validate(self) -> None:
        """Check every invariant of the replicas if there was an event since the last call. For simulations.

        Raises:
            AssertionError: an invariant does not hold.
        """
        if self._drains != self._drains_validated:
            self._drains_validated = self._drains
            self.replicas.validate()

    # --- orders and questions -----------------------------------------------------------------------------------------

    def open_regions(self, orders: list[OpenOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept OPEN orders. Fires with a result for each, in their order."""
        now_ms = self._clock.wall_ms()
        self._metrics.orders.labels("open").inc(len(orders))
        keys = [(order.transition.region_id, order.transition.replica) for order in orders]
        taken = [self._of_another_kind(order) or self.replicas.order_open(order, epoch, now_ms) for order in orders]
        causes = causes_of("open", (order.transition.origin for order in orders))
        return self._answer(keys, causes, taken, answer_within_ms)

    def _of_another_kind(self, order: OpenOrder) -> OrderResult | None:
        """Return a failure if the region's table has another kind of service than this server, else None.

        A master of this build sends no such order, unless the transition was begun by an earlier build.
        """
        kind = self._opener.kind
        if not order.kind or can_open(kind, order.kind):
            return None
        record, why = order.transition, f"the server has kind {kind or KV}, the table has kind {order.kind}"
        return OrderResult(record.region_id, record.replica, OrderOutcome.FAILED, error=why)

    def close_regions(self, orders: list[CloseOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept CLOSE orders; fires as `open_regions` does."""
        now_ms = self._clock.wall_ms()
        self._metrics.orders.labels("close").inc(len(orders))
        keys = [(order.region_id, order.replica) for order in orders]
        taken = [self.replicas.order_close(order, epoch, now_ms) for order in orders]
        causes = causes_of("close", (order.origin for order in orders))
        return self._answer(keys, causes, taken, answer_within_ms)

    def alter_regions(self, orders: list[AlterOrder]) -> AlterResults:
        """Pass schema versions to replicas; return the version that each replica has, in the orders' order."""
        self._metrics.orders.labels("alter").inc(len(orders))
        results = AlterResults([self.replicas.alter(order) for order in orders])
        self._drain()
        return results

    def review(self, keys: list[tuple[str, int]]) -> OrderResults:
        """Read from the store who owns these replicas; drop replicas of other owners. DONE: the replica is not here."""
        results = [self.replicas.order_review(key) for key in keys]
        self._drain()
        return OrderResults(results)

    def hosted(self, limit: int = 0) -> list[HostedReplica]:
        """Return the replicas on this server and the failed opens that are remembered."""
        self.replicas.forget_failures(self._clock.wall_ms() - FAILURES_SHOWN_MS)
        return self.replicas.hosted(limit)

    def served(self, key: tuple[str, int]) -> tuple[RegionRecord, ReplicaLocation] | None:
        """Return the record and location of an open replica, or None."""
        return self.replicas.served(key)

    def damaged(self, key: tuple[str, int], why: str) -> bool:
        """Record damage that the opener found; return True if the masters must be informed."""
        is_first = self.replicas.damaged(key, why)
        if is_first:
            log.error("{region}-{replica} is damaged, reporting it to the masters, which close it: {why}",
                      region=key[0], replica=key[1], why=why)  # fmt: skip
        return is_first

    def phases(self) -> dict[Phase, int]:
        """Return the number of replicas in each phase, and update the gauges."""
        phases = self.replicas.phases()
        for phase, count in phases.items():
            self._metrics.replicas.labels(phase.value).set(count)
        self._metrics.failed.set(self.replicas.failed())
        return phases

    def _answer(
        self, keys: list[tuple[str, int]], causes: list[str], taken: list[OrderResult | int], answer_within_ms: int
    ) -> Deferred[OrderResults]:
        batch = OrderBatch(keys, causes, [None if isinstance(one, int) else one for one in taken])
        for at, ticket in enumerate(taken):
            if isinstance(ticket, int):
                self._batches.setdefault(ticket, []).append((batch, at))
        batch.begin(self._reactor, answer_within_ms)
        self._drain()
        return batch.answer

    # --- effects ---

    def _drain(self) -> None:
        """Carry out effects until there are none."""
        self._drains += 1
        while self.replicas.effects:
            for effect in self.replicas.take_effects():
                self._carry_out(effect)
        self._prepare_waiting()
        self._add_counts()
        if self._emptied is not None and len(self.replicas) == 0:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, WriteStep):
            if self._steps is not None:
                self._steps.write(effect)
        elif isinstance(effect, OrderFinished):
            self._ended[effect.result.outcome] += 1
            for batch, at in self._batches.pop(effect.ticket, []):
                batch.finished(at, effect.result)
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
        elif isinstance(effect, ReadHolder):
            self._read_holder(effect)
        else:
            assert isinstance(effect, Stop), f"unexpected effect {effect}"
            self._stop(effect.reason)

    # --- the opener's work ---

    def _prepare_waiting(self) -> None:
        """Pass waiting regions to the opener, one batch at a time."""
        if self._is_preparing or not self._unprepared:
            return
        jobs, self._unprepared = self._unprepared[:PREPARE_MAX], self._unprepared[PREPARE_MAX:]
        openings = [self._opening(job) for job in jobs]
        self._is_preparing = True

        def prepared(result: object) -> None:
            assert self._is_preparing, "the result of a batch that was not prepared"
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
                self._metrics.open_s.add(result)
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
        if not isinstance(error, RegionError):
            # The opener gave no reason of its own, so its author needs the traceback.
            log.error("{trace}", trace="".join(traceback.format_exception(error)).rstrip())
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
                self._metrics.close_s.add(result)
                self.replicas.closed(job.key, job.number, now_ms)

        self._workers.submit(close_it, closed)

    def _add_counts(self) -> None:
        """Add the counts since the last call to the metrics."""
        if self._steps_taken:
            self._metrics.steps.labels("taken").inc(self._steps_taken)
            self._steps_taken = 0
        for outcome, count in self._ended.items():
            self._metrics.outcomes.labels(outcome.value).inc(count)
        self._ended.clear()

    # --- results from the store (regionserver.replica.step_writer.Outcomes) -------------------------------------------

    def step_done(self, step: WriteStep, version: int, region_version: int, zxid: int) -> None:
        """Process a committed step."""
        self._steps_taken += 1
        self.replicas.step_done(step.key, step.number, version, region_version, self._clock.wall_ms(), zxid)

    def step_failed(self, step: WriteStep, error: str, is_refused: bool) -> None:
        """Process a step that was rejected, or whose outcome is unknown."""
        self._metrics.steps.labels("refused" if is_refused else "unknown").inc()
        self.replicas.step_failed(step.key, step.number, error, is_refused)

    def steps_answered(self) -> None:
        """Process the effects after a series of step results."""
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
        effect: ReadBack | ReadOwner,
        take: Callable[[Read[TransitionRecord], Read[RegionRecord]], None],
        again: Callable[[Any], None],
    ) -> None:
        """Read a replica's transition and its region's record."""
        store = self._store
        if store is None:
            return
        transition = self._paths.transition(*effect.key)
        region = self._paths.region(effect.table_id, effect.key[0])
        # This server's write may be newer than the state of its store node: sync first.
        store.sync(transition).addErrback(lambda _failure: None)
        reading = store.multi_read([GetData(transition), GetData(region)])

        def read(results: list[ReadResult]) -> None:
            assert len(results) == 2, f"expected two znodes, received {len(results)}"
            if self._store is store:
                seen = _record(results[0], znodes.decode_transition, transition)
                take(seen, _record(results[1], znodes.decode_region, region))
                self._drain()

        reading.addCallback(read).addErrback(self._not_read, store, again, effect)
        reading.addErrback(self._fatal)

    def _read_holder(self, effect: ReadHolder) -> None:
        store = self._store
        if store is None:
            return
        assert effect.holder != self.replicas.me, f"{effect.key}: this server cannot be its own former owner"
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

        reading.addCallback(read).addErrback(self._not_read, store, self._read_holder, effect)
        reading.addErrback(self._fatal)

    def _not_read(
        self, failure: Failure, store: Store, ask: Callable[[Any], None], effect: ReadBack | ReadOwner | ReadHolder
    ) -> Failure | None:
        """Repeat a read after a lost connection, while the session exists.

        A corrupt znode leaves its replica waiting for the operator; other replicas continue.
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
        """Stop the process after an internal error."""
        log.failure("internal error of the region server", failure=failure)
        self._stop(f"internal error: {_one_line(failure.value or RuntimeError())}")


def _record(result: object, decode: Callable[[bytes, str], T], path: str) -> Read[T]:
    """Return record, version and last zxid of one part of a multi-read; (None, -1, 0) if the znode does not exist."""
    if isinstance(result, NoNode):
        return None, -1, 0
    if isinstance(result, OperationError):
        raise result
    assert isinstance(result, tuple), f"expected a pair as the result of a read, got {result!r}"
    data, stat = result
    return decode(data, path), stat.version, stat.mzxid


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:500]
