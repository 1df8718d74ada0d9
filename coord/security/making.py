"""Make and change the files of --certs-dir: a cluster's secrets, keys of users, the secret of peers.

Every file is written for its owner only, and replaced in one step: a daemon that reads it sees the old or the new one.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from coord.durable import write_durably
from coord.errors import ConfigError
from coord.security.credentials import CLUSTER_FILE, check_directory, key_file, read_private
from coord.security.keys import SECRET_BYTES, ClusterSecrets, IdentityKey, decode_secrets, encode_file, issue
from coord.security.principal import Principal

#: The secret that store nodes, and servers with tablets, prove to their peers (--peer-secret-file).
PEERS_FILE: Final = "peer-secret"
_CLUSTER_BYTES: Final = 8


def init(directory: Path, first: Principal) -> ClusterSecrets:
    """Make the secrets of a new cluster and the key of its first user. Raise ConfigError if there are some."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {directory}: {error.strerror or error}") from error
    check_directory(directory)
    if (directory / CLUSTER_FILE).exists():
        raise ConfigError(f"{directory} has the secret of a cluster already; `rk certs rotate` makes another one")
    made = ClusterSecrets(secrets.token_hex(_CLUSTER_BYTES), {1: secrets.token_hex(SECRET_BYTES)})
    write_private(directory / PEERS_FILE, secrets.token_hex(SECRET_BYTES).encode() + b"\n")
    write_private(key_file(directory, first), encode_file(issue(made, first)))
    write_private(directory / CLUSTER_FILE, encode_file(made))
    return made


def secrets_in(directory: Path) -> ClusterSecrets:
    """Return the secrets of the cluster. Raise ConfigError."""
    check_directory(directory)
    path = directory / CLUSTER_FILE
    if not path.exists():
        raise ConfigError(
            f"{directory} has no {CLUSTER_FILE}: give the directory in which the cluster's credentials were made"
            " (`rk certs init`, `rk up`); users have none"
        )
    return decode_secrets(read_private(path), str(path))


def issue_key(directory: Path, principal: Principal, to: Path) -> IdentityKey:
    """Write the key of `principal` by the current secret into directory `to`. Raise ConfigError."""
    key = issue(secrets_in(directory), principal)
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {to}: {error.strerror or error}") from error
    check_directory(to)
    write_private(key_file(to, principal), encode_file(key))
    return key


def rotate(directory: Path) -> ClusterSecrets:
    """Add a new secret, which is accepted from now on; daemons prove the former one until `use_newest`.

    Raise ConfigError, also for a rotation that has begun and whose secret is not in use.
    """
    known = check_begun_nowhere(directory)
    made = {known.newest() + 1: secrets.token_hex(SECRET_BYTES)}
    return _write(directory, ClusterSecrets(known.cluster, known.secrets | made, known.format, known.current()))


def check_begun_nowhere(directory: Path) -> ClusterSecrets:
    """Return the secrets. Raise ConfigError if the newest one is not in use."""
    known = secrets_in(directory)
    if known.current() != known.newest():
        raise ConfigError(
            f"a rotation has begun in {directory}: secret {known.newest()} is accepted and not used yet. Copy the"
            " directory to all machines, then continue with `rk certs renew`"
        )
    return known


def use_newest(directory: Path) -> ClusterSecrets:
    """Let daemons prove the newest secret. Raise ConfigError."""
    known = secrets_in(directory)
    return _write(directory, ClusterSecrets(known.cluster, known.secrets, known.format))


def _write(directory: Path, changed: ClusterSecrets) -> ClusterSecrets:
    write_private(directory / CLUSTER_FILE, encode_file(changed))
    return changed


def finish(directory: Path) -> list[int]:
    """Remove all secrets but the current one; return their numbers. Keys by them are worth nothing from now on."""
    known = check_begun_nowhere(directory)
    current = known.current()
    _write(directory, ClusterSecrets(known.cluster, {current: known.secrets[current]}, known.format))
    return sorted(set(known.secrets) - {current})


def write_private(path: Path, content: bytes) -> None:
    """Write a file for its owner only, durably and in one step. Raise ConfigError."""
    try:
        write_durably(path, content, mode=0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
