"""The client of regions: finds the server of a key's region, follows the region when it moves, keeps deadlines.

    with connect("127.0.0.1:21801", root="/regionkeeper") as client:
        client.put("packages", "python3", b"3.11")
        client.get("packages", "python3")
        for key, value in client.scan("packages", "python3", "python4"): ...

Calls block. Threads may share a client: each call in progress has its own connection.

    locator.py       locations of regions, from the store, with a cache
    connections.py   requests to servers over pooled connections
    client.py        the calls and their retries

A service with requests of its own uses `RegionClient.call` (docs/regionserver.md).
"""

from regionserver.client.client import (
    Attempt,
    Change,
    DataError,
    NoSuchTable,
    OutcomeUnknown,
    Refused,
    RegionClient,
    Unavailable,
    connect,
)
from regionserver.client.locator import RegionLocator

__all__ = [
    "Attempt",
    "Change",
    "DataError",
    "NoSuchTable",
    "OutcomeUnknown",
    "Refused",
    "RegionClient",
    "RegionLocator",
    "Unavailable",
    "connect",
]
