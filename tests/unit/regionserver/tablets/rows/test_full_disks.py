"""Full disks and failing disks: no row of the file and no acknowledged write is lost."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import lmdb
import pytest

from regionserver.tablets.commands import (
    PutRow,
)
from regionserver.tablets.disk.layout import TEMPORARY
from regionserver.tablets.rows import environment, tablet_rows
from regionserver.tablets.rows.errors import RowsFailed, RowsFull
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.support.power_cut import UnsyncedDisk
from tests.support.small_disk import fill, small_disk
from tests.support.tablet_model import Log
from tests.unit.regionserver.tablets.rows.rows_file import IDENTITY, content, entry, opened


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path, log: Log) -> None:
    with small_disk(tmp_path / "small", 4) as folder:
        path = folder / "t1.1.mdb"
        rows = TabletRows.open(str(path), IDENTITY, "b", (0, 0))
        rows.apply(log.entries[:30])
        rows.steady()
        ballast = fill(folder)
        with pytest.raises(RowsFull, match="free some space"):
            rows.apply(log.entries[30:])
        assert rows.applied[0] == 30
        for one in log.entries[30:]:
            try:
                rows.apply([one])
            except RowsFull:
                break
        applied = rows.applied[0]
        assert content(rows) == log.models[applied]
        with pytest.raises(RowsFull, match="free some space"):
            rows.apply(log.entries[applied:])
        ballast.unlink()
        rows.apply(log.entries[applied:])
        assert content(rows) == log.models[60]
        assert rows.steady()[0] == 60
        rows.close()
        rows = TabletRows.open(str(path), IDENTITY, "another", (60, 2))
        assert content(rows) == log.models[60]
        rows.close()


def test_a_file_that_finds_no_room_is_made_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = opened(path)
    command = [entry(1, PutRow("a", b"1"))]

    def no_room(name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    with monkeypatch.context() as patch:
        patch.setattr(environment, "reserve_lock", no_room)
        with pytest.raises(RowsFull, match="free some space"):
            rows.apply(command)
    assert rows.applied == (0, 0)
    rows.apply(command)
    assert content(rows) == {"a": b"1"}
    rows.close()


def test_a_full_map_refuses_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES", 1024 * 1024)
    rows = opened(path)
    big = [entry(index, PutRow(f"k{index}", bytes(100_000))) for index in range(1, 20)]
    stopped = 0
    while len(content(rows)) == stopped:
        try:
            stopped += len(rows.apply(big[stopped : stopped + 1]))
        except RowsFull:
            break
    assert 5 < stopped < 12
    with pytest.raises(RowsFull):
        rows.apply(big[stopped : stopped + 1])
    assert len(content(rows)) == stopped
    rows.close()
    monkeypatch.setattr(environment, "MAP_BYTES", 64 * 1024 * 1024)
    rows = opened(path)
    assert len(rows.apply(big[stopped:])) == 19 - stopped
    rows.close()


def test_outcomes_of_what_was_applied_before_the_disk_was_full_are_returned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES", 1024 * 1024)
    monkeypatch.setattr(tablet_rows, "ROUND_ENTRIES_MAX", 2)
    rows = opened(path)
    big = [entry(index, PutRow(f"k{index}", bytes(100_000))) for index in range(1, 20)]
    outcomes = rows.apply(big)
    assert [one.index for one in outcomes] == list(range(1, rows.applied[0] + 1))
    assert 0 < len(outcomes) < 19
    with pytest.raises(RowsFull):
        rows.apply(big[len(outcomes) :])
    rows.close()


class Refusing:
    """An LMDB environment after its disk has failed the write of a meta page."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, *, write: bool = False, **options: Any) -> Any:
        if write:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC: Update of meta page failed")
        return self._env.begin(**options)


def test_an_environment_that_lmdb_refuses_is_opened_anew(path: Path, log: Log) -> None:
    """A point is made before the next commit, because the pin has ended."""
    rows = opened(path)
    rows.apply(log.entries[:20])
    rows.steady()
    rows.apply(log.entries[20:30])
    rows._file.env = Refusing(rows._file.env)
    with pytest.raises(RowsFull, match="opens the file anew"):
        rows.apply(log.entries[30:40])
    assert content(rows) == log.models[30]
    rows.apply(log.entries[30:])
    assert rows.point[0] == 30
    assert content(rows) == log.models[60]
    rows.close()


class FailingDisk(UnsyncedDisk):
    """Fails the named operation with the given error."""

    def __init__(self) -> None:
        self.failures: dict[str, Exception] = {}

    def _maybe(self, name: str) -> None:
        if name in self.failures:
            raise self.failures[name]

    def sync(self, env: Any) -> None:
        self._maybe("sync")

    def replace(self, path: str, data: bytes) -> None:
        self._maybe("replace")
        super().replace(path, data)


def test_a_failed_sync_fails_the_tablet_and_the_next_open_goes_back(path: Path, log: Log) -> None:
    """The system drops pages that it could not write: a second sync would succeed wrongly."""
    disk = FailingDisk()
    rows = opened(path, disk=disk)
    rows.apply(log.entries[:20])
    rows.steady()
    rows.apply(log.entries[20:40])
    disk.failures["sync"] = lmdb.Error("mdb_env_sync: Input/output error")
    with pytest.raises(RowsFailed, match="cannot be synced"):
        rows.steady()
    disk.failures.clear()
    with pytest.raises(RowsFailed, match="cannot be synced"):
        rows.steady()
    rows.abandon()
    rows = opened(path, floor=(20, 1))
    assert rows.applied[0] == 20
    rows.close()


def test_a_point_that_finds_no_room_leaves_the_former_one(path: Path, log: Log) -> None:
    disk = FailingDisk()
    rows = opened(path, disk=disk)
    rows.apply(log.entries[:20])
    former = rows.steady()
    for number in range(20, 60):
        disk.failures["replace"] = OSError(errno.ENOSPC, "no room")
        rows.apply(log.entries[number : number + 1])
        with pytest.raises(RowsFull, match="free some space"):
            rows.steady()
    assert rows.point == former
    rows.close()
    disk.failures.clear()
    rows = opened(path, boot="another", disk=disk)
    assert rows.applied == former
    assert content(rows) == log.models[former[0]]
    rows.close()


def test_a_point_that_cannot_be_written_leaves_no_file(path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = opened(path, disk=environment.RowsDisk())
    rows.apply(log.entries[:20])

    def no_room(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(environment, "_write_all", no_room)
        with pytest.raises(RowsFull, match="free some space"):
            rows.steady()
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(TEMPORARY)] == []
    assert rows.steady()[0] == 20
    rows.close()
