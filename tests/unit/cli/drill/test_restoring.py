"""The write log of `rk drill restore`: which numbers a backup may have, and regions that it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.backup.files import RowsWriter
from cli.backup.format import Manifest, RegionBackup, TableBackup
from cli.drill.restoring.write_log import LoggedWrite, WriteLog, violations, wrong_number
from regions.records.model import RegionRecord, TableRecord
from regionserver.kv.packing import pack_row

#: Acknowledged at 11 and 21 ms; the third write was begun at 30 ms and never acknowledged.
WRITES = [LoggedWrite(1, 10, 11), LoggedWrite(2, 20, 21), LoggedWrite(3, 30, 0)]
POINT_MS, ENDED_MS = 25, 35


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (0, "has 0, but 2 was acknowledged before its point"),
        (1, "has 1, but 2 was acknowledged before its point"),
        (2, ""),
        (3, ""),
        (4, "has 4, but only 3 was written before the end"),
    ],
)
def test_a_number_is_neither_older_than_acknowledged_nor_from_nobody(number: int, wrong: str) -> None:
    assert wrong_number(WRITES, number, POINT_MS, ENDED_MS) == wrong


def test_a_write_that_began_before_the_point_and_was_acknowledged_after_it_may_be_missing() -> None:
    assert wrong_number([LoggedWrite(1, 20, 30)], 0, POINT_MS, ENDED_MS) == ""


def test_a_backup_is_held_against_the_write_log_region_by_region(tmp_path: Path) -> None:
    """One region has the number, one lost it, and one is not in the backup."""
    client: Any = None
    regions = [RegionRecord("t", f"t.{number}", start, "") for number, start in enumerate(("a", "m", "t"))]
    write_log = WriteLog(client, {"orders": regions})
    for region_id in write_log.keys:
        write_log.writes[region_id] = list(WRITES)
    saved = []
    for region_id, rows in (("t.0", [(write_log.keys["t.0"].placed, b"2")]), ("t.1", [])):
        writer = RowsWriter(tmp_path / region_id)
        writer.begin()
        for key, value in rows:
            writer.add(pack_row(key.encode(), value))
        size = writer.finish()
        writer.close()
        saved.append(RegionBackup(region_id, "", "", region_id, size, len(rows), 0, "", at_ms=POINT_MS))
    manifest = Manifest("b", "c", 0, ENDED_MS, [TableBackup(TableRecord("t", "orders"), saved)])
    assert violations(write_log, tmp_path, manifest) == [
        "orders t.1 has 0, but 2 was acknowledged before its point",
        "orders t.2 is not in the backup",
    ]
