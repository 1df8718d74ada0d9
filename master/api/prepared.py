"""What replies to reads take from all regions: sums of their sizes, and the order of a table's keys.

`Prepared.prepare` computes it before the reply, a step in each turn of the reactor, and keeps it. Regions may come and
go between two steps. A sum then counts some regions as they were before. An order is used only while the table has the
regions of which the order was made.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Final, NamedTuple

from master.api.pacing import Paced
from regions import messages as ms
from regions.balance.sizes import CountedStep, RegionSize, RegionSizes
from regions.cluster.entities import Region, Table
from regions.cluster.state import ClusterState
from regions.records.model import TabletState

#: Regions that are summed up or put in order in one step, each some 1 us of processor.
AT_ONCE: Final = 2_000
#: Tables whose order is kept, each with 16 bytes for a region.
ORDERS_MAX: Final = 8
#: Orders that are made in steps while the table's regions change, before one is made at once.
_TRIES: Final = 3
#: States of regions that have no rows of their table.
_WITHOUT: Final = (TabletState.REPLACED, TabletState.DELETED)

#: Waits for the next turn of the reactor.
Pause = Callable[[], Awaitable[object]]
Sizes = dict[str, RegionSize]
NO_SIZE: Final = RegionSize(0)


class _InOrder(NamedTuple):
    """The regions of a table in the order of their keys.

    The table has another `latest` region after each addition. Without one, a removal changes the number of regions.
    """

    table: Table
    latest: Region | None
    regions: list[Region]
    starts: list[str]

    def is_of(self, table: Table) -> bool:
        is_same = self.table is table and self.latest is table.latest
        return is_same and len(self.regions) == len(table.regions)


class KeyOrder:
    """The regions of the tables that were listed last, in the order of their keys."""

    def __init__(self) -> None:
        self._orders: dict[str, _InOrder] = {}

    def keep_only(self, world: ClusterState) -> None:
        """Forget the orders of tables that are not in the cluster state: deleted ones, and those of a former tenure.

        An order keeps all regions of its table in memory.
        """
        for table_id, order in list(self._orders.items()):
            if world.tables.get(table_id) is not order.table:
                del self._orders[table_id]

    def from_key(self, table: Table, key: str, limit: int) -> list[Region]:
        """Return at most `limit` regions from the one with `key` on; 0 for no limit."""
        order = self._valid(table)
        at = max(0, bisect_right(order.starts, key) - 1)
        while at < len(order.regions) and not _ends_after(order.regions[at], key):
            at += 1
        while at and _ends_after(order.regions[at - 1], key):
            at -= 1  # regions overlap
        return order.regions[at : at + limit] if limit > 0 else order.regions[at:]

    def neighbors(self, region: Region) -> tuple[Region | None, Region | None]:
        """Return the regions before and after this one."""
        order = self._valid(region.table)
        at = bisect_left(order.starts, _start(region))
        while order.regions[at] is not region:
            at += 1  # another region begins with the same key
        last = at + 1 == len(order.regions)
        return order.regions[at - 1] if at else None, None if last else order.regions[at + 1]

    def ordering(self, table: Table) -> Generator[None, None, None]:
        """Put the regions of a table in order, in steps."""
        for _ in range(_TRIES):
            found = self._orders.get(table.record.table_id)
            if found is not None and found.is_of(table):
                return
            latest, regions = table.latest, list(table.regions.values())
            parts = []
            for at in range(0, len(regions), AT_ONCE):
                if at:
                    yield
                parts.append(sorted(regions[at : at + AT_ONCE], key=_start))
            ordered: list[Region] = []
            starts: list[str] = []
            pace = CountedStep(AT_ONCE)
            for region in heapq.merge(*parts, key=_start):
                if pace.is_over(1):
                    yield
                ordered.append(region)
                starts.append(_start(region))
            self._keep(_InOrder(table, latest, ordered, starts))

    def _valid(self, table: Table) -> _InOrder:
        found = self._orders.get(table.record.table_id)
        if found is None or not found.is_of(table):
            ordered = sorted(table.regions.values(), key=_start)
            found = _InOrder(table, table.latest, ordered, [_start(one) for one in ordered])
            self._keep(found)
        return found

    def _keep(self, order: _InOrder) -> None:
        table_id = order.table.record.table_id
        self._orders.pop(table_id, None)
        self._orders[table_id] = order
        if len(self._orders) > ORDERS_MAX:
            del self._orders[next(iter(self._orders))]


def _start(region: Region) -> str:
    return region.record.start_key


def _ends_after(region: Region, key: str) -> bool:
    return region.record.end_key == "" or region.record.end_key > key


class Prepared:
    """See the module docstring. One for each master process."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        """`now_ms` is the master's clock. Without a clock no sum is used again."""
        self.order = KeyOrder()
        self._of_tables: Paced[Sizes] = Paced(now_ms)
        self._of_servers: Paced[Sizes] = Paced(now_ms)
        self._of_table: Paced[RegionSize] = Paced(now_ms)

    async def prepare(self, request: object, world: ClusterState, sizes: RegionSizes, pause: Pause) -> Sizes:
        """Prepare the reply to a request. Return the sizes that it needs: of all tables, or of all servers."""
        self.order.keep_only(world)
        if isinstance(request, ms.ListTables):
            subject = (id(world), tuple(world.names))
            return await self._of_tables.get_in_steps(subject, lambda: sizes_of_tables(world, sizes), pause)
        if isinstance(request, ms.ListServers):
            subject = (id(world), tuple(world.servers))
            return await self._of_servers.get_in_steps(subject, lambda: sizes_of_servers(world, sizes), pause)
        for _ in self._of_regions(request, world, sizes):
            await pause()
        return {}

    async def of_table(self, table: Table, sizes: RegionSizes, pause: Pause) -> RegionSize:
        """Return the size of one table."""
        return await self._of_table.get_in_steps(table.record.table_id, lambda: size_of_table(table, sizes), pause)

    async def put_in_order(self, table: Table, pause: Pause) -> KeyOrder:
        """Return an order that has the table's regions."""
        for _ in self.order.ordering(table):
            await pause()
        return self.order

    def _of_regions(self, request: object, world: ClusterState, sizes: RegionSizes) -> Generator[None, None, None]:
        """Prepare the order of a table, and the mean size of its regions if regions of the reply are not measured."""
        regions: list[Region] = []
        if isinstance(request, ms.DescribeTable):
            table = world.names.get(request.table) or world.tables.get(request.table)
            if table is not None:
                yield from self.order.ordering(table)
                regions = self.order.from_key(table, request.start_key, request.limit)
        elif isinstance(request, ms.DescribeRegion) and request.region_id in world.regions:
            regions = [world.regions[request.region_id]]
        if not all(map(sizes.is_measured, regions)):
            yield from sizes.measuring(regions[0].table, CountedStep(AT_ONCE))


