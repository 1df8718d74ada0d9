"""Regions as directories that all servers share: the directory, its record, and who may use it.

    <shared-dir>/regions/<table_id>/<region_id>[.<replica>]/      the suffix only for replicas other than 0
        region.json       the region's record as of its first open; durable before the region is announced
        owner-<token>     who has the region open (regionserver/owner.py)

**Opening again** costs a few system calls: the directory is there, a mark is put into it.
**Opening the first time** creates directory and region.json; for as many regions as are waiting together, one
`syncfs` makes all of them durable. With a sync per region a cluster's first start would wait for its disk thousands of
times.

**Two servers, one region.** The mark is the second line of defence behind the store's compare-and-set, and the evidence
that it held: an open that finds the region held by a server that is alive is refused. A frozen process keeps its lock
for as long as it is frozen, long after its session is over; then, and only once the store says that it is over, the
new owner passes it over, and the later mark tells the old owner so when it wakes up.

A service of its own can derive from `DirectoryOpener`: it gets directory and fence, and adds its files
(`regionserver/kv` does).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from coord.errors import ConfigError
from regions.kinds import DIRECTORIES
from regions.model import RegionRecord
from regionserver.opener import Opening, RegionError, RegionOpener
from regionserver.owner import Hold, Owner, take

#: Ids become names of directories: nothing in them may mean anything to the file system.
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class DirectoryOpener(RegionOpener):
    """Regions as directories below `shared_dir`."""

    kind = DIRECTORIES

    def __init__(self, shared_dir: Path) -> None:
        """Raises ConfigError when regions could not be created there."""
        self._regions = os.fspath(shared_dir.absolute() / "regions")
        try:
            os.makedirs(self._regions, mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._regions):
                pass
        except OSError as error:
            raise ConfigError(f"shared directory {shared_dir} is not writable: {error.strerror}") from error
        self._lock = threading.Lock()
        self._held: dict[str, Hold] = {}

    def path(self, region: RegionRecord, replica: int) -> str:
        """Directory of a replica. Raises RegionError for ids that are no plain names."""
        for name in (region.table_id, region.region_id):
            if not _SAFE_ID.fullmatch(name):
                raise RegionError(f"{name!r} cannot be the name of a directory")
        suffix = f".{replica}" if replica else ""
        return f"{self._regions}/{region.table_id}/{region.region_id}{suffix}"

    def prepare(self, openings: Sequence[Opening]) -> None:
        """Create what is missing of these regions, and make it durable by one sync for all."""
        created = 0
        for opening in openings:
            created += self._create(self.path(opening.region, opening.replica), opening)
        if created:
            _sync_file_system(self._regions)

    def open(self, opening: Opening) -> None:
        """Put this server's mark into the directory. Raises OwnerHeld, RegionError or OSError."""
        self.hold(opening)

    def hold(self, opening: Opening) -> Hold:
        """As `open`; the hold that was taken, which `close` releases."""
        path = self.path(opening.region, opening.replica)
        owner = Owner(opening.server.uuid, opening.server.start_code, opening.epoch, opening.token)
        hold = take(path, owner, opening.evict)
        with self._lock:
            assert path not in self._held, f"{path} is open already"
            self._held[path] = hold
        return hold

    def close(self, region: RegionRecord, replica: int) -> None:
        """Give the lock back."""
        with self._lock:
            hold = self._held.pop(self.path(region, replica), None)
        if hold is not None:
            hold.release()

    def _create(self, path: str, opening: Opening) -> bool:
        """Make directory and region.json unless they are there; not durable yet."""
        record = f"{path}/region.json"
        if os.path.exists(record):
            return False
        os.makedirs(path, mode=0o700, exist_ok=True)
        # Two servers may both be here, one of them frozen long ago: each writes a file of its own.
        temporary = f"{record}.{opening.server.uuid}.{opening.server.start_code}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(opening.region))
        finally:
            os.close(fd)
        os.rename(temporary, record)
        return True


_libc: Final = ctypes.CDLL(None, use_errno=True)


def _sync_file_system(path: str) -> None:
    """Make everything written to the file system of `path` durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if hasattr(_libc, "syncfs"):
            if _libc.syncfs(fd) != 0:
                number = ctypes.get_errno() or errno.EIO
                raise OSError(number, os.strerror(number), path)
        else:
            os.sync()
    finally:
        os.close(fd)
