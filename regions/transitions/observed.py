"""The transitions of a cluster as a watcher observes them, and checks of what was observed.

A watch reports that a znode changed, and the read that follows returns its current value: two quick steps may be seen
as one. Each znode counts its versions, so the number of missed steps is known exactly. The history checks whether the
transition table allows any sequence of that many steps between two observations.

Pure. `cli/diagnose/follow.py` and the masters' auditor feed this module. `rk watch` prints the result; drills and
`regions/diagnose/invariants.py` check it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

from coord.wire.records import EVENT_CREATED, EVENT_DELETED
from regions.records.model import Intent, RegionState, TransitionRecord
from regions.records.replica_key import parse_replica_key
from regions.transitions.states import RESTS_ON_MEMBERS, STEPS, Actor, Cause

#: Sequences of steps between two observations that are searched: with two, the missed steps are ambiguous.
_WAYS_MAX: Final = 2

#: Version of a znode whose number of writes is unknown.
UNKNOWN: Final = -1

#: State of a replica that has no transition.
NONE: Final = ""


#: The states that may follow a state: by the whole table, and without the steps of some causes.
_Table = dict[str, set[str]]
_Without = frozenset[Cause]
#: Causes that occur only in a cluster startup, and causes that do not occur for a region that stays open.
_NO_WIPE: Final[_Without] = frozenset({Cause.STARTUP_WIPE})
_USUAL: Final[_Without] = frozenset({Cause.STARTUP_WIPE, Cause.DO_NOT_REOPEN, Cause.REPLACED}) | RESTS_ON_MEMBERS
#: Size of the cache of answers: the same few questions come hundreds of times a second.
_ANSWERS_MAX: Final = 4_096


class ObservedTransition(NamedTuple):
    """A transition's znode at one moment.

    If `exists` is False the znode was deleted. `version` is then its last version, or UNKNOWN after a gap in the
    events. If no watcher has read the znode while it existed, `record` only names the replica.
    """

    at_ms: int
    key: str
    record: TransitionRecord
    version: int = 0
    czxid: int = 0
    mzxid: int = 0
    exists: bool = True


class Change(NamedTuple):
    """A step of one transition: `before` and `after` are states, NONE for no znode. `missed` steps lie between them.

    `inferred`: the step was not observed, but it is the only legal one between two observations; its record is that of
    the later observation.
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


