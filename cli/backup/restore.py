"""`rk backup restore`: makes tables and writes rows from a backup, then compares them with the manifest.

A table is made with the splits, schema, replicas, group and kind of the backup. The rows are written by ordinary puts,
which may be repeated, so an interrupted restore can be repeated with --continue. At the end each new region is compared
with the manifest by number and digest of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, NamedTuple

from cli.backup.files import read_rows
from cli.backup.format import DamagedBackupError, RegionBackup, RowsTotals, TableBackup
from cli.backup.source import RegionFailedError, RegionSource
from cli.common.connect import Cluster, new_request_id
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from cli.common.lookup import regions_of
from regions import messages
from regions.records.model import RegionRecord, TableRecord, TableState
from regions.records.partitioning import PREFIX_BYTES, RegionSpec, unplace
from regions.records.schema import Schema
from regionserver.client import Change, RegionClient
from regionserver.kv.messages import KEYS_MAX, NO_SCHEMA, WRITE_BYTES_MAX, RowsPoint
from regionserver.kv.packing import unpack_rows

#: Time limit of the creation of a table.
CREATE_S: Final = 120.0
#: Time of a request to a master in addition to the wait that it requests.
_ASK_S: Final = 15.0

#: Called with the number of rows that were written.
Progress = Callable[[int], object]


class RowsDifference(NamedTuple):
    """A region that has other rows than the backup."""

    region_id: str
    expected: RowsTotals
    found: RowsTotals


def chosen_tables(tables: list[TableBackup], names: tuple[str, ...]) -> list[TableBackup]:
    """Return the tables of the backup that are to be restored. Raise NotFoundError, UsageFaultError."""
    by_name = {one.record.name: one for one in tables}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotFoundError(
            f"the backup has no table {missing[0]!r}", f"It has: {', '.join(sorted(by_name)) or 'none'}."
        )
    chosen = [by_name[name] for name in dict.fromkeys(names)] if names else list(tables)
    without = [one.record.name for one in chosen if not one.has_rows]
    if names and without:
        raise UsageFaultError(
            f"the backup has no rows of {', '.join(without)}: its service keeps them",
            "Restore these rows with the means of the service.",
        )
    return [one for one in chosen if one.has_rows]


def existing(cluster: Cluster, name: str) -> TableRecord | None:
    """Return the cluster's table of that name."""
    return next((one for one in cluster.tables() if one.name == name and one.state is not TableState.REMOVED), None)


def create_request(record: TableRecord, regions: list[RegionBackup], name: str) -> messages.CreateTable:
    """Return the request for a table with the shape of the one in the backup."""
    starts = [one.start_key for one in regions]
    schema = record.schema
    return messages.CreateTable(
        name=name,
        splits=_splits(starts) if record.hash_buckets else [],
        regions=[] if record.hash_buckets else [RegionSpec(one.start_key, one.end_key, one.size) for one in regions],
        replication=record.replication,
        storage=record.storage.value,
        schema="" if isinstance(schema, Schema) else schema,
        restored_schema=schema if isinstance(schema, Schema) else None,
        schema_version=record.schema_version,
        group=record.group,
        system=record.system,
        kind=record.kind,
        hash_buckets=record.hash_buckets,
        wait_ms=int(CREATE_S * 1000),
        request_id=new_request_id(),
    )


def _splits(starts: list[str]) -> list[str]:
    """Return the split keys of a table with hash buckets: every bucket has the same."""
    return sorted({start[PREFIX_BYTES:] for start in starts if start[PREFIX_BYTES:]})


