"""Batches of Arrow become keys and bytes, and know their region. Pure.

A row that does not fit becomes a problem, one sentence, so that a whole frame can be checked before it is written.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from cli.common.errors import CliError
from cli.rows.files import check_names
from pyspark_regionkeeper.columns import KEY, VALUE
from pyspark_regionkeeper.errors import SourceError, spoken
from regions.records.partitioning import place
from regions.records.rows.codec import EncodedRow, RowError, TypedTable, shown
from regions.records.rows.words import parse_value
from regionserver.client import WrongRow
from regionserver.client.rows import check_size
from regionserver.kv.messages import KEY_BYTES_MAX, VALUE_BYTES_MAX

#: Longest part of a row in an error.
_SHOWN_MAX: Final = 80
#: Schema of encoded rows in Spark: the region's number in key order (-1 for a problem), the placed key, the bytes.
ENCODED_DDL: Final = "region INT, placed STRING, value BINARY, problem STRING"
REPORT_DDL: Final = "counted BIGINT, problem STRING"


class Form(Protocol):
    """Encoder of a frame's rows into keys and bytes."""

    def check(self, names: Sequence[str]) -> None:
        """Raise SourceError if a frame with these columns cannot be written."""
        ...

    def encode(self, row: dict[str, Any]) -> EncodedRow:
        """Return key and bytes. Raise RowError, WrongRow."""
        ...


class Columns:
    """Rows with the columns of the table."""

    def __init__(self, table: TypedTable) -> None:
        self._table = table

    def check(self, names: Sequence[str]) -> None:
        """Raise SourceError for columns that the table does not have, or that are missing."""
        with spoken():
            check_names("the frame", self._table, names, skip_unknown=False, hint="Leave them out: frame.drop(…).")

    def encode(self, row: dict[str, Any]) -> EncodedRow:
        """Return key and bytes."""
        found = self._table.encode(row)
        check_size(self._table.name, found)
        return found


class Texts:
    """Rows of a CSV file: every field is a text, as `rk load` reads it."""

    def __init__(self, table: TypedTable, source: str, null: str, *, skip_unknown: bool) -> None:
        """`null`: the field that stands for null."""
        self._table = table
        self._source = source
        self._null = null
        self._skip_unknown = skip_unknown

    def check(self, names: Sequence[str]) -> None:
        """Raise CliError, as `rk load` does."""
        check_names(self._source, self._table, names, skip_unknown=self._skip_unknown)

    def encode(self, row: dict[str, Any]) -> EncodedRow:
        """Return key and bytes."""
        values = {}
        for name, field in row.items():
            column = self._table.columns.get(name)
            if column is not None:
                text = field or ""
                is_null = text == self._null and column.nullable
                values[name] = None if is_null else parse_value(self._table, column, text)
        found = self._table.encode(values)
        check_size(self._table.name, found)
        return found


class Known:
    """Rows of a file with columns of its own types. The table may lack some of these columns."""

    def __init__(self, table: TypedTable, source: str, *, skip_unknown: bool) -> None:
        self._table = table
        self._source = source
        self._skip_unknown = skip_unknown

    def check(self, names: Sequence[str]) -> None:
        """Raise CliError, as `rk load` does."""
        check_names(self._source, self._table, names, skip_unknown=self._skip_unknown)

    def encode(self, row: dict[str, Any]) -> EncodedRow:
        """Return key and bytes."""
        found = self._table.encode({name: value for name, value in row.items() if name in self._table.columns})
        check_size(self._table.name, found)
        return found


class Pairs:
    """Rows of a table without columns."""

    def check(self, names: Sequence[str]) -> None:
        """Raise SourceError unless the columns are key and value."""
        if sorted(names) != sorted((KEY, VALUE)):
            raise SourceError(
                f"a table without columns takes {KEY} STRING and {VALUE} BINARY, and the frame has {', '.join(names)}"
            )

    def encode(self, row: dict[str, Any]) -> EncodedRow:
        """Return key and bytes."""
        key, value = row[KEY], row[VALUE]
        if not isinstance(key, str) or not key:
            raise WrongRow(f"column {KEY} is to be a text that is not empty, and is {key!r:.60}")
        if not isinstance(value, bytes):
            raise WrongRow(f"row {shown(key)}: column {VALUE} is to be BINARY, and is {value!r:.60}")
        return _checked(EncodedRow(key, value))


