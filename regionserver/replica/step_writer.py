"""Writes steps of transitions to the store: many steps in one multi, each with compare-and-set.

The multi also checks the conditions of each step: the region's record must not have changed, and the master that sent
an order must not have been replaced before the order's first step (FW-11, checked by the store itself).

Steps of one turn of the reactor share a multi, and so do steps that arrive while `IN_FLIGHT_MAX` multis are in flight.
So multis grow with the load of the store. A multi succeeds or fails as a whole. After a rejection each of its steps is
sent in a multi of its own, all at once, so a failing region never blocks the others.

A step is rejected by the store, or its outcome is unknown because the connection broke. Both are reported and never
retried here; the caller decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord import kill_points
from coord.client.ops import Check, Create, ReadOp, ReadResult, SetData, WriteOp, WriteResult
from coord.errors import OperationError, RetryableError, SessionExpired
from coord.wire.records import Stat
from regions.records import znodes
from regions.records.znodes import Layout
from regionserver.replica.effects import WriteStep

log = Logger(__name__)

#: Regions per multi. A rejected multi costs as many single multis, and the store serves no other client while it
#: applies a multi.
STEPS_MAX: Final = 200
#: Bytes of values per multi; the store's limit of a frame is 1 MB.
BYTES_MAX: Final = 400_000
#: Multis in flight; further steps wait and are batched.
IN_FLIGHT_MAX: Final = 4


class Store(Protocol):
    """The methods of `coord.client.session.ZkClient` that are used here."""

    def multi(self, operations: list[WriteOp]) -> Deferred[list[WriteResult]]:
        """Carry out all operations or none."""
        ...

    def multi_read(self, operations: list[ReadOp]) -> Deferred[list[ReadResult]]:
        """Read several znodes; the errors of some are results as well."""
        ...

    def get(self, path: str) -> Deferred[tuple[bytes, Stat]]:
        """Read one znode."""
        ...

    def sync(self, path: str = "/") -> Deferred[None]:
        """Wait until the node that answers has all writes committed before the call."""
        ...


class TimerReactor(Protocol):
    """The part of a reactor that StepWriter uses."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> IDelayedCall:
        """Call `f` after `delay` seconds."""
        ...


class Outcomes(Protocol):
    """Receiver of the results of steps."""

    def step_done(self, step: WriteStep, version: int, region_version: int, zxid: int) -> None:
        """Process a committed step: the versions of the two znodes after it (-1: not written), and its zxid.

        The zxid is 0 for a creation, whose reply does not contain it.
        """

    def step_failed(self, step: WriteStep, error: str, is_refused: bool) -> None:
        """Process a step that the store rejected, or (not `is_refused`) whose outcome is unknown."""

    def steps_answered(self) -> None:
        """Process the effects after a series of calls of the other two methods."""


