"""The identity of a shared directory: a server must not serve with another directory than the other servers.

    <shared-dir>/directory.json    {"format": 1, "directory_id": …, "cluster_id": …}, written once, durable
    <root>/shared/<kind>           the same id in the store, with the path and the server that wrote it first

A server compares the two before it registers (`Admission`). It reads the file again before each batch of opens
(`SharedDirectory.check`), because a volume can be unmounted while the server runs.

    store    directory    the server
    id       same id      registers
    id       other id     ends: it has another directory than the other servers
    id       no file      ends: the volume is not mounted, or the directory is empty
    none     id           records the id in the store: an earlier server wrote the file and died before it recorded
    the id
    none     no file      writes the file, then records its id: the first server of the cluster, or of this build

If several servers start first, one creates the file (`link` fails for the others) and one creates the znode. A server
whose znode was created with another directory's id reads the znode again and ends.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from twisted.logger import Logger

from coord.client.session import ZkClient
from coord.durable import sync_folder
from coord.errors import ConfigError, ConnectionLoss, NoAuth, NodeExists, NoNode
from regions.records import znodes
from regions.records.model import DirectoryRecord
from regions.records.znodes import CorruptZnode, Layout
from regionserver.errors import RegionError

log = Logger()

FORMAT: Final = 1
FILE: Final = "directory.json"
#: Name in the store of a directory whose opener declares no kind.
_NO_KIND: Final = "regions"
_FILE_BYTES_MAX: Final = 4096


class DirectoryIdentity(msgspec.Struct):
    """Content of directory.json."""

    format: int
    directory_id: str
    #: The cluster whose regions the directory holds; "" if the file was written before the cluster had an id.
    cluster_id: str = ""


class SharedDirectory:
    """The directory that all servers of one kind share; thread-safe."""

    def __init__(self, path: Path, kind: str = "") -> None:
        self.path = path.absolute()
        #: Name of its record in the store: the kind of service without its version.
        self.name = kind.partition("/")[0] or _NO_KIND
        #: The id that was compared with the store's; "" before the comparison.
        self.directory_id = ""
        self._file = os.fspath(self.path / FILE)

    def read(self) -> DirectoryIdentity | None:
        """Return the directory's identity, or None without one. Raise ConfigError for an unreadable file."""
        try:
            with open(self._file, "rb") as file:
                found = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=DirectoryIdentity)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(
                f"{self._file} does not identify a shared directory ({error}); restore the file from a backup"
            ) from error
        if found.format != FORMAT:
            raise ConfigError(f"{self._file} has format {found.format}; this program supports format {FORMAT}")
        return found

    def create(self, cluster_id: str) -> DirectoryIdentity:
        """Create the directory's identity durably; return the identity of another server that was faster.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._write(DirectoryIdentity(FORMAT, uuid.uuid4().hex, cluster_id), replace=False)
        found = self.read()
        if found is None:
            raise ConfigError(f"{self._file} was removed while this server started")
        return found

    def name_cluster(self, found: DirectoryIdentity, cluster_id: str) -> None:
        """Complete an identity that was written before the cluster had an id. Raise ConfigError."""
        self._write(DirectoryIdentity(FORMAT, found.directory_id, cluster_id), replace=True)

    def check(self) -> None:
        """Raise RegionError unless this is still the directory that was compared with the store's record."""
        if not self.directory_id:
            return
        try:
            found = self.read()
        except ConfigError as error:
            raise RegionError(str(error)) from error
        if found is None:
            raise RegionError(
                f"the file {FILE} of shared directory {self.path} has disappeared: mount the volume with directory"
                f" {self.directory_id} there"
            )
        if found.directory_id != self.directory_id:
            raise RegionError(
                f"shared directory {self.path} is now directory {found.directory_id}, but was {self.directory_id} when"
                " this server started: mount the former directory there"
            )

    def _write(self, identity: DirectoryIdentity, *, replace: bool) -> None:
        temporary = f"{self._file}.{uuid.uuid4().hex}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, msgspec.json.encode(identity))
                os.fsync(fd)
            finally:
                os.close(fd)
            if replace:
                os.rename(temporary, self._file)
            else:
                with contextlib.suppress(FileExistsError):  # another server was faster
                    os.link(temporary, self._file)
                os.unlink(temporary)
            sync_folder(self.path)
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be written: {error.strerror}") from error


