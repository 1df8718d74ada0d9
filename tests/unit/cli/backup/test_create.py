"""Requests that `rk backup create` refuses before it begins, and the manifest's entry of an unchanged region."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cli.backup.command import file_errors
from cli.backup.create import ROUNDS_MAX, Creation, check_rate, tables_to_back_up
from cli.backup.files import rows_file
from cli.backup.format import MANIFEST, RegionBackup
from cli.backup.source import RegionRead, RegionReplacedError, RowsSink
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState
from regions.records.znodes import Layout
from regionserver.kv.held import HELD_IDLE_S
from regionserver.kv.messages import RowsPoint


class FakeCluster:
    """A cluster with some tables and no regions."""

    layout = Layout("/rk")

    def __init__(self, *tables: TableRecord) -> None:
        self._tables = list(tables)

    def tables(self) -> list[TableRecord]:
        return self._tables

    def records(self, *_: object) -> dict[str, object]:
        return {}


def names(cluster: FakeCluster, *wanted: str) -> list[str]:
    return [record.name for record, _ in tables_to_back_up(cluster, wanted)]  # type: ignore[arg-type]


def test_all_tables_are_saved_or_the_named_ones() -> None:
    cluster = FakeCluster(
        TableRecord("t2", "b"), TableRecord("t1", "a"), TableRecord("t3", "old", state=TableState.REMOVED)
    )
    assert names(cluster) == ["a", "b"]
    assert names(cluster, "b", "t2", "b") == ["b"]
    with pytest.raises(NotFoundError, match="no table 'old'"):
        names(cluster, "old")


def test_a_disabled_table_is_refused_because_nobody_has_its_rows_open() -> None:
    asleep = TableRecord("t2", "b", intent=TableIntent.DISABLED)
    service = TableRecord("t3", "c", kind="counters/1", intent=TableIntent.DISABLED)
    cluster = FakeCluster(TableRecord("t1", "a"), asleep, service)
    with pytest.raises(CliError, match="disabled: b; no server"):
        names(cluster)
    assert names(cluster, "a", "c") == ["a", "c"]


def test_a_rate_leaves_time_between_two_pages() -> None:
    """At the least rate, the pages of all regions at once take half of the time for which servers keep a snapshot."""
    check_rate(0, 64)
    check_rate(0.36, 4)
    for rate, threads in ((0.34, 4), (0.02, 1), (5, 64)):
        with pytest.raises(UsageFaultError, match=f"keep a snapshot for {HELD_IDLE_S:g} s"):
            check_rate(rate, threads)


def test_the_point_of_a_manifest_is_compared_as_the_server_gave_it() -> None:
    digest = bytes(range(16))
    tablet = RegionBackup("r", "", "", "f", 1, 3, 9, digest.hex(), 1, "s", 4, 17)
    assert tablet.point(is_tablet=True).has_same_rows(RowsPoint(term=5, index=99, rows=3, size=9, digest=digest))
    shared = RegionBackup("r", "", "", "f", 1, 3, 9, digest.hex(), 1, "s", 0, 0, "rows-5.mdb", 8)
    assert shared.point(is_tablet=False) == RowsPoint("rows-5.mdb", 8)


class SplitCluster(FakeCluster):
    """A cluster with one table, whose regions are split while they are read."""

    def __init__(self, *regions: RegionRecord) -> None:
        super().__init__(TableRecord("t", "rows", regions=len(regions)))
        self.regions = list(regions)
        #: What the next reads of these regions find: they were replaced by others.
        self.later: dict[str, list[RegionRecord]] = {}
        self.read: list[str] = []

    def records(self, *_: object) -> dict[str, object]:
        return {one.region_id: one for one in self.regions}

    def cluster_id(self) -> str:
        return "c"

    def stop(self) -> None:
        """End the reads: there are none."""

    def replace(self, parents: set[str], daughters: list[RegionRecord]) -> None:
        """Split or merge regions."""
        self.regions = [one for one in self.regions if one.region_id not in parents] + daughters


class SplittingSource:
    """Reads regions without rows. Before a read, regions are split or merged as the cluster's script says."""

    def __init__(self, cluster: SplitCluster) -> None:
        self.cluster = cluster

    def stop(self) -> None:
        """End the reads: there are none."""

    def read(self, region: RegionRecord, known: RowsPoint | None, sink: RowsSink) -> RegionRead:
        """Read a region, or find that it does not exist any more."""
        if daughters := self.cluster.later.pop(region.region_id, None):
            over = {
                one.region_id for one in self.cluster.regions if any(one.start_key >= d.start_key for d in daughters)
            }
            self.cluster.replace(over, daughters)
        sink.begin()
        if region.region_id not in {one.region_id for one in self.cluster.regions}:
            raise RegionReplacedError(region.region_id)
        self.cluster.read.append(region.region_id)
        return RegionRead(RowsPoint("rows-1.mdb", 1), "s1", 1, False)


