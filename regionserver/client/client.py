"""The client of regions: gets, puts, deletes, compares and scans rows, of keys and bytes or of columns.

The table's storage decides how a call is made: `regionserver.client.shared` asks the one server that has a shared
region open, `regionserver.client.tablets` the leader of a tablet. Every call ends within its `timeout_s`, by default
`TIMEOUT_S`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import operator
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from coord.rpc.wire import Code
from regions.records import partitioning
from regions.records.model import RegionRecord, TableRecord
from regions.records.rows.codec import TypedTable
from regions.records.rows.values import Value
from regions.records.znodes import DEFAULT_ROOT, Layout
from regionserver.client.connections import Connections
from regionserver.client.errors import Attempt, Refused, Unavailable, require, require_table, store_errors
from regionserver.client.locator import RegionLocator
from regionserver.client.rows import Key, Row, RowCalls, check_change, check_key, check_value, refuse_bytes
from regionserver.client.shared import ATTEMPT_TIMEOUT_S, SharedCalls
from regionserver.client.store import StoreReader, StoreSilentError
from regionserver.client.tablets.calls import TabletCalls
from regionserver.client.tablets.stale import Staleness
from regionserver.kv.messages import (
    KEYS_MAX,
    NO_SCHEMA,
    PAGE_ROWS_MAX,
    WRITE_BYTES_MAX,
    KvChange,
    KvRead,
    KvRow,
    KvRows,
    KvScan,
    KvValues,
    KvWrite,
    KvWritten,
)
from regionserver.request_gate import Place
from regionserver.tablets.commands import CONDITION_FAILED, CompareAndSet, DeleteRow, PutRow

T = TypeVar("T", bound=msgspec.Struct)
Change = KvChange

TIMEOUT_S: Final = 30.0


class RegionClient:
    """Calls to regions, for any thread. Calls raise DataError."""

    def __init__(
        self,
        locator: RegionLocator,
        *,
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        on_attempt: Callable[[Attempt], object] = lambda _attempt: None,
    ) -> None:
        """Call `on_attempt` after every attempt, in the caller's thread."""
        self.locator = locator
        self._timeout_s = timeout_s
        self._connections = Connections()
        self._shared = SharedCalls(locator, self._connections, attempt_timeout_s, on_attempt)
        self._tablets = TabletCalls(locator, on_attempt)
        self._rows = RowCalls(self, self._wait_s)
        self._writer = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()
        self._tablets.close()

    def _until_s(self, timeout_s: float | None) -> float:
        """Return the deadline of a call that begins now."""
        return time.monotonic() + self._wait_s(timeout_s)

    def _wait_s(self, timeout_s: float | None) -> float:
        """Return how long a call may take."""
        return self._timeout_s if timeout_s is None else timeout_s

    def _table(self, table: str, timeout_s: float | None) -> TableRecord | None:
        """Return the table's record, or None."""
        with store_errors(table, ""):
            return self.locator.table(table, until_s=self._until_s(timeout_s))

    def _tablet_table(self, table: str, timeout_s: float | None) -> TableRecord | None:
        """Return the table's record if its rows lie in tablets, else None."""
        found = self._table(table, timeout_s)
        return found if found is not None and found.is_tablet else None

    # --- rows of columns ---

    def columns(self, table: str, *, timeout_s: float | None = None) -> TypedTable | None:
        """Return the table's columns as the client knows them, or None for a table of keys and bytes."""
        with store_errors(table, ""):
            found = require_table(table, self.locator.table(table, until_s=self._until_s(timeout_s)))
        return None if TypedTable.of(found) is None else self._rows.columns(table, timeout_s)

    def put_row(self, table: str, row: Row, *, timeout_s: float | None = None) -> None:
        """Put a row, which replaces the row with the same key columns; durable on return.

        A column that is not named gets its default, else null. Raise WrongRow for a row that does not fit the table.
        """
        self._rows.put(table, row, timeout_s)

    def put_row_if_absent(self, table: str, row: Row, *, timeout_s: float | None = None) -> bool:
        """Put a row if there is none with its key; return True if the row was put. Otherwise as `compare_and_set`."""
        return self._rows.add(table, row, timeout_s)

    def write_rows(self, table: str, rows: Iterable[Row], *, timeout_s: float | None = None) -> int:
        """Put many rows and return their number. Otherwise as `write`."""
        return self._rows.write(table, rows, timeout_s)

    def get_row(
        self, table: str, key: Key, *, timeout_s: float | None = None, staleness: Staleness | None = None
    ) -> dict[str, Value] | None:
        """Return the row with these key columns, or None. A key of one column may be its value alone."""
        return self._rows.get(table, key, timeout_s, staleness)

    def delete_row(self, table: str, key: Key, *, timeout_s: float | None = None) -> None:
        """Delete the row with these key columns, which need not exist; durable on return."""
        self._rows.delete(table, key, timeout_s)

    def scan_rows(
        self,
        table: str,
        start: Key = None,
        end: Key = None,
        *,
        rows_max: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[dict[str, Value]]:
        """Yield rows from `start` to before `end`, in the order of their key columns. Otherwise as `scan`.

        A bound has all key columns or the first of them; None is no bound.
        """
        return self._rows.scan(table, start, end, rows_max, timeout_s)

    def scan_keyed_rows(
        self,
        table: str,
        start: str = "",
        end: str = "",
        *,
        rows_max: int | None = None,
        timeout_s: float | None = None,
        staleness: Staleness | None = None,
    ) -> Iterator[tuple[str, dict[str, Value]]]:
        """Yield keys and rows of a range of keys, given as texts (`regions.records.rows.keys`). Otherwise as `scan`."""
        return self._rows.scan_keys(table, start, end, rows_max, timeout_s, staleness)

    # --- keys and bytes ---

    def get(
        self, table: str, key: str, *, timeout_s: float | None = None, staleness: Staleness | None = None
    ) -> bytes | None:
        """Return the value at `key`, or None.

        Without `staleness` the value is the latest. With `staleness` any member of a tablet may answer that can prove
        that its rows are recent enough. If no member can, the leader answers.
        """
        check_key(table, key)
        tablets = self._tablet_table(table, timeout_s)
        if tablets is not None:
            placed = partitioning.place(key, tablets.hash_buckets)
            return self._tablets.values(table, [placed], self._wait_s(timeout_s), staleness)[0]

        def ask(place: Place, region: RegionRecord, _attempt: int) -> KvRead:
            return KvRead(place, [partitioning.place(key, region.hash_buckets)])

        asked_s = time.monotonic()
        reply = self.call(table, key, ask, KvValues, timeout_s=timeout_s)
        if staleness is not None:
            staleness.answered(asked_s)
        return reply.values[0]

    def put(self, table: str, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Put `value` at `key`; durable on return. Raise WrongRow for a table with columns."""
        check_key(table, key)
        check_value(table, key, value)
        refuse_bytes(self._table(table, timeout_s))
        self._write(table, [KvChange(key, value)], timeout_s)

    def delete(self, table: str, key: str, *, timeout_s: float | None = None) -> None:
        """Delete `key`, which need not exist; durable on return."""
        check_key(table, key)
        self._write(table, [KvChange(key, None)], timeout_s)

    def compare_and_set(
        self, table: str, key: str, expected: bytes | None, value: bytes | None, *, timeout_s: float | None = None
    ) -> bool:
        """Store `value` at `key` if the row's value is `expected`, and return whether this was so. None stands for no
        row.

        The comparison and the change are one step, carried out once even if servers fail meanwhile. Raise Refused
        (UNSUPPORTED) for a table with shared storage: the table must have tablets.
        """
        check_key(table, key)
        for one in (expected, value):
            if one is not None:
                check_value(table, key, one)
        if value is not None:
            refuse_bytes(self._table(table, timeout_s))
        return self._compare_and_set(table, key, expected, value, timeout_s)

    def add(
        self, table: str, key: str, value: bytes, *, timeout_s: float | None = None, schema_version: int = NO_SCHEMA
    ) -> bool:
        """Put `value`, a row encoded under `schema_version`, if there is no row. Otherwise as `put_row_if_absent`."""
        check_key(table, key)
        check_value(table, key, value)
        return self._compare_and_set(table, key, None, value, timeout_s, schema_version)

    def _compare_and_set(
        self,
        table: str,
        key: str,
        expected: bytes | None,
        value: bytes | None,
        timeout_s: float | None,
        schema_version: int = NO_SCHEMA,
    ) -> bool:
        tablets = self._tablet_table(table, timeout_s)
        if tablets is None:
            with store_errors(table, key):
                require_table(table, self.locator.table(table, until_s=self._until_s(timeout_s)))
            raise Refused(
                Code.UNSUPPORTED,
                f"table {table!r} has shared storage, which cannot compare and set once if a server dies meanwhile; "
                "make the table with `rk table create --replicas 3`",
            )
        placed = partitioning.place(key, tablets.hash_buckets)
        change = CompareAndSet(placed, value, expected)
        outcome = self._tablets.write(table, [change], self._wait_s(timeout_s), schema_version)
        return outcome.code != CONDITION_FAILED

    def put_if_absent(self, table: str, key: str, value: bytes, *, timeout_s: float | None = None) -> bool:
        """Put `value` at `key` if there is no row; return True if the value was put. Otherwise as `compare_and_set`."""
        return self.compare_and_set(table, key, None, value, timeout_s=timeout_s)

    def write(
        self,
        table: str,
        changes: Iterable[KvChange],
        *,
        timeout_s: float | None = None,
        schema_version: int = NO_SCHEMA,
    ) -> int:
        """Put and delete many keys and return their number. The changes of a region are written in a few atomic
        batches.

        `timeout_s` limits each batch and the search for the regions. After a DataError some batches may have been
        written; all changes may be repeated. `schema_version`: the values are rows that `columns` encoded under this
        version; raise Refused (SCHEMA_CHANGED) if the table was altered since.
        """
        by_region: dict[str, list[KvChange]] = {}
        count = 0
        until_s = self._until_s(timeout_s)
        is_checked = schema_version != NO_SCHEMA
        for change in changes:
            check_change(table, change)
            if change.value is not None:
                check_value(table, change.key, change.value)
                if not is_checked:
                    refuse_bytes(self._table(table, timeout_s))
                    is_checked = True
            with store_errors(table, change.key):
                region = require(table, self.locator.region_of(table, change.key, until_s=until_s))
            by_region.setdefault(region.region_id, []).append(change)
        for mine in by_region.values():
            for batch in _batches(mine):
                self._write(table, batch, timeout_s, schema_version)
                count += len(batch)
        return count

    def scan(
        self,
        table: str,
        start: str = "",
        end: str = "",
        *,
        rows_max: int | None = None,
        timeout_s: float | None = None,
        staleness: Staleness | None = None,
    ) -> Iterator[tuple[str, bytes]]:
        """Yield rows of `[start, end)` by key, at most `rows_max`; "" means no bound. `timeout_s` limits each page.

        A page is a consistent snapshot, the whole scan is not. In a table with hash buckets, every bucket is scanned
        and the results are merged. `staleness`: as in `get`, for each page.
        """
        check_key(table, start)
        check_key(table, end)
        with store_errors(table, start):
            known = self.locator.table(table, until_s=self._until_s(timeout_s))
        buckets = 0 if known is None else known.hash_buckets
        if not buckets:
            yield from self._scan(table, start, end, rows_max, timeout_s, staleness)
            return
        parts = [
            self._scan(table, *partitioning.bounds(start, end, bucket), rows_max, timeout_s, staleness)
            for bucket in range(buckets)
        ]
        keyed = [((partitioning.unplace(key, buckets), value) for key, value in part) for part in parts]
        yield from itertools.islice(heapq.merge(*keyed, key=operator.itemgetter(0)), rows_max)

    def _scan(
        self,
        table: str,
        start: str,
        end: str,
        rows_max: int | None,
        timeout_s: float | None,
        staleness: Staleness | None,
    ) -> Iterator[tuple[str, bytes]]:
        """Yield rows of a range of placed keys, with their placed keys."""
        left = rows_max
        at = start
        while left is None or left > 0:
            page = PAGE_ROWS_MAX if left is None else min(left, PAGE_ROWS_MAX)
            rows, at = self._page(table, at, end, page, timeout_s, staleness)
            for row in rows:
                yield row.key, row.value
            if left is not None:
                left -= len(rows)
            if not at or (end and at >= end):
                return

    def _page(
        self, table: str, at: str, end: str, rows_max: int, timeout_s: float | None, staleness: Staleness | None
    ) -> tuple[list[KvRow], str]:
        """Return rows of one region from `at` on, and the key at which to continue ("" after the last row)."""
        following = ""

        def ask(place: Place, region: RegionRecord, _attempt: int) -> KvScan:
            nonlocal following
            following = region.end_key
            return KvScan(place, at, end, rows_max)

        wait_s = self._wait_s(timeout_s)
        if self._tablet_table(table, timeout_s) is not None:
            page, following = self._tablets.page(table, at, end, rows_max, wait_s, staleness)
            return page.rows, page.next_key or following
        asked_s = time.monotonic()
        found = self._shared.call(
            table, at, lambda until_s: self.locator.region_at(table, at, until_s=until_s), ask, KvRows, wait_s
        )
        if staleness is not None:
            staleness.answered(asked_s)
        return found.rows, found.next_key or following

    def _write(
        self, table: str, changes: list[KvChange], timeout_s: float | None, schema_version: int = NO_SCHEMA
    ) -> None:
        """Put and delete keys of one region in one step."""
        tablets = self._tablet_table(table, timeout_s)
        if tablets is not None:
            buckets = tablets.hash_buckets
            placed_keys = [(partitioning.place(one.key, buckets), one.value) for one in changes]
            self._tablets.write(
                table,
                [DeleteRow(key) if value is None else PutRow(key, value) for key, value in placed_keys],
                self._wait_s(timeout_s),
                schema_version,
            )
            return
        while changes:
            changes = self._write_shared(table, changes, timeout_s, schema_version)

    def _write_shared(
        self, table: str, changes: list[KvChange], timeout_s: float | None, schema_version: int
    ) -> list[KvChange]:
        """Put and delete keys of one shared region in one step. Return the changes that belong to another region by
        now, because the region was split after the changes were sorted by regions."""
        number = next(self._numbers)
        left: list[KvChange] = []

        def ask(place: Place, region: RegionRecord, attempt: int) -> KvWrite:
            buckets = region.hash_buckets
            placed = [KvChange(partitioning.place(one.key, buckets), one.value) for one in changes]
            mine = placed if buckets else changes
            inside = [one for one in mine if region.contains(one.key)]
            left[:] = [] if len(inside) == len(mine) else self._outside(changes, placed, region)
            return KvWrite(place, inside, self._writer, number, attempt, schema_version)

        self.call(table, changes[0].key, ask, KvWritten, timeout_s=timeout_s)
        return left

    @staticmethod
    def _outside(changes: list[KvChange], placed: list[KvChange], region: RegionRecord) -> list[KvChange]:
        return [one for one, where in zip(changes, placed, strict=True) if not region.contains(where.key)]

    # --- any service's regions ---

    def call(
        self,
        table: str,
        key: str,
        ask: Callable[[Place, RegionRecord, int], msgspec.Struct],
        expect: type[T],
        *,
        timeout_s: float | None = None,
        is_repeatable: bool = True,
    ) -> T:
        """Send the result of `ask(place, region, attempt)` to the server that has the region of `key` open.

        `attempt` counts from 0. `is_repeatable` shows whether the server may execute the request twice. In a table with
        hash buckets the key's bucket determines the region. Services that store keys in such a table store placed keys
        (`regions.records.partitioning.place(key, region.hash_buckets)`).
        Raise NoSuchTable, Refused, Unavailable, OutcomeUnknown.
        """
        check_key(table, key)

        def find(until_s: float) -> RegionRecord | None:
            return self.locator.region_of(table, key, until_s=until_s)

        if self._tablet_table(table, timeout_s) is not None:
            raise Refused(Code.UNSUPPORTED, f"table {table!r} has tablets, which take no requests of other services")
        wait_s = self._wait_s(timeout_s)
        return self._shared.call(table, key, find, ask, expect, wait_s, is_repeatable=is_repeatable)


def _batches(changes: list[KvChange]) -> Iterator[list[KvChange]]:
    """Split changes into writes within the limits of one request."""
    batch: list[KvChange] = []
    size = 0
    for change in changes:
        bytes_of_it = len(change.key.encode()) + partitioning.PREFIX_BYTES + len(change.value or b"")
        if batch and (len(batch) == KEYS_MAX or size + bytes_of_it > WRITE_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += bytes_of_it
    if batch:
        yield batch


@contextlib.contextmanager
def connect(
    store: str,
    root: str = DEFAULT_ROOT,
    *,
    connect_timeout_s: float = 10.0,
    timeout_s: float = TIMEOUT_S,
    store_auth: str = "",
) -> Iterator[RegionClient]:
    """Yield a client with its own store session. Raise Unavailable if the store opens no session in time.

    `store_auth`: USER:PASSWORD, if the cluster's znodes are closed. To servers the client proves the credentials of
    this process (`coord.security.process`).
    """
    try:
        reader = StoreReader.open(store, connect_timeout_s, store_auth)
    except StoreSilentError as error:
        raise Unavailable(str(error)) from error
    try:
        client = RegionClient(RegionLocator(reader, Layout(root)), timeout_s=timeout_s)
        try:
            yield client
        finally:
            client.close()
    finally:
        reader.close()
