"""Removes the rows of a deleted table at a master's order (DD-06).

The order names the table. The server reads the table's record from the store before it removes anything. The record
of a table whose purge has begun never changes back, so an outdated copy of the record can only cause a rejection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from twisted.logger import Logger

from coord.errors import CoordError, NoNode
from coord.rpc.server import RpcError
from regions.messages import BAD_REQUEST, BUSY, Directories, Purged
from regions.records.znodes import CorruptZnode, decode_table
from regions.transitions.purging import objection_to_purge
from regionserver.opener import RegionOpener
from regionserver.workers import Submit, outcome_of

log = Logger()


class Purges:
    """Executes purges, one at a time."""

    def __init__(
        self,
        opener: RegionOpener,
        submit: Submit,
        read: Callable[[str], Awaitable[bytes]],
        hosted: Callable[[], Iterable[str]],
    ) -> None:
        """`submit` runs work in a thread. `read(table_id)` reads a table's record from the store. `hosted` returns the
        ids of the tables with a replica on this server."""
        self._opener = opener
        self._submit = submit
        self._read = read
        self._hosted = hosted
        self._running = ""

    async def purge(self, table_id: str) -> Purged:
        """Remove the table's rows; return the number of regions. Raise RpcError if the rows must not or cannot be
        removed."""
        if self._running:
            raise RpcError(BUSY, f"the rows of table {self._running} are being removed")
        self._running = table_id
        try:
            await self._check(table_id)
            return Purged(await self._in_thread(lambda: self._opener.purge(table_id)))
        finally:
            self._running = ""

    async def directories(self) -> Directories:
        """Return which tables have files."""
        return Directories(*await self._in_thread(self._opener.kept))

    async def _check(self, table_id: str) -> None:
        try:
            record = decode_table(await self._read(table_id), table_id)
        except NoNode as error:
            raise RpcError(BAD_REQUEST, f"the store has no table {table_id!r}") from error
        except (CorruptZnode, CoordError) as error:
            raise RpcError(BUSY, f"the record of table {table_id} could not be read: {error}") from error
        objection = objection_to_purge(record)
        if record.table_id != table_id:
            objection = f"the record of table {table_id} belongs to table {record.table_id}"
        if table_id in self._hosted():
            objection = f"this server has regions of table {table_id}"
        if objection:
            raise RpcError(BAD_REQUEST, f"nothing was removed: {objection}")

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        result = await outcome_of(self._submit, work)
        if isinstance(result, Exception):
            log.warn("could not access files of deleted tables: {error}", error=result)
            raise RpcError(BUSY, f"could not access files of deleted tables: {result}")
        return result
