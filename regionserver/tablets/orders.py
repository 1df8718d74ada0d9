"""Orders of masters for tablets' replicas: the files, and the steps of their transitions.

`order_plans.py` returns the stages of an order. This class carries the stages out, one order per tablet at a time, and
answers as for shared regions: DONE, STARTED, FAILED, REFUSED. A repeated order joins the running one. Any other order
for the same tablet is answered STARTED, and the master sends it again.

Replicas outlive sessions. When the session ends, a running order writes no further step, because its transition names
the former start of this server; work on files that has begun is completed. The next order for the tablet waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.env import Clock
from regions.messages import CloseOrder, HostedReplica, OpenOrder, OrderOutcome, OrderResult, OrderResults
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.records.znodes import Layout
from regions.replication.guards import ReplicaOnDisk
from regions.transitions import trail
from regions.transitions.states import Cause
from regionserver.metrics import Metrics
from regionserver.replica import step_records
from regionserver.replica.effects import Key
from regionserver.replica.finished_orders import FinishedOrder, FinishedOrders
from regionserver.replica.local_replica import OrderId
from regionserver.replica.order_batch import OrderBatch, causes_of
from regionserver.replica.step_writer import Store, TimerReactor
from regionserver.tablets.order_plans import OrderPlan, Stage, is_same_order, plan_close, plan_open
from regionserver.tablets.store_steps import SessionOverError, StepInStore, StepLostError, StepWanted, StoreSteps

log = Logger()

#: Pauses between attempts to close a replica: CLOSING is in the store, so the server retries until it has closed.
CLOSE_AGAIN_S: Final = 1.0
CLOSE_AGAIN_S_MAX: Final = 30.0

Order = OpenOrder | CloseOrder


class ReplicaFiles(Protocol):
    """The host of tablets, as orders use it. A Deferred fires with "" for success, else with the reason of the
    failure."""

    def local(self, tablet: str) -> ReplicaOnDisk | None:
        """Return the replica on this server, None without a superblock."""
        ...

    def make(self, orders: Sequence[OpenOrder]) -> Deferred[list[str]]:
        """Make first replicas together; return a reason ("" for success) per order. They do not take part in their
        groups yet."""
        ...

    def inherit(self, order: OpenOrder) -> Deferred[str]:
        """Make a first replica of a daughter from the parent's replica here, once that is sealed."""
        ...

    def begin(self, tablet: str) -> Deferred[str]:
        """Start the replica's participation in its group, unless it takes part already."""
        ...

    def close(self, tablet: str, stage: Stage) -> Deferred[str]:
        """Carry out the stage REST, REMOVE or DELETE."""
        ...


class _HostError(Exception):
    """The host failed; the message is its reason."""


class _Work:
    """The running order of one tablet."""

    def __init__(self, order: Order, epoch: int, stages: tuple[Stage, ...], steps: StoreSteps) -> None:
        self.order = order
        #: The session in which the order arrived.
        self.steps = steps
        self.epoch = epoch
        self.stages = stages
        #: Commands that wait for the result: the batch, and the order's position in it.
        self.waiting: list[tuple[OrderBatch, int]] = []
        self.version = -1

    @property
    def key(self) -> Key:
        """Region id and number."""
        return key_of(self.order)


