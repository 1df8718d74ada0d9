"""Chooses the folders of the quarantine to remove, each with the reason. Pure.

A folder has the files of a former replica. It is kept for a configured time, because an operator may need the files
after a mistake of the operator or of this program. The time begins when the last file was moved there. A full disk is
worse than a short quarantine, so below the reserve the oldest folders are removed first.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple


class QuarantineFolder(NamedTuple):
    """A folder of the quarantine."""

    #: Name below `quarantine/`.
    name: str
    #: Tablet and generation of the former replica; "" and 0: the log of a slot that no tablet claims.
    tablet: str
    generation: int
    #: Bytes on the disk.
    size_bytes: int
    #: Wall clock of the last change of the folder.
    since_ms: int


class Purge(enum.StrEnum):
    """Why a folder is removed."""

    OVERDUE = "its time is over"
    NO_ROOM = "the disk has no room"
    ORDERED = "an operator has ordered it"


class FolderRemoval(NamedTuple):
    """A folder to be removed, and the reason."""

    folder: QuarantineFolder
    why: Purge


def is_overdue(folder: QuarantineFolder, now_ms: int, keep_ms: int) -> bool:
    """Return True if the folder has been kept for its time. A clock that went back makes no folder older."""
    return now_ms - folder.since_ms >= keep_ms


def oldest_first(folders: Sequence[QuarantineFolder]) -> list[QuarantineFolder]:
    """Return the folders in the order in which they are removed."""
    return sorted(folders, key=lambda one: (one.since_ms, one.name))


def due(folders: Sequence[QuarantineFolder], now_ms: int, keep_ms: int, missing_bytes: int) -> list[FolderRemoval]:
    """Return the folders that a server removes without an order.

    Args:
        folders: All folders of the quarantine.
        now_ms: Wall clock.
        keep_ms: Time for which a folder is kept.
        missing_bytes: Bytes that are missing below the reserve; 0: the disk has room.
    """
    found: list[FolderRemoval] = []
    for folder in oldest_first(folders):
        if is_overdue(folder, now_ms, keep_ms):
            found.append(FolderRemoval(folder, Purge.OVERDUE))
        elif missing_bytes > 0:
            found.append(FolderRemoval(folder, Purge.NO_ROOM))
        else:
            break
        missing_bytes -= folder.size_bytes
    return found


def ordered(
    folders: Sequence[QuarantineFolder], now_ms: int, keep_ms: int, *, tablet: str, older_than_ms: int, is_forced: bool
) -> tuple[list[FolderRemoval], list[QuarantineFolder]]:
    """Return the folders that an operator's order removes, and the named folders that are kept.

    Args:
        folders: All folders of the quarantine.
        now_ms: Wall clock.
        keep_ms: Time for which a folder is kept.
        tablet: Only folders of this tablet; "": of all tablets.
        older_than_ms: Only folders of at least this age; -1: of any age.
        is_forced: Folders whose time is not over are removed as well.
    """
    named = [
        folder
        for folder in oldest_first(folders)
        if tablet in ("", folder.tablet) and now_ms - folder.since_ms >= older_than_ms
    ]
    goes = [one for one in named if is_forced or is_overdue(one, now_ms, keep_ms)]
    return [FolderRemoval(one, Purge.ORDERED) for one in goes], [one for one in named if one not in goes]
