"""The check of the Host header on admin ports, against DNS rebinding.

A page from anywhere in an operator's browser can make its own host name resolve to this machine. The browser then sends
that name as Host and lets the page read the replies. So a port answers only to the names that it is known by. Addresses
need no check: the browser would have to load the foreign page from that very address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


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
