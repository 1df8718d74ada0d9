"""Live servers: the ephemerals below `/servers`, and the znodes below `/draining`, `/fenced` and `/barred`.

After an event the names are listed again, once for any number of events, and the znodes of the events are read. After
a gap of events all znodes are read. A server counts as dead when its ephemeral is gone or belongs to another start of
the server (RF-01).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.requests import gather
from coord.client.session import EVENT_GAP, SessionState, ZkClient
from master.catalog.store import Loaded, drained, read_all
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
        #: Paths of the events since the last read. None after a gap or a failed read: then all znodes must be read.
        self._changed_paths: set[str] | None = None
        self._closed = False
        self.servers: list[ServerRecord] = []
        self.draining: list[str] = []
        self.fences: list[FenceRecord] = []
        self.bars: list[BarRecord] = []

    async def start(self) -> None:
        """Set the watches and read the lists for the first time, without calling `changed`."""
        await gather(self._client.add_watch(path, self._event, recursive=True) for path in self._watched())
        self._reading = True  # an event meanwhile begins no second read, which could end first
        try:
            self.servers, self.draining, self.fences, self.bars = await self._read()
        finally:
            self._reading = False
        if self._is_outdated:
            self._begin_refresh()

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
        if event_type == EVENT_GAP:
            self._changed_paths = None
        elif self._changed_paths is not None:
            self._changed_paths.add(path)
        if not self._reading:
            self._begin_refresh()

    def repeat(self) -> None:
        """Call `changed` with the present lists: it has left some of the last changes."""
        if not self._closed:
            self._changed(*self.lists)

    @property
    def lists(self) -> Found:
        """The present lists."""
        return self.servers, self.draining, self.fences, self.bars

    def _begin_refresh(self) -> None:
        self._reading = True
        ensureDeferred(self._refresh()).addErrback(self._refresh_failed)

    async def _refresh(self) -> None:
        try:
            while self._is_outdated and not self._closed:
                self._is_outdated = False
                found = await self._read()
                if not self._closed and found != self.lists:
                    self.servers, self.draining, self.fences, self.bars = found
                    self._changed(*found)
        finally:
            self._reading = False

    def _refresh_failed(self, failure: Failure) -> None:
        self._is_outdated = True  # if the session survives, the gap event starts another read
        self._changed_paths = None
        if not self._closed:
            self._failed(failure)

    async def _read(self) -> Found:
        changed, self._changed_paths = self._changed_paths, set()
        layout = self._layout
        uuids, draining, fenced, barred = await gather(self._client.children(path) for path in self._watched())
        lived = {layout.server(one.uuid): one for one in self.servers}
        servers = await self._records([layout.server(uuid) for uuid in sorted(uuids)], decode_server, lived, changed)
        marks = {layout.fence_mark(one.server.uuid): one for one in self.fences}
        paths = [layout.fence_mark(uuid) for uuid in sorted(fenced)]
        fences = await self._records(paths, decode_fence, marks, changed)
        known = {layout.bar(one.uuid): one for one in self.bars}
        bars = await self._records([layout.bar(uuid) for uuid in sorted(barred)], decode_bar, known, changed)
        return servers, sorted(draining), fences, bars

    async def _records(
        self,
        paths: list[str],
        decode: Callable[[bytes, str], T],
        known: dict[str, T],
        changed: Collection[str] | None,
    ) -> list[T]:
        """Return the records of the znodes at `paths`. Read those that are not `known`, or `changed` (None: all).

        Keep the record in `known` for a znode whose value is damaged: only the deletion of the znode means that the
        server has died.
        """
        unread = [path for path in paths if changed is None or path in changed or path not in known]
        found = {path: known[path] for path in paths if path in known}
        if not unread:
            return list(found.values())
        exists: set[str] = set()
        for path, data, _ in await read_all(self._client, unread):
            exists.add(path)
            try:
                found[path] = decode(data, path)
            except CorruptZnode as error:
                what = "znode is damaged, keeping its former value" if path in found else "ignoring a damaged znode"
                log.error("{what}: {error}", what=what, error=error)
        gone = set(unread) - exists
        return [found[path] for path in paths if path in found and path not in gone]


def take_over(
    assigner: Assigner,
    loaded: Loaded,
    transitions: list[tuple[TransitionRecord, int]],
    registry: Registry,
    now_ms: int,
) -> Iterator[None]:
    """Give the assigner the live servers, and the state that was loaded, or kept as a standby.

    The caller iterates over the result, one step per turn. The servers are those at the first step. The regions are
    removed from `loaded` one by one.
    """
    if loaded.world is not None:
        return assigner.takeover.adopting(
            loaded.world,
            registry.servers,
            registry.draining,
            now_ms,
            fences=registry.fences,
            moves=loaded.moves,
            reshardings=loaded.reshardings,
            bars=registry.bars,
        )
    return assigner.takeover.loading(
        loaded.tables,
        drained(loaded.regions),
        registry.servers,
        transitions,
        registry.draining,
        now_ms,
        fences=registry.fences,
        moves=loaded.moves,
        reshardings=loaded.reshardings,
        bars=registry.bars,
    )
