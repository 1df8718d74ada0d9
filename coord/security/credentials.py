"""The directory of --certs-dir: what this process proves about itself, and whom it accepts.

    cluster-secret.json    the cluster's secret: for daemons, and for whoever issues keys
    user.NAME.json         the key of one user

Files are read again when they change: whoever rotates a secret need not restart a process. A file that other users can
read is no secret, and is rejected.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from coord.errors import ConfigError
from coord.security.channel import DialingChannel, ListeningChannel, ProofChannel
from coord.security.handshake import NONCE_BYTES
from coord.security.keys import ClusterSecrets, IdentityKey, decode_key, decode_secrets, issue
from coord.security.principal import USER, Principal

CLUSTER_FILE: Final = "cluster-secret.json"
#: Permissions that a file with secrets must not give: anything to other users, or writing to its group.
_TOO_OPEN: Final = 0o027


def key_file(directory: Path, principal: Principal) -> Path:
    """Return the path of an identity's key."""
    return directory / f"{principal.kind}.{principal.name}.json"


class Credentials:
    """The credentials of this process, for both ends of its connections."""

    def __init__(self, directory: Path, principal: Principal) -> None:
        """Read the directory for `principal`. Raise ConfigError."""
        self.directory = directory
        self.principal = principal
        self._seen: tuple[object, ...] = ()
        self._secrets: ClusterSecrets | None = None
        self._key: IdentityKey | None = None
        self._problem = ""
        self._read()

    @property
    def problem(self) -> str:
        """Why the changed files cannot be used; "" if they can. Meanwhile the last usable ones are."""
        return self._problem

    @property
    def cluster(self) -> str:
        """The credentials' id of the cluster."""
        return self._own_key().cluster

    def dialer(self, wanted: str = "") -> ProofChannel:
        """Return the channel of a connection that this process opens. `wanted`: see `coord.security.handshake`."""
        self._refresh()
        key = self._own_key()
        return DialingChannel(
            self.principal, key.cluster, key.number, bytes.fromhex(key.key), os.urandom(NONCE_BYTES), wanted
        )

    def listener(self) -> ProofChannel:
        """Return the channel of a connection that this process accepts."""
        self._refresh()
        return ListeningChannel(self.principal, self.cluster, self._key_of, os.urandom(NONCE_BYTES))

    def _key_of(self, principal: Principal, number: int) -> bytes | None:
        return None if self._secrets is None else self._secrets.key_of(principal, number)

    def _own_key(self) -> IdentityKey:
        assert self._key is not None
        return self._key

    def _refresh(self) -> None:
        """Read the files again if one has changed; keep the last usable ones if that fails."""
        try:
            if self._stats() != self._seen:
                self._read()
        except ConfigError as error:
            self._problem = str(error)

    def _stats(self) -> tuple[object, ...]:
        return tuple(_version(path) for path in (self._secrets_path(), self._key_path()))

    def _secrets_path(self) -> Path:
        return self.directory / CLUSTER_FILE

    def _key_path(self) -> Path:
        return key_file(self.directory, self.principal)

    def _read(self) -> None:
        seen = self._stats()
        if self.principal.is_daemon:
            path = self._secrets_path()
            self._secrets = decode_secrets(read_private(path), str(path))
            self._key = issue(self._secrets, self.principal)
        else:
            path = self._key_path()
            key = decode_key(read_private(path), str(path))
            if key.principal != self.principal:
                raise ConfigError(f"{path} holds the key of {key.principal}: rename the file, or issue another key")
            self._key = key
        self._seen, self._problem = seen, ""


def read_user(directory: Path, name: str = "") -> Credentials:
    """Return the credentials of the user in `directory`; `name` chooses one of several. Raise ConfigError."""
    check_directory(directory)
    names = [path.name[len(f"{USER}.") : -len(".json")] for path in sorted(directory.glob(f"{USER}.*.json"))]
    if not name and len(names) != 1:
        found = (
            f"keys of {len(names)} users: name one with RK_CERTS_USER" if names else "no key of a user (user.NAME.json)"
        )
        raise ConfigError(f"{directory} has {found}; `rk certs issue` makes keys")
    return Credentials(directory, Principal(USER, name or names[0]))


def read_daemon(directory: Path, principal: Principal) -> Credentials:
    """Return the credentials of a daemon. Raise ConfigError."""
    check_directory(directory)
    return Credentials(directory, principal)


def check_directory(directory: Path) -> None:
    """Raise ConfigError unless `directory` is a directory that only its owner can write."""
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read --certs-dir {directory}: {error.strerror or error}") from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"--certs-dir {directory} is no directory")
    if mode & 0o022:
        raise ConfigError(f"--certs-dir {directory} can be written by other users: chmod 700 {directory}")


def read_private(path: Path) -> bytes:
    """Return the content of a file with a secret. Raise ConfigError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _TOO_OPEN:
                raise ConfigError(f"{path} holds a secret and is open to other users: chmod 600 {path}")
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with the file's content, None if the file is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
