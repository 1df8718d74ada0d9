"""The log entries of one commit: the rows that change, and the outcome of each entry.

All replicas apply the same entries, but may group them into different commits. So everything here depends only on the
stored state and on the entries in order, not on where a commit ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regionserver.tablets.commands import (
    CONDITION_FAILED,
    DONE,
    NO_COMMAND,
    TABLET_FULL,
    DeleteRow,
    KvCommand,
    Operation,
    PutRow,
    WriteOutcome,
)
from regionserver.tablets.rows.state import RowsState, add_to_digest, row_hash
from regionserver.tablets.writers import ResultStore, Totals, WriterResults

#: Limit of a tablet's keys and values in bytes: half of the file's map, because pages are seldom full and the pages of
#: a steady point are kept beside later ones.
TABLET_BYTES_MAX: Final = 32 * 1024 * 1024 * 1024


class Round:
    """Entries that are applied in one commit. `read` returns the stored value of a key."""

    def __init__(self, state: RowsState, read: Callable[[bytes], bytes | None], writers: ResultStore) -> None:
        self._state = state
        self._read = read
        self._totals = Totals(state.clock_ms, state.horizon_ms, state.kept)
        self._writers = WriterResults(writers, self._totals)
        self._applied = state.applied
        self._rows, self._size = state.rows, state.size
        self._before: dict[bytes, bytes | None] = {}
        self._after: dict[bytes, bytes | None] = {}

    def apply(self, term: int, index: int, command: KvCommand | None) -> WriteOutcome:
        """Apply the next entry; None for an entry that carries no command."""
        assert index == self._applied[0] + 1, f"entry {index} does not follow entry {self._applied[0]}"
        self._applied = index, term
        if command is None:
            return WriteOutcome(NO_COMMAND, term, index)
        outcome = self._writers.check(command, term, index)
        if outcome is None:
            outcome = self._execute(command.operations, term, index)
            self._writers.keep(command, outcome)
        return outcome

    def finish(self) -> tuple[RowsState, list[tuple[bytes, bytes | None]], int]:
        """Return the new state, the changed rows in the order of their keys (None: removed), and how many writers'
        records were stored."""
        records = self._writers.flush()
        changes: list[tuple[bytes, bytes | None]] = []
        difference = 0
        for key in sorted(self._after):
            old, new = self._before[key], self._after[key]
            if old == new:
                continue
            changes.append((key, new))
            if old is not None:
                difference -= row_hash(key, old)
            if new is not None:
                difference += row_hash(key, new)
        totals = self._totals
        state = RowsState(
            applied_index=self._applied[0],
            applied_term=self._applied[1],
            rows=self._rows,
            size=self._size,
            clock_ms=totals.clock_ms,
            horizon_ms=totals.horizon_ms,
            kept=totals.kept,
            digest=add_to_digest(self._state.digest, difference),
        )
        return state, changes, records

    def _execute(self, operations: list[Operation], term: int, index: int) -> WriteOutcome:
        """Record the changes of a command if all its conditions hold. Runs once per row on every replica."""
        changes: dict[bytes, bytes | None] = {}
        for position, one in enumerate(operations):
            key = one.key.encode()
            if isinstance(one, PutRow):
                changes[key] = one.value
            elif isinstance(one, DeleteRow):
                changes[key] = None
            else:
                if self._value(key) != one.expected:
                    return WriteOutcome(CONDITION_FAILED, term, index, position)
                changes[key] = one.value
        rows = size = 0
        before, after, read = self._before, self._after, self._read
        for key, new in changes.items():
            if key in after:
                old = after[key]
            elif key in before:
                old = before[key]
            else:
                old = before[key] = read(key)
            if new is not None:
                rows += 1
                size += len(key) + len(new)
            if old is not None:
                rows -= 1
                size -= len(key) + len(old)
        if size > 0 and self._size + size > TABLET_BYTES_MAX:
            return WriteOutcome(TABLET_FULL, term, index)
        after.update(changes)
        self._rows += rows
        self._size += size
        return WriteOutcome(DONE, term, index)

    def _value(self, key: bytes) -> bytes | None:
        """Return the value of `key` after the entries before this one."""
        if key in self._after:
            return self._after[key]
        if key not in self._before:
            self._before[key] = self._read(key)
        return self._before[key]
