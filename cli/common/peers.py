"""Options of daemons that talk to their peers: certificates and a shared secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from cli.common.options import apply_options
from coord.errors import ConfigError
from coord.tls.context import TlsFiles

_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def peer_options(command: _Command) -> _Command:
    """Add the options by which region servers prove to each other that they belong to one cluster."""

    def pem(name: str, text: str) -> Callable[[Any], Any]:
        return click.option(name, type=_FILE, metavar="PEM", help=text)

    return apply_options(
        command,
        [
            pem("--peer-tls-cert", "This server's certificate for the other servers."),
            pem("--peer-tls-key", "Key of the certificate, if it is in another file."),
            pem("--peer-tls-ca", "Authority of the servers' certificates, and of no others."),
            click.option(
                "--peer-tls-host-check/--no-peer-tls-host-check",
                default=None,
                help="Whether a server's certificate must name the host of its address, so that no server can pose as"
                " another.  [default: --peer-tls-host-check]",
            ),
            click.option(
                "--peer-secret-file",
                type=_FILE,
                metavar="FILE",
                help="Secret that all servers share, at least 16 bytes.",
            ),
        ],
    )


def peer_secret(file: Path | None) -> bytes:
    """Return the secret in a file, b"" without one. Raise ConfigError."""
    if file is None:
        return b""
    from coord.server.config.secrets import read_peer_secret, warn_if_open

    for warning in warn_if_open(file):
        click.echo(f"warning: {warning}", err=True)
    return read_peer_secret(file)


def peer_tls(cert: Path | None, key: Path | None, ca: Path | None, *, verify_host: bool | None) -> TlsFiles | None:
    """Return the certificates for peers, None without any. Raise ConfigError if some are missing.

    `verify_host` is None if the option was not given; then hosts are checked.
    """
    if cert is not None and ca is not None:
        return TlsFiles(cert=cert, key=key, ca=ca, client_auth="need", verify_host=verify_host is not False)
    if cert is not None or key is not None or ca is not None or verify_host:
        raise ConfigError("--peer-tls-cert and --peer-tls-ca must be given together")
    return None
