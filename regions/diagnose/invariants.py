"""What must hold in a running cluster, checked while it runs (N5). Facts in, alarms out; no I/O, no clock.

Whoever watches the store (an auditor in every master, a simulation, a test) tells an `Audit` what it sees: transition
znodes with their versions, tables, servers, versions of the epoch, and now and then what servers say they have open.
The order must be the store's own: whatever one session is told, in the order in which it is told.

The rules, each with the row or decision it comes from:

- every step of a transition is in the table of `regions/transitions/states.py` (RT-21, RT-26, RT-30), counted by
  znode versions,
  so a step that nobody saw must still have had a legal way;
- a region is never taken from a server that lives (X1): neither CLOSING forced OFFLINE, nor a region assigned anew,
  while the server that has it is registered;
- only the server that an OFFLINE transition names goes on with it (RT-28);
- a transition ends without its region being open only if its table is not to be open (X3), or at a cluster startup
  (whether the region itself is not to be open is for the shell to look up before it believes such an alarm);
- whoever must act next is named, and there is a deadline (RT-11): parked regions excepted (X11);
- no transition stands still for longer than `STILL_MS`;
- epochs rise strictly, and no master writes under an epoch that is over (FN-01);
- a region is open on one server, the one that the store names (checked by `owners`).

An alarm is raised once: `alarm_id` is made of the rule, the replica and the znode's version, so several auditors that
see the same thing raise the same alarm.
"""

from __future__ import annotations

