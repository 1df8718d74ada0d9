"""The client of regions for programs that run asyncio.

    async with connect_asyncio("127.0.0.1:21801") as client:
        await client.put("packages", "python3", b"3.11")
        async for key, value in client.scan("packages", "python3", "python4"): ...

Every call is the one of `RegionClient`, with the same arguments and errors, made by a thread of the client's own pool.
So the event loop never waits. At most `CALLS_MAX` calls run at a time; further calls wait for a thread.

The cancellation of a call ends the waiting, not the call: a write may still be carried out, within its `timeout_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

import msgspec

from regions.records.model import RegionRecord
from regions.records.rows.values import Value
from regions.records.znodes import DEFAULT_ROOT
from regionserver.client.client import TIMEOUT_S, Change, RegionClient, connect
from regionserver.client.rows import Key, Row
from regionserver.client.tablets.stale import Staleness
from regionserver.request_gate import Place

T = TypeVar("T", bound=msgspec.Struct)
_P = ParamSpec("_P")
_Found = TypeVar("_Found")

#: Calls of one client that run at the same time.
CALLS_MAX: Final = 32
#: Rows of a scan that one turn of a thread brings.
_SCANNED_AT_ONCE: Final = 1_000


class AsyncRegionClient:
    """Calls to regions, for one event loop. Calls raise DataError, as those of `RegionClient`."""

    def __init__(self, client: RegionClient, threads: ThreadPoolExecutor) -> None:
        """`connect_asyncio` makes a client with its threads, and closes both."""
        self.blocking = client
        self._threads = threads

    async def get(
        self, table: str, key: str, *, timeout_s: float | None = None, staleness: Staleness | None = None
    ) -> bytes | None:
        """Return the value at `key`, or None."""
        return await self._run(self.blocking.get, table, key, timeout_s=timeout_s, staleness=staleness)

    async def put(self, table: str, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Put `value` at `key`; durable on return."""
        await self._run(self.blocking.put, table, key, value, timeout_s=timeout_s)

    async def delete(self, table: str, key: str, *, timeout_s: float | None = None) -> None:
        """Delete `key`, which need not exist; durable on return."""
        await self._run(self.blocking.delete, table, key, timeout_s=timeout_s)

    async def compare_and_set(
        self, table: str, key: str, expected: bytes | None, value: bytes | None, *, timeout_s: float | None = None
    ) -> bool:
        """Store `value` at `key` if the row's value is `expected`; return whether it was."""
        return await self._run(self.blocking.compare_and_set, table, key, expected, value, timeout_s=timeout_s)

    async def put_if_absent(self, table: str, key: str, value: bytes, *, timeout_s: float | None = None) -> bool:
        """Put `value` at `key` if there is no row; return whether it was put."""
        return await self._run(self.blocking.put_if_absent, table, key, value, timeout_s=timeout_s)

    async def write(self, table: str, changes: Iterable[Change], *, timeout_s: float | None = None) -> int:
        """Put and delete many keys and return their number."""
        return await self._run(self.blocking.write, table, changes, timeout_s=timeout_s)

    def scan(
        self,
        table: str,
        start: str = "",
        end: str = "",
        *,
        rows_max: int | None = None,
        timeout_s: float | None = None,
        staleness: Staleness | None = None,
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Yield rows of `[start, end)` by key, at most `rows_max`."""
        return self._each(
            self.blocking.scan(table, start, end, rows_max=rows_max, timeout_s=timeout_s, staleness=staleness)
        )

    async def get_row(
        self, table: str, key: Key, *, timeout_s: float | None = None, staleness: Staleness | None = None
    ) -> dict[str, Value] | None:
        """Return the row of columns with this key, or None."""
        return await self._run(self.blocking.get_row, table, key, timeout_s=timeout_s, staleness=staleness)

    async def put_row(self, table: str, row: Row, *, timeout_s: float | None = None) -> None:
        """Put a row of columns; durable on return."""
        await self._run(self.blocking.put_row, table, row, timeout_s=timeout_s)

    async def delete_row(self, table: str, key: Key, *, timeout_s: float | None = None) -> None:
        """Delete the row of columns with this key; durable on return."""
        await self._run(self.blocking.delete_row, table, key, timeout_s=timeout_s)

    def scan_rows(
        self,
        table: str,
        start: Key = None,
        end: Key = None,
        *,
        rows_max: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[dict[str, Value]]:
        """Yield rows of columns in the order of their keys."""
        return self._each(self.blocking.scan_rows(table, start, end, rows_max=rows_max, timeout_s=timeout_s))

    async def call(
        self,
        table: str,
        key: str,
        ask: Callable[[Place, RegionRecord, int], msgspec.Struct],
        expect: type[T],
        *,
        timeout_s: float | None = None,
        is_repeatable: bool = True,
    ) -> T:
        """Send a service's own request to the server that has the region of `key` open. A thread calls `ask`."""
        return await self._run(
            self.blocking.call, table, key, ask, expect, timeout_s=timeout_s, is_repeatable=is_repeatable
        )

    async def _run(self, call: Callable[_P, _Found], *args: _P.args, **kwargs: _P.kwargs) -> _Found:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))

    async def _each(self, rows: Iterator[_Found]) -> AsyncIterator[_Found]:
        while found := await self._run(lambda: list(itertools.islice(rows, _SCANNED_AT_ONCE))):
            for one in found:
                yield one


@contextlib.asynccontextmanager
async def connect_asyncio(
    store: str,
    root: str = DEFAULT_ROOT,
    *,
    connect_timeout_s: float = 10.0,
    timeout_s: float = TIMEOUT_S,
    store_auth: str = "",
) -> AsyncIterator[AsyncRegionClient]:
    """Yield a client with its own store session, as `connect`. Raise Unavailable if the store opens none in time."""
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="region-client")
    opened = connect(store, root, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s, store_auth=store_auth)
    try:
        client = await loop.run_in_executor(threads, opened.__enter__)
        try:
            yield AsyncRegionClient(client, threads)
        finally:
            await loop.run_in_executor(threads, lambda: opened.__exit__(None, None, None))
    finally:
        # Calls whose waiting was canceled end within their own time.
        threads.shutdown(wait=False)
