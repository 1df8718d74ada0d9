"""Rows of columns over the calls for keys and bytes: encoded and decoded here, under the table's schema.

The client uses the schema of the table's record that it has read. The record is read again

- after SCHEMA_AGE_S, if the store answers; so an alteration reaches every client soon;
- when a server refuses rows of an earlier version, or a row of a later version is read. The call then continues under
  the new schema, until its deadline.

So the client refuses a row with a dropped or renamed column, and the error names the columns of the present schema.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

from kazoo.exceptions import KazooException

from regions.records.model import TableRecord
from regions.records.partitioning import PREFIX_BYTES
from regions.records.rows.codec import EncodedRow, NewerRowError, RowError, TypedTable, shown
from regions.records.rows.values import Value
from regions.records.schema import Schema
from regions.records.znodes import CorruptZnode
from regionserver.client.errors import Refused, Unavailable, WrongArgument, WrongRow, require_table, store_errors
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreSilentError
from regionserver.client.tablets.stale import Staleness
from regionserver.kv.messages import KEY_BYTES_MAX, SCHEMA_CHANGED, VALUE_BYTES_MAX, KvChange

T = TypeVar("T")
#: A row, or its key columns. A key of one column may be given as its value alone.
Row = Mapping[str, object]
Key = Row | Value

#: Age after which a table's record is read again, and the time limit of that.
SCHEMA_AGE_S: Final = 10.0
REFRESH_S: Final = 1.0
#: Pause before the record is read again that does not have an expected version yet: a store node may lag behind.
PAUSE_S: Final = 0.05


class ByteCalls(Protocol):
    """The calls for keys and bytes (`RegionClient`)."""

    locator: RegionLocator

    def get(
        self, table: str, key: str, *, timeout_s: float | None = None, staleness: Staleness | None = None
    ) -> bytes | None: ...
    def delete(self, table: str, key: str, *, timeout_s: float | None = None) -> None: ...
    def write(
        self, table: str, changes: Iterable[KvChange], *, timeout_s: float | None = None, schema_version: int
    ) -> int: ...
    def add(self, table: str, key: str, value: bytes, *, timeout_s: float | None, schema_version: int) -> bool: ...
    def scan(
        self,
        table: str,
        start: str = "",
        end: str = "",
        *,
        rows_max: int | None = None,
        timeout_s: float | None = None,
        staleness: Staleness | None = None,
    ) -> Iterator[tuple[str, bytes]]: ...


class _ColumnsRead(NamedTuple):
    """A table's columns as last read, and when."""

    record: TableRecord
    table: TypedTable
    read_s: float


