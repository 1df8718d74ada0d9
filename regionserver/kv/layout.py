"""Names of the files of a key-value region, and how they are opened (`regionserver/kv/files.py` describes them)."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Final

import lmdb

#: Rows with checksums ("rows"), or an earlier build's without ("data").
ROWS_FILE: Final = re.compile(r"(rows|data)-([0-9]{1,20})\.mdb")
#: The marker. Its token is the highest that an earlier build can read.
MARKER: Final = f"data-{2**64 - 1}.mdb"
#: Initial address space of a file, doubled when full. The file itself grows with its content only.
MAP_BYTES: Final = 64 * 1024 * 1024
REGION_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
READERS_MAX: Final = 64
#: LMDB's lock file for READERS_MAX readers needs less. LMDB maps the file: without allocated blocks a full disk would
#: kill the process by SIGBUS.
_LOCK_BYTES: Final = 16 * 1024


def rows_files(folder: str) -> dict[int, str]:
    """Return the names of the files of rows in a region's directory, by token. Raise OSError."""
    names = os.listdir(folder)
    return {int(match[2]): match[0] for match in map(ROWS_FILE.fullmatch, names) if match and match[0] != MARKER}


def newest_file(folder: str) -> tuple[int, str]:
    """Return token and name of the file of rows that counts, -1 and "" without one. Raise OSError."""
    found = rows_files(folder)
    newest = max(found, default=-1)
    return newest, found.get(newest, "")


def is_marked(folder: str) -> bool:
    """Return True if the region has, or had, a file of rows."""
    return os.path.exists(f"{folder}/{MARKER}")


def open_file(
    path: str, map_bytes: int = MAP_BYTES, *, create: bool = True, foreign: bool = False, is_synced: bool = True
) -> Any:
    """Return an environment on the file at `path`; `foreign`: read a file that another process may be writing."""
    if not foreign:
        reserve_lock(path)
    return lmdb.open(
        path,
        subdir=False,
        map_size=map_bytes,
        max_readers=READERS_MAX,
        mode=0o600,
        readonly=foreign,
        create=create and not foreign,
        lock=not foreign,
        readahead=False,
        sync=is_synced,
    )


def reserve_lock(path: str) -> None:
    """Allocate the whole lock file before LMDB maps it. Raise OSError on a full disk."""
    fd = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


def room_for(size: int, map_bytes: int = MAP_BYTES) -> int:
    """Return `map_bytes`, doubled until twice `size` fits, so that the next write need not grow the map."""
    while map_bytes < 2 * size and 2 * map_bytes <= REGION_BYTES_MAX:
        map_bytes *= 2
    return map_bytes


def remove_file(path: str) -> None:
    """Remove a file and its lock file, if they exist."""
    for name in (path, f"{path}-lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