def backed_up(cluster: SplitCluster, folder: Path) -> list[RegionBackup]:
    """Return the regions' entries in the manifest of a backup."""
    creation = Creation(cluster, folder, SplittingSource(cluster), threads=1)  # type: ignore[arg-type]
    manifest = creation.run(tables_to_back_up(cluster, ()), None, lambda *_: None).manifest  # type: ignore[arg-type]
    assert manifest.tables[0].record.regions == len(manifest.tables[0].regions)
    assert {one.name for one in folder.rglob("*.rows")} | {MANIFEST} >= {
        one.name for one in folder.rglob("*") if one.is_file()
    }
    assert {folder / one.file for one in manifest.tables[0].regions} == set(folder.rglob("*.rows"))
    return manifest.tables[0].regions


def test_a_backup_goes_on_when_a_region_was_split_or_merged(tmp_path: Path) -> None:
    """The daughters are read, and a region that was read before it was merged has no file any more.

    Without the new listing the manifest has a hole; without the removal there is a file that nobody names.
    """
    low, high = RegionRecord("t", "t.0", "", "m"), RegionRecord("t", "t.1", "m", "")
    cluster = SplitCluster(low, high)
    cluster.later["t.1"] = [RegionRecord("t", "t.1A", "m", "t"), RegionRecord("t", "t.1B", "t", "")]
    assert [one.region_id for one in backed_up(cluster, tmp_path / "split")] == ["t.0", "t.1A", "t.1B"]
    assert cluster.read == ["t.0", "t.1A", "t.1B"]
    merging = SplitCluster(low, high)
    merging.later["t.1"] = [RegionRecord("t", "t.0M", "", "")]
    assert [one.region_id for one in backed_up(merging, tmp_path / "merge")] == ["t.0M"]
    assert merging.read == ["t.0", "t.0M"]


def test_a_backup_of_regions_that_are_split_without_end_fails_with_words(tmp_path: Path) -> None:
    """It is repeated a bounded number of times, and leaves nothing behind."""
    cluster = SplitCluster(RegionRecord("t", "t.0", "", ""))
    ids = ["t.0" + "M" * number for number in range(ROUNDS_MAX + 2)]
    cluster.later = {one: [RegionRecord("t", f"{one}M", "", "")] for one in ids}
    with pytest.raises(CliError, match=f"in each of {ROUNDS_MAX} attempts"):
        backed_up(cluster, tmp_path / "b")
    assert not list(tmp_path.rglob(Path(rows_file("t.0")).name))


@pytest.mark.parametrize(("code", "cure"), [(errno.ENOSPC, "a disk with more room"), (errno.EFBIG, "ulimit -f")])
def test_a_full_disk_is_named_with_its_directory(code: int, cure: str) -> None:
    """The system names no file when a write fails."""
    with pytest.raises(CliError) as caught, file_errors(Path("monday")):
        raise OSError(code, os.strerror(code))
    assert caught.value.message == f"monday: {os.strerror(code)}"
    assert caught.value.hint.startswith("What was written is removed.")
    assert cure in caught.value.hint
