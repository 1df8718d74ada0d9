"""Locations of regions: read from the store, cached, and read again after a server rejects a request.

A table's regions are the children of one znode. Their names follow the order of their keys, so a binary search finds
the region of a key with a dozen reads in a table of any size. The cache may be outdated at any time. Servers check the
opening that a request names, so an outdated entry only costs a round trip.

Records of replaced regions stay in the store for days, and a table that is often split has more of them than regions.
So the cache keeps a table's known records when it reads the names again. A replaced region stays replaced, so its
record is read only once. A client that meets replaced regions for the first time reads several records at a time.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from regions.records.model import RegionRecord, ServerRecord, TableIntent, TableRecord, TableState
from regions.records.partitioning import is_whole, place
from regions.records.znodes import (
    CorruptZnode,
    Layout,
    decode_cluster,
    decode_name,
    decode_region,
    decode_server,
    decode_table,
)
from regionserver.client.store import READ_TIMEOUT_S, StoreReader

#: Limit of reads of the names of a table's regions, if regions are split or merged while the records are read.
LISTINGS_MAX: Final = 5
#: Maximum number of records that are read at a time, behind a replaced region.
AHEAD_MAX: Final = 64


class NoRegion(Exception):  # noqa: N818 - named after what it reports
    """Raised if no region of a table holds a key: its record is lost, or the regions change faster than they are
    read."""


class _Table:
    """The cached part of a table: the names of its regions in order, and the records read so far."""

    def __init__(self, record: TableRecord, names: list[str], known: Mapping[str, RegionRecord]) -> None:
        """`known`: records that were read before, perhaps outdated."""
        self.record = record
        self.regions = {name: known[name] for name in names if name in known}
        #: Names of the regions in order, without those that are known to be replaced.
        self.names = [name for name in names if name not in known or not known[name].is_replaced]
        #: Start keys of the cached regions, in order, with the regions' names.
        self.starts = sorted((one.start_key, name) for name, one in self.regions.items() if not one.is_replaced)


class RegionLocator:
    """Regions and servers as recorded in the store, for any thread. Methods raise what `StoreReader` raises.

    `until_s` is the deadline of reads from the store, by `time.monotonic`. Cached values need no read.
    """

    def __init__(self, client: KazooClient | StoreReader, layout: Layout) -> None:
        self._store = client if isinstance(client, StoreReader) else StoreReader(client)
        self._layout = layout
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        #: Tables whose names of regions must be read again.
        self._former: dict[str, _Table] = {}
        self._servers: dict[str, ServerRecord] = {}
        #: Id of the cluster; "" until `learn_cluster` has read it.
        self.cluster_id = ""

    def learn_cluster(self, *, until_s: float | None = None) -> None:
        """Read the cluster's id, once. Without an id in the store no check is possible."""
        if not self.cluster_id:
            with contextlib.suppress(NoNodeError):
                path = self._layout.cluster
                self.cluster_id = decode_cluster(self._store.get(path, _end(until_s)), path).cluster_id

    def servers(self, uuids: Iterable[str], *, until_s: float | None = None) -> list[ServerRecord]:
        """Read the registrations of servers. The result has no server whose registration is missing or damaged."""
        values = self._store.get_many([self._layout.server(uuid) for uuid in uuids], _end(until_s))
        found: list[ServerRecord] = []
        for path, data in values.items():
            with contextlib.suppress(CorruptZnode):  # the other members of a tablet can be asked
                found.append(decode_server(data, path))
        with self._lock:
            self._servers.update((one.uuid, one) for one in found)
        return found

    def table(self, name: str, *, until_s: float | None = None) -> TableRecord | None:
        """Return the table with this name or id, or None."""
        found = self._table(name, _end(until_s))
        return None if found is None else found.record

    def region_of(self, table: str, key: str, *, until_s: float | None = None) -> RegionRecord | None:
        """Return the region that holds `key`, perhaps outdated; None for an unknown table. Raise NoRegion."""
        end_s = _end(until_s)
        found = self._table(table, end_s)
        return None if found is None else self.region_at(table, place(key, found.record.hash_buckets), until_s=end_s)

    def region_at(self, table: str, placed: str, *, until_s: float | None = None) -> RegionRecord | None:
        """Return the region that holds a placed key (`regions/records/partitioning.py`); None for an unknown table.

        Raise NoRegion if no region of the table holds the key.
        """
        end_s = _end(until_s)
        for _ in range(LISTINGS_MAX):
            found = self._table(table, end_s)
            region = None if found is None else self._region_at(found, placed, end_s)
            if found is None or region is not None:
                return region
            self.outdated(table)
        raise NoRegion(f"no region of {table} holds the key: rk fsck shows whether its record is lost")

    def _region_at(self, found: _Table, key: str, end_s: float) -> RegionRecord | None:
        with self._lock:
            at = bisect.bisect_right(found.starts, (key, "\U0010ffff")) - 1
            known = found.regions[found.starts[at][1]] if at >= 0 else None
        if known is not None and known.contains(key):
            return known
        return self._search(found, key, end_s)

    def regions(self, table: str, *, until_s: float | None = None) -> list[RegionRecord] | None:
        """Return all regions of a table by key, read from the store; None for an unknown table.

        The regions are whole, without a hole or an overlap, unless the table has one in the store.
        """
        end_s = _end(until_s)
        there: list[RegionRecord] = []
        for _ in range(LISTINGS_MAX):
            found = self._table(table, end_s)
            if found is None:
                return None
            there = self._all(found, end_s)
            if is_whole(there):
                break
            self.outdated(table)
        return there

    def _all(self, found: _Table, end_s: float) -> list[RegionRecord]:
        folder = self._layout.table_regions(found.record.table_id)
        values = self._store.get_many([f"{folder}/{name}" for name in found.names], end_s)
        records = [decode_region(data, path) for path, data in values.items()]
        for record in records:
            self._remember(found, record)
        return sorted((one for one in records if not one.is_replaced), key=lambda one: one.start_key)

    def refresh(self, table: str, region_id: str, *, until_s: float | None = None) -> RegionRecord | None:
        """Read one region's record again. Return None and drop the table from the cache if the region no longer
        exists."""
        end_s = _end(until_s)
        found = self._table(table, end_s)
        if found is None:
            return None
        record = self._read(found, region_id, end_s)
        if record is None:
            self.forget(table)
        return record

    def is_disabled(self, table: str, *, until_s: float | None = None) -> bool:
        """Read a table's record again, and return True if the table exists and is disabled."""
        found = self.refresh_table(table, until_s=until_s)
        return found is not None and found.intent is TableIntent.DISABLED

    def refresh_table(self, table: str, *, until_s: float | None = None) -> TableRecord | None:
        """Read a table's record again. Return None and drop the table from the cache if it was deleted: another table
        may have the name."""
        end_s = _end(until_s)
        found = self._table(table, end_s)
        if found is None:
            return None
        path = self._layout.table(found.record.table_id)
        try:
            record = decode_table(self._store.get(path, end_s), path)
        except NoNodeError:
            record = None
        if record is None or record.state is TableState.REMOVED:
            self.forget(table)
            return None
        found.record = record
        return record

    def region_count(self, table: str) -> int:
        """Return the number of regions of a table that was read before; 0 for another table."""
        with self._lock:
            found = self._tables.get(table)
        return 0 if found is None else len(found.names)

    def forget(self, table: str) -> None:
        """Drop a table from the cache."""
        with self._lock:
            self._tables.pop(table, None)
            self._former.pop(table, None)

    def outdated(self, table: str) -> None:
        """Note that a table's regions were split or merged since their names were read. Known records are kept."""
        with self._lock:
            found = self._tables.pop(table, None)
            if found is not None:
                self._former[table] = found

    def server(self, uuid: str, start_code: int, *, until_s: float | None = None) -> ServerRecord | None:
        """Return the registration of one start of a server; None if this start is not registered."""
        with self._lock:
            known = self._servers.get(uuid)
        if known is None or known.start_code != start_code:
            known = self.refresh_server(uuid, until_s=until_s)
        return known if known is not None and known.start_code == start_code else None

    def refresh_server(self, uuid: str, *, until_s: float | None = None) -> ServerRecord | None:
        """Read the registration of a server that did not answer; None if it is not registered."""
        path = self._layout.server(uuid)
        try:
            found = decode_server(self._store.get(path, _end(until_s)), path)
        except NoNodeError:
            with self._lock:
                self._servers.pop(uuid, None)
            return None
        with self._lock:
            self._servers[uuid] = found
        return found

    # --- inside ---

    def _table(self, name: str, end_s: float) -> _Table | None:
        with self._lock:
            known = self._tables.get(name)
        if known is not None:
            return known
        if any(part in ("", ".", "..") for part in name.split("/")):
            return None  # the name cannot be part of a path, so there is no such table
        name.encode()  # raises UnicodeEncodeError here, and not in the thread of the store's client
        try:
            entry = self._layout.name(name)
            table_id = decode_name(self._store.get(entry, end_s), entry)
        except NoNodeError:
            table_id = name
        try:
            path = self._layout.table(table_id)
            record = decode_table(self._store.get(path, end_s), path)
            if record.state is TableState.REMOVED:  # its records stay for a time
                return None
            names = sorted(self._store.children(self._layout.table_regions(table_id), end_s))
        except (NoNodeError, ValueError):
            return None
        with self._lock:
            former = self._former.pop(name, None)
            is_same = former is not None and former.record.table_id == table_id
            made = _Table(record, names, former.regions if former is not None and is_same else {})
            return self._tables.setdefault(name, made)

    def _read(self, table: _Table, region_id: str, end_s: float) -> RegionRecord | None:
        path = self._layout.region(table.record.table_id, region_id)
        try:
            record = decode_region(self._store.get(path, end_s), path)
        except NoNodeError:
            return None
        self._remember(table, record)
        return record

    def _known(self, table: _Table, at: int, end_s: float) -> RegionRecord | None:
        name = table.names[at]
        return table.regions.get(name) or self._read(table, name, end_s)

    def _behind_replaced(self, table: _Table, at: int, last: int, end_s: float) -> tuple[int, RegionRecord | None]:
        """Return the first region from `at` to `last` that is not replaced, with its index. If all are replaced, return
        the last one.

        Only the names of regions that are not replaced are in the order of their keys. Stop at a missing record.
        """
        record = self._known(table, at, end_s)
        ahead = 1
        while record is not None and record.is_replaced and at < last:
            at += 1
            if table.names[at] not in table.regions:
                ahead = min(2 * ahead, AHEAD_MAX)
                self._read_ahead(table, at, min(ahead, last + 1 - at), end_s)
            record = self._known(table, at, end_s)
        return at, record

    def _read_ahead(self, table: _Table, at: int, count: int, end_s: float) -> None:
        """Read the unknown records among the next `count` names, all at once. Damaged ones stay unknown."""
        folder = self._layout.table_regions(table.record.table_id)
        unknown = [name for name in table.names[at : at + count] if name not in table.regions]
        values = self._store.get_many([f"{folder}/{name}" for name in unknown], end_s) if unknown else {}
        for path, data in values.items():
            with contextlib.suppress(CorruptZnode):
                self._remember(table, decode_region(data, path))

    def _remember(self, table: _Table, record: RegionRecord) -> None:
        with self._lock:
            if record.region_id not in table.regions and not record.is_replaced:
                bisect.insort(table.starts, (record.start_key, record.region_id))
            table.regions[record.region_id] = record

    def _search(self, table: _Table, key: str, end_s: float) -> RegionRecord | None:
        """Search the region of `key`: binary search over the names, then linear if the names are not in key order.

        Raise CorruptZnode if the key may be in a region whose record is corrupt.
        """
        corrupt: CorruptZnode | None = None
        low, high = 0, len(table.names) - 1
        while low <= high:
            middle = (low + high) // 2
            try:
                at, record = self._behind_replaced(table, middle, high, end_s)
            except CorruptZnode:
                break
            if record is None:
                break
            if record.contains(key) and not record.is_replaced:
                return record
            if record.is_replaced or key < record.start_key:
                high = middle - 1
            else:
                low = at + 1
        for at in range(len(table.names)):
            if at % AHEAD_MAX == 0:
                self._read_ahead(table, at, AHEAD_MAX, end_s)
            try:
                record = self._known(table, at, end_s)
            except CorruptZnode as error:
                corrupt = error
                continue
            if record is not None and record.contains(key) and not record.is_replaced:
                return record
        if corrupt is not None:
            raise corrupt
        return None


def _end(until_s: float | None) -> float:
    """Return the deadline of a read."""
    return time.monotonic() + READ_TIMEOUT_S if until_s is None else until_s
