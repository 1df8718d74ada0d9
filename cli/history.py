"""The transitions of a cluster, put together from what a watcher sees of their znodes, and what may not happen in them.

A watch says that a znode changed, and a read that follows finds its value then: two quick steps may be seen as one.
Each znode counts its versions, so nothing is guessed: a history knows exactly how many steps it did not see, and
whether the transition table has any legal way of that many steps between two sights of it.

Pure. `cli/follow.py` feeds it, `rk watch` prints it, drills judge it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

from regions.model import RegionState, TransitionRecord
from regions.states import STEPS, Actor, Cause

#: Ways between two sights that are looked for: a second one means that the unseen steps cannot be told.
_WAYS_MAX: Final = 2

#: State of a replica that has no transition.
NONE: Final = ""


class Sight(NamedTuple):
    """One read of a transition's znode; `record` None: it is not there (and the other fields mean nothing)."""

    at_ms: int
    key: str
    record: TransitionRecord | None
    version: int = 0
    czxid: int = 0
    mzxid: int = 0


class Change(NamedTuple):
    """A step of one transition: `before` and `after` are states, NONE for no znode. `missed` steps lie between them.

    `inferred`: nobody saw this step, but it is the only legal way between two sights; its record is the later sight's.
    """

    at_ms: int
    key: str
    before: str
    after: str
    record: TransitionRecord
    missed: int = 0
    mzxid: int = 0
    inferred: bool = False


class _Known(NamedTuple):
    record: TransitionRecord
    version: int
    czxid: int


class History:
    """All changes seen so far, in the order in which they were seen."""

    def __init__(self, *, wipe_allowed: bool = False) -> None:
        """`wipe_allowed`: a cluster startup, which may delete any transition, lies within the time watched."""
        self.changes: list[Change] = []
        #: Breaches of the transition table and of the order of epochs, as text.
        self.breaches: list[str] = []
        self.steps_missed = 0
        self._known: dict[str, _Known] = {}
        self._successors = _successors(wipe_allowed=wipe_allowed)

    @property
    def in_transition(self) -> list[str]:
        """Keys of the replicas whose transition existed when it was last looked at."""
        return sorted(self._known)

    def begin(self, sights: Iterable[Sight]) -> None:
        """Take note of the transitions that exist before watching begins; they are no changes."""
        for sight in sights:
            if sight.record is not None:
                self._known[sight.key] = _Known(sight.record, sight.version, sight.czxid)

    def see(self, sight: Sight) -> list[Change]:
        """Add one sight; returns the changes it shows (none for a second look at the same version)."""
        known = self._known.get(sight.key)
        if sight.record is None:
            return [] if known is None else [self._ended(sight, known)]
        if known is None:
            return self._changed(sight, None, sight.version)
        if sight.czxid == known.czxid:
            if sight.version <= known.version:
                return []
            return self._changed(sight, known, sight.version - known.version - 1)
        if sight.czxid < known.czxid:
            return []  # an answer that was overtaken by a later one
        # The transition that was known ended unseen, and this is the next one of the same replica.
        return [self._ended(sight, known), *self._changed(sight, None, sight.version)]

    def _changed(self, sight: Sight, known: _Known | None, missed: int) -> list[Change]:
        assert sight.record is not None, "a change needs its record"
        before = NONE if known is None else known.record.state.value
        after = sight.record.state.value
        self._known[sight.key] = _Known(sight.record, sight.version, sight.czxid)
        self.steps_missed += missed
        ways = self._ways(before, after, missed + 1)
        if not ways:
            self._breach(sight.key, before, after, missed)
        if len(ways) == 1:
            steps = list(itertools.pairwise(ways[0]))
            found = [
                Change(sight.at_ms, sight.key, start, end, sight.record, 0, sight.mzxid, number < len(steps) - 1)
                for number, (start, end) in enumerate(steps)
            ]
        else:
            found = [Change(sight.at_ms, sight.key, before, after, sight.record, missed, sight.mzxid)]
        self.changes += found
        return found

    def _ended(self, sight: Sight, known: _Known) -> Change:
        """Its znode is gone. How many steps lie between is unknown, so any legal way to the end will do."""
        del self._known[sight.key]
        before = known.record.state.value
        if NONE not in self._successors[before]:
            missed = self._steps_to_end(before)
            self.steps_missed += missed
            if not missed:
                self._breach(sight.key, before, NONE, 0)
        else:
            missed = 0
        change = Change(sight.at_ms, sight.key, before, NONE, known.record, missed)
        self.changes.append(change)
        return change

    def _ways(self, start: str, end: str, steps: int) -> list[list[str]]:
        """Up to two legal ways of exactly that many steps: one means that what was not seen is known all the same."""
        found: list[list[str]] = []
        waiting = [[start]]
        while waiting and len(found) < _WAYS_MAX:
            way = waiting.pop()
            if len(way) == steps + 1:
                if way[-1] == end:
                    found.append(way)
            elif self._can_reach(way[-1], end, steps + 1 - len(way)):
                waiting += [[*way, after] for after in sorted(self._successors[way[-1]] - {NONE})]
        return found

    def _can_reach(self, start: str, end: str, steps: int) -> bool:
        found = {start}
        for _ in range(steps):
            found = {after for before in found for after in self._successors[before]} - {NONE}
        return end in found

    def _steps_to_end(self, start: str) -> int:
        """Fewest steps that must have gone unseen before the deletion; 0 when no legal way leads there."""
        found = {start}
        for steps in range(1, len(self._successors) + 1):
            found = {after for before in found for after in self._successors[before]} - {NONE}
            if any(NONE in self._successors[state] for state in found):
                return steps
        return 0

    def _breach(self, key: str, before: str, after: str, missed: int) -> None:
        between = f" with {missed} steps unseen" if missed else ""
        self.breaches.append(f"{key}: {before or '(none)'} -> {after or '(deleted)'}{between} is no legal way")


def _successors(*, wipe_allowed: bool) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {NONE: set(), **{state.value: set() for state in RegionState}}
    for step in STEPS:
        if step.cause is Cause.STARTUP_WIPE and not wipe_allowed:
            continue
        found[_word(step.before)].add(_word(step.after))
    return found


def _word(state: RegionState | None) -> str:
    return NONE if state is None else state.value


def actor_of(before: str, after: str) -> Actor | None:
    """Who alone may take that step; None when the table has no such step, or both may."""
    actors = {step.actor for step in STEPS if _word(step.before) == before and _word(step.after) == after}
    return actors.pop() if len(actors) == 1 else None


def epoch_breaches(epochs: list[tuple[int, int]], changes: Iterable[Change]) -> list[str]:
    """What contradicts the fencing epoch.

    `epochs`: (version of /epoch, zxid of that write) in the order seen. Versions must increase strictly; and a step
    that only a master takes must not carry a lower epoch than the one that stood when it was written: such a write
    comes from a deposed master, and the check in its multi should have refused it (FN-01).
    """
    pairs = itertools.pairwise(epochs)
    found = [f"epoch {later[0]} came after {earlier[0]}" for earlier, later in pairs if later[0] <= earlier[0]]
    for change in changes:
        if (
            change.missed
            or change.inferred
            or change.after == NONE
            or actor_of(change.before, change.after) is not Actor.MASTER
        ):
            continue
        standing = max((version for version, zxid in epochs if zxid < change.mzxid), default=0)
        if change.record.epoch < standing:
            found.append(
                f"{change.key}: {change.after} written under epoch {change.record.epoch} while {standing} stood"
            )
    return found
