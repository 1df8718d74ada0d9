"""Durable changes of small files that are not on a `Disk` (`coord.env.replace_file` changes those).

Imports nothing that loads the reactor: `rk` uses it, too.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync_folder(folder: str | Path) -> None:
    """Make the names in a directory durable. Raise OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a file's content: after a crash it is the old one or the new one, whole. Raise OSError.

    `mode` is the new file's mode; None leaves it to the umask. One process at a time may write a file.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # A crash has left a file of this name, or another user has put it there, and may hold it open.
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            # Some file systems write the new name before the content: the file would be empty after a power cut.
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
