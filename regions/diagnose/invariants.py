"""Invariants of a cluster, checked while it runs (N5). Observations in, alarms out; no I/O, no clock.

A watcher of the store (an auditor in every master, a simulation, a test) passes its observations to an `Audit`:
transition znodes with their versions, tables, servers, versions of the epoch, and the replicas that servers report. The
observations must be in the store's order, as one session receives them.

The rules, each with its requirement:

- Every step of a transition is in the table of `regions/transitions/states.py` (RT-21, RT-26, RT-30). Steps are counted
  by znode versions, so for steps that were not observed there must be a legal path.
- A region is never taken from a live server (X1): CLOSING is not forced to OFFLINE, and the region is not assigned
  again, while the server that has it is registered.
- Only the server named in an OFFLINE transition continues the transition (RT-28).
- A transition ends with a closed region only if the table must not be open (X3), or at a cluster startup. The caller
  checks whether the region itself must be closed before it raises this alarm.
- A transition names the server that must act next, and has a deadline (RT-11), unless it is parked (X11).
- No transition stays unchanged for longer than `STILL_MS`.
- Epochs rise strictly, and no master writes under an old epoch (FN-01).
- A region is open on one server, the one that the store names (`contradictions`).
- Every key of a table is in exactly one region (X11, `regions/diagnose/live/key_space.py`).

An alarm is raised once. `alarm_id` is derived from the rule, the replica and the znode's version, so several auditors
with the same observation raise the same alarm.
"""

from __future__ import annotations

import enum
import zlib
from collections import OrderedDict, deque
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
from regions.transitions.observed import NONE, UNKNOWN, Change, History, ObservedTransition, actor_of, deleted
from regions.transitions.states import Actor

#: A transition that has not changed for this long, and is not parked, is an alarm. Longer than any deadline.
STILL_MS: Final = 600_000
#: Steps are allowed for this long after any change of the table, because its intent may be read after the step.
TABLE_GRACE_MS: Final = 30_000
#: Steps per replica that an alarm carries.
SLICE_MAX: Final = 12
#: Replicas whose steps are kept.
SLICES_MAX: Final = 20_000
#: Alarm ids that are kept, so that each alarm is raised once.
RAISED_MAX: Final = 10_000

_STARTED: Final = (RegionState.OPENING, RegionState.OPENED)
_CLOSE: Final = (RegionState.CLOSING, RegionState.CLOSED)
#: States that a server has written.
_SERVERS: Final = _STARTED + _CLOSE


class Rule(enum.StrEnum):
    """The rule that was broken."""

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
    KEY_SPACE = "hole or overlap in the key space"
    STALE_COPY = "a master's copy differs from the store"


