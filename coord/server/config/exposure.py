"""Which ports of a store node serve everybody on addresses that other machines reach."""

from __future__ import annotations

from typing import Final

from coord.errors import ConfigError
from coord.hosts import is_loopback
from coord.security import process
from coord.security.principal import OpenDoor
from coord.server.config.addresses import Address, shown
from coord.server.config.settings import StoreSettings
from coord.tls.context import NEED

#: Schemes of identities that a stranger cannot prove. A `digest` is proved by every user with every password.
_PROVING: Final = frozenset({"rk", "sasl", "x509"})
CLIENT_REMEDY: Final = "--require-auth rk with --certs-dir, or TLS with --tls-ca"
PEER_REMEDY: Final = "--peer-secret-file, or --peer-tls-cert and --peer-tls-ca"
ADMIN_REMEDY: Final = "--certs-dir"


def open_ports(settings: StoreSettings, *, has_certs: bool) -> list[tuple[str, str]]:
    """Return each port that other machines reach and that serves everybody, with the options that close it.

    `has_certs`: the node has credentials, which its admin port demands.
    """
    found = []
    secure = settings.secure_client_address
    is_proved = bool(_PROVING.intersection(settings.required_schemes))
    by_tls = settings.tls is not None and settings.tls.client_auth == NEED
    plain = None if settings.client_address == secure else settings.client_address
    for name, address, closed in (("client port", plain, False), ("secure client port", secure, by_tls)):
        if is_exposed(address) and not is_proved and not closed:
            found.append((f"{name} {_named(address)}", CLIENT_REMEDY))
    if is_exposed(settings.peer_address) and settings.peer_tls is None and not settings.peer_secret:
        found.append((f"peer port {_named(settings.peer_address)}", PEER_REMEDY))
    if is_exposed(settings.admin_address) and not has_certs:
        found.append((f"admin port {_named(settings.admin_address)}", ADMIN_REMEDY))
    return found


def open_door(settings: StoreSettings) -> OpenDoor:
    """Return which callers and peers without a proof a running node serves."""
    if process.is_securing():
        return OpenDoor.SECURING
    return OpenDoor.EXPOSED if open_ports(settings, has_certs=process.own() is not None) else OpenDoor.CLOSED


def check_exposed(settings: StoreSettings, *, has_certs: bool) -> None:
    """Raise ConfigError if a port serves everybody on an address that other machines reach."""
    found = open_ports(settings, has_certs=has_certs)
    if found:
        ports = " and ".join(port for port, _ in found)
        remedies = "; ".join(f"{port.rpartition(' ')[0]}: {remedy}" for port, remedy in found)
        raise ConfigError(
            f"the node serves everybody on the {ports}, which other machines reach. Give"
            f" credentials ({remedies}), or --insecure on a network that you trust"
        )


def is_exposed(address: Address | None) -> bool:
    """Return True if other machines may reach an address to listen on."""
    return address is not None and not is_loopback(address[0])


def _named(address: Address | None) -> str:
    assert address is not None, "only exposed ports are named"
    return shown(address)
