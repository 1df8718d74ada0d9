"""Regions as directories that all servers share: the directory, its record, and its owner.

    <shared-dir>/regions/<table_id>/<region_id>[.<replica>]/      the suffix only for replicas other than 0
        region.json       the region's record as of its first open; durable before the region is announced
        owner-<token>     the lock file of the server that has the region open (regionserver/storage/ownership.py)
        opened-<token>    generation: the token of the latest open, durable before the region is announced

**Only the first open creates the directory.** The OPEN order carries the region's record, which names the server and
the token of the latest open (`ReplicaLocation`). A region that was open before must have its directory, with a
generation not lower than this token. If the directory is missing or older (an unmounted volume, a copy from a backup),
the open fails. The generation is durable before OPENED is written, so after a crash it may be higher than the token in
the store, and never lower. A record of an earlier build has no token: its directory and region.json are sufficient, and
get a generation.

**Durability.** The directories of a batch of regions are made durable by one `syncfs`, those of a few regions by one
sync each. With a sync per region a cluster's first start would wait for its disk thousands of times.

**Two servers, one region.** The lock file is the second line of defense behind the store's compare-and-set, and shows
whether the first one held: an open is rejected if a live server holds the region. A frozen process keeps its lock long
after its session has ended. Once the store confirms the end of that session, the new owner ignores the lock, and its
own lock file, with a higher token, informs the old owner when it wakes up.

A service can derive from `DirectoryOpener`: it gets directory and fencing, and adds its files (`regionserver/kv` does).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from coord import kill_points
from coord.durable import sync_folder
from coord.errors import ConfigError
from regions.records.kinds import DIRECTORIES
from regions.records.model import RegionRecord
from regionserver.opener import Opening, RegionError, RegionOpener
from regionserver.shared_directory import SharedDirectory
from regionserver.storage.ownership import DirectoryLock, Owner, acquire, fence, holder_of

_RECORD: Final = "region.json"
_GENERATION: Final = re.compile(r"opened-([0-9]{1,20})")
#: Up to this number of reopened regions each is synced; above it, one sync of the whole file system is cheaper.
SYNCED_ALONE_MAX: Final = 8
#: Ids become names of directories, so they must have no special meaning in the file system.
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class DirectoryOpener(RegionOpener):
    """Regions as directories below `shared_dir`."""

    kind = DIRECTORIES

    def __init__(self, shared_dir: Path) -> None:
        """Raise ConfigError if regions could not be created in the directory."""
        self.shared: SharedDirectory | None = SharedDirectory(shared_dir, getattr(self, "kind", ""))
        self._regions = os.fspath(shared_dir.absolute() / "regions")
        #: Directories of deleted tables while they are being removed.
        self._purged = os.fspath(shared_dir.absolute() / "purged")
        try:
            os.makedirs(self._regions, mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._regions):
                pass
        except OSError as error:
            raise ConfigError(f"shared directory {shared_dir} is not writable: {error.strerror}") from error
        self._lock = threading.Lock()
        self._held: dict[str, DirectoryLock] = {}

    def path(self, region: RegionRecord, replica: int) -> str:
        """Return the directory of a replica. Raise RegionError for ids that are not plain names."""
        for name in (region.table_id, region.region_id):
            if not _SAFE_ID.fullmatch(name):
                raise RegionError(f"{name!r} cannot be the name of a directory")
        suffix = f".{replica}" if replica else ""
        return f"{self._regions}/{region.table_id}/{region.region_id}{suffix}"

    def prepare(self, openings: Sequence[Opening]) -> None:
        """Create the directories of first opens, and set every region's generation; durable on return.

        A region that must not be opened (see `_check`) is skipped; `open` rejects it.

        Raises:
            RegionError: this is not the shared directory that the server started with.
            OSError: the directory cannot be written.
        """
        assert self.shared is not None, "a directory opener has a shared directory"
        self.shared.check()
        changed: list[str] = []
        created = False
        for opening in openings:
            path = self.path(opening.region, opening.replica)
            try:
                _check(path, opening)
            except RegionError:
                continue
            is_new = self._create(path, opening)
            if _raise_generation(path, opening.token) or is_new:
                changed.append(path)
            created |= is_new
        if created or len(changed) > SYNCED_ALONE_MAX:
            _sync_file_system(self._regions)
        else:
            for path in changed:
                sync_folder(path)

    def open(self, opening: Opening) -> None:
        """Put this server's lock file into the directory. Raise OwnerHeld, RegionError or OSError."""
        self.acquire(opening)

    def acquire(self, opening: Opening) -> DirectoryLock:
        """Lock the region's directory; `close` releases the lock. Raise as `open` does."""
        path = self.path(opening.region, opening.replica)
        _check(path, opening)
        owner = Owner(opening.server.uuid, opening.server.start_code, opening.epoch, opening.token)
        lock = acquire(path, owner, opening.evict)
        with self._lock:
            assert path not in self._held, f"{path} is open already"
            self._held[path] = lock
        return lock

    def fence_parents(self, opening: Opening) -> list[str]:
        """Return the directories of the regions whose rows a region takes over. No server can write there any more.

        Raise OwnerHeld, RegionError for a lost directory, or OSError.
        """
        found: list[str] = []
        region = opening.region
        owner = Owner(opening.server.uuid, opening.server.start_code, opening.epoch, opening.token)
        for parent in region.parents:
            path = self.path(msgspec.structs.replace(region, region_id=parent.region_id), 0)
            before = f"region {parent.region_id} had the rows of {region.region_id}"
            if not os.path.isdir(path):
                raise RegionError(f"{path} does not exist, but {before}: mount the volume that has it")
            if _generation(path) < parent.token:
                raise RegionError(f"{path} is older than the region: {before}; put the newer directory back")
            fence(path, owner, opening.evict, parent.token)
            found.append(path)
        return found

    def remove_regions(self, table_id: str, region_ids: Sequence[str]) -> int:
        """Remove the directories of regions that were split or merged. Raise RegionError, OSError."""
        assert self.shared is not None, "a directory opener has a shared directory"
        self.shared.check()
        count = 0
        for region_id in region_ids:
            path = self.path(RegionRecord(table_id, region_id), 0)
            trash = f"{path}.removed"
            if os.path.isdir(path):
                with self._lock:
                    is_ours = path in self._held
                holder = holder_of(path)
                if is_ours or holder is not None:
                    raise RegionError(f"{path} is open on {holder or 'this server'}")
                os.rename(path, trash)
                sync_folder(os.path.dirname(path))
                kill_points.reached("former files set aside")
            if os.path.isdir(trash):
                shutil.rmtree(trash)
                count += 1
        return count

    def close(self, region: RegionRecord, replica: int) -> None:
        """Release the lock."""
        with self._lock:
            lock = self._held.pop(self.path(region, replica), None)
        if lock is not None:
            lock.release()

    def purge(self, table_id: str) -> int:
        """Move the table's directory into `purged/`, durably, then remove it; return the number of its regions.

        A crash leaves the directory in one of the two places, and the next call continues.

        Raises:
            RegionError: a region is open on a server, or the id is not a plain name; nothing was removed.
            OSError: the directory could not be removed.
        """
        if not _SAFE_ID.fullmatch(table_id):
            raise RegionError(f"{table_id!r} cannot be the name of a directory")
        assert self.shared is not None, "a directory opener has a shared directory"
        self.shared.check()
        if not os.path.isdir(self._regions):
            raise RegionError(f"{self._regions} does not exist: restore it before purging")
        source, trash = f"{self._regions}/{table_id}", f"{self._purged}/{table_id}"
        if os.path.isdir(source):
            self._check_closed(source)
            os.makedirs(trash, mode=0o700, exist_ok=True)
            # A unique name: a crash may have left an earlier directory, and the table may have a directory again.
            os.rename(source, f"{trash}/{len(os.listdir(trash))}.{os.getpid()}")
            for folder in (trash, self._purged, self._regions):
                sync_folder(folder)
        if not os.path.isdir(trash):
            return 0
        count = sum(len(os.listdir(f"{trash}/{name}")) for name in os.listdir(trash))
        shutil.rmtree(trash)
        sync_folder(self._purged)
        return count

    def _check_closed(self, table: str) -> None:
        """Raise RegionError if a region below the directory `table` is open on any server."""
        with self._lock:
            ours = [path for path in self._held if path.startswith(f"{table}/")]
        if ours:
            raise RegionError(f"{ours[0]} is open on this server")
        for name in os.listdir(table):
            holder = holder_of(f"{table}/{name}")
            if holder is not None:
                raise RegionError(f"{table}/{name} is open on {holder}")

    def kept(self) -> tuple[list[str], list[str]]:
        """Return the ids of the tables that have directories, and of the tables whose directories are being removed."""
        purged = sorted(os.listdir(self._purged)) if os.path.isdir(self._purged) else []
        return sorted(os.listdir(self._regions)), purged

    def _create(self, path: str, opening: Opening) -> bool:
        """Create directory and region.json if they are missing; not durable yet. Return True if they were."""
        record = f"{path}/{_RECORD}"
        if os.path.exists(record):
            return False
        os.makedirs(path, mode=0o700, exist_ok=True)
        # Two servers may both reach this point, one of them after a long freeze. So each writes to a separate temporary
        # file.
        temporary = f"{record}.{opening.server.uuid}.{opening.server.start_code}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(opening.region))
        finally:
            os.close(fd)
        os.rename(temporary, record)
        return True


