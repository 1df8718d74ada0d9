"""Rows of CSV and Parquet files, as changes of a table.

A whole file is read and checked before anything is written, so a wrong file changes nothing. CSV files have a header
line and may be compressed by gzip. In a table with columns the names in the header say which column a field is.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.common.errors import CliError, UsageFaultError
from regions.records.rows.codec import RowError, TypedTable
from regions.records.rows.words import parse_value
from regionserver.client import Change, WrongRow
from regionserver.client.rows import check_size
from regionserver.kv.messages import VALUE_BYTES_MAX

_GZIP: Final = b"\x1f\x8b"
#: First bytes of a Parquet file.
PARQUET: Final = b"PAR1"
#: Longest field of a CSV file: base64 of the longest value.
_FIELD_MAX: Final = 2 * VALUE_BYTES_MAX
#: Rows between two reports of progress, and rows of a Parquet file that are read together.
_PART: Final = 10_000


def read_rows(source: Path, key_column: str | None = None) -> list[Change]:
    """Return a CSV file's rows for a table of keys and bytes: the value is the row as JSON.

    Raise NotFoundError, UsageFaultError.
    """
    data = _read(source)
    if data.startswith(PARQUET):
        raise UsageFaultError(
            f"{source} is a Parquet file, and the table has no columns", "Make the table with --column NAME:TYPE."
        )
    header, lines = _csv(source, data)
    if key_column is not None and key_column not in header:
        raise UsageFaultError(f"{source} has no column {key_column!r}", f"Its columns: {', '.join(header)}.")
    key_at = 0 if key_column is None else header.index(key_column)
    found = []
    for line, row in lines:
        if len(row) != len(header) or not row[key_at]:
            raise UsageFaultError(
                f"{source} line {line}: {len(row)} fields, but the header has {len(header)}; the key must not be empty"
            )
        found.append(Change(row[key_at], msgspec.json.encode(dict(zip(header, row, strict=True)))))
    return sorted(found, key=lambda one: one.key)


def read_typed_rows(
    source: Path, table: TypedTable, *, null: str, skip_unknown: bool, progress: Callable[[int], object]
) -> list[Change]:
    """Return the rows of a CSV or Parquet file, encoded for a table with columns.

    `null` is the field of a CSV file that stands for null, in columns that may be null. A column of the file that the
    table lacks is an error, unless `skip_unknown`. `progress` is called with the number of rows read.

    Raise NotFoundError, UsageFaultError, CliError.
    """
    data = _read(source)
    is_parquet = data.startswith(PARQUET)
    rows = _parquet_rows(source, table, data, skip_unknown) if is_parquet else _csv_rows(
        source, table, data, null, skip_unknown
    )  # fmt: skip
    found: list[Change] = []
    places: dict[str, str] = {}
    for where, row in rows:
        try:
            encoded = table.encode(row)
            check_size(table.name, encoded)
        except (RowError, WrongRow) as error:
            raise UsageFaultError(f"{source} {where}: {error}", "Nothing was written.") from error
        if encoded.key in places:
            raise UsageFaultError(
                f"{source} {where}: the row has the same key as {places[encoded.key]}: {encoded.key!r}",
                "Nothing was written.",
            )
        places[encoded.key] = where
        found.append(Change(*encoded))
        if len(found) % _PART == 0:
            progress(len(found))
    return found


def _read(source: Path) -> bytes:
    """Return a file's bytes, uncompressed."""
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise UsageFaultError(
            f"cannot read {source}: {error.strerror or error}", "Name a CSV file with a header line, plain or .gz."
        ) from error
    try:
        return gzip.decompress(raw) if raw.startswith(_GZIP) else raw
    except (EOFError, OSError) as error:
        raise UsageFaultError(f"{source} is neither CSV in UTF-8 nor a complete gzip file: {error}") from error


# --- CSV --------------------------------------------------------------------------------------------------------------


def _csv(source: Path, data: bytes) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the header and the other lines, each with the number of its first line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageFaultError(f"{source} is neither CSV in UTF-8 nor a complete gzip file: {error}") from error
    csv.field_size_limit(_FIELD_MAX)
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)

    def rest() -> Iterator[tuple[int, list[str]]]:
        line = lines.line_num + 1
        try:
            for row in lines:
                if row:
                    yield line, row
                line = lines.line_num + 1
        except csv.Error as error:
            raise UsageFaultError(f"{source} line {line}: {error}") from error

    try:
        header = next(lines, None)
    except csv.Error as error:
        raise UsageFaultError(f"{source} line 1: {error}") from error
    if not header:
        raise UsageFaultError(f"{source} is empty", "The first line must name the columns.")
    return header, rest()


def _csv_rows(
    source: Path, table: TypedTable, data: bytes, null: str, skip_unknown: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    header, lines = _csv(source, data)
    check_names(source, table, header, skip_unknown)
    columns = [table.columns.get(name) for name in header]
    for line, fields in lines:
        if len(fields) != len(header):
            raise UsageFaultError(
                f"{source} line {line}: {len(fields)} fields, but the header has {len(header)}", "Nothing was written."
            )
        row: dict[str, Any] = {}
        for column, field in zip(columns, fields, strict=True):
            if column is None:
                continue
            try:
                row[column.name] = None if field == null and column.nullable else parse_value(table, column, field)
            except RowError as error:
                raise UsageFaultError(f"{source} line {line}: {error}", "Nothing was written.") from error
        yield f"line {line}", row


def check_names(
    source: Path | str,
    table: TypedTable,
    names: Sequence[str],
    skip_unknown: bool,
    hint: str = "--skip-unknown leaves such columns out.",
) -> None:
    """Raise UsageFaultError if a file with these columns cannot be loaded."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageFaultError(f"{source} has two columns {twice[0]!r}")
    unknown = [name for name in names if name not in table.columns]
    if unknown and not skip_unknown:
        raise UsageFaultError(
            f"{source}: table {table.name!r} has no column {unknown[0]!r}; its columns: {', '.join(table.columns)}",
            hint,
        )
    for column in table.schema.columns:
        needs = column.key or (not column.nullable and column.default is None)
        if needs and column.name not in names:
            what = "a key column" if column.key else "required"
            raise UsageFaultError(
                f"{source} has no column {column.name!r}, which is {what} in table {table.name!r}",
                f"Its columns: {', '.join(names)}.",
            )


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _parquet_rows(
    source: Path, table: TypedTable, data: bytes, skip_unknown: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise CliError(
            f"{source} is a Parquet file, and pyarrow is not installed", "pip install 'regionkeeper[spark]'"
        ) from error
    try:
        file = ParquetFile(BufferReader(data))
        names = [str(name) for name in file.schema_arrow.names]
        check_names(source, table, names, skip_unknown)
        wanted = [name for name in names if name in table.columns]
        number = 0
        for batch in file.iter_batches(batch_size=_PART, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UsageFaultError(f"{source} is not a whole Parquet file: {reason}") from error
