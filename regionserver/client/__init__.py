"""The client of regions: finds the server that has a key's region open, follows it when it moves, within a deadline.

    with connect("127.0.0.1:21801", root="/regionkeeper") as client:
        client.put("packages", "python3", b"3.11")
        client.get("packages", "python3")
        for key, value in client.scan("packages", "python3", "python4"): ...

Blocking, and safe to share between threads: each call under way has a connection of its own.

    places.py        where regions are, from the store, with a cache
    connections.py   requests to servers over kept connections
    client.py        the calls, and what is done again when

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
from regionserver.client.places import Places

__all__ = [
    "Attempt",
    "Change",
    "DataError",
    "NoSuchTable",
    "OutcomeUnknown",
    "Places",
    "Refused",
    "RegionClient",
    "Unavailable",
    "connect",
]
