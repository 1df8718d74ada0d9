"""`rk get`, `rk put`, `rk delete`, `rk scan`: the rows of key-value regions.

In a table with columns (docs/rows.md) words such as `amount=2.5` name columns. In another table a row is a key and a
value; values are printed as text if they are UTF-8, else as base64; JSON output marks base64.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import click
import msgspec

from cli.common import output
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.options import Globals, global_options
from cli.common.staleness import duration_ms
from cli.common.waiting import soon_after_timeout, takes_timeout, waiting
from cli.rows import show
from cli.rows.opening import TIMEOUT_S, null_text, open_regions
from cli.shell import complete
from coord.rpc.wire import Code
from regions.records.rows.codec import TypedTable
from regions.records.rows.values import Value
from regions.records.rows.words import parse_bound, parse_key, parse_prefix, parse_row, row_json
from regionserver.client import Refused, RegionClient, Staleness
from regionserver.kv.messages import KEY_BYTES_MAX

T = TypeVar("T")

_SCAN_DEFAULT: Final = 100
#: Prefix of a printed value that is not UTF-8 text.
_BASE64: Final = "base64:"


_if_value = click.option(
    "--if-value", metavar="TEXT", help="Only if the row has this value; else status 1. For tables with replicas."
)
_max_stale = click.option(
    "--max-stale", metavar="TIME", help="Let any replica answer whose rows are at most this old: 5s, 500ms."
)
_words = click.argument("words", nargs=-1, required=True, metavar="KEY")


def shown(value: bytes) -> str:
    """Return a value for people and for JSON: text, or `base64:…` for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _BASE64 + base64.b64encode(value).decode()


def bytes_of(value: str, *, is_base64: bool = False) -> bytes:
    """Return the bytes of a value on the command line. Raise UsageFaultError."""
    if not is_base64:
        return os.fsencode(value)
    try:
        return base64.b64decode(value.removeprefix(_BASE64), validate=True)
    except ValueError as error:
        raise UsageFaultError(
            f"{value!r} is not base64: {error}", f"Write {_BASE64}AAEC, as `rk scan` does."
        ) from error


def staleness_of(max_stale: str | None) -> Staleness | None:
    """Return the value of --max-stale, None without one. Raise UsageFaultError."""
    if max_stale is None:
        return None
    try:
        return Staleness(duration_ms(max_stale))
    except ValueError as error:
        raise UsageFaultError(f"--max-stale {max_stale!r}: {error}", "Write it as 5s, 500ms or 1h.") from error


def _age(staleness: Staleness | None) -> dict[str, int]:
    """Return the age of the data for a report in JSON."""
    return {} if staleness is None else {"age_ms": staleness.age_ms}


def _print_age(staleness: Staleness | None) -> None:
    """Print the age of the data for people, beside them."""
    if staleness is not None:
        click.echo(f"data at most {staleness.age_ms / 1000:.2f} s old", err=True)


def one_key(table: str, words: tuple[str, ...]) -> str:
    """Return the key of a table without columns. Raise UsageFaultError."""
    if len(words) != 1:
        raise UsageFaultError(f"table {table!r} has no columns: name one KEY, not {len(words)}")
    return words[0]


@click.command()
@click.argument("table", shell_complete=complete.tables)
@_words
@_max_stale
@takes_timeout(TIMEOUT_S)
@global_options
@click.pass_obj
def get(given: Globals, table: str, words: tuple[str, ...], max_stale: str | None, timeout_s: float) -> int:
    """Print the value at KEY of TABLE, or the columns of a row; status 4 if there is none.

    In a table with columns KEY is the value of the key column, or COLUMN=VALUE for each of them. With --max-stale the
    answer may lack the latest writes, and a tablet without a leader can answer, too.
    """
    staleness = staleness_of(max_stale)
    what = f"the region server of table {table}"
    with open_regions(given, timeout_s) as client, waiting(what, soon_after_timeout()):
        columns = client.columns(table)
        if columns is not None:
            return _get_row(given, client, table, words, staleness)
        key = one_key(table, words)
        value = client.get(table, key, staleness=staleness)
    if given.json:
        found = None if value is None else shown(value)
        output.print_json({"table": table, "key": key, "value": found} | _age(staleness))
        return 0 if value is not None else NotFoundError.exit_code
    _print_age(staleness)
    if value is None:
        raise NotFoundError(f"{table} has no row {key!r}")
    _print_value(value)
    return 0