def sizes_of_tables(world: ClusterState, sizes: RegionSizes) -> Generator[None, None, Sizes]:
    """Return the size of each table by id, in steps."""
    pace, found = CountedStep(AT_ONCE), {}
    for table in list(world.names.values()):
        found[table.record.table_id] = yield from size_of_table(table, sizes, pace)
    return found


def size_of_table(
    table: Table, sizes: RegionSizes, pace: CountedStep | None = None
) -> Generator[None, None, RegionSize]:
    """Return the size of a table, in steps."""
    pace = pace or CountedStep(AT_ONCE)
    yield from sizes.measuring(table, pace)
    regions = (one for one in list(table.regions.values()) if one.record.state not in _WITHOUT)
    return (yield from _total(regions, sizes, pace))


def sizes_of_servers(world: ClusterState, sizes: RegionSizes) -> Generator[None, None, Sizes]:
    """Return server uuid -> total size of its open shared regions, in steps."""
    pace, found = CountedStep(AT_ONCE), {}
    for table in list(world.names.values()):
        yield from sizes.measuring(table, pace)
    for uuid, server in list(world.servers.items()):
        found[uuid] = yield from _total((one.region for one in list(server.open.values())), sizes, pace)
    return found


def _total(regions: Iterable[Region], sizes: RegionSizes, pace: CountedStep) -> Generator[None, None, RegionSize]:
    """Return what `RegionSize.total` returns, in steps."""
    size_bytes = rows = 0
    is_measured = True
    for region in regions:
        if pace.is_over(1):
            yield
        one = sizes.of(region)
        size_bytes += one.size_bytes
        rows += one.rows or 0
        is_measured &= one.is_measured
    return RegionSize(size_bytes, rows if is_measured else None, is_measured)
