"""The credentials of this process. Connections prove them unless their maker gives others.

A process is one identity. Commands and daemons set it once, from --certs-dir; a program that uses the clients as a
library sets it here, or by RK_CERTS_DIR and RK_CERTS_USER in its environment. Without either, connections are open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coord.hosts import is_loopback
from coord.security.credentials import FOR_STORE, Credentials, read_daemon, read_user
from coord.security.principal import OpenDoor, Principal
from coord.security.revocation import ShownCredential
from coord.tls.context import TlsFiles

DIRECTORY_VARIABLE: Final = "RK_CERTS_DIR"
USER_VARIABLE: Final = "RK_CERTS_USER"


class _Own:
    """The one value of the process."""

    is_set = False
    credentials: Credentials | None = None
    #: Finds the credentials at the first connection.
    choose: Callable[[], Credentials | None] | None = None


def use(credentials: Credentials | None) -> None:
    """Set the credentials of this process. None makes its connections open."""
    _Own.is_set, _Own.credentials = True, credentials


def use_daemon(directory: Path | None, principal: Principal) -> None:
    """Set the credentials of a daemon, which has no other choice than its option. Raise ConfigError."""
    use(None if directory is None else read_daemon(directory, principal))


def choose_by(choose: Callable[[], Credentials | None]) -> None:
    """Have `choose` find the credentials when the first connection needs them."""
    _Own.is_set, _Own.choose = False, choose


def forget() -> None:
    """Return to the environment's choice. For tests."""
    _Own.is_set, _Own.credentials, _Own.choose = False, None, None


def store_token() -> str:
    """Return the digest credential by which this process proves its identity to store nodes, "" without a key."""
    credentials = own()
    return "" if credentials is None else credentials.token(FOR_STORE)


def shown_by_store_token(token: str) -> ShownCredential | None:
    """Return the key from which a token for store nodes is derived, as far as this process can verify tokens."""
    credentials = own()
    return None if credentials is None else credentials.shown_by(token, FOR_STORE)


def tls_files() -> TlsFiles | None:
    """Return the files by which every port of the cluster speaks TLS, None if each port has options of its own."""
    credentials = own()
    return None if credentials is None else credentials.tls_files()


def is_securing() -> bool:
    """Return True while this process also serves callers and peers without a proof (`coord.security.credentials`)."""
    credentials = own()
    return credentials is not None and credentials.is_securing()


def open_door(host: str) -> OpenDoor:
    """Return which callers without a proof this process serves at its address `host`."""
    if is_securing():
        return OpenDoor.SECURING
    return OpenDoor.EXPOSED if own() is None and not is_loopback(host) else OpenDoor.CLOSED


def secret_part_of_store_token(who: str) -> tuple[ShownCredential, str] | None:
    """Return key and last part of the token for store nodes that begins with `who`, for instance `user:alice:1`."""
    credentials = own()
    return None if credentials is None else credentials.secret_part_of(who, FOR_STORE)


def expiring() -> list[str]:
    """Return a sentence for each certificate of this process that soon expires."""
    credentials = own()
    return [] if credentials is None else credentials.expiring()


def own() -> Credentials | None:
    """Return the credentials of this process, None for open connections. Raise ConfigError."""
    if not _Own.is_set and _Own.choose is not None:
        use(_Own.choose())
    if not _Own.is_set:
        directory = os.environ.get(DIRECTORY_VARIABLE, "")
        use(read_user(Path(directory), os.environ.get(USER_VARIABLE, "")) if directory else None)
    return _Own.credentials
