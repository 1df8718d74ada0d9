"""Rows written in batches: cut at the bounds of regions and of requests, several requests at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from regions.records.model import RegionRecord
from regions.records.partitioning import place
from regionserver.client import Change, NoSuchTable, RegionClient
from regionserver.kv.messages import KEYS_MAX, WRITE_BYTES_MAX


def by_region(client: RegionClient, table: str, rows: list[Change]) -> list[list[Change]]:
    """Return batches of rows, in the order of their placed keys, split at region bounds and request limits."""
    regions, record = client.locator.regions(table), client.locator.table(table)
    if regions is None or record is None:
        raise NoSuchTable(f"table {table!r} does not exist")
    return batches_of(regions, record.hash_buckets, rows)


def batches_of(regions: list[RegionRecord], buckets: int, rows: Iterable[Change]) -> list[list[Change]]:
    """As `by_region`, for the regions of a table in key order."""
    batches: list[list[Change]] = []
    at, size = -1, 0
    for placed, row in sorted((place(row.key, buckets), row) for row in rows):
        begins = False
        while at < 0 or not regions[at].contains(placed):
            at, begins = at + 1, True
        bytes_of_it = len(placed.encode()) + len(row.value or b"")
        if begins or len(batches[-1]) == KEYS_MAX or size + bytes_of_it > WRITE_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += bytes_of_it
    return batches


def in_parallel(
    pool: ThreadPoolExecutor,
    client: RegionClient,
    table: str,
    batches: list[list[Change]],
    at_once: int,
    schema_version: int,
) -> Iterator[int]:
    """Write the batches with `at_once` in flight; yield the rows of each finished batch. Raise the first DataError."""
    left = iter(batches)
    running: set[Future[int]] = set()
    try:
        while True:
            for batch in left:
                running.add(pool.submit(client.write, table, batch, schema_version=schema_version))
                if len(running) >= at_once:
                    break
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()
    finally:
        for one in running:
            one.cancel()
