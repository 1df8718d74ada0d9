"""`rk backup create`: every region at its point, beside the store's snapshot.

1. The tables and their regions are read from the store.
2. The store's snapshot is written, as `rk coord backup` does.
3. Each region is read, several at once. The snapshot of a region begins after step 1, so it has every row that was
   acknowledged before.
4. If a region was split or merged before it was read, the regions of its table are listed anew, and those that have not
   been read yet are read. The snapshots of replaced regions are dropped.
5. The manifest lists every region with its point; with it the directory becomes a backup.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cli.backup.files import RowsWriter, begin_directory, clear_directory, finish_directory, rows_file, take_over
from cli.backup.format import STORE, DamagedBackupError, Manifest, RegionBackup, RowsTotals, StoreBackup, TableBackup
from cli.backup.source import RegionFailedError, RegionRead, RegionReplacedError, RegionSource
from cli.common.connect import Cluster
from cli.common.errors import CliError, UsageFaultError
from cli.common.lookup import regions_of, table_of
from cli.store.backup import AdminAccess, fetch_first
from regions.records.kinds import KV
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState
from regionserver.client.locator import RegionLocator
from regionserver.kv.held import HELD_IDLE_S, SNAPSHOT_PAGE_BYTES
from regionserver.kv.messages import KEY_BYTES_MAX, VALUE_BYTES_MAX

#: The longest page: the limit of a page, passed by its last row.
_PAGE_BYTES_MAX: Final = SNAPSHOT_PAGE_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX
#: Limit of lists of regions, so that a backup ends even if regions are split and merged all the time.
ROUNDS_MAX: Final = 10

Tables = list[tuple[TableRecord, list[RegionRecord]]]
#: Called with the number of finished regions, and of all.
Progress = Callable[[int, int], object]


@dataclass
class CreatedBackup:
    """The finished backup; `warnings` name files of the base that could not be used."""

    manifest: Manifest
    warnings: list[str] = field(default_factory=list)


def tables_to_back_up(cluster: Cluster, names: tuple[str, ...]) -> Tables:
    """Return the named tables with their regions, or all. Raise NotFoundError, UsageFaultError."""
    there = {one.table_id: one for one in cluster.tables() if one.state is not TableState.REMOVED}
    named = {one.table_id: one for one in (table_of(there, name) for name in names)}
    chosen = list((named or there).values())
    asleep = [one.name for one in chosen if one.intent is TableIntent.DISABLED and has_rows(one)]
    if asleep:
        raise CliError(
            f"disabled: {', '.join(asleep)}; no server has these regions open, so their rows cannot be read",
            "`rk table enable NAME` first, or name the other tables by --table.",
        )
    return [(one, regions_of(cluster, one.table_id)) for one in sorted(chosen, key=lambda one: one.name)]


def check_rate(rate_mb_s: float, threads: int) -> None:
    """Raise UsageFaultError for a rate at which a server would give up a snapshot between two of its pages."""
    least = threads * _PAGE_BYTES_MAX / (HELD_IDLE_S / 2) / 1e6
    if 0 < rate_mb_s < least:
        raise UsageFaultError(
            f"--rate {rate_mb_s:g} is too low for {threads} regions at once: servers keep a snapshot for"
            f" {HELD_IDLE_S:g} s between two pages",
            f"Give --rate {least:.2f} or more, or fewer --threads.",
        )


def has_rows(table: TableRecord) -> bool:
    """Return True if RegionKeeper itself keeps the table's rows."""
    return table.is_tablet or table.kind in ("", KV)