def _get_row(
    given: Globals, client: RegionClient, table: str, words: tuple[str, ...], staleness: Staleness | None
) -> int:
    key = parse_key(_columns(client, table), words)
    row = client.get_row(table, key, staleness=staleness)
    columns = _columns(client, table)  # later ones, if the row was written under a later schema
    if given.json:
        text = columns.key_of(key)
        found = None if row is None else row_json(columns, row)
        output.print_json({"table": table, "key": text, "row": found} | _age(staleness))
        return 0 if row is not None else NotFoundError.exit_code
    _print_age(staleness)
    if row is None:
        raise NotFoundError(f"{table} has no row {' '.join(words)!r}")
    show.print_row(columns, row)
    return 0


def _columns(client: RegionClient, table: str) -> TypedTable:
    """Return the columns of a table that has some, as the client knows them now."""
    columns = client.columns(table)
    assert columns is not None, f"table {table} has lost its columns"
    return columns


def _print_value(value: bytes) -> None:
    """Print the value: unchanged into a pipe or file, with a line end; as `shown` on a terminal."""
    if sys.stdout.isatty():
        click.echo(shown(value))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(value)
    if not value.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.argument("words", nargs=-1, required=True, metavar="KEY VALUE|COLUMN=VALUE...")
@click.option("--null", "nulls", multiple=True, metavar="COLUMN", help="Put null into this column; repeatable.")
@click.option(
    "--base64", "is_base64", is_flag=True, help="VALUE is base64, with or without the `base64:` of `rk scan`."
)
@_if_value
@click.option("--if-absent", is_flag=True, help="Put only if there is no row; else status 1. For tables with replicas.")
@takes_timeout(TIMEOUT_S)
@global_options
@click.pass_obj
def put(
    given: Globals,
    table: str,
    words: tuple[str, ...],
    nulls: tuple[str, ...],
    is_base64: bool,
    if_value: str | None,
    if_absent: bool,
    timeout_s: float,
) -> int:
    """Put VALUE at KEY of TABLE ("-": read the value from standard input); durable on return.

    In a table with columns write COLUMN=VALUE for each column; the key's only column may be its value alone. Other
    columns get their default, else null. The row replaces the row with the same key.

    \b
    rk put packages python3 hello
    rk put sales region=eu id=5 amount=2.5
    """
    if if_absent and if_value is not None:
        raise UsageFaultError("--if-value and --if-absent exclude each other")
    with open_regions(given, timeout_s) as client, waiting(f"the region server of table {table}"):
        columns = client.columns(table)
        if columns is not None:
            refuse_if_value(table, if_value)
            if is_base64:
                raise UsageFaultError(f"--base64: table {table!r} has columns")
            row = parse_row(columns, words, nulls)
            key = columns.encode(row).key
            done = f"put {output.count(len(columns.columns), 'column')} at {key}"
            if not if_absent:
                client.put_row(table, row)
            elif not _has_condition(table, lambda: client.put_row_if_absent(table, row)):
                return _not_done(given, table, key, "there is a row")
            _done(given, table, key, done)
            return 0
    if nulls:
        raise UsageFaultError(f"--null: table {table!r} has no columns")
    if len(words) != 2:
        raise UsageFaultError(f"table {table!r} has no columns: write KEY VALUE", "Put a value with blanks in quotes.")
    key, value = words
    if not key:
        raise UsageFaultError("the key is empty", f"A key has 1 to {KEY_BYTES_MAX} bytes: rk put {table} KEY VALUE.")
    data = sys.stdin.buffer.read() if value == "-" else bytes_of(value, is_base64=is_base64)
    done = f"put {output.count(len(data), 'byte')} at {key}"
    if if_absent or if_value is not None:
        return _compare_and_set(given, table, key, if_value, data, done, timeout_s)
    with open_regions(given, timeout_s) as client, waiting(f"the region server of table {table}"):
        client.put(table, key, data)
    _done(given, table, key, done)
    return 0


