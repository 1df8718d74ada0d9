"""The client of regions: finds the server of a key's region, follows the region when it moves, keeps deadlines.

    with connect("127.0.0.1:21801", root="/regionkeeper") as client:
        client.put("packages", "python3", b"3.11")
        client.get("packages", "python3")
        for key, value in client.scan("packages", "python3", "python4"): ...

Any member of a tablet may answer a read that may miss the last writes:

        staleness = Staleness(bound_ms=5000)
        client.get("packages", "python3", staleness=staleness)
        print(staleness.age_ms)

A table with columns has rows of columns (docs/rows.md):

        client.put_row("sales", {"id": 5, "amount": 2.5})
        client.get_row("sales", {"id": 5})
        for row in client.scan_rows("sales", {"id": 5}, {"id": 9}): ...

Calls block. Threads may share a client: each call in progress has its own connection.

    asyncio_client.py  the same calls for programs that run asyncio
    client.py        the calls, for each storage of tables
    rows.py          rows of columns: encoded and decoded under the table's schema, which is read again when it changes
    shared.py        calls to the server that has a shared region open, and their retries
    tablets/         calls to tablets: the leader is found and followed, and a write is carried out once
    errors.py        errors of calls, and the meaning of codes
    locator.py       locations of regions, from the store, with a cache
    connections.py   requests to servers over pooled connections
    store.py         reads from the store with deadlines

A service with requests of its own uses `RegionClient.call` (docs/regionserver.md).
"""

from regionserver.client.asyncio_client import AsyncRegionClient, connect_asyncio
from regionserver.client.client import Change, RegionClient, connect
from regionserver.client.errors import (
    Attempt,
    DataError,
    Forbidden,
    NoSuchTable,
    OutcomeUnknown,
    RecordDamaged,
    Refused,
    TableDisabled,
    Unavailable,
    WrongArgument,
    WrongRow,
)
from regionserver.client.locator import RegionLocator
from regionserver.client.tablets.stale import Staleness

__all__ = [
    "AsyncRegionClient",
    "Attempt",
    "Change",
    "DataError",
    "Forbidden",
    "NoSuchTable",
    "OutcomeUnknown",
    "RecordDamaged",
    "Refused",
    "RegionClient",
    "RegionLocator",
    "Staleness",
    "TableDisabled",
    "Unavailable",
    "WrongArgument",
    "WrongRow",
    "connect",
    "connect_asyncio",
]
