"""Encoded rows, written region by region through the client.

Rows are collected up to CHUNK_ROWS or CHUNK_BYTES, sorted, cut at the bounds of regions and requests, and written with
several requests at once. A put of the same row again changes nothing, so a task may run twice (docs/spark.md says what
is promised).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cli.rows.writing import batches_of, in_parallel
from pyspark_regionkeeper.errors import SourceError
from regions.records.model import RegionRecord
from regions.records.rows.codec import EncodedRow, shown
from regionserver.client import Change, Refused, RegionClient
from regionserver.kv.messages import SCHEMA_CHANGED

CHUNK_ROWS: Final = 50_000
CHUNK_BYTES: Final = 32 * 1024 * 1024


class TableTarget:
    """The table that a task writes into."""

    def __init__(
        self, client: RegionClient, table: str, regions: list[RegionRecord], buckets: int, version: int, threads: int
    ) -> None:
        """`version`: of the schema under which the rows are encoded."""
        self._client = client
        self._table = table
        self._regions = regions
        self._buckets = buckets
        self._version = version
        self._threads = threads

    def write(self, rows: Iterable[EncodedRow]) -> int:
        """Write all rows; return their number. Raise DataError, SourceError."""
        count = 0
        with ThreadPoolExecutor(self._threads) as pool:
            for chunk in chunks(rows):
                check_different(self._table, chunk)
                batches = batches_of(self._regions, self._buckets, chunk)
                try:
                    for written in in_parallel(
                        pool, self._client, self._table, batches, 2 * self._threads, self._version
                    ):
                        count += written
                except Refused as error:
                    if error.code != SCHEMA_CHANGED:
                        raise
                    raise SourceError(
                        f"table {self._table!r} was altered meanwhile: {error}; write the frame again: rows that were"
                        " written are replaced"
                    ) from None
        return count


def chunks(
    rows: Iterable[EncodedRow], rows_max: int = CHUNK_ROWS, bytes_max: int = CHUNK_BYTES
) -> Iterator[list[Change]]:
    """Cut rows into lists that fit into memory."""
    chunk: list[Change] = []
    size = 0
    for row in rows:
        chunk.append(Change(row.key, row.value))
        size += len(row.key) + len(row.value)
        if len(chunk) == rows_max or size >= bytes_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def check_different(table: str, chunk: list[Change]) -> None:
    """Raise SourceError for two rows with the same key: only one of them could stay."""
    seen: set[str] = set()
    for one in chunk:
        if one.key in seen:
            raise SourceError(f"table {table!r}: two rows have the same key {shown(one.key)}")
        seen.add(one.key)


__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "TableTarget", "check_different", "chunks"]
