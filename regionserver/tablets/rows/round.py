"""The log entries of one commit: the rows that change, and the outcome of each entry.

All replicas apply the same entries, but may group them into different commits. So everything here depends only on the
stored state and on the entries in order, not on where a commit ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coord.raft.messages import Entry
from regionserver.kv.rows import seal, unseal
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
from regionserver.tablets.rows.digest import add_to_digest, row_hash
from regionserver.tablets.rows.state import RowsState
from regionserver.tablets.writers import ResultStore, Totals, WriterResults

#: Limit of a tablet's keys and values in bytes: half of the file's map, because pages are rarely full, and the pages of
#: a steady point are kept in addition to later ones.
TABLET_BYTES_MAX: Final = 32 * 1024 * 1024 * 1024


class RoundChanges:
    """Result of a round to be stored: the new state and the changed rows, in the order of their keys."""

    def __init__(self, state: RowsState, count: int, records: int) -> None:
        self.state: RowsState = state
        #: Rows that change, and writers' records that were stored.
        self.count: int = count
        self.records: int = records
        #: Key and stored form of each row, and its bytes in all.
        self.puts: list[tuple[bytes, bytes]] = []
        self.size: int = 0
        self.deletes: list[bytes] = []


class Round:
    """Entries that are applied in one commit."""

    def __init__(
        self,
        state: RowsState,
        stored: Callable[[bytes], bytes | None],
        writers: ResultStore,
        *,
        next_expiry_ms: int = 0,
        bytes_max: int = TABLET_BYTES_MAX,
    ) -> None:
        """`stored` returns the stored form of a row. `next_expiry_ms`: see `WriterResults`."""
        self._state = state
        self._stored = stored
        self._bytes_max = bytes_max
        self._totals = Totals(state.clock_ms, state.horizon_ms, state.kept)
        self._writers = WriterResults(writers, self._totals, next_expiry_ms=next_expiry_ms)
        self._index: int = state.applied_index
        self._term: int = state.applied_term
        self._rows: int = state.rows
        self._size: int = state.size
        self._before: dict[bytes, bytes | None] = {}
        self._after: dict[bytes, bytes | None] = {}

    def apply_all(self, commands: list[tuple[Entry, KvCommand | None]]) -> list[WriteOutcome]:
        """Apply entries with their commands, as `apply` does."""
        return [self.apply(entry.term, entry.index, command) for entry, command in commands]

    def next_expiry_ms(self) -> int:
        """Return the time before which no writer expires, once this round is stored."""
        return self._writers.next_expiry_ms

    def apply(self, term: int, index: int, command: KvCommand | None) -> WriteOutcome:
        """Apply the next entry; None for an entry that carries no command."""
        assert index == self._index + 1, f"entry {index} does not follow entry {self._index}"
        self._index = index
        self._term = term
        if command is None:
            return WriteOutcome(NO_COMMAND, term, index)
        outcome = self._writers.check(command, term, index)
        if outcome is None:
            outcome = self._execute(command.operations, term, index)
            self._writers.keep(command, outcome)
        return outcome

    def finish(self) -> RoundChanges:
        """Store the writers' records, and return everything else that is to be stored."""
        records = self._writers.flush()
        found: list[tuple[bytes, bytes | None]] = []
        difference = 0
        before, after = self._before, self._after
        for key in sorted(after):
            old, new = before[key], after[key]
            if old == new:
                continue
            found.append((key, new))
            if old is not None:
                difference -= row_hash(key, old)
            if new is not None:
                difference += row_hash(key, new)
        totals = self._totals
        state = RowsState(
            applied_index=self._index,
            applied_term=self._term,
            rows=self._rows,
            size=self._size,
            clock_ms=totals.clock_ms,
            horizon_ms=totals.horizon_ms,
            kept=totals.kept,
            digest=add_to_digest(self._state.digest, difference),
        )
        changes = RoundChanges(state, len(found), records)
        for key, value in found:
            if value is None:
                changes.deletes.append(key)
            else:
                sealed = seal(key, value)
                changes.puts.append((key, sealed))
                changes.size += len(sealed)
        return changes

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
        before, after = self._before, self._after
        for key, new in changes.items():
            if key in after:
                old = after[key]
            elif key in before:
                old = before[key]
            else:
                old = before[key] = self._read(key)
            if new is not None:
                rows += 1
                size += len(key) + len(new)
            if old is not None:
                rows -= 1
                size -= len(key) + len(old)
        if size > 0 and self._size + size > self._bytes_max:
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

    def _read(self, key: bytes) -> bytes | None:
        """Return the value of `key` before this round. Raise RpcError(DAMAGED)."""
        stored = self._stored(key)
        return None if stored is None else unseal(key, stored)


class StoredResults:
    """The database of writers' results within one commit (`ResultStore`). Values have checksums as rows have."""

    def __init__(self, transaction: Any, database: Any) -> None:
        self._transaction = transaction
        self._database = database
        self._cursor: Any = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, or None."""
        stored = self._transaction.get(key, db=self._database)
        return None if stored is None else unseal(key, stored)

    def put(self, key: bytes, value: bytes) -> None:
        """Store `value` at `key`."""
        self._transaction.put(key, seal(key, value), db=self._database)

    def delete(self, key: bytes) -> None:
        """Remove `key`, which exists."""
        self._transaction.delete(key, db=self._database)

    def first(self, prefix: bytes) -> bytes | None:
        """Return the lowest key that begins with `prefix`, or None."""
        if self._cursor is None:
            self._cursor = self._transaction.cursor(self._database)
        if not self._cursor.set_range(prefix):
            return None
        key = bytes(self._cursor.key())
        return key if key.startswith(prefix) else None