class RowCalls:
    """Calls for rows of columns, for any thread. Methods raise DataError."""

    def __init__(self, calls: ByteCalls, wait_s: Callable[[float | None], float]) -> None:
        """`wait_s` returns how long a call may take."""
        self._calls = calls
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._known: dict[str, _ColumnsRead] = {}

    def put(self, table: str, row: Row, timeout_s: float | None) -> None:
        """Put a row; durable on return."""
        self.write(table, [row], timeout_s)

    def add(self, table: str, row: Row, timeout_s: float | None) -> bool:
        """Put a row if there is none with its key; return True if the row was put."""

        def attempt(typed: TypedTable) -> bool:
            key, value = _encoded(typed, row)
            return self._calls.add(table, key, value, timeout_s=timeout_s, schema_version=typed.version)

        return self._follow(table, timeout_s, attempt)

    def write(self, table: str, rows: Iterable[Row], timeout_s: float | None) -> int:
        """Put many rows; return their number."""
        some = list(rows)

        def attempt(typed: TypedTable) -> int:
            changes = [KvChange(*_encoded(typed, row)) for row in some]
            return self._calls.write(table, changes, timeout_s=timeout_s, schema_version=typed.version)

        return self._follow(table, timeout_s, attempt)

    def get(
        self, table: str, key: Key, timeout_s: float | None, staleness: Staleness | None = None
    ) -> dict[str, Value] | None:
        """Return the row with that key, or None."""

        def attempt(typed: TypedTable) -> dict[str, Value] | None:
            text = _key(typed, key)
            value = self._calls.get(table, text, timeout_s=timeout_s, staleness=staleness)
            return None if value is None else typed.decode(text, value)

        return self._follow(table, timeout_s, attempt)

    def delete(self, table: str, key: Key, timeout_s: float | None) -> None:
        """Delete the row with that key, if there is one."""
        self._follow(table, timeout_s, lambda typed: self._calls.delete(table, _key(typed, key), timeout_s=timeout_s))

    def scan(
        self, table: str, start: Key, end: Key, rows_max: int | None, timeout_s: float | None
    ) -> Iterator[dict[str, Value]]:
        """Yield rows in the order of their keys. None is no bound."""
        first = self._follow(table, timeout_s, lambda typed: _bound(typed, start))
        last = self._follow(table, timeout_s, lambda typed: _bound(typed, end))
        for _, row in self.scan_keys(table, first, last, rows_max, timeout_s):
            yield row

    def scan_keys(
        self,
        table: str,
        start: str,
        end: str,
        rows_max: int | None,
        timeout_s: float | None,
        staleness: Staleness | None = None,
    ) -> Iterator[tuple[str, dict[str, Value]]]:
        """Yield keys and rows of a range of keys' texts."""
        self.columns(table, timeout_s)
        found = self._calls.scan(table, start, end, rows_max=rows_max, timeout_s=timeout_s, staleness=staleness)
        for key, value in found:
            yield key, self._decoded(table, key, value, timeout_s)

    def _decoded(self, table: str, key: str, value: bytes, timeout_s: float | None) -> dict[str, Value]:
        return self._follow(table, timeout_s, lambda typed: typed.decode(key, value))

    # --- the schema ---

    def columns(self, table: str, timeout_s: float | None) -> TypedTable:
        """Return the table's columns. Raise WrongRow for a table of keys and bytes."""
        return self._typed(table, time.monotonic() + self._wait_s(timeout_s))

    def _follow(self, table: str, timeout_s: float | None, attempt: Callable[[TypedTable], T]) -> T:
        """Return `attempt(columns)`; try again with a later schema when the present one turns out to be old."""
        until_s = time.monotonic() + self._wait_s(timeout_s)
        typed = self._typed(table, until_s)
        while True:
            try:
                return attempt(typed)
            except Refused as error:
                if error.code != SCHEMA_CHANGED:
                    raise
                needed, problem = typed.version + 1, f"table {table!r}: {error}"
            except NewerRowError as error:
                needed, problem = error.version, str(error)
            except RowError as error:
                raise WrongRow(str(error)) from error
            typed = self._later(table, needed, problem, until_s)

    def _later(self, table: str, needed: int, problem: str, until_s: float) -> TypedTable:
        """Read the table's record until it has schema version `needed`. Raise Unavailable at the deadline."""
        while True:
            try:
                record = self._calls.locator.refresh_table(table, until_s=until_s)
            except (KazooException, StoreSilentError, CorruptZnode) as error:
                raise Unavailable(f"{problem}; the table's record cannot be read: {error}") from error
            typed = self._remember(table, record)
            if typed.version >= needed:
                return typed
            if time.monotonic() + PAUSE_S >= until_s:
                raise Unavailable(f"{problem}; the store shows version {typed.version}")
            time.sleep(PAUSE_S)

    def _typed(self, table: str, until_s: float) -> TypedTable:
        with self._lock:
            known = self._known.get(table)
        now_s = time.monotonic()
        locator = self._calls.locator
        with store_errors(table, ""):
            record = locator.table(table, until_s=until_s)
        if known is None or record is None:
            return self._remember(table, record)
        if now_s < known.read_s + SCHEMA_AGE_S:
            return known.table if known.record is record else self._remember(table, record)
        try:
            record = locator.refresh_table(table, until_s=min(until_s, now_s + REFRESH_S))
        except (KazooException, StoreSilentError, CorruptZnode):
            pass  # tablets are used without the store; servers refuse rows of an earlier schema
        else:
            if record is None:  # it was deleted, and another table may have the name
                with store_errors(table, ""):
                    record = locator.table(table, until_s=until_s)
        return self._remember(table, record)

    def _remember(self, name: str, record: TableRecord | None) -> TypedTable:
        found = require_table(name, record)
        typed = TypedTable.of(found)
        if typed is None:
            raise WrongRow(f"table {name!r} has no columns: put, get and scan keys and bytes")
        with self._lock:
            self._known[name] = _ColumnsRead(found, typed, time.monotonic())
        return typed


