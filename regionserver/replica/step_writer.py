"""Takes steps of transitions in the store: many in one multi, each by compare-and-set.

A step's multi also holds it to the world it was decided in: the region's record must not have changed, and for the
first step of an order the master that gave it must not have been replaced (FW-11, checked by the store itself).

Steps that come in one turn of the reactor, or while `IN_FLIGHT_MAX` multis are on their way, travel together: the
busier the store, the larger the multis. A multi is all or nothing, so when one is refused its steps are sent again one
by one, all at once: one bad region never holds the others.

A step is refused by the store, or nobody knows whether it was taken (the connection broke). Both are reported, never
retried here: what a failed step means is not this module's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import Check, Create, ReadOp, ReadResult, SetData, WriteOp, WriteResult
from coord.errors import OperationError, RetryableError, SessionExpired
from coord.wire.records import Stat
from regions.records import znodes
from regions.records.znodes import Layout
from regionserver.replica.effects import WriteStep

log = Logger()

#: Regions per multi. A refused multi costs as many single ones, and the store holds up everybody while it applies one.
STEPS_MAX: Final = 100
#: Bytes of values per multi; the store's frames end at 1 MB.
BYTES_MAX: Final = 400_000
#: Multis under way before further steps wait and gather.
IN_FLIGHT_MAX: Final = 4


class Store(Protocol):
    """The methods of `coord.client.session.ZkClient` that are used here."""

    def multi(self, operations: list[WriteOp]) -> Deferred[list[WriteResult]]: ...
    def multi_read(self, operations: list[ReadOp]) -> Deferred[list[ReadResult]]: ...
    def get(self, path: str) -> Deferred[tuple[bytes, Stat]]: ...
    def sync(self, path: str = ...) -> Deferred[None]: ...


class TimerReactor(Protocol):
    """The part of a reactor that StepWriter uses."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> IDelayedCall: ...


class Outcomes(Protocol):
    """Receiver of the results of steps."""

    def step_done(self, step: WriteStep, version: int, region_version: int, zxid: int) -> None:
        """The step was taken; versions of the two znodes after it (-1: that one was not written), and its zxid.

        The zxid is 0 for a creation, whose answer does not carry it.
        """

    def step_failed(self, step: WriteStep, error: str, is_refused: bool) -> None:
        """Refused by the store, or (not `is_refused`) unknown."""

    def steps_settled(self) -> None:
        """Called after a run of the other two: now is the time to act on what they brought."""


class StepWriter:
    """Writes the steps of one session. After `stop` nothing is sent and nothing reported any more."""

    def __init__(
        self,
        reactor: TimerReactor,
        store: Store,
        paths: Layout,
        outcomes: Outcomes,
        fatal: Callable[[Failure], object],
    ) -> None:
        """`fatal` gets what neither the store nor the connection is to blame for."""
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
        """Send the step with the others of this turn."""
        assert step.number > 0, f"nothing awaits the step {step.cause} of {step.key}"
        assert not self._is_stopped, f"the step {step.cause} of {step.key} comes after the session"
        operations = self._operations(step)
        # Checks cost little, and come on top of this.
        size = sum(len(one.data) for one in operations if isinstance(one, Create | SetData))
        self._queue.append((step, operations, size))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._reactor.callLater(0, self._flush)

    def stop(self) -> None:
        """The session is over."""
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
        """One check for each epoch that steps were ordered under: one, but in the moment of a failover."""
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
        assert self._in_flight >= 0, "more answers than multis"
        if self._is_stopped:
            return
        assert len(results) == count, f"{count} operations, {len(results)} results"
        for step in steps:
            stat = results[at]
            version, zxid = (stat.version, stat.mzxid) if isinstance(stat, Stat) else (0, 0)
            at += 1
            region_version = -1
            if step.region is not None:
                region_stat = results[at]
                assert isinstance(region_stat, Stat), f"a set is answered by a Stat, not by {region_stat!r}"
                region_version = region_stat.version
                at += 1
            elif step.region_version >= 0:
                at += 1
            self._outcomes.step_done(step, version, region_version, zxid)
        assert at == count, f"{count} operations, {at} belong to steps"
        self._settle()

    def _not_taken(self, failure: Failure, steps: list[WriteStep]) -> None:
        self._in_flight -= 1
        assert self._in_flight >= 0, "more answers than multis"
        if self._is_stopped:
            return
        error = failure.value
        if not isinstance(error, OperationError):
            failure.raiseException()
        is_unknown = isinstance(error, RetryableError | SessionExpired)
        if len(steps) > 1 and not is_unknown:
            log.warn(
                "the store rejected a multi of {count} steps, sending each alone: {error}",
                count=len(steps),
                error=error,
            )
            for step in steps:
                self._send([step], self._operations(step))
            return
        for step in steps:
            self._outcomes.step_failed(step, str(error), not is_unknown)
        self._settle()

    def _settle(self) -> None:
        self._outcomes.steps_settled()
        if self._queue and not self._is_flush_due:
            self._flush()
