"""The records of a slot, one by one, from the files of a stopped server."""

from __future__ import annotations

import json
from pathlib import Path

from coord.env_os import OsDisk
from coord.offline.directory import ReadOnlyDisk
from coord.storage.shared.items import Drop, Floor, OpenSlot
from coord.storage.shared.listing import LostPart, SlotRecord, list_slot, slots_of
from coord.storage.shared.log import SharedLog, open_shared_log
from coord.storage.shared.recovery import recover
from tests.unit.coord.storage.shared.model import items


def written(folder: Path, segment_bytes: int = 800) -> SharedLog:
    """Write two slots to a real disk; slot 1 is dropped in the end."""
    folder.chmod(0o700)
    log, _ = open_shared_log(OsDisk(folder), segment_bytes=segment_bytes)
    log.write([log.batch([OpenSlot(0, 1, "t0", 4), OpenSlot(1, 3, "t1", 5)])])
    log.write([log.batch([items(0, (2, 1, b"four"), (2, 2, b"five5"), state=(2, 1))])])
    log.write([log.batch([Floor(0, 1, 1, 2)])])
    return log


def test_a_slot_is_listed_in_words(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.write([log.batch([Drop(1, 3)])])
    log.close()
    disk = ReadOnlyDisk(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [part.text() for part in list_slot(disk, 0)] == [
        "opened: member 4 of t0, term 0, vote none, last entry 0 of term 0, rows durable up to entry 0",
        "term 2, vote 1; entries 1 to 2 of terms 2 to 2, 9 bytes",
        "rows are durable up to entry 1 of term 2",
    ]
    assert [part.text() for part in list_slot(disk, 1)][-1] == "dropped"
    assert list(list_slot(disk, 7)) == []
    assert slots_of(recover(disk), "t0") == [0]
    assert slots_of(recover(disk), "t1") == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_slot_is_listed_as_json(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.close()
    opened, appended, floor = list_slot(ReadOnlyDisk(tmp_path), 0)
    assert json.loads(json.dumps(opened.fields()))["opened"]["number"] == 4
    fields = appended.fields()
    assert (fields["term"], fields["vote"], fields["block"], fields["record"]) == (2, 1, 2, 4)
    assert fields["entries"][1] == {"index": 2, "term": 2, "kind": 0, "bytes": 5}
    assert floor.fields()["floor"] == {"index": 1, "term": 2}
    with open(fields["file"], "rb") as file:
        file.seek(fields["offset"])
        assert file.read(1) == b"\x13"


def test_headers_and_damaged_parts_are_listed(tmp_path: Path) -> None:
    """A header states the slot once; damage and a torn end show as lines."""
    log = written(tmp_path)
    index = 3
    while log.segment_count() < 3:
        log.write([log.batch([items(0, (2, index, b"data"))])])
        index += 1
    log.close()
    disk = ReadOnlyDisk(tmp_path)
    parts = list(list_slot(disk, 0))
    stated = [part for part in parts if isinstance(part, SlotRecord) and part.stated is not None]
    assert len(stated) == 2
    assert stated[1].text().startswith("a segment begins: member 4 of t0, term 2, vote 1, last entry ")
    path = sorted((tmp_path / "wals").iterdir())[1]
    data = bytearray(path.read_bytes())
    lost = next(part for part in parts if isinstance(part, SlotRecord) and part.path == str(path) and part.entries)
    data[lost.offset + 50] ^= 1
    path.write_bytes(data)
    damaged = list(list_slot(disk, 0))
    lines = [part.text() for part in damaged if isinstance(part, LostPart)]
    assert len(lines) == 1
    assert lines[0].startswith(f"{path}: bytes ")
    assert next(part for part in damaged if isinstance(part, LostPart)).fields() == {"lost": lines[0]}
    assert len(damaged) == len(parts)
