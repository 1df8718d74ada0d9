"""Check that the recorded history equals the store's log: every step of every transition once, in order, by its actor.

The observer passes every committed change of a transition. The history that masters write below `/history` must equal
these changes. After every commit:

- the entries of a replica are a prefix of its committed steps;
- the steps that are not in the history yet are the ones that the znode itself keeps (`regions/transitions/trail.py`).

At the end of a run the segments are read in the order of their names and compared once more.

Every step names the cause of its work. The first step of each cause records the origin of the work
(`regions/cluster/causes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from regions.cluster.history import parse_segment, unpack
from regions.records.model import RegionState, TransitionRecord
from regions.records.znodes import decode_transition
from regions.transitions.entries import HistoryEntry
from regions.transitions.states import Actor
from regions.transitions.steps import entries_kept


class HistoryStep(NamedTuple):
    """A step, from the store's log or from an entry of the history."""

    before: str
    after: str
    actor: str
    #: uuid of the server that wrote the step; "" for a master.
    server: str
    #: Epoch of the master that wrote the step; for a server's step the epoch in its record.
    epoch: int


def _steps_of(entry: HistoryEntry) -> list[HistoryStep]:
    """Return the steps of an entry: first those that are only counted, then the entry's own step.

    Only progress reports may be counted without times, because a long open writes many (`trail.TOOK_MAX`).
    """
    server = entry.server if entry.actor == Actor.SERVER.value else ""
    own = HistoryStep(entry.before, entry.after, entry.actor, server, entry.epoch)
    progress = own._replace(before=RegionState.OPENING.value, after=RegionState.OPENING.value)
    return [progress] * entry.missed + [own]


def _unstamped(entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    """Return entries without the zxids that a merge adds."""
    return [msgspec.structs.replace(one, zxid=0) for one in entries]


def _name_of(state: RegionState | None) -> str:
    return "" if state is None else state.value


class HistoryCheck:
    """Compares the history with the log after every commit; see the module docstring."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        #: Every committed step of every replica, in the order of the log.
        self._committed: dict[str, list[HistoryStep]] = {}
        #: Number of these steps that are in the history.
        self._written: dict[str, int] = {}
        #: Cause id of the latest entry of each replica.
        self._causes: dict[str, str] = {}
        #: Entries that are not steps, such as the registration of a server.
        self._notes: set[HistoryEntry] = set()
        #: The segments in the store, by name.
        self._segments: dict[str, list[HistoryEntry]] = {}

    @property
    def steps(self) -> int:
        """Return the number of committed steps."""
        return sum(map(len, self._committed.values()))

    def entries(self) -> Iterator[HistoryEntry]:
        """Return the steps in the history, segment by segment."""
        for name in sorted(self._segments):
            yield from (entry for entry in self._segments[name] if entry.key)

    def committed(
        self,
        key: str,
        old: TransitionRecord | None,
        new: TransitionRecord | None,
        server: str,
        epoch: int,
    ) -> None:
        """Add a committed step. `server`: uuid of the server that wrote the step, or "" for a master of `epoch`."""
        before, after = (_name_of(None if one is None else one.state) for one in (old, new))
        actor = Actor.SERVER if server else Actor.MASTER
        known = new.epoch if server and new is not None else epoch
        self._committed.setdefault(key, []).append(HistoryStep(before, after, actor.value, server, known))

    def segments_changed(self, changed: Sequence[tuple[str, bytes | None]]) -> None:
        """Apply the changes of one commit below `/history`: (name, value or None for a deletion)."""
        gone = sorted(name for name, data in changed if data is None)
        made = {name: unpack(data) for name, data in changed if data is not None}
        for name in made:
            if parse_segment(name) is None:
                self._violated(f"history: {name} is not a valid segment name")
        lost = [entry for name in gone for entry in self._segments.pop(name, [])]
        self._segments.update(made)
        if not gone:
            for entries in made.values():
                self._append(entries)
        elif made and _unstamped(entry for entries in made.values() for entry in entries) != _unstamped(lost):
            self._violated(f"history: the merge of {gone} changed their entries")

    def _append(self, entries: Sequence[HistoryEntry]) -> None:
        for entry in entries:
            if not entry.key:
                if entry in self._notes:
                    self._violated(f"history: duplicate entry {entry.cause} of {entry.server} at {entry.at_ms} ms")
                self._notes.add(entry)
                continue
            self._check_cause(entry)
            committed = self._committed.get(entry.key, [])
            for step in _steps_of(entry):
                at = self._written[entry.key] = self._written.get(entry.key, 0) + 1
                if at > len(committed) or committed[at - 1] != step:
                    there = committed[at - 1] if at <= len(committed) else "no step"
                    self._violated(f"history: step {at} of {entry.key} is step as {step}, and was {there}")

    def _check_cause(self, entry: HistoryEntry) -> None:
        """Check that the step names its cause, and that the first step of a cause records its origin."""
        former = self._causes.get(entry.key)
        self._causes[entry.key] = entry.cause_id
        step = f"the step of {entry.key} from {entry.before or '(none)'} to {entry.after or '(none)'}"
        if not entry.cause_id:
            self._violated(f"history: {step} has no cause id")
        elif not entry.origin and (not entry.before or entry.cause_id != former):
            self._violated(f"history: {step} does not record the origin of cause {entry.cause_id}")

    def check_kept(self, key: str, data: bytes | None, version: int) -> None:
        """Compare the steps that the znode keeps with the steps missing from the history; `data` None: it was
        deleted."""
        kept: list[HistoryStep] = []
        for entry in [] if data is None else entries_kept(decode_transition(data, key), version):
            kept += _steps_of(entry)
        left = self._committed.get(key, [])[self._written.get(key, 0) :]
        if kept != left:
            self._violated(f"history: {key} keeps {kept}, but the history lacks {left}")

    def check_all(self) -> None:
        """Read the segments in the order of their names, as a reader does, and compare them with the log."""
        found: dict[str, list[HistoryStep]] = {}
        for entry in self.entries():
            found.setdefault(entry.key, []).extend(_steps_of(entry))
        for key, committed in self._committed.items():
            written = committed[: self._written.get(key, 0)]
            if found.get(key, []) != written:
                self._violated(f"history: {key} is recorded as {found.get(key, [])}, but the log has {written}")
