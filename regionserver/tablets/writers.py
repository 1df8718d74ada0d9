"""Exactly-once writes: the results of recent writes, kept in the tablet with its rows.

A client that gets no reply sends its write again, perhaps to another leader. The tablet carries out one copy and
replies to every other copy with the result of the first. Each result is stored in the same commit as the rows, so every
replica has it, including a new leader.

**What is kept.** A result is kept until the writer sends a higher `done_below`, or until KEPT_MS of the leaders' time
have passed. The tablet's clock is the highest `time_ms` of any entry. It never goes back, and all replicas have the
same clock at the same index.

**Why a late copy does no harm.** `horizon_ms` rises with the clock. A write that began at or before the horizon is
rejected. A result with *stamp* max(clock, began_ms) is deleted only after the horizon has reached the stamp, so each
later copy of that write is rejected as TOO_OLD. A copy whose number is below the writer's `done_below` is rejected as
SUPERSEDED; this bound may be deleted by the same rule, because the writes with lower numbers began earlier.

**Bounds.** A writer with more than WRITER_RESULTS_MAX results loses the result of its lowest number, and its bound
rises above that number. With more than KEPT_MAX results and writers, the least recently active writer is deleted, and
the horizon rises to its latest stamp. Then results are kept for a shorter time, but no write happens twice.

Every decision depends only on the state and the entry. The grouping of entries into commits has no influence.

    "w" + writer                   Record
    "t" + indexed_ms:u64 + writer  "", the order in which writers are checked for expiry; indexed_ms <= Record.stamp_ms

Source: Raft dissertation, section 6.3, with a client's number and time in place of a registered session.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from regionserver.tablets.commands import KEPT_MS, SEALED, SUPERSEDED, TOO_OLD, KvCommand, WriteOutcome
from regionserver.tablets.values.results import Record, Result

#: Limit of unacknowledged writes of one writer; a client has a few dozen.
WRITER_RESULTS_MAX: Final = 1024
#: Limit of results and writers of one tablet: about 10 MB of the tablet's file.
KEPT_MAX: Final = 100_000
#: Writers checked per command. A command adds at most one writer, so two checks keep up with expiry.
SWEEP_STEPS: Final = 2
#: Writers checked when KEPT_MAX is exceeded, before the first one is deleted even if it was active recently.
EVICTION_STEPS: Final = 16
_RECORD: Final = b"w"
_ORDER: Final = b"t"
_TIME_BYTES: Final = 8


class ResultStore(Protocol):
    """Ordered keys and values. All changes of a command become durable together with its rows."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, or None."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Store `value` at `key`."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove `key`, which exists."""
        ...

    def first(self, prefix: bytes) -> bytes | None:
        """Return the lowest key that begins with `prefix`, or None."""
        ...


class Totals:
    """Clock, horizon, and the number of results and writers that are kept; stored with the tablet's state."""

    def __init__(self, clock_ms: int = 0, horizon_ms: int = 0, kept: int = 0) -> None:
        self.clock_ms: int = clock_ms
        self.horizon_ms: int = horizon_ms
        self.kept: int = kept


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Record)


def sealed_outcome(store: ResultStore, command: KvCommand, horizon_ms: int, term: int, index: int) -> WriteOutcome:
    """Return the outcome of a command after a tablet's seal: SEALED if it would be carried out. Nothing changes."""
    stored = store.get(_RECORD + command.writer.encode())
    record = None if stored is None else _DECODER.decode(stored)
    return _known_outcome(record, command, horizon_ms, term, index) or WriteOutcome(SEALED, term, index)


def _known_outcome(
    record: Record | None, command: KvCommand, horizon_ms: int, term: int, index: int
) -> WriteOutcome | None:
    """Return the outcome of a command that must not be carried out (again); None if it certainly was never carried
    out."""
    if record is not None:
        result = record.results.get(command.number)
        if result is not None:
            return WriteOutcome(result.code, result.term, result.index, result.failed)
        if command.number < record.below:
            return WriteOutcome(SUPERSEDED, term, index)
    if command.began_ms <= horizon_ms:
        return WriteOutcome(TOO_OLD, term, index)
    return None


