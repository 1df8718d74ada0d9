"""Whether the recorded history equals the store's own log: every step of every transition once, in order, by its actor.

The observer gives every committed change of a transition. What masters write below `/history` must be exactly that: at
every commit, the entries of a replica are the beginning of its true steps, and the steps that are not written down yet
are those that the znode itself keeps (`regions/transitions/trail.py`). At the end of a run the segments are read as
they are stored, in the order of their names, and compared once more.

Every step names the cause of the work that it is part of, and the first step of each cause says what began the work
(`regions/cluster/causes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from regions.cluster.history import HistoryEntry, entries_kept, parse_segment, unpack
from regions.records.model import RegionState, TransitionRecord
from regions.records.znodes import decode_transition
from regions.transitions.states import Actor


class Step(NamedTuple):
    """A step as the store's log has it, or as an entry of the history tells it."""

    before: str
    after: str
    actor: str
    #: uuid of the server that wrote it; "" for a master.
    server: str
    #: Epoch of the master that wrote it; of a server's step the epoch in its record.
    epoch: int


def _told(entry: HistoryEntry) -> list[Step]:
    """Return the steps that an entry stands for: its own, after those that are only counted.

    Only reports of progress may be counted without a time of their own: a long open makes many (`trail.TOOK_MAX`).
    """
    server = entry.server if entry.actor == Actor.SERVER.value else ""
    own = Step(entry.before, entry.after, entry.actor, server, entry.epoch)
    progress = own._replace(before=RegionState.OPENING.value, after=RegionState.OPENING.value)
    return [progress] * entry.missed + [own]


def _word(state: RegionState | None) -> str:
    return "" if state is None else state.value


class Record:
    """Compares the history with the log, commit by commit; see the module docstring."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        #: Every step of every replica, in the order of the log.
        self._true: dict[str, list[Step]] = {}
        #: How many of them are written down.
        self._written: dict[str, int] = {}
        #: Cause id of the latest entry of each replica.
        self._causes: dict[str, str] = {}
        #: Entries that are no steps, say that a server has registered.
        self._notes: set[HistoryEntry] = set()
        #: The segments in the store, by name.
        self._segments: dict[str, list[HistoryEntry]] = {}

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return sum(map(len, self._true.values()))

    def entries(self) -> Iterator[HistoryEntry]:
        """Return the steps that masters have written down, segment by segment."""
        for name in sorted(self._segments):
            yield from (entry for entry in self._segments[name] if entry.key)

    def taken(
        self,
        key: str,
        old: TransitionRecord | None,
        new: TransitionRecord | None,
        server: str,
        epoch: int,
    ) -> None:
        """Note a committed step. `server`: the uuid of the server that wrote it, "" for a master of `epoch`."""
        before, after = (_word(None if one is None else one.state) for one in (old, new))
        actor = Actor.SERVER if server else Actor.MASTER
        known = new.epoch if server and new is not None else epoch
        self._true.setdefault(key, []).append(Step(before, after, actor.value, server, known))

    def segments_changed(self, changed: Sequence[tuple[str, bytes | None]]) -> None:
        """Note what one commit has written below `/history`: (name, value or None for a deletion)."""
        gone = sorted(name for name, data in changed if data is None)
        made = {name: unpack(data) for name, data in changed if data is not None}
        for name in made:
            if parse_segment(name) is None:
                self._violated(f"history: {name} is no name of a segment")
        lost = [entry for name in gone for entry in self._segments.pop(name, [])]
        self._segments.update(made)
        if not gone:
            for entries in made.values():
                self._append(entries)
        elif made and [entry for entries in made.values() for entry in entries] != lost:
            self._violated(f"history: {gone} were merged into other entries than theirs")

    def _append(self, entries: Sequence[HistoryEntry]) -> None:
        for entry in entries:
            if not entry.key:
                if entry in self._notes:
                    self._violated(f"history: {entry.cause} of {entry.server} at {entry.at_ms} ms is told twice")
                self._notes.add(entry)
                continue
            self._check_cause(entry)
            true = self._true.get(entry.key, [])
            for told in _told(entry):
                at = self._written[entry.key] = self._written.get(entry.key, 0) + 1
                if at > len(true) or true[at - 1] != told:
                    there = true[at - 1] if at <= len(true) else "no step"
                    self._violated(f"history: step {at} of {entry.key} is told as {told}, and was {there}")

    def _check_cause(self, entry: HistoryEntry) -> None:
        """Check that the step names its cause, and that a step under a new cause says what that was."""
        former = self._causes.get(entry.key)
        self._causes[entry.key] = entry.cause_id
        step = f"the step of {entry.key} from {entry.before or '(none)'} to {entry.after or '(none)'}"
        if not entry.cause_id:
            self._violated(f"history: {step} has no cause id")
        elif not entry.origin and (not entry.before or entry.cause_id != former):
            self._violated(f"history: {step} does not say what began cause {entry.cause_id}")

    def check_kept(self, key: str, data: bytes | None, version: int) -> None:
        """Compare the steps that the znode keeps with those that are not written down; `data` None: it is gone."""
        kept: list[Step] = []
        for entry in [] if data is None else entries_kept(decode_transition(data, key), version):
            kept += _told(entry)
        left = self._true.get(key, [])[self._written.get(key, 0) :]
        if kept != left:
            self._violated(f"history: {key} keeps {kept}, and what is not written down is {left}")

    def check_all(self) -> None:
        """At the end of a run: read the segments in the order of their names, as a reader does."""
        found: dict[str, list[Step]] = {}
        for entry in self.entries():
            found.setdefault(entry.key, []).extend(_told(entry))
        for key, true in self._true.items():
            written = true[: self._written.get(key, 0)]
            if found.get(key, []) != written:
                self._violated(f"history: {key} is told as {found.get(key, [])}, and was {written}")