def refuse_bytes(record: TableRecord | None) -> None:
    """Raise WrongRow if bytes are to be written into a table with columns."""
    if record is not None and isinstance(record.schema, Schema):
        raise WrongRow(f"table {record.name!r} has columns: put rows of columns (put_row), not keys and bytes")


def check_change(table: str, change: object) -> None:
    """Raise WrongArgument if `change` is not a Change, or its key is not a str."""
    if not isinstance(change, KvChange):
        raise WrongArgument(f"table {table!r}: a change is a Change(key, value), this one is {_described(change)}")
    check_key(table, change.key)


def check_key(table: str, key: object) -> None:
    """Raise WrongArgument for a key that is not text."""
    if not isinstance(key, str):
        hint = "; decode it first" if isinstance(key, bytes | bytearray) else ""
        raise WrongArgument(f"table {table!r}: a key is a str, this one is {_described(key)}{hint}")


def check_value(table: str, key: str, value: object) -> None:
    """Raise WrongArgument for a value that is not bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        hint = "; encode it first" if isinstance(value, str) else ""
        raise WrongArgument(
            f"table {table!r}: the value of {shown(key)} is to be bytes, but is {_described(value)}{hint}"
        )


def _described(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"


def check_size(table: str, row: EncodedRow) -> None:
    """Raise WrongRow for a row that no region can hold. Room for a hash bucket counts in every table."""
    size = len(row.key.encode()) + PREFIX_BYTES
    if size > KEY_BYTES_MAX:
        raise WrongRow(
            f"table {table!r}, row {shown(row.key)}: its key columns take {size} bytes; the limit is {KEY_BYTES_MAX}"
        )
    if len(row.value) > VALUE_BYTES_MAX:
        raise WrongRow(
            f"table {table!r}, row {shown(row.key)}: its columns take {len(row.value)} bytes; the limit is"
            f" {VALUE_BYTES_MAX}"
        )


def _encoded(typed: TypedTable, row: Row) -> EncodedRow:
    if not isinstance(row, Mapping):
        raise WrongArgument(f"table {typed.name!r}: a row is a dict of columns, this one is {_described(row)}")
    found = typed.encode(row)
    check_size(typed.name, found)
    return found


def _key(typed: TypedTable, key: Key) -> str:
    """Return the text of a key."""
    row = _key_row(typed, key)
    extra = [name for name in row if name not in typed.columns or not typed.columns[name].key]
    if extra:
        raise WrongRow(f"table {typed.name!r}: {extra[0]!r} is no key column")
    return typed.key_of(row)


def _bound(typed: TypedTable, key: Key) -> str:
    """Return the text of a bound; "" for None, which is no bound."""
    return "" if key is None else typed.bound_of(_key_row(typed, key))


def _key_row(typed: TypedTable, key: Key) -> Row:
    if isinstance(key, Mapping):
        return key
    if len(typed.keys) > 1:
        names = ", ".join(one.name for one in typed.keys)
        raise WrongRow(f"table {typed.name!r}: the key has several columns; give a dict of {names}")
    return {typed.keys[0].name: key}
