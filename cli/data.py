"""`rk get`, `rk put`, `rk delete`, `rk scan`, `rk load`: the rows of key-value regions.

Values are printed as text if they are UTF-8, else as base64; JSON output marks base64.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import gzip
import io
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

import click
import msgspec
from kazoo.exceptions import KazooException
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.common import output
from cli.common.connect import open_cluster
from cli.common.errors import CliError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.options import Globals, global_options
from cli.shell import complete
from coord.rpc.wire import Code
from regions.records.partitioning import place
from regionserver.client import (
    Change,
    DataError,
    NoSuchTable,
    OutcomeUnknown,
    Refused,
    RegionClient,
    RegionLocator,
    TableDisabled,
    Unavailable,
)
from regionserver.kv.messages import KEYS_MAX, WRITE_BYTES_MAX

#: Concurrent requests of `rk load`.
LOAD_THREADS: Final = 8
_SCAN_DEFAULT: Final = 100

_timeout = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.001), default=10.0, show_default=True, help="Seconds to wait."
)


_if_value = click.option(
    "--if-value", metavar="TEXT", help="Only if the row has this value; else status 1. For tables with replicas."
)


@contextlib.contextmanager
def open_regions(given: Globals, timeout_s: float) -> Iterator[RegionClient]:
    """Yield a client of the cluster's regions; its errors become one clear line."""
    with open_cluster(given) as cluster:
        client = RegionClient(RegionLocator(cluster.client, cluster.layout), timeout_s=timeout_s)
        try:
            yield client
        except NoSuchTable as error:
            raise NotFoundError(str(error), "`rk table list` shows the tables.") from error
        except TableDisabled as error:
            maybe = " The change may have been made." if error.may_have_been_done else ""
            raise CliError(str(error), f"`rk table enable {shlex.quote(error.table)}` opens it.{maybe}") from error
        except Unavailable as error:
            maybe = " The change may have been made." if error.may_have_been_done else ""
            raise UnreachableError(str(error), f"`rk why TABLE:KEY` shows the reason.{maybe}") from error
        except OutcomeUnknown as error:
            raise UnreachableError(str(error), "The change may have been made: read the row.") from error
        except DataError as error:
            raise CliError(str(error)) from error
        except KazooException as error:
            raise UnreachableError(f"the store stopped answering ({type(error).__name__})", "Try again.") from error
        finally:
            client.close()


def shown(value: bytes) -> str:
    """Return a value for people and for JSON: text, or `base64:…` for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.argument("key")
@_timeout
@global_options
@click.pass_obj
def get(given: Globals, table: str, key: str, timeout_s: float) -> int:
    """Print the value at KEY of TABLE; status 4 if there is none."""
    with open_regions(given, timeout_s) as client:
        value = client.get(table, key)
    if given.json:
        output.print_json({"table": table, "key": key, "value": None if value is None else shown(value)})
        return 0 if value is not None else NotFoundError.exit_code
    if value is None:
        raise NotFoundError(f"{table} has no row {key!r}")
    _print_value(value)
    return 0


def _print_value(value: bytes) -> None:
    """Print the value unchanged; add a line end on a terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(value)
    if sys.stdout.isatty() or not value.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.argument("key")
@click.argument("value")
@_if_value
@click.option("--if-absent", is_flag=True, help="Put only if there is no row; else status 1. For tables with replicas.")
@_timeout
@global_options
@click.pass_obj
def put(
    given: Globals, table: str, key: str, value: str, if_value: str | None, if_absent: bool, timeout_s: float
) -> int:
    """Put VALUE at KEY of TABLE ("-": read the value from standard input); durable on return."""
    if if_absent and if_value is not None:
        raise UsageFaultError("--if-value and --if-absent exclude each other")
    data = sys.stdin.buffer.read() if value == "-" else value.encode()
    done = f"put {len(data)} bytes at {key}"
    if if_absent or if_value is not None:
        return _compare_and_set(given, table, key, if_value, data, done, timeout_s)
    with open_regions(given, timeout_s) as client:
        client.put(table, key, data)
    _done(given, table, key, done)
    return 0


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.argument("key")
@_if_value
@_timeout
@global_options
@click.pass_obj
def delete(given: Globals, table: str, key: str, if_value: str | None, timeout_s: float) -> int:
    """Delete KEY of TABLE, which need not exist."""
    if if_value is not None:
        return _compare_and_set(given, table, key, if_value, None, f"deleted {key}", timeout_s)
    with open_regions(given, timeout_s) as client:
        client.delete(table, key)
    _done(given, table, key, f"deleted {key}")
    return 0