class Objects:
    """Rows of a CSV file for a table without columns: the value is the row as JSON, as `rk load` writes it."""

    def __init__(self, source: str, key_column: str) -> None:
        self._source = source
        self._key = key_column

    def check(self, names: Sequence[str]) -> None:
        """Raise CliError unless there is the key's column."""
        if self._key not in names:
            raise CliError(f"{self._source} has no column {self._key!r}", f"Its columns: {', '.join(names)}.")

    def encode(self, row: dict[str, Any]) -> EncodedRow:
        """Return key and bytes."""
        texts = {name: field or "" for name, field in row.items()}
        if not texts[self._key]:
            raise WrongRow("the key must not be empty")
        return _checked(EncodedRow(texts[self._key], msgspec.json.encode(texts)))


def _checked(row: EncodedRow) -> EncodedRow:
    """Return the row. Raise WrongRow for one that no region can hold."""
    if len(row.key.encode()) > KEY_BYTES_MAX:
        raise WrongRow(f"row {shown(row.key)}: its key has {len(row.key.encode())} bytes; the limit is {KEY_BYTES_MAX}")
    if len(row.value) > VALUE_BYTES_MAX:
        raise WrongRow(f"row {shown(row.key)}: its value has {len(row.value)} bytes; the limit is {VALUE_BYTES_MAX}")
    return row


class RegionLayout(NamedTuple):
    """Partitioning of a table: the regions' start keys in order, and the number of hash buckets."""

    starts: list[str]
    buckets: int

    def place(self, key: str) -> str:
        """Return the placed key."""
        return place(key, self.buckets)

    def region(self, placed: str) -> int:
        """Return the number of the region of a placed key."""
        return max(0, bisect.bisect_right(self.starts, placed) - 1)


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch of Arrow. Times are microseconds since 1970."""
    import pyarrow as pa

    columns = []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us", tz=field.type.tz)).cast(pa.int64())
        columns.append(column.to_pylist())
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def encoded(batches: Iterable[Any], form: Form) -> Iterator[EncodedRow | str]:
    """Yield each row's key and bytes, or its problem."""
    for batch in batches:
        for row in rows_of(batch):
            try:
                yield form.encode(row)
            except (RowError, WrongRow) as error:
                yield f"{error}; the row is {_shown(row)}"


def encode_batches(batches: Iterable[Any], form: Form, layout: RegionLayout) -> Iterator[Any]:
    """Yield batches of ENCODED_DDL."""
    import pyarrow as pa

    schema = pa.schema(
        [("region", pa.int32()), ("placed", pa.string()), ("value", pa.binary()), ("problem", pa.string())]
    )
    for batch in batches:
        rows: list[tuple[int, str | None, bytes | None, str | None]] = []
        for one in encoded([batch], form):
            if isinstance(one, str):
                rows.append((-1, None, None, one))
            else:
                placed = layout.place(one.key)
                rows.append((layout.region(placed), placed, one.value, None))
        found = zip(*rows, strict=True) if rows else ([], [], [], [])
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(values), field.type) for values, field in zip(found, schema, strict=True)], schema=schema
        )


def check_sorted(batches: Iterable[Any], buckets: int) -> Iterator[Any]:
    """Yield one row of REPORT_DDL for sorted encoded rows: their number, and the first problem."""
    import pyarrow as pa

    count, problem, last = 0, "", None
    for batch in batches:
        count += batch.num_rows
        problem = problem or next((str(one) for one in batch.column("problem").to_pylist() if one), "")
        for placed in batch.column("placed").to_pylist():
            if placed is not None and placed == last and not problem:
                problem = f"two rows have the same key {shown(placed[5:] if buckets else placed)}"
            last = placed
    yield pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()), pa.array([problem or None], pa.string())], names=["counted", "problem"]
    )


def _shown(row: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


__all__ = [
    "ENCODED_DDL",
    "REPORT_DDL",
    "Columns",
    "Form",
    "Known",
    "Objects",
    "Pairs",
    "RegionLayout",
    "Texts",
    "check_sorted",
    "encode_batches",
    "encoded",
    "rows_of",
]
