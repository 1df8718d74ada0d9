"""Make and change the certificates in a directory of --certs-dir: the authority, and those it issues.

`ca.crt` may hold several authorities, the newest first. Daemons accept all of them, and `ca.key` is the key of the
newest. So an authority can be rotated while old certificates are still in use.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from coord.errors import ConfigError
from coord.security.certificates.authority import Pair, issue_certificate, make_authority
from coord.security.credentials import (
    AUTHORITY_FILE,
    CERTIFICATE_SUFFIX,
    CLUSTER_FILE,
    EVERY_PORT_FILE,
    check_directory,
    read_private,
)
from coord.security.making import PEERS_FILE, secrets_in, write_private
from coord.security.principal import Principal

AUTHORITY_KEY: Final = "ca.key"
_END: Final = b"-----END CERTIFICATE-----\n"


def has_authority(directory: Path) -> bool:
    """Return True if certificates can be issued here."""
    return (directory / AUTHORITY_KEY).exists()


def has_keys_alone(directory: Path) -> bool:
    """Return True if the directory has the secrets of a cluster, but no authority."""
    return (directory / CLUSTER_FILE).exists() and not has_authority(directory)


def init_authority(directory: Path, now: datetime.datetime) -> None:
    """Make the authority of the cluster. Raise ConfigError if there is one."""
    cluster = secrets_in(directory).cluster
    if has_authority(directory):
        raise ConfigError(f"{directory} has an authority already; `rk certs rotate` makes another one")
    write_private(directory / EVERY_PORT_FILE, b"Every port of this cluster speaks TLS.\n")
    _write_authority(directory, make_authority(cluster, now), b"")


def issue(directory: Path, principal: Principal, hosts: Sequence[str], to: Path, now: datetime.datetime) -> None:
    """Write certificate and key of `principal` into directory `to`, with all else that it needs. Raise ConfigError."""
    check_directory(directory)
    if principal.is_daemon and not hosts:
        raise ConfigError(f"callers of {principal} check its host: name it with --host, once for each name or address")
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        authorities = (directory / AUTHORITY_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot use {error.filename}: {error.strerror}") from error
    check_directory(to)
    authority = Pair(authorities, read_private(directory / AUTHORITY_KEY))
    made = issue_certificate(authority, secrets_in(directory).cluster, principal, hosts, now)
    target = to / f"{principal.kind}.{principal.name}{CERTIFICATE_SUFFIX}"
    write_private(target.with_suffix(".key"), made.key)
    write_private(target, made.certificate)
    if to.resolve() == directory.resolve():
        return
    write_private(to / AUTHORITY_FILE, authorities)
    names = [CLUSTER_FILE, PEERS_FILE] if principal.is_daemon else []
    if (directory / EVERY_PORT_FILE).exists():
        names.append(EVERY_PORT_FILE)
    for name in names:
        write_private(to / name, read_private(directory / name))


def rotate_authority(directory: Path, now: datetime.datetime) -> None:
    """Make a new authority; certificates of the former ones are accepted until `finish_authority`."""
    known = _authorities(directory)
    _write_authority(directory, make_authority(secrets_in(directory).cluster, now), known)


def finish_authority(directory: Path) -> None:
    """Accept certificates of the newest authority only."""
    known = _authorities(directory)
    write_private(directory / AUTHORITY_FILE, known[: known.index(_END) + len(_END)])


def _authorities(directory: Path) -> bytes:
    try:
        return (directory / AUTHORITY_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error


def _write_authority(directory: Path, made: Pair, former: bytes) -> None:
    write_private(directory / AUTHORITY_KEY, made.key)
    write_private(directory / AUTHORITY_FILE, made.certificate + former)
