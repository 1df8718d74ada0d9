"""The locator of regions whose table was split or merged since its names were read (X11)."""

from __future__ import annotations

import pytest
from kazoo.exceptions import NoNodeError

from regions.assign.resharding.daughters import merged, split_at
from regions.records import znodes as layout
from regions.records.model import RegionRecord, TableRecord, TabletState
from regions.records.partitioning import is_whole
from regions.records.znodes import Layout
from regionserver.client.locator import NoRegion, RegionLocator
from regionserver.client.store import StoreReader

PATHS = Layout("/rk")


class Store(StoreReader):
    """A store with one table, in which regions are split and merged."""

    def __init__(self) -> None:
        self.znodes = {
            PATHS.name("rows"): b"t",
            PATHS.table("t"): layout.encode(TableRecord("t", "rows")),
        }
        #: Records read, and round trips for them.
        self.reads = 0
        self.trips = 0
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
        self.trips += 1
        if path not in self.znodes:
            raise NoNodeError
        return self.znodes[path]

    def get_many(self, paths: object, until_s: float) -> dict[str, bytes]:
        """Return znodes."""
        trips = self.trips + 1
        found = {one: self.get(one, until_s) for one in paths if one in self.znodes}  # type: ignore[attr-defined]
        self.trips = trips
        return found

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


@pytest.fixture
def busy() -> Store:
    """Return a store with a table that was split and merged 400 times; all former regions are still recorded."""
    made = Store()
    last = region("t.0", "", "")
    made.add(last)
    for _ in range(200):
        halves = split_at(last, "m")
        made.replace([last], list(halves))
        last = merged(*halves)
        made.replace(list(halves), [last])
    made.replace([last], list(split_at(last, "m")))
    return made


def test_the_regions_of_a_table_that_is_often_split_are_found_in_few_round_trips(busy: Store) -> None:
    """By a new client. Without `_read_ahead` it reads 600 records one after the other."""
    for key in ("c", "x"):
        busy.trips = 0
        assert RegionLocator(busy, PATHS).region_of("rows", key) is not None
        assert busy.trips < 40, key


def test_what_is_known_of_a_table_is_kept_when_a_region_was_split(busy: Store) -> None:
    """Only the new records are read. With `forget` in place of `outdated` all are read again."""
    locator = RegionLocator(busy, PATHS)
    low, high = locator.regions("rows") or []
    busy.replace([high], list(split_at(high, "t")))
    busy.reads = 0
    found = locator.refresh("rows", high.region_id)
    assert found is not None
    assert found.is_replaced
    locator.outdated("rows")
    assert located(locator, "x") == split_at(high, "t")[1].region_id
    assert busy.reads < 8
    assert located(locator, "a") == low.region_id
    assert locator.region_count("rows") == 3


def test_a_table_of_the_same_name_is_another_one(store: Store) -> None:
    """Nothing of the former one is kept."""
    locator = RegionLocator(store, PATHS)
    assert located(locator, "c") == "t.0"
    locator.outdated("rows")
    store.znodes[PATHS.name("rows")] = b"u"
    store.znodes[PATHS.table("u")] = layout.encode(TableRecord("u", "rows"))
    store.znodes[PATHS.region("u", "t.0")] = layout.encode(RegionRecord("u", "t.0", "", ""))
    found = locator.region_of("rows", "c")
    assert found is not None
    assert found.table_id == "u"


def test_a_table_with_a_hole_is_returned_with_its_hole(store: Store) -> None:
    """The search for the missing region ends, and the error does not say that there is no table."""
    del store.znodes[PATHS.region("t", "t.0")]
    locator = RegionLocator(store, PATHS)
    assert locator.regions("rows") == [HIGH]
    with pytest.raises(NoRegion, match="no region of rows holds the key"):
        locator.region_of("rows", "c")
