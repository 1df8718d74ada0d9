"""Hosts that only this machine reaches. Imports nothing of the package: the planner's archive for Spark has it, too."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a socket on this host. A name other than `localhost` may be any
    machine's."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
