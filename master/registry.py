"""Who is alive: the ephemerals below `/servers`, and the marks below `/draining`.

An event says only that something changed; the whole list is then read again, once however many events came. A
server counts as dead when its ephemeral is gone or belongs to another start (RF-01).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import SessionState, ZkClient
from master.aio import gather
from master.catalog import read_all
from regions.layout import CorruptZnode, Layout, decode_server
from regions.model import ServerRecord

log = Logger()

Changed = Callable[[list[ServerRecord], list[str]], None]


class Registry:
    """The live servers and the draining ones; `changed(servers, draining)` after every look that found a change."""

    def __init__(self, client: ZkClient, layout: Layout, changed: Changed, failed: Callable[[Failure], None]) -> None:
        self._client = client
        self._layout = layout
        self._changed = changed
        self._failed = failed
        self._reading = False
        self._again = False
        self._closed = False
        self.servers: list[ServerRecord] = []
        self.draining: list[str] = []

    async def start(self) -> None:
        """Watch, and look for the first time; `changed` is not called for that."""
        await gather(
            self._client.add_watch(path, self._event, recursive=True)
            for path in (self._layout.servers, self._layout.draining)
        )
        self.servers, self.draining = await self._read()

    def close(self) -> None:
        """Report nothing any more; a session that lives on need not go on watching for us."""
        self._closed = True
        if self._client.state is SessionState.CONNECTED:
            for path in (self._layout.servers, self._layout.draining):
                self._client.remove_watch(path, self._event).addErrback(lambda _: None)

    def _event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the list tells more
        if self._closed:
            return
        self._again = True
        if not self._reading:
            self._reading = True
            ensureDeferred(self._look()).addErrback(self._look_failed)

    async def _look(self) -> None:
        try:
            while self._again and not self._closed:
                self._again = False
                found = await self._read()
                if not self._closed and found != (self.servers, self.draining):
                    self.servers, self.draining = found
                    self._changed(*found)
        finally:
            self._reading = False

    def _look_failed(self, failure: Failure) -> None:
        if not self._closed:
            self._failed(failure)

    async def _read(self) -> tuple[list[ServerRecord], list[str]]:
        uuids, draining = await gather(
            self._client.children(path) for path in (self._layout.servers, self._layout.draining)
        )
        servers: list[ServerRecord] = []
        for path, data, _ in await read_all(self._client, [self._layout.server(uuid) for uuid in sorted(uuids)]):
            try:
                servers.append(decode_server(data, path))
            except CorruptZnode as error:
                log.error("server ignored: {error}", error=error)
        return servers, sorted(draining)