class Admission:
    """Compares a server's shared directory with the store's record before the server registers."""

    def __init__(self, shared: SharedDirectory, paths: Layout, server: str, now_ms: Callable[[], int]) -> None:
        """`server` is this server's name for operators, "host:port"."""
        self._shared = shared
        self._path = paths.shared_directory(shared.name)
        self._parent = paths.shared
        self._server = server
        self._now_ms = now_ms

    async def check(self, client: ZkClient, cluster_id: str) -> None:
        """Return when directory and store have the same id; create the id in both if neither has one.

        Args:
            client: The server's session.
            cluster_id: The cluster's id, "" if the store has none yet.

        Raises:
            ConfigError: The directory is another one, or has no identity; the message names the remedy.
            RetryableError: The connection broke; call again.
            OperationError: The store rejects an operation.
        """
        shared = self._shared
        recorded = await self._recorded(client)
        found = shared.read()
        if recorded is not None:
            self._compare(recorded, found)
        elif found is not None and found.cluster_id and cluster_id and found.cluster_id != cluster_id:
            raise ConfigError(
                f"shared directory {shared.path} belongs to cluster {found.cluster_id}, but this store holds cluster"
                f" {cluster_id}: nothing was registered; start this server with its own cluster's --shared-dir"
            )
        else:
            if found is None:
                found = shared.create(cluster_id)
                log.info(
                    "shared directory {path} is directory {id} from now on", path=shared.path, id=found.directory_id
                )
            await self._record(client, found)
        assert found is not None, "a directory without identity is rejected or gets one"
        if cluster_id and not found.cluster_id:
            shared.name_cluster(found, cluster_id)
        shared.directory_id = found.directory_id

    async def _recorded(self, client: ZkClient) -> DirectoryRecord | None:
        # A store node that lags could report no record long after another server has written it.
        await client.sync(self._path)
        try:
            data, _ = await client.get(self._path)
        except NoNode:
            return None
        try:
            return znodes.decode_directory(data, self._path)
        except CorruptZnode as error:
            raise ConfigError(
                f"the store's record of the shared directory is corrupt ({error}); nothing was registered"
            ) from error

    async def _record(self, client: ZkClient, found: DirectoryIdentity) -> None:
        record = DirectoryRecord(found.directory_id, str(self._shared.path), self._server, self._now_ms())
        value = znodes.encode(record)
        try:
            await client.create(self._path, value)
        except NoNode:
            # A server without the masters' credential waits until a master has created it.
            with contextlib.suppress(NodeExists, NoAuth):
                await client.create(self._parent)
            raise ConnectionLoss(self._path, "its parent was missing; retry") from None
        except NodeExists:
            # Another server was faster, or the reply to this server's create was lost: the retry compares the ids.
            raise ConnectionLoss(self._path, "another server recorded its directory meanwhile; retry") from None

    def _compare(self, recorded: DirectoryRecord, found: DirectoryIdentity | None) -> None:
        where = f"{recorded.directory_id} (recorded by {recorded.server} as {recorded.path})"
        if found is None:
            raise ConfigError(
                f"shared directory {self._shared.path} has no {FILE}, but the servers of this cluster share directory"
                f" {where}: nothing was registered; mount that volume, or start this server with the --shared-dir"
                " of the"
                " others"
            )
        if found.directory_id != recorded.directory_id:
            raise ConfigError(
                f"shared directory {self._shared.path} is directory {found.directory_id}, but the servers of this"
                f" cluster share directory {where}: nothing was registered; start this server with the"
                " --shared-dir of the"
                " others"
            )
