"""Secrets of a cluster and keys of identities, as files in JSON. Pure.

A cluster has one secret, or two while it is rotated. The key of an identity is derived from a secret:

    key = HMAC-SHA-256(secret, cluster, kind, name)

So a daemon, which has the secret, verifies every identity without a list of them, and a user, who has only one key,
cannot act for anybody else. Secrets are numbered; a key has the number of its secret.
"""

from __future__ import annotations

import hmac
from typing import Final, TypeVar

import msgspec

from coord.errors import ConfigError
from coord.security.principal import Principal, is_valid

SECRET_BYTES: Final = 32
KEY_BYTES: Final = 32
FORMAT: Final = 1
_PURPOSE: Final = "regionkeeper identity 1"


class ClusterSecrets(msgspec.Struct, frozen=True):
    """The content of `cluster-secret.json`, which only daemons and whoever issues keys can read."""

    #: Random; distinguishes the credentials of two clusters in messages and in every MAC.
    cluster: str
    #: Number -> secret in hexadecimal. All are accepted.
    secrets: dict[int, str]
    format: int = FORMAT
    #: Number of the secret that daemons prove; 0: the newest one. A rotation sets it, because a daemon must not prove a
    #: secret before all others have received the file with it.
    used: int = 0

    def newest(self) -> int:
        """Return the number of the secret that new keys of users come from."""
        return max(self.secrets)

    def current(self) -> int:
        """Return the number of the secret that daemons prove."""
        return self.used if self.used in self.secrets else self.newest()

    def key_of(self, identity: Principal, number: int) -> bytes | None:
        """Return the key of `identity` by secret `number`, None if the cluster does not have this secret."""
        secret = self.secrets.get(number)
        return None if secret is None else derive(bytes.fromhex(secret), self.cluster, identity)


class IdentityKey(msgspec.Struct, frozen=True):
    """The content of `user.NAME.json`: the key of one user."""

    cluster: str
    kind: str
    name: str
    number: int
    key: str
    format: int = FORMAT

    @property
    def principal(self) -> Principal:
        """The identity that the key belongs to."""
        return Principal(self.kind, self.name)


F = TypeVar("F", ClusterSecrets, IdentityKey)


def derive(secret: bytes, cluster: str, identity: Principal) -> bytes:
    """Return the key of `identity`."""
    return hmac.digest(secret, msgspec.msgpack.encode([_PURPOSE, cluster, identity.kind, identity.name]), "sha256")


def issue(secrets: ClusterSecrets, identity: Principal) -> IdentityKey:
    """Return the key of a user by the newest secret, or of a daemon by the current one."""
    number = secrets.current() if identity.is_daemon else secrets.newest()
    key = secrets.key_of(identity, number)
    assert key is not None
    return IdentityKey(secrets.cluster, identity.kind, identity.name, number, key.hex())


def decode_secrets(data: bytes, where: str) -> ClusterSecrets:
    """Return the content of a `cluster-secret.json`; `where` names the file in errors. Raise ConfigError."""
    found = _decode(data, ClusterSecrets, where)
    if not found.cluster or not found.secrets or not all(_is_hex(one, SECRET_BYTES) for one in found.secrets.values()):
        raise ConfigError(f"{where}: no usable secret of a cluster; `rk certs init` makes one")
    return found


def decode_key(data: bytes, where: str) -> IdentityKey:
    """Return the content of a `user.NAME.json`; `where` names the file in errors. Raise ConfigError."""
    found = _decode(data, IdentityKey, where)
    if not found.cluster or not is_valid(found.kind, found.name) or not _is_hex(found.key, KEY_BYTES):
        raise ConfigError(f"{where}: no usable key of an identity; `rk certs issue` makes one")
    return found


def encode_file(content: ClusterSecrets | IdentityKey) -> bytes:
    """Return the bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _decode(data: bytes, kind: type[F], where: str) -> F:
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: not what `rk certs` writes: {error}") from error
    if found.format != FORMAT:
        raise ConfigError(f"{where}: format {found.format} is of a newer version; this version reads {FORMAT}")
    return found


def _is_hex(text: str, length: int) -> bool:
    try:
        return len(bytes.fromhex(text)) == length
    except ValueError:
        return False