class Audit:
    """The audit of one cluster. Methods that take an observation return the raised alarms, usually none."""

    def __init__(
        self, *, still_ms: int = STILL_MS, table_grace_ms: int = TABLE_GRACE_MS, slices_max: int = SLICES_MAX
    ) -> None:
        self._still_ms = still_ms
        self._table_grace_ms = table_grace_ms
        self._slices_max = slices_max
        self._history = History(wipe_allowed=True)
        #: In the order of their latest steps.
        self._known: dict[str, ObservedTransition] = {}
        #: Start codes of servers that are certainly registered, by uuid.
        self._alive: dict[str, int] = {}
        self._tables: dict[str, TableRecord] = {}
        self._table_changed_ms: dict[str, int] = {}
        self._epochs: list[tuple[int, int]] = []
        self._is_epoch_unread = False
        #: When the latest epoch was seen for the first time.
        self.epoch_changed_ms = 0
        #: Latest steps by replica, in order of use. (A dict searches longer for its first key with each key removed.)
        self._slices: OrderedDict[str, deque[Change]] = OrderedDict()
        #: Transitions that ended as usual before they were read: time and last version. Their steps are not in the
        #: slices yet.
        self._endings: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._raised: dict[str, None] = {}
        #: Contradictions of the last comparison of owners, by replica key.
        self._suspects: dict[str, tuple[Rule, str]] = {}
        #: Number of checked steps, including steps that were not observed themselves.
        self.steps = 0

    # --- observations -------------------------------------------------------------------------------------------------

    def begin(self, observations: Iterable[ObservedTransition]) -> None:
        """Set the transitions that exist when the audit begins. They are known states, not steps."""
        found = [one for one in observations if one.exists]
        self._history.begin(found)
        for one in found:
            self._known[one.key] = one

    def server(self, uuid: str, record: ServerRecord | None) -> None:
        """Set a server's registration; None if the registration is gone, or has changed and will be read."""
        if record is None:
            self._alive.pop(uuid, None)
        else:
            self._alive[uuid] = record.start_code

    def table(self, table_id: str, record: TableRecord | None, now_ms: int) -> None:
        """Set a table's record; None if the record is gone, or has changed and will be read."""
        if record is None:
            self._tables.pop(table_id, None)
        else:
            known = self._tables.get(table_id)
            self._tables[table_id] = record
            if known == record:
                return
        self._table_changed_ms[table_id] = now_ms

    def epoch(self, version: int, zxid: int, now_ms: int) -> list[Alarm]:
        """Set the epoch: `version` of its znode, written at `zxid`."""
        self._is_epoch_unread = False
        last = self._epochs[-1] if self._epochs else None
        if last == (version, zxid):
            return []
        self._epochs.append((version, zxid))
        del self._epochs[:-64]
        self.epoch_changed_ms = now_ms
        if last is None or version > last[0]:
            return []
        text = f"the epoch fell from {last[0]} to {version}: writes of former masters are not refused any more"
        return self._raise(Rule.EPOCH_FELL, "", f"{zxid}", text, now_ms)

    def epoch_changes(self) -> None:
        """Record that the epoch may have changed.

        Until it has been read, the highest epoch is unknown, and a transition may carry a higher one.
        """
        self._is_epoch_unread = True

    def see(self, observed: ObservedTransition) -> list[Alarm]:
        """Check a transition znode that was read or deleted."""
        known = self._known.get(observed.key)
        counted = len(self._history.breaches)
        changes = self._history.see(observed)
        breaches, self._history.breaches[:] = self._history.breaches[counted:], []
        self._history.changes.clear()
        if not changes:
            return []
        self._known.pop(observed.key, None)
        if observed.exists:
            self._known[observed.key] = observed  # now the last one, see `tick`
        for change in changes:
            self.steps += 1 + change.missed
            self._add_to_slice(change)
        found = [(Rule.ILLEGAL_STEP, breach) for breach in breaches]
        if not found:
            found = [(rule, f"{observed.key}: {text}") for rule, text in self._broken(observed, known, changes)]
        if not found:
            return []
        occurrence = f"{observed.czxid}:{observed.version}:{observed.exists}"
        alarms: list[Alarm] = []
        for rule, text in found:
            alarms += self._raise(rule, observed.key, occurrence, text, observed.at_ms)
        return alarms

    def ended(self, key: str, version: int, now_ms: int) -> list[Alarm]:
        """Check a transition whose znode was deleted at `version`, or UNKNOWN.

        During a bulk assignment most transitions end before they are read, in the same few steps.
        """
        if version == UNKNOWN or key in self._known or not self._history.ends_unread(key, version):
            return self.see(deleted(key, version, now_ms))
        self.steps += version + 2
        self._flush_ending(key)
        self._endings[key] = (now_ms, version)
        if len(self._endings) > self._slices_max:
            self._endings.popitem(last=False)
        return []

    @property
    def in_transition(self) -> list[str]:
        """Return the keys of the known transitions."""
        return list(self._known)

    def forget_servers(self) -> None:
        """Forget the registrations after missed events, until they have been read again."""
        self._alive.clear()

    def tick(self, now_ms: int) -> list[Alarm]:
        """Check for transitions without progress. Called every few seconds.

        The transitions are in the order of their latest steps, so the first one with a recent step ends the check.
        A step in the future was seen before the clock was set back.
        """
        alarms: list[Alarm] = []
        for observed in self._known.values():
            record = observed.record
            still_ms = now_ms - observed.at_ms
            if 0 <= still_ms <= self._still_ms:
                break
            if still_ms > 0 and not record.parked and not self._waits_for_its_server(record):
                text = f"{observed.key}: {record.state.value} for {still_ms // 1000} s without a step (rk why)"
                occurrence = f"{observed.czxid}:{observed.version}"
                alarms += self._raise(Rule.STANDS_STILL, observed.key, occurrence, text, now_ms)
        return alarms

    def _waits_for_its_server(self, record: TransitionRecord) -> bool:
        """Return True for a tablet's member whose server is away: its transition waits until the server is back."""
        table = self._tables.get(record.table_id)
        named = record.source if record.state in _CLOSE else record.destination
        if table is None or not table.is_tablet or named is None:
            return False
        return self._alive.get(named.uuid) != named.start_code

    def compared(self, found: dict[str, tuple[Rule, str]], now_ms: int) -> list[Alarm]:
        """Handle the contradictions of a comparison of all owners. A contradiction found twice in a row is an alarm.

        A step between the reads can cause a contradiction once, but not twice.
        """
        suspects, self._suspects = self._suspects, found
        alarms: list[Alarm] = []
        for key, (rule, text) in found.items():
            if suspects.get(key) == (rule, text):
                alarms += self._raise(rule, key, text, f"{key}: {text}", now_ms)
        return alarms

    def orphan(self, key: str, server: Incarnation, now_ms: int) -> list[Alarm]:
        """Raise the alarm for a replica that a server serves and no table has. The replica is reported, not closed
        (FN-04)."""
        return self._raise(
            Rule.ORPHAN, key, str(server), f"{key}: server {server} serves it, and no table in the store has it", now_ms
        )

    def owner(self, key: str, rule: Rule, text: str, now_ms: int) -> list[Alarm]:
        """Raise the alarm for a replica that is not where the store says (`regions/diagnose/live/doubts.py`)."""
        return self._raise(rule, key, text, f"{key}: {text}", now_ms)

    def key_space(self, table_id: str, version: int, text: str, now_ms: int) -> list[Alarm]:
        """Raise the alarm for a table with a hole or an overlap (`regions/diagnose/live/key_space.py`)."""
        return self._raise(Rule.KEY_SPACE, "", f"{table_id}|{version}|{text}", text, now_ms)

    def stale_copy(self, path: str, text: str, now_ms: int) -> list[Alarm]:
        """Raise the alarm for a znode that differs from a master's copy (`regions/diagnose/live/cache_check.py`)."""
        return self._raise(Rule.STALE_COPY, "", f"{path}|{text}", text, now_ms)

    def slice_of(self, key: str) -> tuple[SliceStep, ...]:
        """Return the latest observed steps of a replica, oldest first."""
        self._flush_ending(key)
        return tuple([_slice_step(one) for one in self._slices.get(key, ())])

    # --- rules --------------------------------------------------------------------------------------------------------

    def _broken(
        self, observed: ObservedTransition, known: ObservedTransition | None, changes: list[Change]
    ) -> Iterable[tuple[Rule, str]]:
        record = observed.record
        last = changes[-1]
        if not observed.exists:
            # After a gap the number of steps is unknown, and from every state a legal path leads to the end.
            if observed.version != UNKNOWN and self._vanished(known, changes, observed.at_ms):
                yield Rule.VANISHED, f"{last.before or '(none)'} -> (deleted), although its table should be open"
            return
        if record.damage:
            yield Rule.DAMAGED, record.damage
        if not last.missed and last.after == RegionState.OFFLINE.value:
            yield from self._taken(record, last)
        if record.state in _STARTED and known is not None and known.record.state is RegionState.OFFLINE:
            named = known.record.destination
            same = known.czxid == observed.czxid and observed.version == known.version + len(changes)
            if same and record.destination != named:
                yield Rule.WRONG_SERVER, f"server {record.destination} wrote {record.state.value} instead of {named}"
        yield from _without_responsible(record)
        yield from self._wrong_epoch(record, last)

    def _taken(self, record: TransitionRecord, step: Change) -> Iterable[tuple[Rule, str]]:
        """Check that no region is taken from a live server (X1)."""
        source = record.source
        if step.before not in (NONE, RegionState.CLOSING.value) or source is None:
            return
        if self._alive.get(source.uuid) == source.start_code:
            yield Rule.TAKEN_FROM_THE_LIVING, f"{step.before or '(none)'} -> OFFLINE while live server {source} has it"

    def _vanished(self, known: ObservedTransition | None, changes: list[Change], now_ms: int) -> bool:
        """Return True if a transition has ended without OPENED and without a known reason."""
        last = changes[-1]
        count = sum(1 + change.missed for change in changes)
        if self._history.is_usual(changes[0].before, NONE, count):
            return False
        record = last.record if known is None else known.record
        if record.intent is Intent.CLOSE or self._is_closed_for_good(record.table_id, now_ms):
            return False
        # A cluster startup deletes transitions that name no live server (RT-04).
        named = [one for one in (record.source, record.destination) if one is not None]
        lives = any(self._alive.get(one.uuid) == one.start_code for one in named)
        return lives or (known is None and now_ms - self.epoch_changed_ms > self._table_grace_ms)

    def _is_closed_for_good(self, table_id: str, now_ms: int) -> bool:
        """Return True if the table's regions must be closed, or may have had to be closed recently."""
        table = self._tables.get(table_id)
        if table is None or table.intent != TableIntent.ENABLED:
            return True
        if table.state not in (TableState.RUNNING, TableState.ALTERING):
            return True
        return now_ms - self._table_changed_ms.get(table_id, now_ms) < self._table_grace_ms

    def _wrong_epoch(self, record: TransitionRecord, step: Change) -> Iterable[tuple[Rule, str]]:
        if not self._epochs:
            return
        highest = max(version for version, _ in self._epochs)
        if record.epoch > highest and not self._is_epoch_unread:
            yield Rule.UNKNOWN_EPOCH, f"{step.after} carries epoch {record.epoch}, the highest is {highest}"
        if step.missed or step.inferred or actor_of(step.before, step.after) is not Actor.MASTER:
            return
        current = max((version for version, zxid in self._epochs if zxid < step.mzxid), default=0)
        if record.epoch < current:
            yield Rule.STALE_EPOCH, f"{step.after} was written under epoch {record.epoch}, when the epoch was {current}"

    # --- alarms -------------------------------------------------------------------------------------------------------

    def _flush_ending(self, key: str) -> None:
        """Add the steps of a transition that ended unread to the slice of its replica."""
        ending = self._endings.pop(key, None)
        if ending is not None:
            at_ms, version = ending
            for change in History(wipe_allowed=True).see(deleted(key, version, at_ms)):
                self._add_to_slice(change)

    def _add_to_slice(self, change: Change) -> None:
        key = change.key
        self._flush_ending(key)
        steps = self._slices.get(key)
        if steps is None:
            if len(self._slices) >= self._slices_max:
                self._slices.popitem(last=False)
            steps = self._slices[key] = deque(maxlen=SLICE_MAX)
        else:
            self._slices.move_to_end(key)
        steps.append(change)

    def _raise(self, rule: Rule, key: str, occurrence: str, text: str, now_ms: int) -> list[Alarm]:
        name = f"{rule.value}|{key}|{occurrence}".encode()
        alarm_id = f"{zlib.crc32(name):08x}{zlib.adler32(name):08x}"
        if alarm_id in self._raised:
            return []
        self._raised[alarm_id] = None
        if len(self._raised) > RAISED_MAX:
            del self._raised[next(iter(self._raised))]
        return [Alarm(alarm_id, now_ms, rule.value, key, text, self.slice_of(key))]


