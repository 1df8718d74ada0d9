"""The sizes of regions as balancer, planner and reports use them: measured, or estimated until the first report. Pure.

Servers measure the regions that they have open. An estimate is, in this order:

1. the mean of the measured regions of the table: the others are probably like them;
2. the size that the region's record got when the table was created.

So sizes of a table are never a mixture of bytes on the disk with bytes of the file that the table was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from regions.cluster.entities import Region, Table
from regions.messages.heartbeat import Measure

#: Returns the measured size of a tablet by its region id, None if no replica has reported one.
TabletMeasure = Callable[[str], Measure | None]


class RegionSize(NamedTuple):
    """The size of a region. `rows` is None, and `size_bytes` an estimate, unless `is_measured`."""

    size_bytes: int
    rows: int | None = None
    is_measured: bool = False

    @classmethod
    def total(cls, sizes: Iterable[RegionSize]) -> RegionSize:
        """Return the sum. It counts as measured if there are parts and every part is measured."""
        size_bytes = rows = 0
        is_measured = True
        for one in sizes:
            size_bytes += one.size_bytes
            rows += one.rows or 0
            is_measured &= one.is_measured
        return cls(size_bytes, rows if is_measured else None, is_measured)


class CountedStep:
    """Counts the work of a step."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._done = 0

    def is_over(self, more: int) -> bool:
        """Count `more` work. Return True if this work belongs to the next step; then the caller pauses first."""
        self._done += more
        if self._done <= self._at_once:
            return False
        self._done = more
        return True


class RegionSizes:
    """The sizes at one moment. A table's mean is computed once, so use an object for one report or one round."""

    def __init__(self, measured: Mapping[str, Measure], of_tablet: TabletMeasure = lambda _region_id: None) -> None:
        """`measured` has the sizes of shared regions' replicas by key."""
        self._measured = measured
        self._of_tablet = of_tablet
        self._means: dict[str, int | None] = {}

    @property
    def has_measured(self) -> bool:
        """False if no shared region is measured: then the size of each is that in its record."""
        return bool(self._measured)

    def of(self, region: Region) -> RegionSize:
        """Return the size of a region; that of the largest replica if several are measured."""
        found = self._measure(region)
        if found is not None:
            return RegionSize(found.size_bytes, found.rows, is_measured=True)
        table_id = region.table.record.table_id
        if table_id not in self._means:
            self._means[table_id] = self._mean(region.table)
        mean = self._means[table_id]
        return RegionSize(region.record.size_bytes if mean is None else mean)

    def is_measured(self, region: Region) -> bool:
        """Return True if the size of the region is no estimate."""
        return self._measure(region) is not None

    def _measure(self, region: Region) -> Measure | None:
        if region.record.is_tablet:
            return self._of_tablet(region.record.region_id)
        if len(region.replicas) == 1:
            return self._measured.get(region.replicas[0].key)
        found = (self._measured.get(one.key) for one in region.replicas)
        return max((one for one in found if one is not None), key=lambda one: one.size_bytes, default=None)

    def measuring(self, table: Table, pace: CountedStep) -> Iterator[None]:
        """Compute the table's mean in steps, so that `of` does not walk the whole table at once."""
        sizes: list[int] = []
        for region in list(table.regions.values()):
            if pace.is_over(1):
                yield
            found = self._measure(region)
            if found is not None:
                sizes.append(found.size_bytes)
        self._means[table.record.table_id] = sum(sizes) // len(sizes) if sizes else None

    def _mean(self, table: Table) -> int | None:
        for _ in self.measuring(table, CountedStep(len(table.regions))):
            pass
        return self._means[table.record.table_id]


#: No server has reported any size, as on a standby.
NOT_MEASURED = RegionSizes({})