def refuse_if_value(table: str, if_value: str | None) -> None:
    """Raise UsageFaultError for --if-value on a table with columns."""
    if if_value is not None:
        raise UsageFaultError(f"--if-value compares bytes, and table {table!r} has columns", "Use --if-absent.")


@click.command()
@click.argument("table", shell_complete=complete.tables)
@_words
@_if_value
@takes_timeout(TIMEOUT_S)
@global_options
@click.pass_obj
def delete(given: Globals, table: str, words: tuple[str, ...], if_value: str | None, timeout_s: float) -> int:
    """Delete KEY of TABLE, which need not exist.

    In a table with columns KEY is the value of the key column, or COLUMN=VALUE for each of them.
    """
    with open_regions(given, timeout_s) as client, waiting(f"the region server of table {table}"):
        columns = client.columns(table)
        if columns is not None:
            refuse_if_value(table, if_value)
            row = parse_key(columns, words)
            client.delete_row(table, row)
            key = columns.key_of(row)
        else:
            key = one_key(table, words)
            if if_value is None:
                client.delete(table, key)
    if if_value is not None:
        return _compare_and_set(given, table, key, if_value, None, f"deleted {key}", timeout_s)
    _done(given, table, key, f"deleted {key}")
    return 0


def _compare_and_set(
    given: Globals, table: str, key: str, expected: str | None, value: bytes | None, done: str, timeout_s: float
) -> int:
    """Change a row if its value is `expected` (None: if there is no row); return the exit status."""
    wanted = None if expected is None else bytes_of(expected)
    with open_regions(given, timeout_s) as client, waiting(f"the region server of table {table}"):
        is_done = _has_condition(table, lambda: client.compare_and_set(table, key, wanted, value))
    if is_done:
        _done(given, table, key, done)
        return 0
    return _not_done(given, table, key, "there is a row" if expected is None else f"its value is not {expected!r}")


def _has_condition(table: str, change: Callable[[], bool]) -> bool:
    """Return the result of a change with a condition. Raise UsageFaultError for a table without such changes."""
    try:
        return change()
    except Refused as error:
        if error.code != Code.UNSUPPORTED:
            raise
        raise UsageFaultError(
            f"{table} has shared storage, which cannot compare and set",
            "Make the table with `rk table create --replicas 3`.",
        ) from error


def _not_done(given: Globals, table: str, key: str, what: str) -> int:
    """Report a condition that did not hold; return the exit status."""
    if given.json:
        output.print_json({"table": table, "key": key, "done": "", "condition": what})
    else:
        click.echo(f"not done: {key}: {what}", err=True)
    return CliError.exit_code


