"""The real system interfaces, as far as no other test covers them."""

from __future__ import annotations

import errno
import os
import platform
from pathlib import Path

import pytest

from coord.env_os import FolderLock, check_owned, return_memory
from coord.errors import ConfigError


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries give memory back by themselves")
def test_memory_that_was_freed_between_things_that_stay_is_given_back() -> None:
    """As after a start: the log's entries are freed, the state read from them stays."""
    passing = []
    staying = []
    for _ in range(2000):
        passing.append(bytes(30_000))
        staying.append(bytes(600))
    passing.clear()
    before = resident_mb()
    return_memory()
    assert before - resident_mb() > 30, before
    assert len(staying) == 2000


def test_lock_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node can start on a full disk: the id in the file is only for readers."""

    def no_room(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_room)
    lock = FolderLock(tmp_path)
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


def test_a_directory_for_everybody_is_refused_unless_it_is_a_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may write; volumes of containers are often open to everybody."""
    for mode in (0o700, 0o755, 0o775, 0o2775):
        tmp_path.chmod(mode)
        check_owned(tmp_path)
    for mode in (0o777, 0o1777, 0o702):
        tmp_path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod o-w"):
            check_owned(tmp_path)
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    check_owned(tmp_path)