def _compare_and_set(
    given: Globals, table: str, key: str, expected: str | None, value: bytes | None, done: str, timeout_s: float
) -> int:
    """Change a row if its value is `expected` (None: if there is no row); return the exit status."""
    with open_regions(given, timeout_s) as client:
        try:
            is_done = client.compare_and_set(table, key, None if expected is None else expected.encode(), value)
        except Refused as error:
            if error.code != Code.UNSUPPORTED:
                raise
            raise UsageFaultError(
                f"{table} has shared storage, which cannot compare and set",
                "Make the table with `rk table create --replicas 3`.",
            ) from error
    if is_done:
        _done(given, table, key, done)
        return 0
    what = "there is a row" if expected is None else f"its value is not {expected!r}"
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
@click.option("--from", "start", default="", help="First key.  [default: the first key]")
@click.option("--to", "end", default="", help="Key before which to stop.  [default: none]")
@click.option("--prefix", default="", help="Only keys with this prefix.")
@click.option("--limit", type=click.IntRange(0), default=_SCAN_DEFAULT, show_default=True, help="Rows; 0: all.")
@click.option("--count", is_flag=True, help="Only count the rows (all, unless --limit is given).")
@_timeout
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
    timeout_s: float,
) -> None:
    """Print rows of TABLE in the order of their keys, one per line: key, tab, value."""
    given = context.ensure_object(Globals)
    if prefix and (start or end):
        raise UsageFaultError("--prefix and --from/--to exclude each other")
    start = prefix or start
    if count and context.get_parameter_source("limit") is click.core.ParameterSource.DEFAULT:
        limit = 0
    rows = 0
    more = False
    with open_regions(given, timeout_s) as client:
        for key, value in client.scan(table, start, end, rows_max=limit + 1 if limit else None):
            if prefix and not key.startswith(prefix):
                break
            if limit and rows == limit:
                more = True
                break
            rows += 1
            if count:
                continue
            if given.json:
                output.print_json_line({"key": key, "value": shown(value)})
            else:
                click.echo(f"{key}\t{shown(value)}")
    if count:
        click.echo(msgspec.json.encode({"table": table, "rows": rows}) if given.json else rows)
    elif more and not given.json:
        click.echo(f"… more than {output.count(limit, 'row')}: --limit 0 shows all", err=True)


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--key", "key_column", help="Column of the key.  [default: the first]")
@click.option(
    "--threads", type=click.IntRange(1, 64), default=LOAD_THREADS, show_default=True, help="Requests at once."
)
@_timeout
@global_options
@click.pass_obj
def load(given: Globals, table: str, source: Path, key_column: str | None, threads: int, timeout_s: float) -> None:
    """Put every row of SOURCE, a CSV file with a header line (gzip or plain), into TABLE.

    The value is the row as JSON. Existing rows are replaced, so an interrupted load may be repeated.
    """
    rows = read_rows(source, key_column)
    began = time.monotonic()
    with open_regions(given, timeout_s) as client:
        batches = _by_region(client, table, rows)
        with _progress(given) as progress, ThreadPoolExecutor(threads) as pool:
            task = progress.add_task(f"rows into {table}", total=len(rows))
            for count in _in_parallel(pool, client, table, batches, 2 * threads):
                progress.advance(task, count)
    seconds = time.monotonic() - began
    if given.json:
        output.print_json({"table": table, "rows": len(rows), "requests": len(batches), "seconds": round(seconds, 3)})
    else:
        click.echo(
            f"{output.count(len(rows), 'row')} in {output.seconds(seconds)}, {len(rows) / seconds:.0f} rows/s, "
            f"{output.count(len(batches), 'durable write')}"
        )


def read_rows(source: Path, key_column: str | None = None) -> list[Change]:
    """Return a CSV file's rows by key. Raise NotFoundError, UsageFaultError."""
    try:
        raw = source.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (EOFError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise UsageFaultError(f"{source} is neither CSV in UTF-8 nor a complete gzip file: {error}") from error
    except OSError as error:
        raise NotFoundError(
            f"cannot read {source}: {error.strerror or error}", "Name a CSV file with a header line, plain or .gz."
        ) from error
    lines = csv.reader(io.StringIO(text, newline=""))
    header = next(lines, None)
    if not header:
        raise UsageFaultError(f"{source} is empty", "The first line must name the columns.")
    if key_column is not None and key_column not in header:
        raise UsageFaultError(f"{source} has no column {key_column!r}", f"Its columns: {', '.join(header)}.")
    key_at = 0 if key_column is None else header.index(key_column)
    found = []
    for line, row in enumerate(lines, start=2):
        if not row:
            continue
        if len(row) != len(header) or not row[key_at]:
            raise UsageFaultError(
                f"{source} line {line}: {len(row)} fields, but the header has {len(header)}; the key must not be empty"
            )
        found.append(Change(row[key_at], msgspec.json.encode(dict(zip(header, row, strict=True)))))
    return sorted(found, key=lambda one: one.key)


def _by_region(client: RegionClient, table: str, rows: list[Change]) -> list[list[Change]]:
    """Return batches of rows, in the order of their placed keys, split at region bounds and request limits."""
    regions, record = client.locator.regions(table), client.locator.table(table)
    if regions is None or record is None:
        raise NoSuchTable(f"table {table!r} does not exist")
    batches: list[list[Change]] = []
    at, size = -1, 0
    for placed, row in sorted((place(row.key, record.hash_buckets), row) for row in rows):
        begins = False
        while at < 0 or not regions[at].contains(placed):
            at, begins = at + 1, True
        bytes_of_it = len(placed.encode()) + len(row.value or b"")
        if begins or len(batches[-1]) == KEYS_MAX or size + bytes_of_it > WRITE_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += bytes_of_it
    return batches


def _in_parallel(
    pool: ThreadPoolExecutor, client: RegionClient, table: str, batches: list[list[Change]], at_once: int
) -> Iterator[int]:
    """Write the batches with `at_once` in flight; yield the rows of each finished batch. Raise the first DataError."""
    left = iter(batches)
    running: set[Future[int]] = set()
    try:
        while True:
            for batch in left:
                running.add(pool.submit(client.write, table, batch))
                if len(running) >= at_once:
                    break
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()
    finally:
        for one in running:
            one.cancel()


def _progress(given: Globals) -> Progress:
    """Return a progress bar for a terminal; it is disabled for programs."""
    console = output.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=given.json or not console.is_terminal)
