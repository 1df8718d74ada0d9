"""The identity of a shared directory: a server with another directory than the others' must not serve.

    <shared-dir>/directory.json    {"format": 1, "directory_id": …, "cluster_id": …}, written once, durable
    <root>/shared/<kind>           the same id in the store, with the path and the server that wrote it first

A server compares the two before it registers (`Admission`), and looks at the file again before each batch of opens
(`SharedDirectory.check`), because a volume can be unmounted while the server runs.

    store    directory    the server
    id       same id      registers
    id       other id     ends: another directory than the other servers'
    id       no file      ends: the volume is not mounted, or the directory is empty
    none     id           records the id in the store: an earlier server wrote the file and died before it could
    none     no file      writes the file, then records its id: the first server of the cluster, or of this build

Of several first servers one creates the file (`link` fails for the others) and one creates the znode. A server whose
file lost against another directory's znode reads the znode again and ends.
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
from coord.errors import ConfigError, ConnectionLoss, NodeExists, NoNode
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
    #: The cluster whose regions the directory holds; "" when the file was written before the cluster had an id.
    cluster_id: str = ""


class SharedDirectory:
    """The directory that all servers of one kind share. Any thread."""

    def __init__(self, path: Path, kind: str = "") -> None:
        self.path = path.absolute()
        #: Name of its record in the store: the kind of service without its version.
        self.name = kind.partition("/")[0] or _NO_KIND
        #: The id that was compared with the store's; "" before.
        self.directory_id = ""
        self._file = os.fspath(self.path / FILE)

    def read(self) -> DirectoryIdentity | None:
        """Return the directory's identity, or None when it has none. Raises ConfigError if the file is unreadable."""
        try:
            with open(self._file, "rb") as file:
                found = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=DirectoryIdentity)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(
                f"{self._file} does not say which shared directory this is ({error}); restore the file from a backup"
            ) from error
        if found.format != FORMAT:
            raise ConfigError(f"{self._file} has format {found.format}, this program knows format {FORMAT}")
        return found

    def create(self, cluster_id: str) -> DirectoryIdentity:
        """Give the directory an identity, durably; return the one that another server gave it first, if one did.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._write(DirectoryIdentity(FORMAT, uuid.uuid4().hex, cluster_id), replace=False)
        found = self.read()
        if found is None:
            raise ConfigError(f"{self._file} was removed while this server started")
        return found

    def name_cluster(self, found: DirectoryIdentity, cluster_id: str) -> None:
        """Complete an identity that was written before the cluster had an id. Raises ConfigError."""
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
                f"shared directory {self.path} has no {FILE} any more: mount the volume with directory"
                f" {self.directory_id} there"
            )
        if found.directory_id != self.directory_id:
            raise RegionError(
                f"shared directory {self.path} is directory {found.directory_id} now, and was {self.directory_id} when"
                " this server started: mount the former one there"
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
                with contextlib.suppress(FileExistsError):  # another server was first; the file is its own
                    os.link(temporary, self._file)
                os.unlink(temporary)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be written: {error.strerror}") from error


class Admission:
    """The comparison of a server's shared directory with the one that the store names, before the server registers."""

    def __init__(self, shared: SharedDirectory, paths: Layout, server: str, now_ms: Callable[[], int]) -> None:
        """`server` is this server's name for people, as "host:port"."""
        self._shared = shared
        self._path = paths.shared_directory(shared.name)
        self._parent = paths.shared
        self._server = server
        self._now_ms = now_ms

    async def prove(self, client: ZkClient, cluster_id: str) -> None:
        """Return when directory and store name the same id; give both an id when neither has one.

        Args:
            client: The server's session.
            cluster_id: The cluster's id, "" if the store has none yet.

        Raises:
            ConfigError: The directory is another one, or has no identity; the message says what to do.
            RetryableError: The connection broke; call again.
            OperationError: The store refuses.
        """
        shared = self._shared
        recorded = await self._recorded(client)
        found = shared.read()
        if recorded is not None:
            self._compare(recorded, found)
        elif found is not None and found.cluster_id and cluster_id and found.cluster_id != cluster_id:
            raise ConfigError(
                f"shared directory {shared.path} belongs to cluster {found.cluster_id}, and this store holds cluster"
                f" {cluster_id}: nothing was registered; start this server with its own cluster's --shared-dir"
            )
        else:
            if found is None:
                found = shared.create(cluster_id)
                log.info(
                    "shared directory {path} is directory {id} from now on", path=shared.path, id=found.directory_id
                )
            await self._record(client, found)
        assert found is not None, "an unmarked directory was refused"
        if cluster_id and not found.cluster_id:
            shared.name_cluster(found, cluster_id)
        shared.directory_id = found.directory_id

    async def _recorded(self, client: ZkClient) -> DirectoryRecord | None:
        # A store node that lags could answer "no record" long after another server has written it.
        await client.sync(self._path)
        try:
            data, _ = await client.get(self._path)
        except NoNode:
            return None
        try:
            return znodes.decode_directory(data, self._path)
        except CorruptZnode as error:
            raise ConfigError(
                f"the store does not say which shared directory the servers use ({error}); nothing was registered"
            ) from error

    async def _record(self, client: ZkClient, found: DirectoryIdentity) -> None:
        record = DirectoryRecord(found.directory_id, str(self._shared.path), self._server, self._now_ms())
        value = znodes.encode(record)
        try:
            await client.create(self._path, value)
        except NoNode:
            with contextlib.suppress(NodeExists):
                await client.create(self._parent)
            raise ConnectionLoss(self._path, "its parent was missing; once more") from None
        except NodeExists:
            # Another server was first, or our own answer was lost: the next round compares with what is there.
            raise ConnectionLoss(self._path, "another server recorded its directory meanwhile; once more") from None

    def _compare(self, recorded: DirectoryRecord, found: DirectoryIdentity | None) -> None:
        where = f"{recorded.directory_id} (recorded by {recorded.server} as {recorded.path})"
        if found is None:
            raise ConfigError(
                f"shared directory {self._shared.path} has no {FILE}, and the servers of this cluster share directory"
                f" {where}: nothing was registered; mount that volume, or start this server with --shared-dir of the"
                " others"
            )
        if found.directory_id != recorded.directory_id:
            raise ConfigError(
                f"shared directory {self._shared.path} is directory {found.directory_id}, and the servers of this"
                f" cluster share directory {where}: nothing was registered; start this server with --shared-dir of the"
                " others"
            )