def _check(path: str, opening: Opening) -> None:
    """Raise RegionError if a region that was open before has no files in `path`, or older ones."""
    location = opening.region.location(opening.replica)
    if not location.was_opened:
        return
    before = f"server {location.uuid} had this region open"
    if not os.path.isdir(path):
        raise RegionError(
            f"{path} does not exist, but {before}: mount the volume that has its rows, or restore"
            f" them from a backup{_acceptance(path, location.token)}"
        )
    if not location.token:  # recorded by a build without generations
        if not os.path.exists(f"{path}/{_RECORD}") and _generation(path) < 0:
            raise RegionError(f"{path} has no {_RECORD}, but {before}: restore the directory from a backup")
        return
    generation = _generation(path)
    if generation < location.token:
        found = f"was last opened under zxid {generation:#x}" if generation >= 0 else "has no file of any open"
        raise RegionError(
            f"{path} is older than the region: it {found}, but {before} under zxid {location.token:#x}; put the newer"
            f" directory back{_acceptance(path, location.token)}"
        )


def _acceptance(path: str, token: int) -> str:
    return f" (to accept the present content, create {path}/opened-{token})" if token else ""


def _generation(path: str) -> int:
    """Return the token of the latest open recorded in `path`, or -1. Raise OSError."""
    return max((int(found[1]) for found in map(_GENERATION.fullmatch, os.listdir(path)) if found), default=-1)


def _raise_generation(path: str, token: int) -> bool:
    """Raise the generation of `path` to `token`; return True if it changed. Not durable yet."""
    former = _generation(path)
    if former >= token:
        return False
    name = f"{path}/opened-{token}"
    if former >= 0:
        # One step: a crash leaves one of the two names. Another server may have renamed the file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}/opened-{former}", name)
            return True
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return True


_libc: Final = ctypes.CDLL(None, use_errno=True)


def _sync_file_system(path: str) -> None:
    """Make everything written to the file system of `path` durable. Raise OSError."""
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
