"""`rk load`: the rows of a file into a table, by this process or by Spark."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.common import output
from cli.common.errors import CliError, UsageFaultError
from cli.common.options import Globals, global_options, spark_options
from cli.common.waiting import is_limited, takes_timeout
from cli.rows.files import read_rows, read_typed_rows
from cli.rows.opening import TIMEOUT_S, null_text, open_regions
from cli.rows.spark import SparkLoad, load_by_spark
from cli.rows.writing import by_region, in_parallel
from cli.shell import complete
from regions.records.rows.codec import TypedTable
from regionserver.client import Change, Refused, RegionClient
from regionserver.kv.messages import NO_SCHEMA, SCHEMA_CHANGED

#: Concurrent requests of `rk load`.
LOAD_THREADS: Final = 8
SPARK_MASTER: Final = "local[*]"


@click.command()
@click.argument("table", shell_complete=complete.tables)
@click.argument("source", type=click.Path())
@click.option("--key", "key_column", help="Column of the key, in a table without columns.  [default: the first]")
@click.option("--skip-unknown", is_flag=True, help="Leave out columns of the file that the table does not have.")
@null_text
@click.option(
    "--threads", type=click.IntRange(1, 64), default=LOAD_THREADS, show_default=True,
    help="Requests at once; with --spark of each task.",
)  # fmt: skip
@click.option("--spark", "by_spark", is_flag=True, help="Read and write by Spark (docs/spark.md).")
@spark_options("for --spark", SPARK_MASTER)
@takes_timeout(TIMEOUT_S, of_each=True)
@global_options
@click.pass_obj
def load(
    given: Globals,
    table: str,
    source: str,
    key_column: str | None,
    skip_unknown: bool,
    null: str,
    threads: int,
    by_spark: bool,
    spark_master: str,
    spark_conf: tuple[str, ...],
    timeout_s: float,
) -> None:
    """Put every row of SOURCE into TABLE: a CSV file with a header line (gzip or plain), or a Parquet file.

    With --spark SOURCE may also be a directory of such files, or a URI that Spark's executors can read.

    In a table with columns the names in the file say which column a field is; the whole file is checked before
    anything is written. In another table the value is the row as JSON. Existing rows are replaced, so an interrupted
    load may be repeated.
    """
    if not by_spark and (spark_conf or spark_master != SPARK_MASTER):
        raise UsageFaultError("--spark-master and --spark-conf are for --spark", "Give --spark as well.")
    began = time.monotonic()
    with open_regions(given, timeout_s) as client:
        columns = client.columns(table)
        if columns is None and (skip_unknown or null):
            raise UsageFaultError(f"--skip-unknown and --null are for tables with columns; {table!r} has none")
        if columns is not None and key_column is not None:
            keys = ", ".join(one.name for one in columns.keys)
            raise UsageFaultError(f"--key: the key columns of table {table!r} are {keys}")
        if not by_spark:
            with _progress(given) as progress:
                loading = _Loading(client, table, columns, threads, progress)
                rows = loading.read(Path(source), key_column, null=null, skip_unknown=skip_unknown)
                requests = loading.write(rows)
            done = {"rows": len(rows), "requests": requests}
    if by_spark:
        limit_s = timeout_s if is_limited() else None
        asked = SparkLoad(
            table, source, key_column or "", null, skip_unknown, threads, limit_s, spark_master, spark_conf
        )
        found = load_by_spark(given, asked)
        done = {"rows": int(found["rows"]), "tasks": int(found["tasks"])}
    _report_load(given, table, done, time.monotonic() - began)


class _Loading:
    """One load in this process."""

    def __init__(
        self, client: RegionClient, table: str, columns: TypedTable | None, threads: int, progress: Progress
    ) -> None:
        self._client = client
        self._table = table
        self._columns = columns
        self._threads = threads
        self._progress = progress

    def read(self, source: Path, key_column: str | None, *, null: str, skip_unknown: bool) -> list[Change]:
        """Return the rows of the file, all of them checked. Raise UsageFaultError, CliError."""
        if self._columns is None:
            return read_rows(source, key_column)
        progress = self._progress
        reading = progress.add_task(f"reading {source.name}", total=None)
        rows = read_typed_rows(
            source, self._columns, null=null, skip_unknown=skip_unknown,
            progress=lambda count: progress.update(reading, completed=count),
        )  # fmt: skip
        progress.update(reading, completed=len(rows), total=len(rows))
        return rows

    def write(self, rows: list[Change]) -> int:
        """Write the rows; return the number of requests. Raise DataError, CliError."""
        version = NO_SCHEMA if self._columns is None else self._columns.version
        batches = by_region(self._client, self._table, rows)
        task = self._progress.add_task(f"rows into {self._table}", total=len(rows))
        with ThreadPoolExecutor(self._threads) as pool:
            try:
                for count in in_parallel(pool, self._client, self._table, batches, 2 * self._threads, version):
                    self._progress.advance(task, count)
            except Refused as error:
                if error.code != SCHEMA_CHANGED:
                    raise
                raise CliError(
                    f"table {self._table!r} was altered during the load: {error}",
                    "Repeat the load: rows that were written are replaced.",
                ) from error
        return len(batches)


def _report_load(given: Globals, table: str, done: dict[str, int], seconds: float) -> None:
    if given.json:
        output.print_json({"table": table, **done, "seconds": round(seconds, 3)})
        return
    rows, tasks = done["rows"], done.get("tasks")
    how = output.count(done["requests"], "durable write") if tasks is None else output.count(tasks, "task")
    click.echo(f"{output.count(rows, 'row')} in {output.seconds(seconds)}, {rows / seconds:.0f} rows/s, {how}")


def _progress(given: Globals) -> Progress:
    """Return a progress bar for a terminal; it is disabled for programs."""
    console = output.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=given.json or not console.is_terminal)
