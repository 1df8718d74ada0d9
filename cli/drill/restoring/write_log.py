"""Writes of clients during a backup, with the times of their acknowledgments. The backup is compared with them.

One thread puts 1, 2, 3, … at one key of each region. A backup must have, for each region, a number that is not older
than the last one acknowledged before the region's point, and not newer than the last one begun before the backup's end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from cli.backup.files import read_rows
from cli.backup.format import Manifest
from cli.drill.load import KEYS, key_in
from regions.records.model import RegionRecord
from regions.records.partitioning import place
from regionserver.client import DataError, RegionClient

#: Number of the write log's key in a region, behind those of the load and of the clients with histories.
KEY: Final = KEYS + 1
_JOIN_S: Final = 30.0


class LoggedWrite(NamedTuple):
    """One write of a number: the times of its begin and of its acknowledgment (0: never), in milliseconds."""

    number: int
    began_ms: int
    acked_ms: int


class LoggedKey(NamedTuple):
    """The key of one region, as clients name it and as it is stored."""

    table: str
    key: str
    placed: str


class WriteLog:
    """Writes to all regions in turn, in a separate thread, and keeps the times of each write."""

    def __init__(self, client: RegionClient, tables: Mapping[str, list[RegionRecord]]) -> None:
        self._client = client
        self.keys: dict[str, LoggedKey] = {}
        for table, regions in tables.items():
            for one in regions:
                key = key_in(one, KEY)
                self.keys[one.region_id] = LoggedKey(table, key, place(key, one.hash_buckets))
        self.writes: dict[str, list[LoggedWrite]] = {region_id: [] for region_id in self.keys}
        #: Rounds over all regions that have ended.
        self.rounds = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="write-log")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present write."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def close(self) -> None:
        """Stop, and delete the rows."""
        self.stop()
        for one in self.keys.values():
            self._client.delete(one.table, one.key)

    def acknowledged(self) -> int:
        """Return the number of acknowledged writes."""
        return sum(one.acked_ms > 0 for writes in self.writes.values() for one in writes)

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            for region_id, one in self.keys.items():
                if self._ends.is_set():
                    return
                began_ms = _now_ms()
                writes = self.writes[region_id]
                writes.append(LoggedWrite(number, began_ms, 0))
                try:
                    self._client.put(one.table, one.key, b"%d" % number)
                except DataError:
                    continue  # it may have been executed
                writes[-1] = LoggedWrite(number, began_ms, _now_ms())
            self.rounds += 1


def wrong_number(writes: list[LoggedWrite], number: int, point_ms: int, ended_ms: int) -> str:
    """Return why a region's number in the backup is wrong, "" if it is right. Pure."""
    least = max((one.number for one in writes if 0 < one.acked_ms < point_ms), default=0)
    most = max((one.number for one in writes if one.began_ms <= ended_ms), default=0)
    if number < least:
        return f"has {number}, but {least} was acknowledged before its point"
    return f"has {number}, but only {most} was written before the end" if number > most else ""


def violations(write_log: WriteLog, folder: Path, manifest: Manifest) -> list[str]:
    """Return the regions whose rows in the backup are older than an acknowledged write, or were never written."""
    found = []
    for table, region in manifest.regions():
        key = write_log.keys.get(region.region_id)
        if key is None:
            continue
        wrong = wrong_number(
            write_log.writes[region.region_id], _number_in(folder / region.file, key), region.at_ms, manifest.ended_ms
        )
        if wrong:
            found.append(f"{table.record.name} {region.region_id} {wrong}")
    missing = write_log.keys.keys() - {region.region_id for _, region in manifest.regions()}
    return found + [f"{write_log.keys[one].table} {one} is not in the backup" for one in sorted(missing)]


def _number_in(path: Path, key: LoggedKey) -> int:
    """Return the number at the write log's key in a region's file, 0 if it has no such row."""
    placed = key.placed.encode()
    for rows, _ in read_rows(path):
        for name, value in rows:
            if name == placed:
                return int(value)
    return 0


def _now_ms() -> int:
    return int(time.time() * 1000)
