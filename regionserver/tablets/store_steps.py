"""Writes the steps of tablets' transitions in one session: each is either in the store or certainly lost.

Steps of many tablets share a multi (`regionserver/replica/step_writer.py`). After a rejected step, or one whose reply
was lost, the znode is read and compared (`regionserver/replica/readback.py`): the step is in the store, can be written
again, or can never be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import GetData
from coord.errors import NoNode, OperationError, RetryableError, SessionExpired
from regions.records import znodes
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.records.znodes import CorruptZnode, Layout
from regions.transitions import states
from regions.transitions.states import Actor, Cause
from regionserver.replica.effects import WriteStep
from regionserver.replica.readback import Readback, resolve
from regionserver.replica.step_records import again
from regionserver.replica.step_writer import StepWriter, Store, TimerReactor

log = Logger()

#: Rejections of a step whose znode looks as expected, before the order fails.
REFUSALS_MAX: Final = 5
#: Pause before a read is repeated after the connection broke.
READ_AGAIN_S: Final = 0.1


class SessionOverError(Exception):
    """The session has ended: running steps have an unknown outcome."""


class StepLostError(Exception):
    """The step can never be written: the transition belongs to another order or server."""


class _StepFailedError(Exception):
    def __init__(self, why: str, is_refused: bool) -> None:
        super().__init__(why)
        self.is_refused = is_refused


class StepInStore(NamedTuple):
    """A step that is in the store: the record, and the version of the znode."""

    record: TransitionRecord
    version: int


class StepWanted(NamedTuple):
    """A step to write. `before` None: create the znode; else set it at `version`.

    `region_version`: required version of the region's record, -1 for any. `epoch`: epoch of the master that sent the
    order, -1 for none. `may_repeat` is called with (transition, region) from the store before the step is written
    again.
    """

    cause: Cause
    before: RegionState | None
    record: TransitionRecord
    version: int = -1
    region_version: int = -1
    epoch: int = -1
    may_repeat: Callable[[TransitionRecord | None, RegionRecord | None], bool] = lambda _found, _region: True


class StoreSteps:
    """The steps of one session. After `stop` every step raises SessionOverError."""

    def __init__(
        self,
        reactor: TimerReactor,
        store: Store,
        paths: Layout,
        me: Incarnation,
        counted: Callable[[str], None],
        fatal: Callable[[Failure], object],
    ) -> None:
        """`counted` is called with the outcome of each step: taken, refused or unknown."""
        self.me = me
        self._reactor = reactor
        self._store = store
        self._paths = paths
        self._counted = counted
        self._writer = StepWriter(reactor, store, paths, self, fatal)
        self._waiting: dict[int, Deferred[int]] = {}
        self._last_number = 0
        self.is_over = False

    def stop(self) -> None:
        """End the session."""
        self.is_over = True
        self._writer.stop()
        waiting, self._waiting = self._waiting, {}
        for step in waiting.values():
            step.errback(SessionOverError())

    def check(self) -> None:
        """Raise SessionOverError after the end of the session."""
        if self.is_over:
            raise SessionOverError

    async def write(self, wanted: StepWanted) -> StepInStore:
        """Write a step; return when it is in the store.

        Raises:
            StepLostError: The step can never be written.
            SessionOverError: The session has ended; the step may have been written.
            InvalidTransition: The table of transitions does not let a server take the step.
        """
        states.check(Actor.SERVER, wanted.before, wanted.record.state, wanted.cause, subject=wanted.record.key)
        record, version, region_version = wanted.record, wanted.version, wanted.region_version
        refusals = 0
        while True:
            self.check()
            step = self._step(wanted, record, version, region_version)
            try:
                return StepInStore(record, await self._send(step))
            except _StepFailedError as error:
                refusals += error.is_refused
                why = str(error)
            found, found_version, region, found_region_version = await self.read(
                record.table_id, record.region_id, record.replica
            )
            same = found_version == version
            what = resolve(wanted.cause, self.me, found, same_version=same, region=region)
            if what is Readback.TAKEN and found is not None:
                return StepInStore(found, found_version)
            if what is not Readback.AGAIN or refusals >= REFUSALS_MAX or not wanted.may_repeat(found, region):
                there = "gone" if found is None else f"{found.state} of epoch {found.epoch} at version {found_version}"
                raise StepLostError(f"the transition is {there} ({why})")
            record, version = again(step, found), found_version
            region_version = region_version if region_version < 0 else found_region_version

    def _step(self, wanted: StepWanted, record: TransitionRecord, version: int, region_version: int) -> WriteStep:
        self._last_number += 1
        key = (record.region_id, record.replica)
        step = WriteStep(key, self._last_number, wanted.cause, wanted.before, record, version)
        return replace(step, region_version=region_version, epoch=wanted.epoch)

    def _send(self, step: WriteStep) -> Deferred[int]:
        answer: Deferred[int] = Deferred()
        self._waiting[step.number] = answer
        self._writer.write(step)
        return answer

    # --- regionserver.replica.step_writer.Outcomes ---

    def step_done(self, step: WriteStep, version: int, region_version: int, zxid: int) -> None:  # noqa: ARG002
        """Process a committed step."""
        self._counted("taken")
        answer = self._waiting.pop(step.number, None)
        if answer is not None:
            answer.callback(version)

    def step_failed(self, step: WriteStep, error: str, is_refused: bool) -> None:
        """Process a step that was rejected, or whose outcome is unknown."""
        self._counted("refused" if is_refused else "unknown")
        answer = self._waiting.pop(step.number, None)
        if answer is not None:
            answer.errback(_StepFailedError(error, is_refused))

    def steps_answered(self) -> None:
        """Do nothing: each step has its own answer."""

    # --- reads ---

    async def read(
        self, table_id: str, region_id: str, number: int
    ) -> tuple[TransitionRecord | None, int, RegionRecord | None, int]:
        """Return the transition, its version, the region's record and its version from the store.

        Raises:
            StepLostError: A record cannot be read.
            SessionOverError: The session has ended.
        """
        transition = self._paths.transition(region_id, number)
        region = self._paths.region(table_id, region_id)
        while True:
            self.check()
            try:
                # This server's write may be newer than the state of its store node: sync first.
                self._store.sync(transition).addErrback(lambda _failure: None)
                results = await self._store.multi_read([GetData(transition), GetData(region)])
                found = _decoded(results[0], znodes.decode_transition, transition)
                place = _decoded(results[1], znodes.decode_region, region)
            except SessionExpired:
                raise SessionOverError from None
            except (RetryableError, OperationError) as error:
                log.info("{path} cannot be read, trying again: {error}", path=transition, error=error)
                await deferLater(self._reactor, READ_AGAIN_S)  # type: ignore[arg-type]
            except CorruptZnode as error:
                raise StepLostError(str(error)) from error
            else:
                return found[0], found[1], place[0], place[1]


def _decoded(result: object, decode: Callable[[bytes, str], Any], path: str) -> tuple[Any, int]:
    """Return record and version of one part of a multi-read; (None, -1) without the znode."""
    if isinstance(result, NoNode):
        return None, -1
    if isinstance(result, OperationError):
        raise result
    assert isinstance(result, tuple), f"expected a pair as the result of a read, got {result!r}"
    data, stat = result
    return decode(data, path), stat.version
