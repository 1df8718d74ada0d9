"""Files that are replaced durably."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coord import durable
from coord.durable import write_durably


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    (tmp_path / ".file.tmp").write_bytes(b"left by a crash, and longer than the new content")
    write_durably(file, b"old")
    write_durably(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_mode_does_not_depend_on_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_durably(tmp_path / "file", b"new", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failure_leaves_the_old_content(tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_durably(file, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space"):
        write_durably(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_content_and_name_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        done.append(f"content, new name: {(tmp_path / 'file').exists()}")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(durable, "sync_folder", lambda folder: done.append(f"folder {folder == tmp_path}"))
    write_durably(tmp_path / "file", b"new")
    assert done == ["content, new name: False", "folder True"]


@pytest.mark.parametrize("how", [os.symlink, os.link])
def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path, how: Callable[[Path, Path], None]) -> None:
    (tmp_path / "other").write_bytes(b"of somebody else")
    how(tmp_path / "other", tmp_path / ".file.tmp")
    write_durably(tmp_path / "file", b"new", mode=0o600)
    assert (tmp_path / "other").read_bytes() == b"of somebody else"
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()