import enum
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from regions.records.alarms import Alarm, SliceStep
from regions.records.model import (
    Incarnation,
    Intent,
    RegionState,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.transitions.observed import NONE, UNKNOWN, Change, History, ObservedTransition, actor_of
from regions.transitions.states import Actor

#: A transition that has not changed for so long, and is not parked, is an alarm: longer than any deadline.
STILL_MS: Final = 600_000
#: A table's intent may be read later than the step that it allowed: steps so soon after any change of it pass.
TABLE_GRACE_MS: Final = 30_000
#: Steps kept per replica for the slice that an alarm carries, and replicas of which steps are kept.
SLICE_MAX: Final = 12
SLICES_MAX: Final = 20_000
#: Alarms remembered, so that each is raised once.
RAISED_MAX: Final = 10_000

_STARTED: Final = (RegionState.OPENING, RegionState.OPENED)
_CLOSE: Final = (RegionState.CLOSING, RegionState.CLOSED)


class Rule(enum.StrEnum):
    """What was broken."""

    ILLEGAL_STEP = "illegal step"
    TAKEN_FROM_THE_LIVING = "taken from a live server"
    WRONG_SERVER = "opened by a server that was not named"
    VANISHED = "ended without being open"
    NOBODY_RESPONSIBLE = "nobody is responsible"
    NO_DEADLINE = "no deadline"
    STANDS_STILL = "stands still"
    STALE_EPOCH = "written under an epoch that is over"
    UNKNOWN_EPOCH = "written under an epoch that nobody has"
    EPOCH_FELL = "the epoch did not rise"
    SEVERAL_OWNERS = "open on several servers"
    NO_OWNER = "open nowhere"
    ELSEWHERE = "open on another server than the store says"
    ORPHAN = "open, and unknown to the store"
    DAMAGED = "its rows are damaged"


class Audit:
    """Watches one cluster. Every method that takes a fact returns the alarms that it raises, usually none."""

    def __init__(self, *, still_ms: int = STILL_MS, table_grace_ms: int = TABLE_GRACE_MS) -> None:
        self._still_ms = still_ms
        self._table_grace_ms = table_grace_ms
        self._history = History(wipe_allowed=True)
        self._known: dict[str, ObservedTransition] = {}
        #: uuid -> start code of servers that are certainly registered now.
        self._alive: dict[str, int] = {}
        self._tables: dict[str, TableRecord] = {}
        self._table_changed_ms: dict[str, int] = {}
        self._epochs: list[tuple[int, int]] = []
        self._is_epoch_unread = False
        self._epoch_changed_ms = 0
        self._slices: dict[str, deque[SliceStep]] = {}
        self._raised: dict[str, None] = {}
        #: Suspects of the last look at the owners: key -> what was suspected then.
        self._suspects: dict[str, tuple[Rule, str]] = {}
        #: Steps looked at, and of those how many were too quick to be seen.
        self.steps = 0

    # --- facts --------------------------------------------------------------------------------------------------------

    def begin(self, sights: Iterable[ObservedTransition]) -> None:
        """The transitions that exist when the audit begins: no steps, but known from now on."""
        found = [one for one in sights if one.exists]
        self._history.begin(found)
        for one in found:
            self._known[one.key] = one

    def server(self, uuid: str, record: ServerRecord | None) -> None:
        """A server's registration is this, or gone, or (None too) has changed and will be read."""
        if record is None:
            self._alive.pop(uuid, None)
        else:
            self._alive[uuid] = record.start_code

    def table(self, table_id: str, record: TableRecord | None, now_ms: int) -> None:
        """A table's record is this; None: it is gone, or has changed and will be read."""
        if record is None:
            self._tables.pop(table_id, None)
        else:
            known = self._tables.get(table_id)
            self._tables[table_id] = record
            if known == record:
                return
        self._table_changed_ms[table_id] = now_ms

    def epoch(self, version: int, zxid: int, now_ms: int) -> list[Alarm]:
        """The epoch is `version`, written at `zxid`."""
        self._is_epoch_unread = False
        last = self._epochs[-1] if self._epochs else None
        if last == (version, zxid):
            return []
        self._epochs.append((version, zxid))
        del self._epochs[:-64]
        self._epoch_changed_ms = now_ms
        if last is None or version > last[0]:
            return []
        text = f"the epoch is {version} after it was {last[0]}: commands of former masters are no longer refused"
        return self._raise(Rule.EPOCH_FELL, "", f"{zxid}", text, now_ms)

    def epoch_changes(self) -> None:
        """There is word of another epoch, or may be: until it has been read, nobody knows which is the highest. A
        transition that was asked for before can show it."""
        self._is_epoch_unread = True

    def see(self, sight: ObservedTransition) -> list[Alarm]:
        """A transition znode was read, or is gone."""
        known = self._known.get(sight.key)
        counted = len(self._history.breaches)
        changes = self._history.see(sight)
        breaches, self._history.breaches[:] = self._history.breaches[counted:], []
        self._history.changes.clear()
        if not changes:
            return []
        if sight.exists:
            self._known[sight.key] = sight
        else:
            self._known.pop(sight.key, None)
        for change in changes:
            self.steps += 1 + change.missed
            self._remember(change)
        mark = f"{sight.czxid}:{sight.version}:{sight.exists}"
        alarms: list[Alarm] = []
        for breach in breaches:
            alarms += self._raise(Rule.ILLEGAL_STEP, sight.key, mark, breach, sight.at_ms)
        if not breaches:
            for rule, text in self._broken(sight, known, changes):
                alarms += self._raise(rule, sight.key, mark, f"{sight.key}: {text}", sight.at_ms)
        return alarms

    @property
    def in_transition(self) -> list[str]:
        """Keys of the transitions that exist, as far as is known."""
        return list(self._known)

    def forget_servers(self) -> None:
        """Events may have been missed: nobody is certainly registered until the registrations have been read again."""
        self._alive.clear()

    def tick(self, now_ms: int) -> list[Alarm]:
        """Look for transitions that stand still; every few seconds is often enough."""
        alarms: list[Alarm] = []
        for sight in self._known.values():
            record = sight.record
            still_ms = now_ms - sight.at_ms
            if still_ms > self._still_ms and not record.parked:
                text = f"{sight.key}: {record.state.value} for {still_ms // 1000} s without any step"
                mark = f"{sight.czxid}:{sight.version}"
                alarms += self._raise(Rule.STANDS_STILL, sight.key, mark, text, now_ms)
        return alarms

    def owners(
        self,
        stored: Mapping[str, Incarnation],
        lists: Mapping[Incarnation, Collection[str]],
        now_ms: int,
    ) -> list[Alarm]:
        """Compare the store with what servers say that they serve, by key; what is found twice in a row is an alarm.

        `stored`: where the store says each replica is open, of those that are at rest, and have been for so long that
        the servers have told of it. A step at the wrong moment looks like a contradiction; two looks do not.
        """
        found = dict(contradictions(stored, lists))
        suspects, self._suspects = self._suspects, found
        alarms: list[Alarm] = []
        for key, (rule, text) in found.items():
            if suspects.get(key) == (rule, text):
                alarms += self._raise(rule, key, text, f"{key}: {text}", now_ms)
        return alarms

    def orphan(self, key: str, server: Incarnation, now_ms: int) -> list[Alarm]:
        """A server serves a replica of which the store knows nothing: told, never taken away (FN-04)."""
        return self._raise(
            Rule.ORPHAN, key, str(server), f"{key}: the store knows nothing of it, {server} serves it", now_ms
        )

    def slice_of(self, key: str) -> tuple[SliceStep, ...]:
        """The latest steps of a replica that this audit saw, oldest first."""
        return tuple(self._slices.get(key, ()))

    # --- rules --------------------------------------------------------------------------------------------------------

    def _broken(
        self, sight: ObservedTransition, known: ObservedTransition | None, changes: list[Change]
    ) -> Iterable[tuple[Rule, str]]:
        record = sight.record
        last = changes[-1]
        if not sight.exists:
            # After a gap nobody knows how many steps there were, and from every state a usual way leads to the end.
            if sight.version != UNKNOWN and self._vanished(known, changes, sight.at_ms):
                yield Rule.VANISHED, f"{last.before or '(none)'} -> (deleted), though its table is to be open"
            return
        if record.damage:
            yield Rule.DAMAGED, record.damage
        if not last.missed and last.after == RegionState.OFFLINE.value:
            yield from self._taken(record, last)
        if record.state in _STARTED and known is not None and known.record.state is RegionState.OFFLINE:
            named = known.record.destination
            same = known.czxid == sight.czxid and sight.version == known.version + len(changes)
            if same and record.destination != named:
                yield Rule.WRONG_SERVER, f"{named} was to open it, {record.destination} wrote {record.state.value}"
        yield from self._irresponsible(record)
        yield from self._wrong_epoch(record, last)

    def _taken(self, record: TransitionRecord, step: Change) -> Iterable[tuple[Rule, str]]:
        """X1: nobody else opens a region while the server that has it lives."""
        source = record.source
        if step.before not in (NONE, RegionState.CLOSING.value) or source is None:
            return
        if self._alive.get(source.uuid) == source.start_code:
            yield Rule.TAKEN_FROM_THE_LIVING, f"{step.before or '(none)'} -> OFFLINE while {source} has it and lives"

    def _vanished(self, known: ObservedTransition | None, changes: list[Change], now_ms: int) -> bool:
        """A transition that ended other than after OPENED, for no reason that anybody can see."""
        last = changes[-1]
        count = sum(1 + change.missed for change in changes)
        if self._history.is_usual(changes[0].before, NONE, count):
            return False
        record = last.record if known is None else known.record
        if record.intent is Intent.CLOSE or self._is_closed_for_good(record.table_id, now_ms):
            return False
        # A cluster startup wipes what no live server has anything to do with (RT-04).
        named = [one for one in (record.source, record.destination) if one is not None]
        lives = any(self._alive.get(one.uuid) == one.start_code for one in named)
        return lives or (known is None and now_ms - self._epoch_changed_ms > self._table_grace_ms)

    def _is_closed_for_good(self, table_id: str, now_ms: int) -> bool:
        """Whether the table is, or may lately have been, one whose regions are not to be open."""
        table = self._tables.get(table_id)
        if table is None or table.intent != TableIntent.ENABLED:
            return True
        if table.state not in (TableState.RUNNING, TableState.ALTERING):
            return True
        return now_ms - self._table_changed_ms.get(table_id, now_ms) < self._table_grace_ms

    @staticmethod
    def _irresponsible(record: TransitionRecord) -> Iterable[tuple[Rule, str]]:
        state = record.state.value
        responsible = record.destination if record.state in _STARTED else record.source
        if record.state in (*_STARTED, *_CLOSE) and responsible is None:
            yield Rule.NOBODY_RESPONSIBLE, f"{state} names no server"
        waits = record.state in (RegionState.OFFLINE, RegionState.OPENING, RegionState.CLOSING)
        if waits and record.deadline_ms <= 0 and not record.parked:
            yield Rule.NO_DEADLINE, f"{state} has no deadline"

    def _wrong_epoch(self, record: TransitionRecord, step: Change) -> Iterable[tuple[Rule, str]]:
        if not self._epochs:
            return
        highest = max(version for version, _ in self._epochs)
        if record.epoch > highest and not self._is_epoch_unread:
            yield Rule.UNKNOWN_EPOCH, f"{step.after} carries epoch {record.epoch}, the highest is {highest}"
        if step.missed or step.inferred or actor_of(step.before, step.after) is not Actor.MASTER:
            return
        standing = max((version for version, zxid in self._epochs if zxid < step.mzxid), default=0)
        if record.epoch < standing:
            yield Rule.STALE_EPOCH, f"{step.after} was written under epoch {record.epoch} while {standing} stood"

    # --- alarms -------------------------------------------------------------------------------------------------------

    def _remember(self, change: Change) -> None:
        record = change.record
        server = record.source if record.state in _CLOSE else record.destination
        steps = self._slices.pop(change.key, None)
        if steps is None:
            steps = deque(maxlen=SLICE_MAX)
            if len(self._slices) >= SLICES_MAX:
                del self._slices[next(iter(self._slices))]
        self._slices[change.key] = steps  # last used, last forgotten
        steps.append(
            SliceStep(
                change.at_ms,
                change.before,
                change.after,
                "" if server is None else str(server),
                record.epoch,
                record.reason,
                record.attempt,
                record.last_error,
                change.missed,
            )
        )

    def _raise(self, rule: Rule, key: str, mark: str, text: str, now_ms: int) -> list[Alarm]:
        name = f"{rule.value}|{key}|{mark}".encode()
        alarm_id = f"{zlib.crc32(name):08x}{zlib.adler32(name):08x}"
        if alarm_id in self._raised:
            return []
        self._raised[alarm_id] = None
        if len(self._raised) > RAISED_MAX:
            del self._raised[next(iter(self._raised))]
        return [Alarm(alarm_id, now_ms, rule.value, key, text, self.slice_of(key))]


def contradictions(
    stored: Mapping[str, Incarnation], lists: Mapping[Incarnation, Collection[str]]
) -> Iterable[tuple[str, tuple[Rule, str]]]:
    """(key, (rule, words)) for every replica about whose owner the store and the servers do not agree.

    A replica that the store does not list is looked at only if two servers have it. Nothing is said of a replica whose
    server is not among `lists`: a dead or silent server is the masters' business.
    """
    held: dict[str, list[Incarnation]] = {}
    for server, keys in lists.items():
        for key in keys:
            held.setdefault(key, []).append(server)
    for key, owners in held.items():
        if len(owners) > 1:
            yield key, (Rule.SEVERAL_OWNERS, f"open on {', '.join(str(one) for one in sorted(owners))}")
    for key, home in stored.items():
        owners = held.get(key, [])
        if len(owners) > 1 or home in owners or home not in lists:
            continue
        if owners:
            yield key, (Rule.ELSEWHERE, f"the store says {home}, it is open on {owners[0]}")
        else:
            yield key, (Rule.NO_OWNER, f"the store says {home}, which does not have it open")
