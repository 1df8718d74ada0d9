"""Splits and merges of regions on their server, at a master's order (X11, docs/splits.md).

The server serves the regions while it prepares their daughters. Before it removes files it reads the records of the
regions and of their daughters itself: a record that is REPLACED never changes back, so an outdated order can only be
rejected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from twisted.logger import Logger

from coord.errors import CoordError, NoNode
from coord.rpc.server import RpcError
from regions.messages import (
    BAD_REQUEST,
    BUSY,
    FindSplitKey,
    PrepareRows,
    Purged,
    RemoveRegions,
    ReshardingOrder,
    RowsPrepared,
    SplitKey,
)
from regions.records.model import RegionRecord, ReplicaLocation
from regions.records.znodes import CorruptZnode, decode_region
from regionserver.errors import RegionError
from regionserver.opener import RegionOpener
from regionserver.workers import Submit, outcome_of

log = Logger()


class ReshardingService:
    """Carries out orders about splits and merges."""

    def __init__(
        self,
        opener: RegionOpener,
        submit: Submit,
        read: Callable[[str, str], Awaitable[bytes]],
        served: Callable[[tuple[str, int]], tuple[RegionRecord, ReplicaLocation] | None],
    ) -> None:
        """`submit` runs work in a thread. `read(table id, region id)` reads a region's record from the store. `served`
        returns the record and location of an open replica."""
        self._opener = opener
        self._submit = submit
        self._read = read
        self._served = served
        self._preparing: set[str] = set()

    async def answer(self, request: ReshardingOrder) -> msgspec.Struct:
        """Carry out an order. Raise RpcError."""
        if isinstance(request, FindSplitKey):
            region = self._open(request.region_id)
            return SplitKey(await self._in_thread(lambda: self._opener.split_key(region)))
        if isinstance(request, PrepareRows):
            return await self._prepare(request)
        await self._check(request)
        count = await self._in_thread(lambda: self._opener.remove_regions(request.table_id, request.region_ids))
        return Purged(count)

    async def _prepare(self, request: PrepareRows) -> RowsPrepared:
        parents = [self._open(one) for one in request.parents]
        if request.parents[0] in self._preparing:
            raise RpcError(BUSY, f"the rows of region {request.parents[0]} are being copied already")
        self._preparing.add(request.parents[0])
        try:
            await self._in_thread(lambda: self._opener.prepare_daughters(parents, request.daughters))
        finally:
            self._preparing.discard(request.parents[0])
        return RowsPrepared()

    def _open(self, region_id: str) -> RegionRecord:
        found = self._served((region_id, 0))
        if found is None:
            raise RpcError(BUSY, f"region {region_id} is not open on this server")
        return found[0]

    async def _check(self, request: RemoveRegions) -> None:
        """Raise RpcError unless the regions are replaced and all daughters have files of their own."""
        for region_id in request.region_ids:
            record = await self._record(request.table_id, region_id)
            if not record.is_replaced:
                raise RpcError(BAD_REQUEST, f"nothing was removed: region {region_id} is {record.state.value}")
        for region_id in request.daughters:
            record = await self._record(request.table_id, region_id)
            if not record.is_replaced and not record.location(0).was_opened:
                raise RpcError(BAD_REQUEST, f"nothing was removed: region {region_id} has never been open")

    async def _record(self, table_id: str, region_id: str) -> RegionRecord:
        try:
            return decode_region(await self._read(table_id, region_id), region_id)
        except NoNode as error:
            raise RpcError(BAD_REQUEST, f"the store has no region {region_id!r}") from error
        except (CorruptZnode, CoordError) as error:
            raise RpcError(BUSY, f"the record of region {region_id} could not be read: {error}") from error

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        result = await outcome_of(self._submit, work)
        if isinstance(result, RegionError):
            raise RpcError(BAD_REQUEST, str(result))
        if isinstance(result, RpcError):
            raise result
        if isinstance(result, Exception):
            log.warn("a split or merge failed: {error}", error=result)
            raise RpcError(BUSY, f"a split or merge failed: {result}")
        return result
