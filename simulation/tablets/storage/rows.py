"""Rows of one replica as a dictionary with the writers' results. Entries change it one after the other.

There are two states: the page cache, which survives a kill, and the last steady point, which survives a power cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from coord.raft.messages import NORMAL, Entry
from regionserver.tablets.commands import (
    CONDITION_FAILED,
    DONE,
    NO_COMMAND,
    CompareAndSet,
    DeleteRow,
    KvCommand,
    SealCommand,
    WriteOutcome,
    decode,
)
from regionserver.tablets.rows.round import RoundChanges
from regionserver.tablets.rows.sealed.notes import KeyNotes
from regionserver.tablets.rows.sealed.sealing import outcome_of, state_after
from regionserver.tablets.rows.state import RowsState
from regionserver.tablets.values.seals import Seal, seal_after
from regionserver.tablets.writers import Totals, WriterResults, sealed_outcome

_MASK = (1 << 64) - 1
Fingerprint = tuple[int, int, int, Seal]


class DictStore:
    """Ordered keys and values: the writers' results."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.content = content

    def get(self, key: bytes) -> bytes | None:
        """See `writers.ResultStore`."""
        return self.content.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """See `writers.ResultStore`."""
        self.content[key] = value

    def delete(self, key: bytes) -> None:
        """See `writers.ResultStore`."""
        del self.content[key]

    def first(self, prefix: bytes) -> bytes | None:
        """See `writers.ResultStore`."""
        return min((key for key in self.content if key.startswith(prefix)), default=None)


class RowsImage:
    """Rows, writers' results and the position of the last entry in them."""

    def __init__(self) -> None:
        self.index = 0
        self.term = 0
        self.rows: dict[bytes, bytes] = {}
        self.results: dict[bytes, bytes] = {}
        self.totals = Totals()
        self.digest = 0
        self.seal = Seal()
        #: Keys that were written since they were noted.
        self.written: list[bytes] = []

    def copy(self) -> RowsImage:
        """Return an image that shares nothing with this one."""
        other = RowsImage()
        other.index, other.term, other.digest = self.index, self.term, self.digest
        other.seal = self.seal
        other.rows = dict(self.rows)
        other.results = dict(self.results)
        totals = self.totals
        other.totals = Totals(totals.clock_ms, totals.horizon_ms, totals.kept)
        return other

    def forget_results(self) -> None:
        """Lose the results of writes, where that bug is planted."""
        self.results = {}
        self.totals = Totals(self.totals.clock_ms, self.totals.horizon_ms)

    def lose_pages(self) -> None:
        """Lose some of the rows: pages of the file that have never reached the disk."""
        for key in list(self.rows)[::2]:
            self.digest = (self.digest - _hash(key, self.rows.pop(key))) & _MASK

    def apply(self, entries: Sequence[Entry]) -> list[WriteOutcome]:
        """Apply entries in one commit; one outcome for each."""
        store = DictStore(self.results)
        writers = WriterResults(store, self.totals)
        outcomes = []
        for entry in entries:
            assert entry.index == self.index + 1, f"entry {entry.index} behind {self.index}"
            self.index, self.term = entry.index, entry.term
            if entry.kind != NORMAL:
                outcomes.append(WriteOutcome(NO_COMMAND, entry.term, entry.index))
                continue
            command = decode(entry.data)
            if isinstance(command, SealCommand):
                writers.flush()
                outcomes.append(self._change_seal(command, entry))
                continue
            if self.is_sealed:
                writers.flush()
                outcomes.append(sealed_outcome(store, command, self.totals.horizon_ms, entry.term, entry.index))
                continue
            outcome = writers.check(command, entry.term, entry.index)
            if outcome is None:
                outcome = self._execute(command, entry)
                writers.keep(command, outcome)
            outcomes.append(outcome)
        writers.flush()
        return outcomes

    @property
    def is_sealed(self) -> bool:
        """True if no write is carried out and no read is answered."""
        return self.seal.is_set

    def _change_seal(self, command: SealCommand, entry: Entry) -> WriteOutcome:
        totals, before = self.totals, self.seal
        self.seal, code = seal_after(before, command, entry.term, entry.index)
        state = RowsState(clock_ms=totals.clock_ms, horizon_ms=totals.horizon_ms)
        state = state_after(state, before, self.seal, command, entry)
        totals.clock_ms, totals.horizon_ms = state.clock_ms, state.horizon_ms
        return outcome_of(code, self.seal, entry)

    def _execute(self, command: KvCommand, entry: Entry) -> WriteOutcome:
        rows = self.rows
        for place, one in enumerate(command.operations):
            if isinstance(one, CompareAndSet) and rows.get(one.key.encode()) != one.expected:
                return WriteOutcome(CONDITION_FAILED, entry.term, entry.index, place)
        for one in command.operations:
            key = one.key.encode()
            value = None if isinstance(one, DeleteRow) else one.value
            self.digest = (self.digest - _hash(key, rows.get(key)) + _hash(key, value)) & _MASK
            self.written.append(key)
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        return WriteOutcome(DONE, entry.term, entry.index)

    def fingerprint(self) -> Fingerprint:
        """Return the digests of rows and results, and the seal, which are equal in all replicas at one index."""
        results = 0
        for key, value in self.results.items():
            results = (results + _hash(key, value)) & _MASK
        return self.digest, results, self.totals.kept, self.seal

    def digest_of(self, rows: dict[bytes, bytes]) -> int:
        """Return the digest of rows."""
        return sum(_hash(key, value) for key, value in rows.items()) & _MASK


class SimRows:
    """The rows of one replica on its disk."""

    def __init__(self, image: RowsImage | None = None) -> None:
        """`image`: rows that were copied, and are not synced yet."""
        self.now = image or RowsImage()
        self.steady = self.now.copy()
        self.is_synced = image is None
        self.is_damaged = False
        #: The keys that are written while daughters are prepared; a process begins without notes.
        self.notes = KeyNotes()

    def note_writes(self) -> None:
        """Note the keys that the last commit has changed."""
        changes = RoundChanges(RowsState(), 0, 0)
        changes.deletes, self.now.written = self.now.written, []
        self.notes.add(changes)

    def power_cut(self) -> None:
        """Drop the changes since the last steady point. Copied rows that were never synced lose pages."""
        self.now = self.steady.copy()
        if not self.is_synced:
            self.now.lose_pages()
            self.steady = self.now.copy()


def _hash(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else zlib.crc32(value, zlib.crc32(key)) * 0x9E3779B97F4A7C15 & _MASK
