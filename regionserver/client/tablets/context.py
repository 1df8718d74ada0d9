"""State that all calls of a client to tablets share: connections, hints, and readings of doubtful records.

A call must not wait for the store, which may be unreachable. So a separate thread per region reads a doubtful record,
while the calls to the region continue with the known one.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from kazoo.exceptions import KazooException

from regions.records.model import RegionRecord, TableIntent
from regions.records.znodes import CorruptZnode
from regionserver.client.connections import Pool
from regionserver.client.errors import Attempt
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreSilentError
from regionserver.client.tablets.exchange import Exchange, NonblockingConnection
from regionserver.client.tablets.hints import TabletHints
from regionserver.client.tablets.numbers import writer_names

#: Time limit for reading a doubtful record.
READING_S: Final = 5.0
#: Time of use after which a client reads all records of a table, so that it does not need the store any more.
FOREKNOWLEDGE_AFTER_S: Final = 1.0
#: Tables with more regions are read as they are used: a record costs the store and this process 0.1 ms.
FOREKNOWN_REGIONS_MAX: Final = 3000
#: Time limit for reading all records.
FOREKNOWLEDGE_S: Final = 30.0


class RecordReading:
    """One reading of a region's record and of its servers' addresses."""

    def __init__(self) -> None:
        self.is_done = False
        self.has_failed = False
        #: The record; None if the region or its table does not exist any more. Valid after the reading has succeeded.
        self.record: RegionRecord | None = None
        #: True if the region's table is disabled.
        self.is_disabled = False


class TabletContext:
    """Connections, hints and readings, for any thread."""

    def __init__(
        self,
        locator: RegionLocator,
        on_attempt: Callable[[Attempt], object],
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.locator = locator
        self.on_attempt = on_attempt
        self.clock = clock
        self.chance = chance
        self.pool: Pool[NonblockingConnection] = Pool()
        self.hints = TabletHints(writer_names(uuid.uuid4().hex))
        self._lock = threading.Lock()
        self._readings: dict[str, RecordReading] = {}
        #: By table: time of the first call; None once all records are being read.
        self._first_s: dict[str, float | None] = {}

    def used(self, table: str) -> None:
        """Record a call to the table. Begin to read the table's records if the client keeps using the table."""
        now_s = self.clock()
        with self._lock:
            first_s = self._first_s.setdefault(table, now_s)
            if first_s is None or now_s < first_s + FOREKNOWLEDGE_AFTER_S:
                return
            self._first_s[table] = None
        if self.locator.region_count(table) <= FOREKNOWN_REGIONS_MAX:
            threading.Thread(
                target=self._read_all, args=(table,), name=f"records of table {table}", daemon=True
            ).start()

    def _read_all(self, table: str) -> None:
        until_s = time.monotonic() + FOREKNOWLEDGE_S
        # While the store is away, no records are read in advance; they are read on use when the store is back.
        with contextlib.suppress(StoreSilentError, KazooException, CorruptZnode):
            records = self.locator.regions(table, until_s=until_s) or []
            self.read_addresses({one.uuid for record in records for one in record.members}, until_s)

    def exchange(self) -> Exchange:
        """Return the messages of a new call."""
        return Exchange(self.pool, self.locator.cluster_id)

    def read_addresses(self, servers: Iterable[str], until_s: float) -> None:
        """Read the addresses of servers from the store. Raise StoreSilentError, KazooException."""
        for record in self.locator.servers(servers, until_s=until_s):
            self.hints.set_address(record.uuid, (record.host, record.port))

    def reading(self, table: str, region_id: str) -> RecordReading:
        """Return the reading of the region's record that is under way, or begin one."""
        with self._lock:
            found = self._readings.get(region_id)
            if found is not None and not found.is_done:
                return found
            begun = self._readings[region_id] = RecordReading()
        threading.Thread(
            target=self._read, args=(begun, table, region_id), name=f"record of {region_id}", daemon=True
        ).start()
        return begun

    def _read(self, reading: RecordReading, table: str, region_id: str) -> None:
        until_s = time.monotonic() + READING_S
        try:
            record = self.locator.refresh(table, region_id, until_s=until_s)
            if record is not None:
                self.read_addresses([one.uuid for one in record.members], until_s)
                found = self.locator.refresh_table(table, until_s=until_s)
                reading.is_disabled = found is not None and found.intent is TableIntent.DISABLED
                # The records of a deleted table stay for a time.
                record = record if found is not None else None
            reading.record = record
        except (StoreSilentError, KazooException, CorruptZnode):
            reading.has_failed = True
        except BaseException:
            reading.has_failed = True
            raise
        finally:
            reading.is_done = True
