"""A long file is synced while it is written; no error of a sync is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from regionserver.tablets.disk import syncing
from regionserver.tablets.disk.syncing import SyncBehind


def test_a_file_is_synced_every_so_many_bytes_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(syncing, "SYNC_EVERY_BYTES", 100)
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append("behind"))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append("end"))
    with (tmp_path / "file").open("wb") as file:
        behind = SyncBehind(file.fileno())
        behind.wrote(99)
        assert synced == []
        behind.wrote(1)
        behind.wrote(50)
        behind.finish()
        behind.close()
    assert synced == ["behind", "end"]


def test_an_error_of_a_sync_behind_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports an error of the disk once: the sync at the end would succeed."""

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(syncing, "SYNC_EVERY_BYTES", 100)
    monkeypatch.setattr(os, "fdatasync", fails)
    with (tmp_path / "file").open("wb") as file:
        behind = SyncBehind(file.fileno())
        behind.wrote(100)
        with pytest.raises(OSError, match="the disk"):
            behind.finish()
        behind.close()
