"""How long each phase of a reign took, and how far a bulk plan is: what `rk up` and `rk status` show."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from regions.messages import PlanProgress, StartupPhase
from regions.records.model import PlanRecord, PlanState

Seconds = Callable[[], float]


class Phases:
    """Consecutive named spans; beginning one ends the one before."""

    def __init__(self, seconds: Seconds) -> None:
        #: The clock, in seconds.
        self.seconds = seconds
        self._done: list[StartupPhase] = []
        self._name = ""
        self._detail = ""
        self._began = 0.0

    def add(self, name: str, seconds: float, detail: str = "") -> None:
        """Book a phase that was measured elsewhere."""
        self._done.append(StartupPhase(name, round(seconds, 4), True, detail))

    def begin(self, name: str) -> None:
        """End the current phase and begin another."""
        self.end()
        self._name = name
        self._began = self.seconds()

    def end(self, detail: str = "") -> None:
        """End the current phase; nothing if there is none."""
        if self._name:
            self.add(self._name, self.seconds() - self._began, detail)
            self._name = ""

    @property
    def current(self) -> str:
        """Name of the phase under way, or empty."""
        return self._name

    def restart_from(self, name: str) -> None:
        """Forget phases from `name` on: a new bulk plan begins its own."""
        names = [phase.name for phase in self._done]
        if name in names:
            del self._done[names.index(name) :]
        self._name = ""

    def report(self) -> list[StartupPhase]:
        """All phases so far, the current one last and not done."""
        if not self._name:
            return list(self._done)
        return [*self._done, StartupPhase(self._name, round(self.seconds() - self._began, 4), False)]


class BulkPlan:
    """One bulk plan on its way from request to the last region."""

    def __init__(self, record: PlanRecord, keys: list[str], seconds: Seconds) -> None:
        self.record = record
        self.keys = keys
        #: OFFLINE znodes that exist, and replicas that have arrived.
        self.offline = 0
        self.assigned = 0
        self.stage = ""
        #: The assigner has it.
        self.is_handed_over = False
        self._seconds = seconds
        self._began = seconds()
        self._took: float | None = None

    def change(self, **fields: object) -> PlanRecord:
        """Replace fields of the record."""
        self.record = msgspec.structs.replace(self.record, **fields)
        if self.record.state in (PlanState.DONE, PlanState.ABORTED) and self._took is None:
            self._took = self._seconds() - self._began
        return self.record

    @property
    def is_running(self) -> bool:
        """Planning, or being carried out."""
        return self.record.state in (PlanState.PLANNING, PlanState.APPLYING)

    def report(self) -> PlanProgress:
        """For the status."""
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
