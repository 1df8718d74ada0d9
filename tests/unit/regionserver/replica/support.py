"""A replica on a server in a test: its state machine, one transition in a simple store, and effects answered on
request.

`Store` is a deliberately simple store of one transition: tests decide which steps it takes, rejects, or takes
silently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

from regions.messages import CloseOrder, OpenOrder, OrderResult
from regions.records.model import Incarnation, Intent, RegionRecord, RegionState, TransitionRecord
from regionserver.replica.effects import (
    CloseRegion,
    Effect,
    Key,
    OpenRegion,
    OrderFinished,
    ReadBack,
    WriteStep,
)
from regionserver.replica.machine import Replicas
from regionserver.replica.states import Phase

ME = Incarnation("me", 7)
OTHER = Incarnation("other", 3)
KEY: Key = ("r1", 0)


def offline(destination: Incarnation = ME, **fields: Any) -> TransitionRecord:
    return TransitionRecord("r1", "t", 0, RegionState.OFFLINE, destination=destination, epoch=4, **fields)


def open_order(version: int = 2, **fields: Any) -> OpenOrder:
    return OpenOrder(offline(**fields), version, RegionRecord("t", "r1"), 5)


CLOSE = CloseOrder("r1", "t", 0, destination=OTHER, intent=Intent.OPEN, reason="balance")


class Store:
    """One transition and one region record, with their versions."""

    def __init__(self, record: TransitionRecord | None, version: int) -> None:
        self.record = record
        self.version = version
        self.region = RegionRecord("t", "r1")
        self.region_version = 5
        #: Number of the server's steps since the last step of a master.
        self.steps = 0

    def take(self, step: WriteStep) -> bool:
        """Compare and set. Return False if rejected."""
        state = None if self.record is None else self.record.state
        right_version = self.record is None if step.before is None else self.version == step.version
        right_region = step.region is None or step.region_version == self.region_version
        if state != step.before or not right_version or not right_region:
            return False
        self.record = step.record
        self.version = 0 if step.before is None else self.version + 1
        self.steps = 1 if step.before in (None, RegionState.OFFLINE) else self.steps + 1
        assert len(self.record.took) == self.steps, "the znode keeps each step that a server takes"
        if step.region is not None:
            self.region, self.region_version = step.region, self.region_version + 1
        return True


#: Methods of `Replicas` that handle an event.
EVENTS: Final = frozenset(
    (
        *("order_open", "order_close", "alter", "damaged", "order_review", "reviewed", "step_done", "step_failed"),
        *("read_back", "holder_seen", "opened", "open_failed", "owner_held", "closed", "close_failed", "progressed"),
        *("session_lost", "rejoined", "forget_failures", "take_effects", "take_changed"),
    )
)


class CheckedReplicas:
    """Replicas whose invariants are checked after every event. No subclass, because `Replicas` may be compiled."""

    def __init__(self, me: Incarnation) -> None:
        self._checked = Replicas(me)

    def __len__(self) -> int:
        return len(self._checked)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._checked, name)
        return functools.partial(self._handle, found) if name in EVENTS else found

    def _handle(self, event: Callable[..., Any], *given: Any) -> Any:
        answer = event(*given)
        self._checked.validate()
        return answer


class Run:
    """A Replicas with its store and opener; effects are answered when the test says so."""

    def __init__(self, record: TransitionRecord | None = None, version: int = 2) -> None:
        self.replicas = cast(Replicas, CheckedReplicas(ME))
        self.store = Store(offline() if record is None else record, version)
        self.now = 1000
        self.effects: list[Effect] = []
        self.decided: list[OrderResult] = []
        self.zxid = 0

    def pull(self) -> None:
        for effect in self.replicas.take_effects():
            if isinstance(effect, OrderFinished):
                self.decided.append(effect.result)
            else:
                self.effects.append(effect)

    def next(self, kind: type[Any]) -> Any:
        """Take the next effect, which must be of that kind."""
        self.pull()
        effect = self.effects.pop(0)
        assert isinstance(effect, kind), f"expected {kind.__name__}, got {effect}"
        return effect

    def step(self, *, lose_answer: bool = False) -> WriteStep:
        """Carry out the next effect, which must be a step."""
        step: WriteStep = self.next(WriteStep)
        taken = self.store.take(step)
        if lose_answer or not taken:
            self.replicas.step_failed(
                step.key, step.number, "connection lost" if lose_answer else "bad version", not taken
            )
        else:
            self.zxid += 1
            versions = self.store.version, self.store.region_version
            self.replicas.step_done(step.key, step.number, *versions, self.now, self.zxid)
        return step

    def read(self) -> None:
        """Answer the read of the znode."""
        ask = self.next(ReadBack)
        store = self.store
        version = -1 if store.record is None else store.version
        self.replicas.read_back(
            ask.key, ask.number, store.record, version, store.region, store.region_version, self.now
        )

    def opened(self) -> OpenRegion:
        job: OpenRegion = self.next(OpenRegion)
        self.replicas.opened(job.key, job.number, self.now)
        return job

    def closed(self) -> None:
        job = self.next(CloseRegion)
        self.replicas.closed(job.key, job.number, self.now)

    def opening(self, order: OpenOrder | None = None) -> Any:
        """Order an open."""
        return self.replicas.order_open(order or open_order(), 4, self.now)

    def close(self) -> Any:
        return self.replicas.order_close(CLOSE, 5, self.now)

    def until_open(self) -> Run:
        self.opening()
        self.step()
        self.opened()
        self.step()
        self.pull()
        assert self.phase() is Phase.OPEN
        self.decided.clear()
        return self

    def master_deletes(self) -> Run:
        self.store.record = None
        return self

    def phase(self) -> Phase | None:
        found = [phase for phase, count in self.replicas.phases().items() if count]
        assert len(found) <= 1
        return found[0] if found else None

    def idle(self) -> bool:
        self.pull()
        return not self.effects


def bring_to(phase: Phase) -> Run:
    """Return a run whose one replica is in `phase`, with its pending effects unanswered."""
    run = Run()
    if phase in (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING):
        run.opening()
        if phase is not Phase.CLAIMING:
            run.step()
        if phase is Phase.ANNOUNCING:
            run.opened()
    else:
        run.until_open().master_deletes()
        if phase is not Phase.OPEN:
            run.close()
        if phase in (Phase.CLOSING, Phase.STUCK, Phase.RELEASING):
            run.step()
        if phase is Phase.STUCK:
            job = run.next(CloseRegion)
            run.replicas.close_failed(job.key, job.number, "no", run.now)
        if phase is Phase.RELEASING:
            run.closed()
        if phase is Phase.DROPPING:
            run.replicas.session_lost(run.now)
    run.pull()
    run.jobs = [effect for effect in run.effects if isinstance(effect, OpenRegion | CloseRegion)]  # type: ignore[attr-defined]
    assert run.phase() is phase
    return run


def finish_jobs(run: Run) -> None:
    """Let the opener finish all its jobs, before and after the session was lost."""
    jobs = [*run.jobs, *run.effects]  # type: ignore[attr-defined]
    while jobs:
        for job in jobs:
            if isinstance(job, OpenRegion):
                run.replicas.opened(job.key, job.number, run.now)
            else:
                assert isinstance(job, CloseRegion)
                run.replicas.closed(job.key, job.number, run.now)
        run.effects.clear()
        run.pull()
        jobs = list(run.effects)
