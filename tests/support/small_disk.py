"""A small separate file system for tests that fill it. Needs the right to mount."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Bytes left free when a disk is filled: less than any write.
_STEP = 4096


@contextlib.contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """Mount a tmpfs of that size at `folder`. Skip the test if mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def fill(folder: Path) -> Path:
    """Fill the disk to the last page. Removing the returned file makes room again."""
    path = folder / "ballast"
    with path.open("ab", buffering=0) as file:
        for step in (1 << 20, _STEP):
            with contextlib.suppress(OSError):
                while True:
                    if file.write(bytes(step)) < step:
                        break
    assert is_full(folder)
    return path


def is_full(folder: Path) -> bool:
    """Return True if no further page fits on the disk."""
    probe = folder / "probe"
    try:
        with probe.open("wb", buffering=0) as file:
            return file.write(bytes(_STEP)) < _STEP
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)
