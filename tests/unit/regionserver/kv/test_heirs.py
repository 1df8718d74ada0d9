"""Splits and merges of files of rows: every row is in exactly one daughter, whatever was prepared and written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from regions.assign.resharding.daughters import merged, split_at, with_parents
from regions.records.model import RegionRecord, ReplicaLocation
from regionserver.errors import RegionError
from regionserver.kv import heirs as heirs_module
from regionserver.kv.files import Environments, RegionFile
from regionserver.kv.heirs import Heirs, middle_of
from regionserver.kv.pages import Damaged
from regionserver.storage.ownership import Owner, acquire

WHOLE = RegionRecord("t", "t.0000", replicas=(ReplicaLocation(0, "a", 1, token=5),))


def allowed() -> None:
    """Allow the commit: the lease holds."""


class Shelf:
    """A directory with regions, each opened at most once at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = 5

    def open(self, region: RegionRecord) -> RegionFile:
        """Open a region as a server does; a daughter takes over its parents' rows."""
        self.token += 1
        folder = self.folder / region.region_id
        folder.mkdir(exist_ok=True)
        file = RegionFile(acquire(str(folder), Owner("s", 1, 1, self.token), None), Environments())
        if region.parents:
            file.take_over(region, [str(self.folder / one.region_id) for one in region.parents], lambda: None)
        file.recover(lambda: None)
        return file

    def prepare(self, files: Sequence[RegionFile], ids: Sequence[str], daughters: Sequence[RegionRecord]) -> Heirs:
        """Prepare a split or merge as a server does."""
        made = Heirs(files[0].lock.folder, files, ids, daughters)
        for file in files:
            file.set_heirs(made)
        made.copy()
        return made

    def copied(self, region: RegionRecord) -> list[str]:
        """Return the prepared files in a region's directory."""
        return sorted(path.name for path in (self.folder / region.region_id).glob("heir-*.points"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Return an empty directory."""
    return Shelf(tmp_path)


def close(file: RegionFile) -> None:
    """Close a region in order."""
    file.close()
    file.lock.release()


def put(file: RegionFile, **rows: str | None) -> None:
    """Put rows, and delete those that are None."""
    file.write([(key.encode(), None if value is None else value.encode()) for key, value in rows.items()], allowed)


def rows_of(file: RegionFile) -> dict[str, str]:
    """Return all rows of a region."""
    with file.reading() as snapshot:
        return {row.key: row.value.decode() for row in snapshot.page(b"", b"", 1000)[0]}


def halves(parent: RegionRecord, key: str) -> list[RegionRecord]:
    """Return the daughters of a split, as they are created."""
    return [with_parents(one, (parent,)) for one in split_at(parent, key)]


def test_a_prepared_split_only_renames_files_and_has_the_latest_rows(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows written between the copy and the close are in the daughters, and the open copies nothing."""
    parent = shelf.open(WHOLE)
    put(parent, a="1", c="1", m="1", x="1")
    low, high = halves(WHOLE, "m")
    shelf.prepare([parent], [WHOLE.region_id], [low, high])
    put(parent, a="2", b="2", x=None, y="2")
    close(parent)
    assert len(shelf.copied(WHOLE)) == 2
    monkeypatch.setattr(heirs_module, "_copy", None)
    first, second = shelf.open(low), shelf.open(high)
    assert rows_of(first) == {"a": "2", "b": "2", "c": "1"}
    assert rows_of(second) == {"m": "1", "y": "2"}
    put(first, a="3")
    assert rows_of(first)["a"] == "3"


def test_without_preparation_the_rows_are_copied_at_the_open(shelf: Shelf) -> None:
    """A server that died before the close leaves nothing that counts; the open may be repeated."""
    parent = shelf.open(WHOLE)
    put(parent, a="1", m="1", x="1")
    close(parent)
    low, high = halves(WHOLE, "m")
    assert rows_of(shelf.open(low)) == {"a": "1"}
    second = shelf.open(high)
    put(second, x="2")
    close(second)
    assert rows_of(shelf.open(high)) == {"m": "1", "x": "2"}


def test_prepared_files_that_miss_a_later_write_are_not_used(shelf: Shelf) -> None:
    """The parent was opened again after its files were prepared: the daughters must have its latest rows."""
    parent = shelf.open(WHOLE)
    put(parent, a="1", x="1")
    low, high = halves(WHOLE, "m")
    shelf.prepare([parent], [WHOLE.region_id], [low, high])
    close(parent)
    kept = {path.name: path.read_bytes() for path in (shelf.folder / WHOLE.region_id).glob("heir-*")}
    again = shelf.open(WHOLE)
    put(again, a="2")
    close(again)
    for name, data in kept.items():  # as if the former process had written them only now
        (shelf.folder / WHOLE.region_id / name).write_bytes(data)
    assert rows_of(shelf.open(low)) == {"a": "2"}


def test_a_merge_has_the_rows_of_both(shelf: Shelf) -> None:
    """The daughter has the latest rows of both parents, whether its file was prepared or is copied at its open."""
    for is_prepared in (True, False):
        whole = RegionRecord("t", f"t.{is_prepared:d}", replicas=(ReplicaLocation(0, "a", 1, token=5),))
        low, high = split_at(whole, "m")
        one, two = shelf.open(low), shelf.open(high)
        put(one, a="1")
        put(two, m="1", x="1")
        both = with_parents(merged(low, high), (low, high))
        if is_prepared:
            shelf.prepare([one, two], [low.region_id, high.region_id], [both])
        put(one, b="2")
        put(two, m="2")
        close(one)
        close(two)
        assert shelf.copied(low) == [f"heir-{both.region_id}.points"] * is_prepared
        assert rows_of(shelf.open(both)) == {"a": "1", "b": "2", "m": "2", "x": "1"}


def test_a_region_without_rows_is_split_into_two_without_rows(shelf: Shelf) -> None:
    """An empty region has no file, and neither have its daughters."""
    parent = shelf.open(WHOLE)
    low, high = halves(WHOLE, "m")
    shelf.prepare([parent], [WHOLE.region_id], [low, high])
    close(parent)
    assert rows_of(shelf.open(low)) == {}
    put(shelf.open(high), x="1")


def test_a_damaged_row_of_a_parent_is_no_row_of_a_daughter(shelf: Shelf) -> None:
    """The checksum of each row is checked when it is copied."""
    parent = shelf.open(WHOLE)
    put(parent, a="correct value", x="1")
    close(parent)
    [path] = (shelf.folder / WHOLE.region_id).glob("rows-*.mdb")
    path.write_bytes(path.read_bytes().replace(b"correct value", b"damaged value"))
    with pytest.raises(Damaged, match="row 'a' is damaged"):
        shelf.open(halves(WHOLE, "m")[0])


def test_the_middle_is_that_of_the_bytes(shelf: Shelf) -> None:
    """A split is at the row where half of the bytes is reached, and never leaves a half empty."""
    parent = shelf.open(WHOLE)
    with pytest.raises(RegionError, match="has 0 rows"):
        middle_of(parent)
    put(parent, a="1")
    with pytest.raises(RegionError, match="has 1 row:"):
        middle_of(parent)
    put(parent, b="2", c="x" * 1000, d="4")
    assert middle_of(parent) in ("c", "d")
    put(parent, **{f"z{number:05}": "v" * 100 for number in range(5000)})
    key = middle_of(parent)
    assert "z02400" < key < "z02600"