class WriterResults:
    """The results kept in one tablet, during one commit. `flush` stores the changes."""

    def __init__(
        self,
        store: ResultStore,
        totals: Totals,
        *,
        next_expiry_ms: int = 0,
        results_max: int = WRITER_RESULTS_MAX,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self.totals: Totals = totals
        self._store = store
        self._results_max = results_max
        self._kept_max = kept_max
        self._read: dict[bytes, Record] = {}
        self._changed: set[bytes] = set()
        #: Horizon below which no writer expires; 0 if unknown. Once this commit is stored, the value holds for the next
        #: one.
        self.next_expiry_ms = next_expiry_ms

    def check(self, command: KvCommand, term: int, index: int) -> WriteOutcome | None:
        """Return None if the command must be carried out, else the outcome of its entry.

        Call this once for every command, in the order of the log.
        """
        totals = self.totals
        totals.clock_ms = max(totals.clock_ms, command.time_ms)
        totals.horizon_ms = max(totals.horizon_ms, totals.clock_ms - KEPT_MS)
        if totals.horizon_ms >= self.next_expiry_ms:
            self._sweep()
        return _known_outcome(self._record(command.writer.encode()), command, totals.horizon_ms, term, index)

    def keep(self, command: KvCommand, outcome: WriteOutcome) -> None:
        """Store the outcome of a command for which `check` returned None."""
        totals, writer = self.totals, command.writer.encode()
        stamp_ms = max(totals.clock_ms, command.began_ms)
        record = self._record(writer)
        if record is None:
            record = self._read[writer] = Record(0, stamp_ms, stamp_ms, {})
            self._store.put(_order_key(stamp_ms, writer), b"")
            self.next_expiry_ms = min(self.next_expiry_ms, stamp_ms)
            totals.kept += 1
        record.stamp_ms = max(record.stamp_ms, stamp_ms)
        results = record.results
        results[command.number] = Result(stamp_ms, outcome.code, outcome.term, outcome.index, outcome.failed)
        totals.kept += 1
        below = command.done_below
        if below > record.below:
            record.below = below
            self._drop(record, [number for number in results if number < below])
        if len(results) > self._results_max:
            lowest = min(results)
            record.below = lowest + 1
            self._drop(record, [lowest])
        self._changed.add(writer)
        while totals.kept > self._kept_max:
            self._evict()

    def flush(self) -> int:
        """Store the changed records; return how many there were."""
        for writer in sorted(self._changed):
            self._store.put(_RECORD + writer, _ENCODER.encode(self._read[writer]))
        count = len(self._changed)
        self._changed.clear()
        return count

    def _record(self, writer: bytes) -> Record | None:
        record = self._read.get(writer)
        if record is None:
            stored = self._store.get(_RECORD + writer)
            if stored is None:
                return None
            record = self._read[writer] = _DECODER.decode(stored)
        return record

    def _drop(self, record: Record, numbers: list[int]) -> None:
        for number in numbers:
            del record.results[number]
        self.totals.kept -= len(numbers)

    def _sweep(self) -> None:
        """Check writers for expiry; delete results and writers whose stamp the horizon has reached."""
        horizon_ms = self.totals.horizon_ms
        for _ in range(SWEEP_STEPS):
            first = self._store.first(_ORDER)
            if first is None:
                return
            self.next_expiry_ms = _order_time(first)
            if self.next_expiry_ms > horizon_ms:
                return
            writer, record = self._at(first)
            if record.stamp_ms <= horizon_ms:
                self._forget(first, writer, record)
                continue
            self._drop(record, [number for number, one in record.results.items() if one.stamp_ms <= horizon_ms])
            self._reindex(first, writer, record)

    def _evict(self) -> None:
        """Delete the least recently active writer, and reject its writes from now on."""
        for _ in range(EVICTION_STEPS):
            first = self._store.first(_ORDER)
            assert first is not None, "results are kept, and no writer"
            writer, record = self._at(first)
            if record.stamp_ms == record.indexed_ms:
                break
            self._reindex(first, writer, record)
        first = self._store.first(_ORDER)
        assert first is not None, "results are kept, and no writer"
        writer, record = self._at(first)
        self.totals.horizon_ms = max(self.totals.horizon_ms, record.stamp_ms)
        self._forget(first, writer, record)

    def _at(self, key: bytes) -> tuple[bytes, Record]:
        writer = key[len(_ORDER) + _TIME_BYTES :]
        record = self._record(writer)
        assert record is not None, f"no writer for {key!r}"
        assert record.indexed_ms == _order_time(key), f"writer {writer!r} is in the order twice"
        return writer, record

    def _forget(self, key: bytes, writer: bytes, record: Record) -> None:
        self._store.delete(key)
        if self._store.get(_RECORD + writer) is not None:
            self._store.delete(_RECORD + writer)
        self._read.pop(writer)
        self._changed.discard(writer)
        self.totals.kept -= len(record.results) + 1

    def _reindex(self, key: bytes, writer: bytes, record: Record) -> None:
        self._store.delete(key)
        record.indexed_ms = record.stamp_ms
        self._store.put(_order_key(record.indexed_ms, writer), b"")
        self._changed.add(writer)


def _order_key(time_ms: int, writer: bytes) -> bytes:
    return _ORDER + time_ms.to_bytes(_TIME_BYTES, "big") + writer


def _order_time(key: bytes) -> int:
    return int.from_bytes(key[len(_ORDER) : len(_ORDER) + _TIME_BYTES], "big")