class StepWriter:
    """Writes the steps of one session. After `stop` nothing is sent or reported."""

    def __init__(
        self,
        reactor: TimerReactor,
        store: Store,
        paths: Layout,
        outcomes: Outcomes,
        fatal: Callable[[Failure], object],
    ) -> None:
        """`fatal` is called with internal errors, which come neither from the store nor from the connection."""
        self._reactor = reactor
        self._store = store
        self._paths = paths
        self._outcomes = outcomes
        self._fatal = fatal
        self._queue: deque[tuple[WriteStep, list[WriteOp], int]] = deque()
        self._in_flight = 0
        self._is_flush_due = False
        self._is_stopped = False
        self.multis = 0
        self.steps = 0

    def write(self, step: WriteStep) -> None:
        """Send the step with the other steps of this turn."""
        assert step.number > 0, f"no result is expected of the step {step.cause} of {step.key}"
        assert not self._is_stopped, f"the step {step.cause} of {step.key} was written after the session's end"
        operations = self._operations(step)
        # Checks are small and not counted.
        size = sum(len(one.data) for one in operations if isinstance(one, Create | SetData))
        self._queue.append((step, operations, size))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._reactor.callLater(0, self._flush)

    def stop(self) -> None:
        """Drop queued steps after the end of the session."""
        self._is_stopped = True
        self._queue.clear()

    def _operations(self, step: WriteStep) -> list[WriteOp]:
        assert (step.record.region_id, step.record.replica) == step.key, f"{step.key} writes {step.record.key}"
        assert step.before is None or step.version >= 0, f"{step.key} sets a znode at version {step.version}"
        path = self._paths.transition(*step.key)
        value = znodes.encode(step.record)
        operations: list[WriteOp] = [Create(path, value) if step.before is None else SetData(path, value, step.version)]
        region = self._paths.region(step.record.table_id, step.record.region_id)
        if step.region is not None:
            operations.append(SetData(region, znodes.encode(step.region), step.region_version))
        elif step.region_version >= 0:
            operations.append(Check(region, step.region_version))
        return operations

    def _fences(self, steps: list[WriteStep]) -> list[WriteOp]:
        """Return one check for each epoch of the steps' orders; more than one only during a failover."""
        epochs = dict.fromkeys(step.epoch for step in steps if step.epoch >= 0)
        return [Check(self._paths.epoch, epoch) for epoch in epochs]

    def _flush(self) -> None:
        self._is_flush_due = False
        while self._queue and self._in_flight < IN_FLIGHT_MAX:
            steps: list[WriteStep] = []
            operations: list[WriteOp] = []
            size = 0
            while self._queue and len(steps) < STEPS_MAX and (not steps or size + self._queue[0][2] <= BYTES_MAX):
                step, parts, bytes_of_step = self._queue.popleft()
                steps.append(step)
                operations += parts
                size += bytes_of_step
            self._send(steps, operations)

    def _send(self, steps: list[WriteStep], operations: list[WriteOp]) -> None:
        assert 0 < len(steps) <= STEPS_MAX, f"{len(steps)} steps in one multi"
        self._in_flight += 1
        self.multis += 1
        self.steps += len(steps)
        fences = self._fences(steps)
        sent = self._store.multi([*fences, *operations])
        taken = (steps, len(fences), len(fences) + len(operations))
        sent.addCallbacks(self._taken, self._not_taken, callbackArgs=taken, errbackArgs=(steps,))
        sent.addErrback(self._fatal)

    def _taken(self, results: list[WriteResult], steps: list[WriteStep], at: int, count: int) -> None:
        self._in_flight -= 1
        assert self._in_flight >= 0, "more replies than multis"
        if self._is_stopped:
            return
        assert len(results) == count, f"{count} operations, {len(results)} results"
        has_points = kill_points.is_wanted()
        for step in steps:
            stat = results[at]
            version, zxid = (stat.version, stat.mzxid) if isinstance(stat, Stat) else (0, 0)
            at += 1
            region_version = -1
            if step.region is not None:
                region_stat = results[at]
                assert isinstance(region_stat, Stat), f"expected a Stat as the result of a set, got {region_stat!r}"
                region_version = region_stat.version
                at += 1
            elif step.region_version >= 0:
                at += 1
            if has_points:
                kill_points.reached(f"wrote {step.record.state.value}")
            self._outcomes.step_done(step, version, region_version, zxid)
        assert at == count, f"{count} operations, but {at} belong to steps"
        self._finish()

    def _not_taken(self, failure: Failure, steps: list[WriteStep]) -> None:
        self._in_flight -= 1
        assert self._in_flight >= 0, "more replies than multis"
        if self._is_stopped:
            return
        error = failure.value
        if not isinstance(error, OperationError):
            failure.raiseException()
        is_unknown = isinstance(error, RetryableError | SessionExpired)
        if len(steps) > 1 and not is_unknown:
            log.warn(
                "the store rejected a multi of {count} steps, sending each step alone: {error}",
                count=len(steps),
                error=error,
            )
            for step in steps:
                self._send([step], self._operations(step))
            return
        for step in steps:
            self._outcomes.step_failed(step, str(error), not is_unknown)
        self._finish()

    def _finish(self) -> None:
        self._outcomes.steps_answered()
        if self._queue and not self._is_flush_due:
            self._flush()