class TabletOrders:
    """The orders of one server. `begin` and `end` delimit each session."""

    def __init__(
        self,
        reactor: TimerReactor,
        clock: Clock,
        files: Callable[[], ReplicaFiles | None],
        paths: Layout,
        metrics: Metrics,
        fatal: Callable[[Failure], object],
    ) -> None:
        """`files` returns the host of tablets, None before it has started."""
        self._reactor = reactor
        self._clock = clock
        self._files = files
        self._paths = paths
        self._metrics = metrics
        self._fatal = fatal
        self._steps: StoreSteps | None = None
        #: By region id: a server has one replica of a tablet.
        self._work: dict[str, _Work] = {}
        self._finished = FinishedOrders()
        #: First replicas that are made together at the end of this turn.
        self._unmade: list[tuple[OpenOrder, Deferred[str]]] = []

    # --- sessions ---

    def begin(self, me: Incarnation, store: Store) -> None:
        """Begin a session in which `me` is registered."""
        assert self._steps is None, "a session begins before the former one has ended"
        self._finished.clear()
        counted = self._metrics.steps
        self._steps = StoreSteps(
            self._reactor, store, self._paths, me, lambda result: counted.labels(result).inc(), self._fatal
        )

    def end(self) -> None:
        """End the session. Replicas stay as they are."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.stop()

    @property
    def steps(self) -> StoreSteps | None:
        """Return the step writer of the session, None without a session."""
        return self._steps

    # --- orders ---

    def open_regions(self, orders: Sequence[OpenOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept OPEN orders. Fires with a result for each, in their order."""
        self._metrics.orders.labels("open").inc(len(orders))
        causes = causes_of("open", (order.transition.origin for order in orders))
        return self._accept(orders, causes, epoch, answer_within_ms)

    def close_regions(self, orders: Sequence[CloseOrder], epoch: int, answer_within_ms: int) -> Deferred[OrderResults]:
        """Accept CLOSE orders; fires as `open_regions` does."""
        self._metrics.orders.labels("close").inc(len(orders))
        causes = causes_of("close", (order.origin for order in orders))
        return self._accept(orders, causes, epoch, answer_within_ms)

    def _accept(
        self, orders: Sequence[Order], causes: list[str], epoch: int, answer_within_ms: int
    ) -> Deferred[OrderResults]:
        taken = [self._take(order, epoch) for order in orders]
        results = [one if isinstance(one, OrderResult) else None for one in taken]
        batch = OrderBatch([key_of(order) for order in orders], causes, results)
        for at, work in enumerate(taken):
            if isinstance(work, _Work):
                work.waiting.append((batch, at))
        batch.begin(self._reactor, answer_within_ms)
        return batch.answer

    def _take(self, order: Order, epoch: int) -> OrderResult | _Work:
        """Return the order's result if it is known at once, else the work that will have the result."""
        key = key_of(order)
        files, steps = self._files(), self._steps
        if files is None or steps is None:
            return OrderResult(*key, OrderOutcome.STARTED)  # the host is about to start
        work = self._work.get(key[0])
        if work is not None:
            joins = work.steps is steps and is_same_order(work.order, order)
            return work if joins else OrderResult(*key, OrderOutcome.STARTED)
        if isinstance(order, OpenOrder):
            repeated = order.transition.state is RegionState.OPENING
            past = self._finished.opens(key, None if repeated else OrderId.of(order))
            if past is not None:
                return past
            parents = [files.local(one.region_id) for one in order.region.parents]
            plan = plan_open(order, steps.me, files.local(key[0]), parents)
        else:
            plan = plan_close(order, files.local(key[0]))
        if not plan.stages:
            return self._answered(order, plan)
        self._finished.forget(key)
        work = self._work[key[0]] = _Work(order, epoch, plan.stages, steps)
        ensureDeferred(self._carry_out(work, files)).addErrback(self._fatal)
        return work

    def _answered(self, order: Order, plan: OrderPlan) -> OrderResult:
        key = key_of(order)
        if plan.outcome in (OrderOutcome.REFUSED, OrderOutcome.FAILED):
            log.warn("order for {tablet}-{number} not carried out: {why}", tablet=key[0], number=key[1], why=plan.why)
        result = OrderResult(*key, plan.outcome, -1, plan.why)
        if plan.outcome is not OrderOutcome.STARTED:
            self._metrics.outcomes.labels(plan.outcome.value).inc()
        return result

    # --- one order ---

    async def _carry_out(self, work: _Work, files: ReplicaFiles) -> None:
        outcome, why = OrderOutcome.DONE, ""
        try:
            if isinstance(work.order, OpenOrder):
                await self._open(work, work.order, files)
            else:
                await self._close(work, work.order, files)
        except SessionOverError:
            del self._work[work.key[0]]
            return
        except StepLostError as error:
            outcome, why = OrderOutcome.REFUSED, str(error)
        except _HostError as error:
            outcome, why = OrderOutcome.FAILED, str(error)
        if why:
            log.warn("{tablet}-{number}: {why}", tablet=work.key[0], number=work.key[1], why=why)
        del self._work[work.key[0]]
        self._end(work, OrderResult(*work.key, outcome, work.version, why))

    def _end(self, work: _Work, result: OrderResult) -> None:
        self._metrics.outcomes.labels(result.outcome.value).inc()
        order = work.order
        if isinstance(order, OpenOrder) and result.outcome is not OrderOutcome.REFUSED:
            failed = None
            if result.outcome is OrderOutcome.FAILED:
                now_ms, table = self._clock.wall_ms(), order.region.table_id
                failed = HostedReplica(*_named(work.key, table), "FAILED", now_ms, result.error, 0.0, -1)
            self._finished.keep(work.key, FinishedOrder(OrderId.of(order), result, failed))
        for batch, at in work.waiting:
            batch.finished(at, result)

    async def _open(self, work: _Work, order: OpenOrder, files: ReplicaFiles) -> None:
        taken = StepInStore(order.transition, order.version)
        for stage in work.stages:
            if stage is Stage.CLAIM:
                taken = await self._claim(work, order)
            elif stage is Stage.MAKE:
                _check(await (files.inherit(order) if order.region.parents else self._make(order)))
            elif stage is Stage.BEGIN:
                _check(await files.begin(work.key[0]))
            else:
                assert stage is Stage.ANNOUNCE, f"{stage} in an OPEN"
                now_ms = self._clock.wall_ms()
                taken = await self._step(work, Cause.OPEN_DONE, taken, _ended(taken, RegionState.OPENED, now_ms))
            work.version = taken.version

    async def _claim(self, work: _Work, order: OpenOrder) -> StepInStore:
        """Write OPENING. The region's record may change meanwhile, because another member's leader has reported."""

        me = work.steps.me

        def may_repeat(found: TransitionRecord | None, region: RegionRecord | None) -> bool:
            member = None if region is None or region.is_replaced else region.member(order.transition.replica)
            return found == order.transition and member is not None and member.uuid == me.uuid

        record = step_records.claim(order, me, work.epoch, self._clock.wall_ms())
        wanted = StepWanted(
            Cause.OPEN_ORDER, RegionState.OFFLINE, record, order.version, order.region_version, work.epoch, may_repeat
        )
        return await work.steps.write(wanted)

    async def _close(self, work: _Work, order: CloseOrder, files: ReplicaFiles) -> None:
        taken = None
        for stage in work.stages:
            now_ms = self._clock.wall_ms()
            if stage is Stage.MARK:
                record = step_records.closing(order, work.steps.me, work.epoch, "", now_ms)
                taken = await work.steps.write(StepWanted(Cause.CLOSE_ORDER, None, record, epoch=work.epoch))
            elif stage is Stage.RELEASE:
                assert taken is not None, "CLOSED follows CLOSING"
                closed = _ended(taken, RegionState.CLOSED, now_ms)
                taken = await self._step(work, Cause.CLOSE_DONE, taken, closed)
            else:
                await self._close_files(work, stage, files)
            work.version = -1 if taken is None else taken.version

    async def _close_files(self, work: _Work, stage: Stage, files: ReplicaFiles) -> None:
        """Close the replica's files. Retry after an error: CLOSING in the store says that this server is closing it."""
        pause_s = CLOSE_AGAIN_S
        while why := await files.close(work.key[0], stage):
            log.error("{tablet} does not close, trying again: {why}", tablet=work.key[0], why=why)
            await deferLater(self._reactor, pause_s)  # type: ignore[arg-type]
            work.steps.check()
            pause_s = min(2 * pause_s, CLOSE_AGAIN_S_MAX)

    async def _step(self, work: _Work, cause: Cause, taken: StepInStore, record: TransitionRecord) -> StepInStore:
        assert record.key == taken.record.key, f"{work.key} writes a step of {record.key}"
        return await work.steps.write(StepWanted(cause, taken.record.state, record, taken.version))

    def _make(self, order: OpenOrder) -> Deferred[str]:
        """Make the replica together with the others of this turn."""
        made: Deferred[str] = Deferred()
        if not self._unmade:
            self._reactor.callLater(0, self._make_all)
        self._unmade.append((order, made))
        return made

    def _make_all(self) -> None:
        files = self._files()
        assert files is not None, "orders are accepted once the host has started"
        jobs, self._unmade = self._unmade, []

        def made(reasons: list[str]) -> None:
            for (_, answer), why in zip(jobs, reasons, strict=True):
                answer.callback(why)

        def failed(failure: Failure) -> None:
            for _, answer in jobs:
                answer.callback(failure.getErrorMessage() or "internal error")

        files.make([order for order, _ in jobs]).addCallbacks(made, failed).addErrback(self._fatal)

    # --- figures ---

    @property
    def under_way(self) -> int:
        """Return the number of orders that are being carried out."""
        return len(self._work)

    def failures(self) -> list[HostedReplica]:
        """Return the failed opens that are remembered, oldest first."""
        return self._finished.failures()


def key_of(order: Order) -> Key:
    """Return region id and number."""
    if isinstance(order, OpenOrder):
        return order.transition.region_id, order.transition.replica
    return order.region_id, order.replica


def _named(key: Key, table_id: str) -> tuple[str, str, int]:
    return key[0], table_id, key[1]


def _check(why: str) -> None:
    if why:
        raise _HostError(why)


def _ended(taken: StepInStore, state: RegionState, now_ms: int) -> TransitionRecord:
    record = taken.record
    return replace(record, state=state, since_ms=now_ms, deadline_ms=0, took=trail.add(record.took, now_ms))