class Creation:
    """One backup in progress."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        source: RegionSource,
        *,
        threads: int,
        base: tuple[Path, Manifest] | None = None,
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._source = source
        self._threads = threads
        self._base = base
        self._warnings: list[str] = []
        self._known: dict[tuple[str, str], RegionBackup] = {}
        if base is not None:
            self._known = {(table.record.table_id, one.region_id): one for table, one in base[1].regions()}

    def run(self, tables: Tables, nodes: list[AdminAccess] | None, progress: Progress) -> CreatedBackup:
        """Make the backup; after a failure remove the written files. `nodes` None: without the store's snapshot.

        Raise CliError, OSError.
        """
        began_ms = _now_ms()
        begin_directory(self._folder)
        try:
            store = None if nodes is None else self._store(nodes)
            tables, read = self._all(tables, progress)
            manifest = Manifest(
                uuid.uuid4().hex,
                self._cluster.cluster_id(),
                began_ms,
                _now_ms(),
                [
                    TableBackup(table, [read[one.region_id] for one in regions if has_rows(table)], has_rows(table))
                    for table, regions in tables
                ],
                store,
                self._base[1].backup_id if self._base else "",
            )
            finish_directory(self._folder, manifest)
        except BaseException:
            clear_directory(self._folder)
            raise
        return CreatedBackup(manifest, self._warnings)

    def _store(self, nodes: list[AdminAccess]) -> StoreBackup:
        path = self._folder / STORE
        draft = path.with_name(f".{STORE}.tmp")
        found = fetch_first(nodes, draft, lambda *_: None)
        draft.rename(path)
        return StoreBackup(STORE, found.file_bytes(), found.zxid, found.index, f"{found.digest:016x}")

    def _all(self, tables: Tables, progress: Progress) -> tuple[Tables, dict[str, RegionBackup]]:
        """Read all regions. Return the tables as they are after the last one, and the manifest's entry for each region.

        Raise CliError, OSError.
        """
        read: dict[str, RegionBackup] = {}
        for _ in range(ROUNDS_MAX):
            kept = [(table, region) for table, regions in tables if has_rows(table) for region in regions]
            wanted = {region.region_id for _, region in kept}
            for gone in read.keys() - wanted:
                (self._folder / read.pop(gone).file).unlink(missing_ok=True)
            missing = [one for one in kept if one[1].region_id not in read]
            read |= {one.region_id: one for one in self._regions(missing, progress)}
            if len(read) == len(kept):
                return tables, read
            tables = [self._again(table, regions, read) for table, regions in tables]
        raise CliError(
            f"the backup failed: in each of {ROUNDS_MAX} attempts a region was split or merged before it was read",
            "Repeat the backup when `rk region list` shows the same regions for a while.",
        )

    def _again(
        self, table: TableRecord, regions: list[RegionRecord], read: dict[str, RegionBackup]
    ) -> tuple[TableRecord, list[RegionRecord]]:
        """Return a table with its present regions, if one of them was replaced before it was read."""
        if not has_rows(table) or all(one.region_id in read for one in regions):
            return table, regions
        now = regions_of(self._cluster, table.table_id)
        if not now:
            raise CliError(f"the backup failed: table {table.name} was deleted meanwhile", "Repeat the backup.")
        return msgspec.structs.replace(table, regions=len(now)), now

    def _regions(self, kept: list[tuple[TableRecord, RegionRecord]], progress: Progress) -> Iterator[RegionBackup]:
        """Read regions, several at once; yield the manifest's entry of each region that was not replaced before.

        Raise CliError, OSError.
        """
        progress(0, len(kept))
        with ThreadPoolExecutor(self._threads) as pool:
            running = {pool.submit(self._region, table, region) for table, region in kept}
            finished = 0
            try:
                while running:
                    done, running = wait(running, timeout=0.5, return_when=FIRST_EXCEPTION)
                    for one in done:
                        if (found := one.result()) is not None:
                            yield found
                    finished += len(done)
                    progress(finished, len(kept))
            except BaseException as error:
                self._source.stop()
                if isinstance(error, RegionFailedError):
                    raise CliError(f"the backup failed: {error}", "`rk why REGION` may show the reason.") from error
                raise
            finally:
                for one in running:
                    one.cancel()

    def _region(self, table: TableRecord, region: RegionRecord) -> RegionBackup | None:
        """Read one region into its file, or take over the base's file if the region has not changed.

        Return None if other regions have the rows by now.
        """
        known = self._known.get((table.table_id, region.region_id))
        writer = RowsWriter(self._folder / rows_file(region.region_id))
        try:
            point = None if known is None else known.point(is_tablet=table.is_tablet)
            read = self._source.read(region, point, writer)
            if read.is_same and known is not None and self._base is not None:
                writer.close()
                try:
                    take_over(self._base[0], self._folder, known)
                    return _entry(region, read, known.file_bytes, known.totals, is_reused=True)
                except (DamagedBackupError, OSError) as error:
                    self._warnings.append(f"{error}; the region was read instead")
                read = self._source.read(region, None, writer)
            file_bytes = writer.finish()
        except RegionReplacedError:
            writer.path.unlink(missing_ok=True)
            return None
        finally:
            writer.close()
        point, totals = read.point, writer.totals
        if point.digest and RowsTotals(point.rows, point.size, point.digest) != totals:
            raise RegionFailedError(
                f"region {region.region_id}: {totals.rows} rows were read, and they are not those that its digest says"
                f" ({point.rows} rows); `rk tablet verify {region.region_id}` compares its members"
            )
        return _entry(region, read, file_bytes, totals)


def _entry(
    region: RegionRecord, read: RegionRead, file_bytes: int, totals: RowsTotals, *, is_reused: bool = False
) -> RegionBackup:
    """Return the manifest's entry of a region."""
    point = read.point
    return RegionBackup(
        region.region_id,
        region.start_key,
        region.end_key,
        rows_file(region.region_id),
        file_bytes,
        totals.rows,
        totals.size,
        totals.digest.hex(),
        read.at_ms,
        read.server,
        point.term,
        point.index,
        point.file,
        point.transaction,
        is_reused,
    )


def source_of(cluster: Cluster, rate_bytes: int, patience_s: float) -> RegionSource:
    """Return the reader of a cluster's regions."""
    return RegionSource(RegionLocator(cluster.client, cluster.layout), rate_bytes, patience_s)


def _now_ms() -> int:
    return int(time.time() * 1000)
