"""Removes the rows of deleted tables after their grace period (DD-06, `regions/transitions/purging.py`).

Each step depends only on the table's record, so the next active master continues where this one stopped:

1. Write `purging_ms` into the record by compare-and-set. From here on the table cannot be restored.
2. Order a live server of the table's kind to remove the rows. The server first reads the record itself, and does not
   remove rows of a region that is open. The order is sent to one server after the other until one has succeeded. The
   rows of tablets are on many servers: the keeper of tablets orders each server to delete its replicas.
3. Write `purged_ms` into the record.

The clock is the active master's. The grace period begins at the time of the deletion in the record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from twisted.logger import Logger

from coord.errors import MultiFailed
from coord.rpc.server import RpcError
from master.catalog import store, tables
from master.catalog.locks import Lock, LockTable, Rank
from master.context import ActiveContext
from regions.records.kinds import can_open
from regions.records.model import ServerRecord, TableRecord
from regions.records.znodes import decode_table
from regions.transitions.purging import is_awaiting_purge

log = Logger()

#: Pause after a failed order. The next order goes to another server, if there is one.
RETRY_MS: Final = 10_000
#: Pause before the servers' reports are looked at again while a table's tablets are being deleted.
TABLETS_RETRY_MS: Final = 1_000
#: Limit of the tables that are purged at a time: removing files loads the servers' disks, and nothing waits for it.
PURGES_MAX: Final = 2


class Purging:
    """See the module docstring. One per tenure."""

    def __init__(
        self, active_master: ActiveContext, locks: LockTable, now_ms: Callable[[], int], grace_ms: int
    ) -> None:
        self._active_master = active_master
        self._locks = locks
        self._now_ms = now_ms
        self.grace_ms = grace_ms
        #: Records of deleted and closed tables that still have rows, by table id; None until they have been read.
        self.waiting: dict[str, TableRecord] | None = None
        self._is_reading = False
        self._running: set[str] = set()
        #: Time of the next attempt and number of attempts, by table id.
        self._next_ms: dict[str, int] = {}
        self._tries: dict[str, int] = {}

    def finished(self, table: TableRecord) -> None:
        """Add a deleted table whose regions are all closed."""
        if self.waiting is not None:
            self.waiting[table.table_id] = table

    def forget(self, table_id: str) -> None:
        """Remove a table that is purged or has been restored."""
        for known in (self.waiting or {}, self._next_ms, self._tries):
            known.pop(table_id, None)

    def tick(self) -> None:
        """Begin to purge the tables that are due."""
        if self.waiting is None:
            if not self._is_reading:
                self._is_reading = True
                self._active_master.persist(self._read)
            return
        now_ms = self._now_ms()
        for table_id, table in self.waiting.items():
            if len(self._running) >= PURGES_MAX:
                return
            # A purge that has begun continues, even if this master's clock is behind.
            due_ms = max(0 if table.purging_ms else table.purge_at_ms, self._next_ms.get(table_id, 0))
            if due_ms <= now_ms and table_id not in self._running:
                self._running.add(table_id)
                self._active_master.persist(partial(self._purge_once, table_id))

    async def _read(self) -> None:
        fence = self._active_master.fence
        found = await store.load_tables(fence.client, fence.layout)
        self.waiting = {table.table_id: table for table, _ in found if is_awaiting_purge(table)}

    async def _purge_once(self, table_id: str) -> None:
        try:
            await self._purge(table_id)
        finally:
            self._running.discard(table_id)

    async def _purge(self, table_id: str) -> None:
        table = await self._claimed(table_id)
        if table is None:
            return
        if table.is_tablet:
            await self._purge_tablets(table)
            return
        server = self._server_for(table)
        self._next_ms[table_id] = self._now_ms() + RETRY_MS
        self._tries[table_id] = self._tries.get(table_id, 0) + 1
        if server is None:
            return
        try:
            answer = await self._active_master.order_purge(server, table_id)
        except RpcError as error:
            log.warn("could not remove the rows of deleted table {table} on server {server}, trying again in {s:.0f} s:"
                     " {error}", table=table.name, server=server.uuid, s=RETRY_MS / 1000, error=error)  # fmt: skip
            return
        if await self._write(table_id, purged_ms=self._now_ms()) is None:
            return  # the next attempt reads the record again
        self.forget(table_id)
        log.info(
            "removed the rows of deleted table {table} ({table_id}): {regions} regions",
            table=table.name,
            table_id=table_id,
            regions=answer.regions,
        )

    async def _purge_tablets(self, table: TableRecord) -> None:
        """Have every server delete its replicas, and write the end once no live server reports one."""
        self._next_ms[table.table_id] = self._now_ms() + TABLETS_RETRY_MS
        if await self._active_master.keeper.purge(table.table_id):
            return
        if await self._write(table.table_id, purged_ms=self._now_ms()) is None:
            return  # the next attempt reads the record again
        self.forget(table.table_id)
        self._active_master.keeper.purged(table.table_id)
        log.info("removed the tablets of deleted table {table} ({table_id})", table=table.name, table_id=table.table_id)

    async def _claimed(self, table_id: str) -> TableRecord | None:
        """Return the table's record with `purging_ms`, which is written now if the grace period is over. Otherwise
        return None."""
        found = await self._latest(table_id)
        if found is None:
            self.forget(table_id)
            return None
        now_ms = self._now_ms()
        if found.purging_ms:
            return found
        if not found.purge_at_ms:  # deleted by a version that never purged: the grace period begins now
            self._keep(await self._write(table_id, purge_at_ms=now_ms + self.grace_ms))
            return None
        if now_ms < found.purge_at_ms:
            self._keep(found)
            return None
        return await self._write(table_id, purging_ms=now_ms)

    def _keep(self, table: TableRecord | None) -> None:
        """Update the record of a table whose grace period is not over."""
        if table is not None and self.waiting is not None:
            self.waiting[table.table_id] = table

    async def _latest(self, table_id: str) -> TableRecord | None:
        """Return the record from the store, or None if the table does not await a purge."""
        fence = self._active_master.fence
        read = await store.read_all(fence.client, [fence.layout.table(table_id)])
        records = [table for table, _ in store.decoded(read, decode_table) if is_awaiting_purge(table)]
        return records[0] if records else None

    async def _write(self, table_id: str, **changes: int) -> TableRecord | None:
        """Change the record by compare-and-set under the table's lock. Return None if it could not be changed."""
        fence = self._active_master.fence
        async with self._locks.hold(Lock(Rank.TABLE, table_id)):
            read = await store.read_all(fence.client, [fence.layout.table(table_id)])
            for table, version in store.decoded(read, decode_table):
                if not is_awaiting_purge(table):
                    break
                changed = msgspec.structs.replace(table, **changes)
                try:
                    await tables.change(fence, changed, version, [])
                except MultiFailed as error:
                    log.info("could not update deleted table {table}, its record was changed at the same time: {error}",
                             table=table.name, error=error)  # fmt: skip
                    return None
                return changed
        return None

    def _server_for(self, table: TableRecord) -> ServerRecord | None:
        """Return a live server that can remove the table's rows, a different one at each attempt; None without one."""
        able = sorted(
            (
                one
                for one in self._active_master.world.servers.values()
                if not one.fencing and can_open(one.kind, table.kind)
            ),
            key=lambda one: (one.group != table.group, one.uuid),
        )
        return able[(self._tries.get(table.table_id, 1) - 1) % len(able)].record if able else None