class SeenVersions:
    """The versions of transitions' znodes, counted by the events of a watch."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def clear(self) -> None:
        """Forget all versions, because events may have been missed."""
        self._versions.clear()

    def read(self, key: str, version: int) -> None:
        """Note the version of a znode that was read. Events that have arrived meanwhile may have counted further."""
        self._versions[key] = max(version, self._versions.get(key, UNKNOWN))

    def see(self, events: list[tuple[int, str, int]]) -> list[tuple[str, int]]:
        """Count events of transitions' znodes: (event type, path, zxid).

        Return the key and the last version of each deleted one, UNKNOWN if its creation was not seen.
        """
        gone: list[tuple[str, int]] = []
        versions = self._versions
        for event_type, path, _ in events:
            key = path[path.rfind("/") + 1 :]
            if event_type == EVENT_DELETED:
                gone.append((key, versions.pop(key, UNKNOWN)))
            elif event_type == EVENT_CREATED:
                versions[key] = 0
            elif key in versions:
                versions[key] += 1
        return gone


def deleted(key: str, version: int, now_ms: int) -> ObservedTransition:
    """Return the observation of a deleted transition, whose last record may not have been read."""
    region_id, number = parse_replica_key(key)
    record = TransitionRecord(region_id, region_id.rpartition(".")[0], number, RegionState.OPENED)
    return ObservedTransition(now_ms, key, record, version, exists=False)


class History:
    """All changes seen so far, in the order in which they were seen."""

    def __init__(self, *, wipe_allowed: bool = False) -> None:
        """`wipe_allowed`: the observed time includes a cluster startup, which may delete any transition."""
        self.changes: list[Change] = []
        #: Violations of the transition table and of the order of epochs, as text.
        self.breaches: list[str] = []
        self.steps_missed = 0
        self._known: dict[str, _Known] = {}
        self._unlikely: _Without = frozenset() if wipe_allowed else _NO_WIPE
        #: Causes that do not occur for a region that must be open: those above, and the steps of disabling a table.
        self._unusual: _Without = self._unlikely | {Cause.DO_NOT_REOPEN, Cause.REPLACED} | RESTS_ON_MEMBERS

    @property
    def in_transition(self) -> list[str]:
        """Return the keys of the replicas whose transition existed at the last observation."""
        return sorted(self._known)

    def records(self) -> dict[str, TransitionRecord]:
        """Return the transitions that existed at the last observation, by replica."""
        return {key: known.record for key, known in self._known.items()}

    def is_usual(self, before: str, after: str, steps: int) -> bool:
        """Return True if a region that stays open can take that many legal steps, outside of a cluster startup."""
        return bool(_ways(_USUAL, before, after, steps))

    def ends_unread(self, key: str, version: int) -> bool:
        """Count the steps of a transition that was deleted at `version` before it was read. Return True if that is all.

        Return False if the transition is known, or if usual steps cannot explain the version: then call `see`.
        """
        if key in self._known or not _ways(_USUAL, NONE, NONE, version + 2):
            return False
        self.steps_missed += version + 1
        return True

    def begin(self, sights: Iterable[ObservedTransition]) -> None:
        """Add the transitions that exist at the beginning. They are known states, not changes."""
        for sight in sights:
            if sight.exists:
                self._known[sight.key] = _Known(sight.record, sight.version, sight.czxid)

    def see(self, sight: ObservedTransition) -> list[Change]:
        """Add an observation and return the changes that it shows; return [] for a version that was seen before."""
        known = self._known.get(sight.key)
        if not sight.exists:
            if known is None and sight.version == UNKNOWN:
                return []
            return self._ended(sight, known)
        if known is None:
            return self._changed(sight, None)
        if sight.czxid == known.czxid:
            return self._changed(sight, known) if sight.version > known.version else []
        if sight.czxid < known.czxid:
            return []  # a late reply, older than the last one
        # The known transition ended unseen; this is the next one of the same replica.
        return [*self._ended(sight._replace(version=UNKNOWN), known), *self._changed(sight, None)]

    def _changed(self, sight: ObservedTransition, known: _Known | None) -> list[Change]:
        self._known[sight.key] = _Known(sight.record, sight.version, sight.czxid)
        before = NONE if known is None else known.record.state.value
        steps = sight.version + 1 if known is None else sight.version - known.version
        return self._steps(sight, before, sight.record.state.value, steps, sight.record)

    def _ended(self, sight: ObservedTransition, known: _Known | None) -> list[Change]:
        """Return the changes if the znode is deleted; `known` is its last observation, None if it was never seen."""
        self._known.pop(sight.key, None)
        before, version = (NONE, UNKNOWN) if known is None else (known.record.state.value, known.version)
        steps = _fewest_to_end(self._unlikely, before) if sight.version == UNKNOWN else sight.version - version + 1
        return self._steps(sight, before, NONE, steps, sight.record if known is None else known.record)

    def _steps(
        self, sight: ObservedTransition, before: str, after: str, count: int, record: TransitionRecord
    ) -> list[Change]:
        """Return `count` steps from `before` to `after`, one by one if only one legal sequence is that long."""
        self.steps_missed += count - 1
        ways = _ways(self._unlikely, before, after, count)
        if len(ways) > 1 and record.intent is Intent.OPEN:
            ways = _ways(self._unusual, before, after, count) or ways
        if not ways:
            between = f" in {count} steps" if count > 1 else ""
            self.breaches.append(
                f"{sight.key}: {before or '(none)'} -> {after or '(deleted)'}{between} is not a legal sequence of steps"
            )
        if len(ways) == 1:
            pairs = list(itertools.pairwise(ways[0]))
            found = [
                Change(sight.at_ms, sight.key, start, end, record, 0, sight.mzxid, number < len(pairs) - 1)
                for number, (start, end) in enumerate(pairs)
            ]
        else:
            found = [Change(sight.at_ms, sight.key, before, after, record, count - 1, sight.mzxid)]
        self.changes += found
        return found


@functools.lru_cache(_ANSWERS_MAX)
def _fewest_to_end(without: _Without, start: str) -> int:
    """Return the least number of steps until the deletion; 1 if no legal sequence leads there."""
    table = _successors(without)
    for steps in range(1, len(table) + 1):
        if any(after in _leading_to(table, NONE, steps - 1) for after in table[start]):
            return steps
    return 1


@functools.lru_cache(_ANSWERS_MAX)
def _successors(without: _Without) -> _Table:
    found: _Table = {NONE: set(), **{state.value: set() for state in RegionState}}
    for step in STEPS:
        if step.cause not in without:
            found[_word(step.before)].add(_word(step.after))
    return found


@functools.lru_cache(_ANSWERS_MAX)
def _ways(without: _Without, start: str, end: str, steps: int) -> tuple[tuple[str, ...], ...]:
    """Return up to two legal sequences of exactly that many steps. If there is only one, the missed steps are known."""
    table = _successors(without)
    found: list[tuple[str, ...]] = []
    waiting: list[tuple[str, ...]] = [(start,)]
    while waiting and len(found) < _WAYS_MAX:
        way = waiting.pop()
        left = steps + 1 - len(way)
        if not left:
            found.append(way)
            continue
        towards = _leading_to(table, end, left - 1)
        waiting += [(*way, after) for after in sorted(table[way[-1]] & towards)]
    return tuple(found)


def _leading_to(table: _Table, end: str, steps: int) -> set[str]:
    """Return the states from which `end` can be reached in exactly that many steps while the znode exists."""
    found = {end}
    for _ in range(steps):
        found = {state for state, after in table.items() if state != NONE and after & found}
    return found


def _word(state: RegionState | None) -> str:
    return NONE if state is None else state.value


@functools.lru_cache(_ANSWERS_MAX)
def actor_of(before: str, after: str) -> Actor | None:
    """Return the only actor that may take that step, None if the table lacks the step or both actors may take it."""
    actors = {step.actor for step in STEPS if _word(step.before) == before and _word(step.after) == after}
    return actors.pop() if len(actors) == 1 else None


def epoch_breaches(epochs: list[tuple[int, int]], changes: Iterable[Change]) -> list[str]:
    """Return the violations of the fencing epoch.

    `epochs` are (version of /epoch, zxid of that write) in the order seen. Versions must increase strictly. A step of a
    master must not carry a lower epoch than the one in force when it was written: such a write comes from a deposed
    master, and the check in the multi should have rejected it (FN-01).
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
                f"{change.key}: {change.after} written under epoch {change.record.epoch} while {standing} was in force"
            )
    return found
