"""Rows of one table under one version of its schema: to key and bytes, and back. Pure.

    key    := the text of the key columns (`regions/records/rows/keys.py`)
    value  := 0xC1 msgpack([version, value, value, …])

The list has one value for each column id after those of the key columns, in the order of ids; a column that was dropped
before the row was written has nil. Ids are never reused (`regions/records/schema.py`), so the present schema alone
decodes every row, old or new:

    the id is in the list       the value, or null
    the id is beyond the list   the column was added later: its default, or null
    the column was dropped      its value is skipped

A row of a later version than the reader's schema may have columns that the reader does not know: `NewerRowError`. The
reader then reads the table's record again. 0xC1 begins neither text nor msgpack: other bytes are not taken for a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from regions.records.model import TableRecord
from regions.records.rows import keys
from regions.records.rows.values import Value, check, default_of
from regions.records.schema import INT_BITS, Column, ColumnType, Schema

#: First byte of a row with columns. A build that changes the form of a row must choose another one.
MARK: Final = b"\xc1"
_SHOWN_MAX: Final = 60
_MISSING: Final = object()
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list)


class RowError(ValueError):
    """A row, key or value that does not fit the table's schema; one sentence that names table, row and column."""


class NewerRowError(RowError):
    """A row that was written under a later schema than the reader's."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class EncodedRow(NamedTuple):
    """Key and value as a region stores them."""

    key: str
    value: bytes


class TypedTable:
    """A table's columns under one version of its schema. Methods raise RowError."""

    def __init__(self, name: str, schema: Schema, version: int) -> None:
        self.name = name
        self.schema = schema
        self.version = version
        self.columns: dict[str, Column] = {one.name: one for one in schema.columns}
        self.keys = tuple(one for one in schema.columns if one.key)
        self.others = tuple(one for one in schema.columns if not one.key)
        self._kinds = tuple(one.type for one in self.keys)
        first = len(self.keys)
        assert [one.id for one in self.keys] == list(range(first)), f"key columns of {name} do not have the first ids"
        #: Length of the list of values, and each column with its place in the list.
        self._width = schema.next_column_id - first
        self._places = [(one.id - first, one, default_of(one)) for one in self.others]

    @classmethod
    def of(cls, record: TableRecord) -> TypedTable | None:
        """Return the columns of a table, or None for a table of keys and bytes."""
        schema = record.schema
        return cls(record.name, schema, record.schema_version) if isinstance(schema, Schema) else None

    # --- writing ---

    def key_of(self, row: Mapping[str, object]) -> str:
        """Return the key of a row, or of a mapping that has its key columns."""
        missing = [one.name for one in self.keys if row.get(one.name) is None]
        if missing:
            raise RowError(f"table {self.name!r}: key column {missing[0]!r} needs a value")
        return self._key([self._checked("", one, row[one.name]) for one in self.keys])

    def bound_of(self, row: Mapping[str, object]) -> str:
        """Return the text before all keys with these values of the first key columns; all of them make a key."""
        given = [one for one in self.keys if one.name in row]
        extra = [name for name in row if name not in {one.name for one in self.keys}]
        if extra:
            raise RowError(f"table {self.name!r}: column {extra[0]!r} is no key column{self._key_names()}")
        if not given or tuple(given) != self.keys[: len(given)]:
            raise RowError(f"table {self.name!r}: a bound needs the first key columns{self._key_names()}")
        return self._key([self._checked("", one, row[one.name]) for one in given])

    def encode(self, row: Mapping[str, object]) -> EncodedRow:
        """Return key and value of a row. A column that is not named gets its default, else null."""
        unknown = [name for name in row if name not in self.columns]
        if unknown:
            known = ", ".join(self.columns)
            raise RowError(f"table {self.name!r} has no column {unknown[0]!r}; its columns: {known}")
        key = self.key_of(row)
        values: list[Value] = [None] * self._width
        for place, column, default in self._places:
            given = row.get(column.name, _MISSING)
            value = default if given is _MISSING else None if given is None else self._checked(key, column, given)
            if value is None and not column.nullable:
                raise self._error(key, column, "needs a value: it is required")
            values[place] = value
        return EncodedRow(key, MARK + _ENCODER.encode([self.version, *values]))

    def _key(self, values: list[Value]) -> str:
        key = keys.encode(self._kinds, values)
        if not key:
            raise RowError(f"table {self.name!r}: key column {self.keys[0].name!r} must not be empty")
        return key

    def _checked(self, key: str, column: Column, value: object) -> Value:
        if value is None:
            raise self._error(key, column, "needs a value")
        try:
            return check(column.type, value)
        except ValueError as error:
            raise self._error(key, column, str(error)) from error

    # --- reading ---

    def decode(self, key: str, value: bytes) -> dict[str, Value]:
        """Return the row, with every column of the schema in order. Raise NewerRowError for a row of a later schema."""
        version, values = self._values(key, value)
        if version > self.version:
            raise NewerRowError(
                f"table {self.name!r}, row {shown(key)}: written under schema version {version}; known is version"
                f" {self.version}",
                version,
            )
        if len(values) > self._width:
            raise RowError(f"table {self.name!r}, row {shown(key)}: it has more columns than its table ever had")
        row = self.decode_key(key)
        count = len(values)
        for place, column, default in self._places:
            found = values[place] if place < count else default
            if found is None:
                if not column.nullable:
                    raise self._error(key, column, "is required, but the row has no value for it")
            elif not _is_stored(column.type, found):
                raise self._error(key, column, f"the row has a {type(found).__name__} where the type is {column.type}")
            row[column.name] = found
        return row

    def decode_key(self, key: str) -> dict[str, Value]:
        """Return the values of the key columns."""
        try:
            values = keys.decode(self._kinds, key)
        except ValueError as error:
            names = ", ".join(f"{one.name}:{one.type}" for one in self.keys)
            raise RowError(f"table {self.name!r}, row {shown(key)}: not a key of {names}: {error}") from error
        return {one.name: value for one, value in zip(self.keys, values, strict=True)}

    def _values(self, key: str, value: bytes) -> tuple[int, list[Value]]:
        try:
            if not value.startswith(MARK):
                raise ValueError
            version, *values = _DECODER.decode(memoryview(value)[1:])
            if type(version) is not int or version < 0:
                raise ValueError
        except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as error:
            raise RowError(
                f"table {self.name!r}, row {shown(key)}: its {len(value)} bytes were not written as columns"
            ) from error
        return version, values

    def _error(self, key: str, column: Column, what: str) -> RowError:
        row = f", row {shown(key)}" if key else ""
        return RowError(f"table {self.name!r}{row}, column {column.name!r}: {what}")

    def _key_names(self) -> str:
        return f"; key columns: {', '.join(one.name for one in self.keys)}"


def _is_stored(kind: ColumnType, value: Value) -> bool:
    """Return True if `encode` can have stored the value in a column of that type."""
    bits = INT_BITS.get(kind)
    if bits is not None:
        return type(value) is int and -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    return type(value) is _STORED[kind]


_STORED: Final = {
    ColumnType.BOOL: bool,
    ColumnType.FLOAT: float,
    ColumnType.DOUBLE: float,
    ColumnType.STRING: str,
    ColumnType.BINARY: bytes,
}


def shown(key: str) -> str:
    """Return a key for an error, cut if it is long."""
    return repr(key) if len(key) <= _SHOWN_MAX else f"{key[:_SHOWN_MAX]!r}…"


__all__ = ["MARK", "EncodedRow", "NewerRowError", "RowError", "TypedTable", "shown"]
