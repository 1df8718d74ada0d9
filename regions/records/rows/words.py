"""Rows and keys as users write them, and as people and programs read them. Pure.

    5 name=Ada            the key's only column, then columns
    id=5 name=Ada         the same: a word that begins with a column's name and "=" is that column
    region=eu id=5        a key of two columns

A word for a string key that looks like `name=…` needs the column's name: `id=name=x`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regions.records.model import TableRecord
from regions.records.rows.codec import RowError, TypedTable
from regions.records.rows.values import Value, parse, show, to_json
from regions.records.schema import Column, ColumnType


def parse_row(table: TypedTable, words: Sequence[str], nulls: Iterable[str] = ()) -> dict[str, Value]:
    """Return the columns that words name; the columns in `nulls` are null. Raise RowError."""
    row: dict[str, Value] = {}
    for at, word in enumerate(words):
        name, equals, text = word.partition("=")
        column = table.columns.get(name) if equals else None
        if column is None:
            if at or len(table.keys) > 1:
                raise RowError(_no_column(table, word, name if equals else ""))
            column, text = table.keys[0], word
        if column.name in row:
            raise RowError(f"table {table.name!r}: column {column.name!r} is given twice")
        row[column.name] = parse_value(table, column, text)
    for name in nulls:
        if name not in table.columns:
            raise RowError(_no_column(table, name, name))
        if name in row:
            raise RowError(f"table {table.name!r}: column {name!r} is given twice")
        row[name] = None
    return row


def parse_value(table: TypedTable, column: Column, text: str) -> Value:
    """Return the value of a column. Raise RowError that names table and column."""
    try:
        return parse(column.type, text)
    except ValueError as error:
        raise RowError(f"table {table.name!r}, column {column.name!r}: {error}") from error


def _no_column(table: TypedTable, word: str, name: str) -> str:
    known = ", ".join(table.columns)
    if name:
        return f"table {table.name!r} has no column {name!r}; its columns: {known}"
    keys = " ".join(f"{one.name}=…" for one in table.keys)
    return f"table {table.name!r}: {word!r} names no column: write the key as {keys}, and columns as NAME=VALUE"


def parse_key(table: TypedTable, words: Sequence[str]) -> dict[str, Value]:
    """Return the key columns that words name. Raise RowError."""
    row = parse_row(table, words)
    extra = [name for name in row if not table.columns[name].key]
    if extra:
        raise RowError(f"table {table.name!r}: column {extra[0]!r} is no key column")
    table.key_of(row)
    return row


def parse_bound(table: TypedTable, text: str) -> str:
    """Return the text of a bound: the value of a key's only column, or `NAME=VALUE` of the first key columns.

    Names and values of several columns are one text, with quotes as in a shell. Raise RowError.
    """
    if len(table.keys) == 1:
        return table.bound_of(parse_row(table, [text]))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RowError(f"table {table.name!r}: {text!r}: {error}") from error
    return table.bound_of(parse_row(table, words))


def parse_prefix(table: TypedTable, text: str) -> str:
    """Return the text with which the keys begin: the beginning of a string, or the text of the given first columns.
    Raise RowError.

    Numbers and binaries have no useful prefix: their texts have other orders of digits.
    """
    if len(table.keys) == 1:
        if table.keys[0].type is not ColumnType.STRING:
            raise RowError(f"table {table.name!r}: a prefix needs a key of several columns, or of a string")
        return str(parse_row(table, [text])[table.keys[0].name])
    return parse_bound(table, text)


def placed_text(record: TableRecord, text: str) -> str:
    """Return the key named by an operator's text. Without columns the text is the key. Raise RowError."""
    table = TypedTable.of(record)
    return text if table is None else parse_bound(table, text)


def row_texts(table: TypedTable, row: Mapping[str, Value], null: str) -> list[str]:
    """Return the values of a row as texts, in the order of the columns; `null` stands for null."""
    found = [(one.type, row[one.name]) for one in table.schema.columns]
    return [null if value is None else show(kind, value) for kind, value in found]


def row_json(table: TypedTable, row: Mapping[str, Value]) -> dict[str, Any]:
    """Return a row for JSON."""
    return {one.name: to_json(one.type, row[one.name]) for one in table.schema.columns}


__all__ = [
    "parse_bound",
    "parse_key",
    "parse_prefix",
    "parse_row",
    "parse_value",
    "placed_text",
    "row_json",
    "row_texts",
]
