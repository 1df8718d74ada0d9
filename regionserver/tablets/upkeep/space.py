"""Room on the disk of the tablets, and the reserve that stays free.

Below the reserve a server takes no copies and leads no writes. The reserve is room for writes that a server cannot
refuse: the shared log of its followers, steady points, and the repair of the disk by an operator.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from regions.records.model import NO_ROOM


class FreeSpace(NamedTuple):
    """The free bytes of a disk beside its reserve."""

    #: Bytes that are missing below the reserve; 0 if the disk has room.
    missing: int
    #: Bytes that replicas may take; NO_ROOM below the reserve.
    for_replicas: int


class DiskSpace:
    """The disk with a data directory."""

    def __init__(self, directory: Path, reserve_bytes: int) -> None:
        self.directory = directory
        self.reserve_bytes = reserve_bytes

    def free(self) -> int:
        """Return the free bytes of the disk. Blocks as long as the disk does."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def look(self) -> FreeSpace:
        """Return the free bytes beside the reserve."""
        free = self.free()
        return FreeSpace(max(0, self.reserve_bytes - free), max(NO_ROOM, free - self.reserve_bytes))

    def for_replicas(self) -> int:
        """Return the bytes that replicas may take; at least 1, because 0 means unknown in a registration."""
        return self.look().for_replicas

    def objection(self, size: int) -> str:
        """Return why the disk has no room for `size` bytes more, "" if it has."""
        free = self.free()
        if free >= size + self.reserve_bytes:
            return ""
        return (
            f"{self.directory} has {free >> 20} MB free; the rows take {size >> 20} MB, and"
            f" {self.reserve_bytes >> 20} MB stay free"
        )
