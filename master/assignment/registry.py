"""Live servers: the ephemerals below `/servers`, and the znodes below `/draining`, `/fenced` and `/barred`.

After an event the whole lists are read again, once for any number of events. A server counts as dead when its ephemeral
is gone or belongs to another start of the server (RF-01).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.requests import gather
from coord.client.session import SessionState, ZkClient
from master.catalog.store import Loaded, read_all
from regions.assign.assigner import Assigner
from regions.records.model import BarRecord, FenceRecord, ServerRecord, TransitionRecord
from regions.records.znodes import CorruptZnode, Layout, decode_bar, decode_fence, decode_server

log = Logger()

T = TypeVar("T")

#: Live servers, uuids of draining servers, records of fenced servers, and bars.
Found = tuple[list[ServerRecord], list[str], list[FenceRecord], list[BarRecord]]
Changed = Callable[[list[ServerRecord], list[str], list[FenceRecord], list[BarRecord]], None]


class Registry:
    """The lists of live, draining, fenced and barred servers. Calls `changed(...)` after each change."""

    def __init__(self, client: ZkClient, layout: Layout, changed: Changed, failed: Callable[[Failure], None]) -> None:
        self._client = client
        self._layout = layout
        self._changed = changed
        self._failed = failed
        self._reading = False
        self._is_outdated = False
        self._closed = False
        self.servers: list[ServerRecord] = []
        self.draining: list[str] = []
        self.fences: list[FenceRecord] = []
        self.bars: list[BarRecord] = []

    async def start(self) -> None:
        """Set the watches and read the lists for the first time, without calling `changed`."""
        await gather(self._client.add_watch(path, self._event, recursive=True) for path in self._watched())
        self.servers, self.draining, self.fences, self.bars = await self._read()

    def _watched(self) -> tuple[str, str, str, str]:
        return self._layout.servers, self._layout.draining, self._layout.fenced, self._layout.barred

    def close(self) -> None:
        """Stop. Remove the watches if the session continues."""
        self._closed = True
        if self._client.state is SessionState.CONNECTED:
            for path in self._watched():
                self._client.remove_watch(path, self._event).addErrback(lambda _: None)

    def _event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - read the list
        if self._closed:
            return
        self._is_outdated = True
        if not self._reading:
            self._reading = True
            ensureDeferred(self._refresh()).addErrback(self._refresh_failed)

    async def _refresh(self) -> None:
        try:
            while self._is_outdated and not self._closed:
                self._is_outdated = False
                found = await self._read()
                if not self._closed and found != (self.servers, self.draining, self.fences, self.bars):
                    self.servers, self.draining, self.fences, self.bars = found
                    self._changed(*found)
        finally:
            self._reading = False

    def _refresh_failed(self, failure: Failure) -> None:
        self._is_outdated = True  # if the session survives, the gap event starts another read
        if not self._closed:
            self._failed(failure)

    async def _read(self) -> Found:
        uuids, draining, fenced, barred = await gather(self._client.children(path) for path in self._watched())
        lived = {self._layout.server(one.uuid): one for one in self.servers}
        servers = await self._records([self._layout.server(uuid) for uuid in sorted(uuids)], decode_server, lived)
        marks = {self._layout.fence_mark(one.server.uuid): one for one in self.fences}
        fences = await self._records([self._layout.fence_mark(uuid) for uuid in sorted(fenced)], decode_fence, marks)
        known = {self._layout.bar(one.uuid): one for one in self.bars}
        bars = await self._records([self._layout.bar(uuid) for uuid in sorted(barred)], decode_bar, known)
        return servers, sorted(draining), fences, bars

    async def _records(self, paths: list[str], decode: Callable[[bytes, str], T], known: dict[str, T]) -> list[T]:
        """Read and decode the znodes at `paths`.

        Keep the record in `known` for a znode whose value is damaged: only the deletion of the znode means that the
        server has died.
        """
        records: list[T] = []
        if not paths:
            return records
        for path, data, _ in await read_all(self._client, paths):
            try:
                records.append(decode(data, path))
            except CorruptZnode as error:
                former = known.get(path)
                log.error("{what}: {error}", what="ignoring a damaged znode" if former is None else
                          "znode is damaged, keeping its former value", error=error)  # fmt: skip
                records += [] if former is None else [former]
        return records


def take_over(
    assigner: Assigner,
    loaded: Loaded,
    transitions: list[tuple[TransitionRecord, int]],
    registry: Registry,
    now_ms: int,
) -> None:
    """Give the assigner the live servers and the state that was loaded, or that this master kept as a standby."""
    if loaded.world is not None:
        assigner.adopt(
            loaded.world,
            registry.servers,
            registry.draining,
            now_ms,
            fences=registry.fences,
            moves=loaded.moves,
            reshardings=loaded.reshardings,
            bars=registry.bars,
        )
        return
    assigner.load(
        loaded.tables,
        loaded.regions,
        registry.servers,
        transitions,
        registry.draining,
        now_ms,
        fences=registry.fences,
        moves=loaded.moves,
        reshardings=loaded.reshardings,
        bars=registry.bars,
    )