def _slice_step(change: Change) -> SliceStep:
    record = change.record
    server = record.source if record.state in _CLOSE else record.destination
    return SliceStep(
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


def _without_responsible(record: TransitionRecord) -> Iterable[tuple[Rule, str]]:
    state = record.state.value
    responsible = record.destination if record.state in _STARTED else record.source
    if record.state in _SERVERS and responsible is None:
        yield Rule.NOBODY_RESPONSIBLE, f"{state} names no server"
    waits = record.state in (RegionState.OFFLINE, RegionState.OPENING, RegionState.CLOSING)
    if waits and record.deadline_ms <= 0 and not record.parked:
        yield Rule.NO_DEADLINE, f"{state} has no deadline"


def contradictions(
    stored: Mapping[str, Incarnation], lists: Mapping[Incarnation, Collection[str]]
) -> Iterable[tuple[str, tuple[Rule, str]]]:
    """Yield (key, (rule, text)) for every replica whose server differs between the store and the servers' lists.

    A replica that is not in `stored` is checked only for two servers. A replica whose server is not in `lists` is
    skipped, because the masters handle dead and silent servers.
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
            yield key, (Rule.ELSEWHERE, f"open on server {owners[0]}, the store names {home}")
        else:
            yield key, (Rule.NO_OWNER, f"not open on server {home}, which the store names")