def make_table(cluster: Cluster, table: TableBackup, name: str, *, continues: bool) -> TableRecord:
    """Make the table, or find the one that an interrupted restore has made. Return its record. Raise CliError."""
    there = existing(cluster, name)
    if there is not None and not continues:
        raise CliError(
            f"table {name} exists; nothing was restored",
            "Restore under another name (--as NAME), or delete it. --continue repeats an interrupted restore into it.",
        )
    if there is None:
        request = create_request(table.record, table.regions, name)
        there = cluster.ask_master(request, messages.Tables, timeout_s=CREATE_S + _ASK_S).tables[0].table
    if (there.schema, there.schema_version) != (table.record.schema, table.record.schema_version):
        raise CliError(
            f"table {name} has another schema than the backup, in which the rows would mean something else",
            "Delete it, and restore with masters of this version.",
        )
    bounds = [(one.start_key, one.end_key) for one in regions_of(cluster, there.table_id)]
    if there.hash_buckets != table.record.hash_buckets or bounds != [(r.start_key, r.end_key) for r in table.regions]:
        raise CliError(f"table {name} has other regions than the backup", "Restore under another name: --as NAME.")
    return there


def load_rows(
    client: RegionClient, folder: Path, table: TableBackup, name: str, threads: int, progress: Progress
) -> int:
    """Put every row of the table; return their number. Raise DataError, DamagedBackupError, OSError."""
    # The values are bytes here. Rows of columns were encoded under this version or an earlier one.
    schema_version = table.record.schema_version if isinstance(table.record.schema, Schema) else NO_SCHEMA
    running: set[Future[int]] = set()
    written = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for batch in _batches(folder, table):
                running.add(pool.submit(client.write, name, batch, schema_version=schema_version))
                if len(running) >= 2 * threads:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    written += sum(one.result() for one in done)
                    progress(written)
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                written += sum(one.result() for one in done)
                progress(written)
        finally:
            for one in running:
                one.cancel()
    return written


def _batches(folder: Path, table: TableBackup) -> Iterator[list[Change]]:
    """Yield the rows of one region after the other, in pieces of one write each."""
    buckets = table.record.hash_buckets
    for region in table.regions:
        batch: list[Change] = []
        size = 0
        path = folder / region.file
        for rows, _ in read_rows(path, region.start_key, region.end_key):
            for key, value in rows:
                if batch and (len(batch) == KEYS_MAX or size + len(key) + len(value) > WRITE_BYTES_MAX):
                    yield batch
                    batch, size = [], 0
                try:
                    batch.append(Change(unplace(key.decode(), buckets), value))
                except UnicodeDecodeError as error:
                    raise DamagedBackupError(f"{path} is damaged: key {key[:40]!r} is not text") from error
                size += len(key) + len(value)
        if batch:
            yield batch


class _Count:
    """Counts the rows of a region."""

    def __init__(self) -> None:
        self.totals = RowsTotals()

    def begin(self) -> None:
        """Begin, or begin anew."""
        self.totals = RowsTotals()

    def add(self, packed: bytes) -> None:
        """Count packed rows."""
        self.totals = self.totals.plus(unpack_rows(packed))


def compare(
    cluster: Cluster, source: RegionSource, table: TableBackup, made: TableRecord, threads: int
) -> list[RowsDifference]:
    """Return the regions of the new table whose rows are not those of the backup. Raise CliError."""

    def one(pair: tuple[RegionRecord, RegionBackup]) -> RowsDifference | None:
        region, expected = pair
        count = _Count()
        # A tablet knows the digest of its rows; the rows of a shared region are read.
        wanted = expected.totals
        known = RowsPoint("", 0, 0, 0, wanted.rows, wanted.size, wanted.digest) if made.is_tablet else None
        read = source.read(region, known, count)
        if read.is_same or count.totals == wanted:
            return None
        return RowsDifference(region.region_id, wanted, count.totals)

    regions = regions_of(cluster, made.table_id)
    with ThreadPoolExecutor(threads) as pool:
        try:
            found = list(pool.map(one, zip(regions, table.regions, strict=True)))
        except RegionFailedError as error:
            raise CliError(
                f"the rows were written and could not be compared: {error}", "Repeat it: --continue."
            ) from error
    return [each for each in found if each is not None]
