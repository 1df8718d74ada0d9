"""The folders of the quarantine on a disk.

A folder is removed in two steps. It is renamed first, which is atomic, so a folder under its own name is always
complete. Then its files are removed, which may take seconds for large files. A crash between the two leaves a renamed
folder that the next removal finds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coord.durable import sync_folder
from regionserver.tablets.disk.layout import QUARANTINE, TEMPORARY, free_name, parse_quarantine_name
from regionserver.tablets.upkeep.quarantine import QuarantineFolder

#: Prefix of the names of folders whose files are being removed; no tablet's folder begins with it.
REMOVED: Final = ".removed-"
#: Bytes of a block in `st_blocks`.
_BLOCK: Final = 512


class QuarantineFolders:
    """The quarantine of one data directory. Every method blocks, and raises OSError as the system calls do."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / QUARANTINE

    def find(self) -> list[QuarantineFolder]:
        """Return the folders, without those that are being removed."""
        found = []
        for entry in self._entries():
            if entry.name.startswith((TEMPORARY, REMOVED)):
                continue
            tablet, generation = parse_quarantine_name(entry.name) or ("", 0)
            since_ms = int(entry.stat(follow_symlinks=False).st_mtime * 1000)
            found.append(QuarantineFolder(entry.name, tablet, generation, _size(Path(entry.path)), since_ms))
        return found

    def take(self, names: Iterable[str]) -> None:
        """Take folders out of the quarantine, durably. Their files are still there. Only the thread of the files may
        call this, because that thread moves files into the quarantine."""
        for name in names:
            free = free_name(f"{REMOVED}{name}", lambda one: (self._path / one).exists())
            with contextlib.suppress(FileNotFoundError):  # another purge was faster
                os.rename(self._path / name, self._path / free)
        sync_folder(os.fspath(self._path))

    def remove_taken(self) -> None:
        """Remove the files of the folders that were taken out."""
        for entry in self._entries():
            if entry.name.startswith(REMOVED):
                shutil.rmtree(entry.path)

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._path) as entries:
                return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []


def _size(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    with os.scandir(folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * _BLOCK for entry in entries)
