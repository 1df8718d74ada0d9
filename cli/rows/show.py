"""Rows of columns as people and programs read them: a table, CSV, or one JSON object per line."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import click

from cli.common import output
from regions.records.rows.codec import TypedTable
from regions.records.rows.values import Value
from regions.records.rows.words import row_json, row_texts
from regions.records.schema import INT_BITS, ColumnType

#: Rows whose widths decide the widths of a table's columns; more rows are printed as they arrive.
_MEASURED: Final = 1000
#: Text of null in a table for people.
NULL_SHOWN: Final = "NULL"
_NUMBERS: Final = {*INT_BITS, ColumnType.FLOAT, ColumnType.DOUBLE} - {ColumnType.TIMESTAMP}

Rows = Iterable[Mapping[str, Value]]


def print_row(table: TypedTable, row: Mapping[str, Value]) -> None:
    """Print one row for people: a line per column."""
    texts = [_printable(one) for one in row_texts(table, row, NULL_SHOWN)]
    width = max(len(name) for name in table.columns)
    for name, text in zip(table.columns, texts, strict=True):
        click.echo(f"{name:{width}}  {text}")


def print_json_rows(table: TypedTable, rows: Rows) -> None:
    """Print each row as a JSON object on a line."""
    for row in rows:
        output.print_json_line(row_json(table, row))


def print_csv(header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print CSV with a header line."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(header)
    lines.writerows(rows)
    sys.stdout.flush()


def print_csv_rows(table: TypedTable, rows: Rows, null: str) -> None:
    """Print rows as CSV; `rk load` with the same `null` reads them back."""
    print_csv(table.columns, (row_texts(table, row, null) for row in rows))


def print_table(table: TypedTable, rows: Rows) -> None:
    """Print rows in aligned columns. The first thousand rows decide the widths."""
    texts = ([_printable(one) for one in row_texts(table, row, NULL_SHOWN)] for row in rows)
    first = list(itertools.islice(texts, _MEASURED))
    if not first:
        return
    header = list(table.columns)
    widths = [max(map(len, column)) for column in zip(header, *first, strict=True)]
    is_number = [one.type in _NUMBERS for one in table.schema.columns]
    for line in itertools.chain([header], first, texts):
        click.echo("  ".join(_padded(line, widths, is_number)).rstrip())


def _padded(line: Iterable[str], widths: list[int], is_number: list[bool]) -> Iterator[str]:
    for text, width, right in zip(line, widths, is_number, strict=True):
        yield text.rjust(width) if right else text.ljust(width)


def _printable(text: str) -> str:
    """Return a text without characters that would disturb a terminal."""
    return text if text.isprintable() else repr(text)[1:-1]
