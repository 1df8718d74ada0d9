"""Durations of an active master's phases and progress of its bulk plans, for `rk up` and `rk status`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from regions.messages import PlanProgress, StartupPhase
from regions.records.model import PlanRecord, PlanState

Seconds = Callable[[], float]


class Phases:
    """Consecutive named phases. Beginning a phase ends the previous one."""

    def __init__(self, seconds: Seconds, ended: Callable[[str, float], None] = lambda _name, _seconds: None) -> None:
        """`ended` is called with the name and the duration of each finished phase."""
        #: The clock, in seconds.
        self.seconds = seconds
        self.ended = ended
        self._done: list[StartupPhase] = []
        self._name = ""
        self._detail = ""
        self._began = 0.0

    def add(self, name: str, seconds: float, detail: str = "") -> None:
        """Add a finished phase that was measured elsewhere."""
        self._done.append(StartupPhase(name, round(seconds, 4), True, detail))
        self.ended(name, seconds)

    def begin(self, name: str) -> None:
        """End the current phase and begin another."""
        self.end()
        self._name = name
        self._began = self.seconds()

    def end(self, detail: str = "") -> None:
        """End the current phase, if there is one."""
        if self._name:
            self.add(self._name, self.seconds() - self._began, detail)
            self._name = ""

    @property
    def current(self) -> str:
        """Name of the current phase, or ""."""
        return self._name

    def restart_from(self, name: str) -> None:
        """Remove phase `name` and the phases after it: a new bulk plan adds its own."""
        names = [phase.name for phase in self._done]
        if name in names:
            del self._done[names.index(name) :]
        self._name = ""

    def report(self) -> list[StartupPhase]:
        """Return all phases. The current phase is the last one, with `done` False."""
        if not self._name:
            return list(self._done)
        return [*self._done, StartupPhase(self._name, round(self.seconds() - self._began, 4), False)]


class BulkPlan:
    """One bulk plan, from its request until its last region is open."""

    def __init__(self, record: PlanRecord, keys: list[str], seconds: Seconds) -> None:
        self.record = record
        self.keys = keys
        #: Replicas whose OFFLINE znode has been created.
        self.offline = 0
        #: Replicas that have opened on their servers.
        self.assigned = 0
        #: Progress that the planning job has reported last; "" while no job runs.
        self.stage = ""
        #: True once the assigner has the first placements.
        self.is_handed_over = False
        #: True if the plan is of tablets' first members.
        self.is_of_tablets = False
        #: Durations of this plan's phases; those of the master also have the activation before it.
        self.phases = Phases(seconds)
        self._seconds = seconds
        self._began = seconds()
        self._took: float | None = None

    def change(self, **fields: object) -> PlanRecord:
        """Replace fields of the record and return it."""
        self.record = msgspec.structs.replace(self.record, **fields)
        if self.record.state in (PlanState.DONE, PlanState.ABORTED) and self._took is None:
            self._took = self._seconds() - self._began
        return self.record

    @property
    def is_running(self) -> bool:
        """True while the plan is computed or carried out."""
        return self.record.state in (PlanState.PLANNING, PlanState.APPLYING)

    def report(self) -> PlanProgress:
        """Return the plan's progress for `rk status`."""
        record = self.record
        seconds = self._seconds() - self._began if self._took is None else self._took
        return PlanProgress(
            record.plan_id,
            record.engine,
            record.state.value,
            record.regions,
            self.assigned,
            self.stage,
            round(seconds, 4),
            record.note,
        )
