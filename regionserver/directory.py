"""The built-in region opener: every region is a directory that all servers share.

    <shared-dir>/regions/<table_id>/<region_id>[.<replica>]/      the suffix only for replicas other than 0
        region.json     the region's record as of its first open; durable before the region is announced
        owner           flock held by the server that has the region open; it says {"uuid":, "start_code":, "epoch":}

**Opening again** is two system calls and a small write: the directory is there, its `owner` is locked and signed.
**Opening the first time** creates directory and region.json; for as many regions as are waiting together, one
`syncfs` makes all of them durable. With a sync per region a cluster's first start would wait for its disk thousands of
times.

**Two servers, one region.** The lock is the second line of defence behind the store's compare-and-set, and the evidence
that it held: an open that finds it taken is refused. But a frozen process keeps its locks for as long as it is frozen,
long after its session is over. Then, and only once the store says that it is over, the new owner replaces the file
`owner` by its own: the old lock is left on a file that has no name any more.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from coord.errors import ConfigError
from regions.model import Incarnation, RegionRecord
from regionserver.opener import Opening, OwnerHeld, RegionError, RegionOpener

#: Ids become names of directories: nothing in them may mean anything to the file system.
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_OWNER_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_OWNER_BYTES_MAX: Final = 4096
#: How often an open may find that the file it has locked was replaced meanwhile.
_REPLACED_MAX: Final = 5


class Owner(msgspec.Struct):
    """Content of an owner file."""

    uuid: str
    start_code: int
    epoch: int

    @property
    def incarnation(self) -> Incarnation:
        """Who holds the region."""
        return Incarnation(self.uuid, self.start_code)


_owner_decoder: Final = msgspec.json.Decoder(Owner)


class DirectoryOpener(RegionOpener):
    """Regions as directories below `shared_dir`."""

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
        self._held: dict[str, int] = {}

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
        """Lock and sign the owner file. Raises OwnerHeld, RegionError or OSError."""
        path = self.path(opening.region, opening.replica)
        owner = Owner(opening.server.uuid, opening.server.start_code, opening.epoch)
        fd = self._take(path, owner, opening.evict)
        with self._lock:
            assert path not in self._held, f"{path} is open already"
            self._held[path] = fd

    def close(self, region: RegionRecord, replica: int) -> None:
        """Give the lock back. After an eviction that is a lock on a file without a name: the same to us."""
        with self._lock:
            fd = self._held.pop(self.path(region, replica), None)
        if fd is not None:
            os.close(fd)

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

    def _take(self, path: str, owner: Owner, evict: Incarnation | None) -> int:
        """A locked and signed descriptor of the owner file, which is the one that has the name now."""
        name = f"{path}/owner"
        for _ in range(_REPLACED_MAX):
            fd = os.open(name, _OWNER_FLAGS, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(fd)
                os.close(fd)
                if holder is None or holder != evict:
                    raise OwnerHeld(holder or Incarnation("unknown", 0)) from None
                self._evict(name, owner)
                continue
            except BaseException:
                os.close(fd)
                raise
            if _has_name(fd, name):
                _sign(fd, owner)
                return fd
            os.close(fd)
        raise RegionError("its owner file is replaced again and again")

    def _evict(self, name: str, owner: Owner) -> None:
        """Put a new owner file in the place of the one whose holder is dead for the store but not for the kernel."""
        fresh = f"{name}.{owner.uuid}.{owner.start_code}"
        fd = os.open(fresh, _OWNER_FLAGS | os.O_TRUNC, 0o600)
        try:
            _sign(fd, owner)
        finally:
            os.close(fd)
        os.rename(fresh, name)


def _holder(fd: int) -> Incarnation | None:
    """Who has signed an owner file; None if nobody readable has (yet)."""
    try:
        return _owner_decoder.decode(os.pread(fd, _OWNER_BYTES_MAX, 0)).incarnation
    except msgspec.DecodeError:
        return None


def _has_name(fd: int, name: str) -> bool:
    """Whether the locked file is still the one at `name`."""
    mine = os.fstat(fd)
    try:
        there = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _sign(fd: int, owner: Owner) -> None:
    data = msgspec.json.encode(owner)
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


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
