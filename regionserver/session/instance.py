"""The identity of this server: a uuid for life, a start code per start, and the lock that keeps it unique.

    <data-dir>/lock            flock held by the running process; contains its pid
    <data-dir>/instance.json   {"format": 1, "uuid": ..., "start_code": ..., "cluster_id": ...}, replaced atomically
                               and durably; cluster_id is empty until the server has joined its first cluster

The lock allows a server to remove the registration of its own former start at once: while it holds the lock, no other
process with this identity runs on this machine. The cluster id prevents a server that was started with the wrong store
or root from joining a cluster that does not know its regions (FN-04).

A directory with tablets has format 2 (docs/tablets.md). Its identity needs more protection, because it votes. The
record then has a checksum, and the inode of the lock file, by which a copy of the directory is recognized. A build that
knows only format 1 does not start on such a directory.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from coord.durable import write_durably
from coord.env_os import check_owned
from coord.errors import ConfigError
from regions.records.model import Incarnation

FORMAT: Final = 1
#: Of a directory that holds tablets, or has held some.
FORMAT_TABLETS: Final = 2
_LOCK: Final = "lock"
#: An operator creates this file to accept a directory that was moved.
MOVED: Final = "moved-here"
_RECORD: Final = "instance.json"
#: Folder of the superblocks of tablets. The name is that of `regionserver/tablets/disk/layout.py`, which is in a higher
#: layer and cannot be imported here; a test compares the two.
_SUPERBLOCKS: Final = "tablet-meta"


class InstanceRecord(msgspec.Struct, omit_defaults=True):
    """Content of instance.json. `start_code` is the highest one used so far."""

    format: int
    uuid: str
    start_code: int
    cluster_id: str = ""
    #: In format 2: the inode of the lock file, and crc32c over the record with 0 in place of the checksum.
    lock_inode: int | None = None
    crc: int | None = None


class Instance:
    """The identity in a data directory, which is locked until `close`."""

    def __init__(self, directory: Path, lock_fd: int, record: InstanceRecord) -> None:
        """Use `Instance.open`."""
        self._directory = directory
        self._lock_fd = lock_fd
        #: Sessions of other processes with this identity that have taken over its registration. Never written.
        self.rivals: set[int] = set()
        self._record = record
        #: The server's cluster, which never changes; "" before the server has joined one.
        self.cluster_id = record.cluster_id

    @classmethod
    def open(cls, directory: Path) -> Instance:
        """Lock `directory`, creating it and the identity on first use.

        Raises:
            ConfigError: the directory is unusable, has another format, or another process runs on it.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_owned(directory)
            # A link could let this process empty a file of somebody else.
            lock_fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"data directory {directory} cannot be used: {error.strerror}") from error
        try:
            _lock(lock_fd, directory)
            record = read_record(directory)
            if record is None and has_tablets(directory):
                raise ConfigError(
                    f"{directory} holds tablets, and its {_RECORD} is gone; nothing was changed: restore the file, or"
                    f" give up its replicas: `rk server new-identity --data-dir {directory}`"
                )
            instance = cls(directory, lock_fd, record or InstanceRecord(FORMAT, str(uuid.uuid4()), 0))
            if record is None:
                instance._write()
        except BaseException:
            os.close(lock_fd)
            raise
        return instance

    @property
    def uuid(self) -> str:
        """Return the server's uuid, which never changes."""
        return self._record.uuid

    def adopt(self, cluster_id: str, where: str) -> None:
        """Record `cluster_id` durably as the server's cluster; `where` describes the store and root of that cluster.

        Raises:
            ConfigError: the server belongs to another cluster; nothing was changed.
        """
        mine = self._record.cluster_id
        if mine and mine != cluster_id:
            raise ConfigError(
                f"{self._directory} belongs to a server of cluster {mine}, but {where} is cluster {cluster_id}: nothing"
                " was written there; start the server with its own cluster's --store and --root, or give an empty"
                " --data-dir"
            )
        if not mine:
            self._record.cluster_id = self.cluster_id = cluster_id
            self._write()

    def next_incarnation(self, now_ms: int) -> Incarnation:
        """Return an incarnation with a higher start code than any before; durable before it is used.

        A clock that was set back cannot repeat a start code.

        Raises:
            ConfigError: the start code cannot be written.
        """
        chosen = self.choose_incarnation(now_ms)
        self.keep_incarnation()
        return chosen

    def choose_incarnation(self, now_ms: int) -> Incarnation:
        """Return the next incarnation without writing it. No other process may see it before `keep_incarnation`.

        Between the two calls, the caller checks that it may use the directory: a refused start changes nothing.
        """
        self._record.start_code = max(now_ms, self._record.start_code + 1)
        return Incarnation(self._record.uuid, self._record.start_code)

    def keep_incarnation(self) -> None:
        """Make the chosen incarnation durable. Raise ConfigError."""
        self._write()

    # --- tablets ---

    @property
    def directory(self) -> Path:
        """The data directory."""
        return self._directory

    @property
    def noted_inode(self) -> int | None:
        """The inode that the lock file had when the directory got its tablets; None if it never had any."""
        return self._record.lock_inode

    def inode(self) -> int:
        """Return the inode of the lock file."""
        return os.fstat(self._lock_fd).st_ino

    def is_accepted_here(self) -> bool:
        """Return True if an operator has declared that the directory was moved here."""
        return (self._directory / MOVED).exists()

    def hold_tablets(self) -> None:
        """Record durably that the directory holds tablets, with the inode of its lock file. Call this before the first
        tablet.

        Raises:
            ConfigError: the record cannot be written.
        """
        inode = self.inode()
        if self._record.lock_inode != inode:
            self._record.format = FORMAT_TABLETS
            self._record.lock_inode = inode
            self._write()
        # Last: a copy of the directory must not have the operator's word with it.
        (self._directory / MOVED).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock_fd)

    def _write(self) -> None:
        try:
            write_durably(self._directory / _RECORD, encode_record(self._record), mode=0o600)
        except OSError as error:
            raise ConfigError(f"{self._directory / _RECORD} cannot be written: {error.strerror}") from error


