"""The asyncio client: the event loop goes on while a call waits; results and errors are as of the blocking client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from regionserver.client import RegionClient, Unavailable, connect_asyncio
from regionserver.client.asyncio_client import _SCANNED_AT_ONCE, CALLS_MAX, AsyncRegionClient
from regionserver.client.tablets.stale import Staleness
from tests.support.helpers import free_ports


class Blocking:
    """Answers of a blocking client; `get` waits until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.running = threading.Semaphore(0)

    def get(self, table: str, key: str, *, timeout_s: float | None = None, staleness: Staleness | None = None) -> bytes:
        """Wait for the release."""
        assert staleness is None
        self.running.release()
        assert self.released.wait(60)
        return f"{table} {key} {timeout_s}".encode()

    def put(self, *_: object, **__: object) -> None:
        """Fail."""
        raise Unavailable("nobody answers")

    def scan(self, *_: object, **__: object) -> Iterator[tuple[str, bytes]]:
        """Yield more rows than one turn brings, then fail."""
        yield from ((str(number), b"") for number in range(_SCANNED_AT_ONCE * 2 + 1))
        raise Unavailable("the last region is gone")


def client_of(blocking: Blocking) -> AsyncRegionClient:
    """Return the client over a fake blocking one."""
    return AsyncRegionClient(cast(RegionClient, blocking), ThreadPoolExecutor(CALLS_MAX))


def test_the_loop_goes_on_while_calls_wait() -> None:
    """All threads are busy, and the loop itself releases them; a further call waits for a thread and is answered."""
    blocking = Blocking()

    async def main() -> list[bytes | None]:
        client = client_of(blocking)
        calls = [asyncio.ensure_future(client.get("t", str(n), timeout_s=5)) for n in range(CALLS_MAX + 1)]
        assert await asyncio.to_thread(lambda: all(blocking.running.acquire(timeout=60) for _ in range(CALLS_MAX)))
        assert not blocking.running.acquire(blocking=False)
        blocking.released.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [f"t {n} 5".encode() for n in range(CALLS_MAX + 1)]


def test_errors_are_those_of_the_blocking_client() -> None:
    """Also in the middle of a scan, after the rows that were read."""
    seen: list[str] = []

    async def main() -> None:
        client = client_of(Blocking())
        with pytest.raises(Unavailable, match="nobody answers"):
            await client.put("t", "k", b"v")
        with pytest.raises(Unavailable, match="the last region is gone"):
            await collect(client)

    async def collect(client: AsyncRegionClient) -> None:
        async for key, _ in client.scan("t"):
            seen.append(key)

    asyncio.run(main())
    assert seen == [str(number) for number in range(_SCANNED_AT_ONCE * 2)]


def test_a_store_that_does_not_answer_is_unavailable() -> None:
    async def main() -> None:
        async with connect_asyncio(f"127.0.0.1:{free_ports(1)[0]}", connect_timeout_s=0.1):
            raise AssertionError("unreachable")

    with pytest.raises(Unavailable):
        asyncio.run(main())


@pytest.mark.parametrize("name", [name for name in vars(AsyncRegionClient) if not name.startswith("_")])
def test_calls_take_the_arguments_of_the_blocking_client(name: str) -> None:
    def parameters(of: Any) -> dict[str, Any]:
        found = inspect.signature(getattr(of, name)).parameters
        return {one: value.default for one, value in found.items() if one != "schema_version"}

    assert parameters(AsyncRegionClient) == parameters(RegionClient)
