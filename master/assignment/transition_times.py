"""Times of transitions for the metrics, from the steps that the active master takes and sees.

A time is the difference of two steps' times; the clock of a server may differ from the master's, so a negative
difference counts as 0. If another master took the first step, the transition counts from the first step that this
master sees.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from coord.metrics.spans import LONG_BOUNDS_S, SpansByName
from regions.records.model import RegionState
from regions.transitions.states import Cause
from regions.transitions.steps import SeenStep

#: Cause of transitions that had begun before this master became active.
EARLIER: Final = "before this master"
# A member of an enum: a compiled module reads its own constant several times as fast.
_OPENED: Final = RegionState.OPENED
#: Values of states and causes. A dict lookup is faster than the `value` property.
_VALUES: Final[dict[object, str]] = {None: "", **{one: one.value for kind in (RegionState, Cause) for one in kind}}


@mypyc_attr(acyclic=True)
class _Begun:
    """A transition that has begun: the cause and time of its first step, and the time of its latest step."""

    __slots__ = ("cause", "since_ms", "state_since_ms")

    def __init__(self, cause: str, since_ms: int) -> None:
        self.cause = cause
        self.since_ms = since_ms
        self.state_since_ms = since_ms


class TransitionTimes:
    """Counted times of transitions, for all tenures of this process."""

    def __init__(self) -> None:
        #: By state: how long a transition was in it.
        self.states = SpansByName(LONG_BOUNDS_S)
        #: By the cause of the first step: how long the whole transition took.
        self.causes = SpansByName(LONG_BOUNDS_S)
        self._begun: dict[str, _Begun] = {}
        #: Number of steps so far, and of those to OPENED.
        self.steps = 0
        self.opened = 0

    def take(self, steps: list[SeenStep]) -> None:
        """Count the states and transitions that these steps have ended."""
        for step in steps:
            self._take_one(step)

    def _take_one(self, step: SeenStep) -> None:
        key, at_ms, before = step.key, step.at_ms, step.before
        self.steps += 1
        if step.after is _OPENED:
            self.opened += 1
        if before is None:
            if step.after is not None:
                self._begun[key] = _Begun(_VALUES[step.cause], at_ms)
            return
        known = self._begun.get(key)
        if known is not None:
            self.states.add(_VALUES[before], _seconds(at_ms - known.state_since_ms))
        if step.after is None:
            if known is not None:
                del self._begun[key]
                self.causes.add(known.cause, _seconds(at_ms - known.since_ms))
        elif known is None:
            self._begun[key] = _Begun(EARLIER, at_ms)
        else:
            known.state_since_ms = at_ms

    def since_ms(self, key: str) -> int | None:
        """Return the time of the first step of a replica's transition that this master has seen."""
        known = self._begun.get(key)
        return None if known is None else known.since_ms

    def began_ms(self, key: str) -> int:
        """Return the time at which a replica's transition began, or 0 if this master has not seen that."""
        known = self._begun.get(key)
        return 0 if known is None or known.cause == EARLIER else known.since_ms

    def new_tenure(self) -> None:
        """Forget the transitions under way, because another master may have taken their next steps."""
        self._begun.clear()


def _seconds(ms: int) -> float:
    return max(0, ms) / 1000
