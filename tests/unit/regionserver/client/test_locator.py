"""The locator of regions whose table was split or merged since its names were read (X11)."""

from __future__ import annotations

import pytest
from kazoo.exceptions import NoNodeError

from regions.records import znodes as layout
from regions.records.model import RegionRecord, TableRecord, TabletState
from regions.records.partitioning import is_whole
from regions.records.znodes import Layout
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreReader

PATHS = Layout("/rk")


class Store(StoreReader):
    """A store with one table, in which regions are split and merged."""

    def __init__(self) -> None:
        self.znodes = {
            PATHS.name("rows"): b"t",
            PATHS.table("t"): layout.encode(TableRecord("t", "rows")),
        }
        self.reads = 0
        #: Regions that are replaced as soon as the names have been read: (parents, daughters).
        self.later: list[tuple[list[RegionRecord], list[RegionRecord]]] = []

    def add(self, *regions: RegionRecord) -> None:
        """Write records."""
        for one in regions:
            self.znodes[PATHS.region("t", one.region_id)] = layout.encode(one)

    def replace(self, parents: list[RegionRecord], daughters: list[RegionRecord]) -> None:
        """Split or merge."""
        self.add(*(region(one.region_id, one.start_key, one.end_key, TabletState.REPLACED) for one in parents))
        self.add(*daughters)

    def get(self, path: str, until_s: float) -> bytes:
        """Return a znode."""
        self.reads += 1
        if path not in self.znodes:
            raise NoNodeError
        return self.znodes[path]

    def get_many(self, paths: object, until_s: float) -> dict[str, bytes]:
        """Return znodes."""
        return {one: self.get(one, until_s) for one in paths if one in self.znodes}  # type: ignore[attr-defined]

    def children(self, path: str, until_s: float) -> list[str]:
        """Return the names, and split or merge what is to be split or merged later."""
        names = [one.rpartition("/")[2] for one in self.znodes if one.startswith(f"{path}/")]
        if self.later:
            self.replace(*self.later.pop(0))
        return names


def region(region_id: str, start: str, end: str, state: TabletState = TabletState.RUNNING) -> RegionRecord:
    """Return a region's record."""
    return RegionRecord("t", region_id, start, end, state=state)


LOW, HIGH = region("t.0", "", "m"), region("t.1", "m", "")
HALVES = [region("t.0A", "", "f"), region("t.0B", "f", "m")]


@pytest.fixture
def store() -> Store:
    """Return a store with a table of two regions."""
    made = Store()
    made.add(LOW, HIGH)
    return made


def located(locator: RegionLocator, key: str) -> str:
    """Return the id of the region of a key."""
    found = locator.region_of("rows", key)
    assert found is not None, key
    return found.region_id


def test_a_region_that_was_split_before_it_was_ever_read_is_found(store: Store) -> None:
    """The table's names are known, the record of the split region is not: its daughters are found all the same.

    Taking away the new reading of the names in `region_at` makes the table seem not to exist.
    """
    locator = RegionLocator(store, PATHS)
    assert located(locator, "c") == "t.0"
    store.replace([HIGH], [region("t.1A", "m", "t"), region("t.1B", "t", "")])
    assert located(locator, "z") == "t.1B"
    assert locator.region_of("another", "c") is None


@pytest.mark.parametrize(
    ("parents", "daughters"), [([LOW], HALVES), ([LOW, HIGH], [region("t.0M", "", "")])], ids=["split", "merge"]
)
def test_all_regions_are_whole_although_one_was_replaced_meanwhile(
    store: Store, parents: list[RegionRecord], daughters: list[RegionRecord]
) -> None:
    """Between the names and the records, and since the names were kept.

    Without the new reading in `regions` the daughters are missing.
    """
    store.later.append((parents, daughters))
    assert is_whole(RegionLocator(store, PATHS).regions("rows") or [])
    kept = RegionLocator(store, PATHS)
    kept.regions("rows")
    store.replace([daughters[0]], [region("t.0AM", daughters[0].start_key, daughters[0].end_key)])
    assert is_whole(kept.regions("rows") or [])


def test_the_keys_of_a_merged_region_are_found_by_binary_search(store: Store) -> None:
    """The names of replaced regions are not in the order of their keys, and are passed over.

    Without that, the key of the right half is searched in every record of the table.
    """
    made = Store()
    made.add(
        *(region(f"t.{number:04}", f"{number:04}" if number else "", f"{number + 1:04}") for number in range(2000))
    )
    made.replace(
        [region("t.0500", "0500", "0501"), region("t.0501", "0501", "0502")], [region("t.0500M", "0500", "0502")]
    )
    for key in ("0500x", "0501x", "0502x", "0499x"):
        made.reads = 0
        assert located(RegionLocator(made, PATHS), key) == {"0500x": "t.0500M", "0501x": "t.0500M"}.get(
            key, f"t.{key[:4]}"
        )
        assert made.reads < 20, key


def test_a_table_with_a_hole_is_returned_with_its_hole(store: Store) -> None:
    """The search for the missing region ends."""
    del store.znodes[PATHS.region("t", "t.0")]
    locator = RegionLocator(store, PATHS)
    assert locator.regions("rows") == [HIGH]
    assert locator.region_of("rows", "c") is None