def _lock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip() or "unknown"
        raise ConfigError(f"data directory {directory} is in use by another region server, process {holder}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)


def encode_record(record: InstanceRecord) -> bytes:
    """Return the content of instance.json."""
    if record.format == FORMAT_TABLETS:
        record.crc = _checksum(record)
    return msgspec.json.encode(record)


def _checksum(record: InstanceRecord) -> int:
    return int(crc32c(msgspec.json.encode(msgspec.structs.replace(record, crc=0))))


def has_tablets(directory: Path) -> bool:
    """Return True if there is a tablet's superblock in the directory."""
    try:
        return any(not name.startswith(".") for name in os.listdir(directory / _SUPERBLOCKS))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"{directory / _SUPERBLOCKS} cannot be read: {error.strerror}") from error


def read_record(directory: Path) -> InstanceRecord | None:
    """Return the content of instance.json, None without the file. Raise ConfigError."""
    path = directory / _RECORD
    try:
        record = msgspec.json.decode(path.read_bytes(), type=InstanceRecord)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not JSON, not UTF-8, or other fields
        raise ConfigError(f"{path} is not the identity of a region server ({error}); {_advice(directory)}") from error
    if record.format not in (FORMAT, FORMAT_TABLETS):
        raise ConfigError(
            f"{path} has format {record.format}; this program supports formats {FORMAT} and {FORMAT_TABLETS}"
        )
    if record.crc != (_checksum(record) if record.format == FORMAT_TABLETS else None):
        raise ConfigError(f"{path} is damaged: its checksum is wrong; {_advice(directory)}")
    return record


def _advice(directory: Path) -> str:
    """Return what to do about an unreadable identity."""
    if (directory / _SUPERBLOCKS).is_dir():
        return (
            f"nothing was changed. The tablets in {directory} belong to that identity: restore the file, or give up"
            f" its replicas: `rk server new-identity --data-dir {directory}`"
        )
    return "remove it to make a new one"