def _done(given: Globals, table: str, key: str, text: str) -> None:
    if given.json:
        output.print_json({"table": table, "key": key, "done": text})
    else:
        click.echo(text)


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.option("--from", "start", default="", metavar="KEY", help="First key.  [default: the first key]")
@click.option("--to", "end", default="", metavar="KEY", help="Key before which to stop.  [default: none]")
@click.option("--prefix", default="", metavar="KEY", help="Only keys with this prefix.")
@click.option("--limit", type=click.IntRange(0), default=_SCAN_DEFAULT, show_default=True, help="Rows; 0: all.")
@click.option("--count", is_flag=True, help="Only count the rows (all, unless --limit is given).")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header line.")
@null_text
@_max_stale
@takes_timeout(TIMEOUT_S, of_each=True)
@global_options
@click.pass_context
def scan(
    context: click.Context,
    table: str,
    start: str,
    end: str,
    prefix: str,
    limit: int,
    count: bool,
    as_csv: bool,
    null: str,
    max_stale: str | None,
    timeout_s: float,
) -> None:
    """Print rows of TABLE in the order of their keys: key and value, or columns.

    In a table with several key columns --from, --to and --prefix take COLUMN=VALUE of the first of them, such as
    --prefix "region=eu". With --max-stale each page of rows may lack the latest writes; with --json the last line is
    the largest age.
    """
    staleness = staleness_of(max_stale)
    given = context.ensure_object(Globals)
    if prefix and (start or end):
        raise UsageFaultError("--prefix and --from/--to exclude each other")
    if as_csv and (given.json or count):
        raise UsageFaultError("--csv and --json or --count exclude each other")
    if count and context.get_parameter_source("limit") is click.core.ParameterSource.DEFAULT:
        limit = 0
    with open_regions(given, timeout_s) as client:
        columns = client.columns(table)
        if columns is not None:
            start, end = (parse_bound(columns, one) if one else "" for one in (start, end))
            prefix = parse_prefix(columns, prefix) if prefix else ""
        if end and start >= end:
            raise UsageFaultError(
                "no key is in this range: --from is not below --to", "--to is the first key left out."
            )
        part = ScanPart(client, table, prefix or start, end, prefix, limit, staleness)
        if count:
            rows = sum(1 for _ in part.values())
            click.echo(msgspec.json.encode({"table": table, "rows": rows} | _age(staleness)) if given.json else rows)
        else:
            _print_scanned(given, columns, part, as_csv, null)
    if not given.json:
        _print_age(staleness)
    elif staleness is not None and not count:
        output.print_json_line(_age(staleness))
    if part.has_more and not given.json and not as_csv:
        click.echo(f"… more than {output.count(limit, 'row')}: --limit 0 shows all", err=True)


def _print_scanned(given: Globals, columns: TypedTable | None, part: ScanPart, as_csv: bool, null: str) -> None:
    if columns is not None:
        rows = part.rows(columns)
        if given.json:
            show.print_json_rows(columns, rows)
        elif as_csv:
            show.print_csv_rows(columns, rows, null)
        else:
            show.print_table(columns, rows)
        return
    pairs = ((key, shown(value)) for key, value in part.values())
    if as_csv:
        show.print_csv(("key", "value"), pairs)
        return
    for key, value in pairs:
        if given.json:
            output.print_json_line({"key": key, "value": value})
        else:
            click.echo(f"{key}\t{value}")


class ScanPart:
    """The part of a table that a scan prints."""

    def __init__(
        self,
        client: RegionClient,
        table: str,
        start: str,
        end: str,
        prefix: str,
        limit: int,
        staleness: Staleness | None = None,
    ) -> None:
        """`limit` 0: no limit."""
        self._staleness = staleness
        self._client = client
        self._table = table
        self._bounds = (start, end)
        self._prefix = prefix
        self._limit = limit
        #: True if the limit has left out rows.
        self.has_more = False

    def values(self) -> Iterator[tuple[str, bytes]]:
        """Yield keys and bytes."""
        return self._cut(
            self._client.scan(self._table, *self._bounds, rows_max=self._rows_max(), staleness=self._staleness)
        )

    def rows(self, columns: TypedTable) -> Iterator[Mapping[str, Value]]:
        """Yield rows of columns. Raise CliError if the table is altered meanwhile: the header is printed already."""
        found = self._client.scan_keyed_rows(
            self._table, *self._bounds, rows_max=self._rows_max(), staleness=self._staleness
        )
        for _, row in self._cut(found):
            if row.keys() != columns.columns.keys():
                raise CliError(f"table {self._table!r} was altered during the scan", "Scan again.")
            yield row

    def _rows_max(self) -> int | None:
        return self._limit + 1 if self._limit else None

    def _cut(self, found: Iterator[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        for number, (key, value) in enumerate(found):
            if not key.startswith(self._prefix):
                return
            if self._limit and number == self._limit:
                self.has_more = True
                return
            yield key, value
