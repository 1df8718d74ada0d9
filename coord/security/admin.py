"""The right to read an admin port: the one function that decides about a request, and the token that it checks.

    GET /metrics
    Authorization: Bearer user:alice:1:9f…       principal, number of the secret, HMAC of its key

The token of a principal follows from the principal's key, so every daemon verifies it without a list, and the rotation
of the secret ends it. `rk certs token` prints it, for Prometheus and curl. /health and /ready reveal no names and are
open to every probe.

The Host header is checked first, against DNS rebinding: a foreign page in an operator's browser can make its own host
name resolve to this machine. The browser then sends that name as Host and lets the page read the replies. So a port
answers only to its own names. Addresses need no check, because a page with an address as its host was loaded from that
address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from coord.security.credentials import Credentials
from coord.security.principal import NOBODY
from coord.security.tls_channel import principal_in, revoked_peer
from coord.tls.context import Engine

#: Pages for everybody.
OPEN_PATHS: Final = frozenset({"/health", "/ready"})
_BEARER: Final = "Bearer "


def objection(credentials: Credentials | None, path: str, token: str) -> tuple[int, str] | None:
    """Return HTTP status and sentence of a rejected request, None for one that is served.

    `credentials`: those of this daemon, None if it is open. `token`: as sent, "" for none.
    """
    if credentials is None or path in OPEN_PATHS or (not token and credentials.is_securing()):
        return None
    if not token:
        return 401, "This daemon is secured: send `Authorization: Bearer TOKEN`, with the token of `rk certs token`."
    if credentials.principal_of(token) is None:
        return 401, "The token is not valid (any more): `rk certs token` prints the present one."
    return None


def is_certified(engine: Engine) -> bool:
    """Return True if the caller has shown a certificate of a principal of the cluster, and it is not revoked."""
    return any(principal_in(uri) is not NOBODY for uri in engine.peer_uris()) and not revoked_peer(engine)


def headers(credentials: Credentials | None) -> dict[str, str]:
    """Return the headers of a request to an admin port."""
    return {} if credentials is None else {"Authorization": _BEARER + credentials.token()}


def is_known_host(header: str | None, names: Collection[str]) -> bool:
    """Return True if a Host header is an address, a loopback name, or one of `names`.

    None: the request has no Host, as from simple probes; browsers always send one.
    """
    if header is None:
        return True
    host = _without_port(header.strip()).lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) or host in {one.lower().rstrip(".") for one in names}


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdecimal() and ":" not in name else header


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
