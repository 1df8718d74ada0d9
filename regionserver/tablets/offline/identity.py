"""Gives the directory of a stopped server a new identity (TC-18).

A server that has lost its log, or the promises of its replicas, must not return under its uuid: another member could
count an acknowledgment that the server has lost. The files of the former identity are moved to a folder beside them,
and nothing is removed. The next start finds an empty directory and makes a new uuid. Then the policy of members
replaces the replicas of the former one.

The superblocks and `instance.json` are moved last. Until then a start is refused, so after a crash in between the same
command continues.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from coord.durable import sync_folder
from coord.errors import ConfigError
from coord.offline.directory import LockedDirectory
from coord.storage.extent import NAME as EXTENT
from regionserver.session.instance import MOVED, read_record
from regionserver.tablets.disk.layout import BLOCKS, LOG, METAS, QUARANTINE, ROWS, free_name, is_tablet

_RECORD: Final = "instance.json"
#: The files of an identity, in the order in which they are moved.
PARTS: Final = (METAS, LOG, EXTENT, ROWS, QUARANTINE, MOVED, BLOCKS, _RECORD)
#: Characters of the uuid in the name of the folder.
_UUID_SHOWN: Final = 8


class FormerIdentity(NamedTuple):
    """The identity that a directory has."""

    #: Uuid of the server; "": unknown, its file is missing or damaged.
    uuid: str
    cluster: str
    #: Tablets with a superblock.
    tablets: list[str]
    #: Files and folders that are moved.
    parts: list[str]
    #: Folder to which they are moved.
    folder: Path


class IdentityDirectory(LockedDirectory):
    """A stopped server's directory."""

    def __init__(self, path: Path) -> None:
        """Lock `path`. Raise ConfigError if it is not a server's directory, ForeignDirectory if a server runs on it."""
        if not any((path / name).exists() for name in (_RECORD, BLOCKS)):
            raise ConfigError(f"{path} is not the data directory of a region server (no {_RECORD}, no {BLOCKS})")
        super().__init__(path, "server")

    def former(self) -> FormerIdentity:
        """Return the present identity."""
        try:
            record = read_record(self.path)
        except ConfigError:
            record = None
        uuid = record.uuid if record is not None else ""
        blocks = self.path / BLOCKS
        tablets = sorted(name for name in os.listdir(blocks) if is_tablet(name)) if blocks.is_dir() else []
        parts = [name for name in PARTS if (self.path / name).exists()]
        folder = self.path / f"former-{uuid[:_UUID_SHOWN] or 'unknown'}"
        return FormerIdentity(uuid, record.cluster_id if record is not None else "", tablets, parts, folder)

    def set_aside(self, former: FormerIdentity) -> None:
        """Move the parts of the identity to its folder, durably, one after the other. Raise OSError."""
        former.folder.mkdir(mode=0o700, exist_ok=True)
        for name in former.parts:
            free = free_name(name, lambda one: (former.folder / one).exists())
            os.rename(self.path / name, former.folder / free)
            for folder in (former.folder, self.path):
                sync_folder(os.fspath(folder))
