"""Raises the cluster's format version when every registered process supports a higher one. Active master only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from twisted.logger import Logger

from coord.client.ops import SetData
from coord.errors import MultiFailed
from master.catalog import store
from regions.records.formats import FORMATS, attainable, known_by
from regions.records.znodes import CorruptZnode, decode_cluster, decode_master, decode_server, encode

if TYPE_CHECKING:
    from master.leadership.fence import Fence

log = Logger()

#: Period of checking the registrations, and the delay of the first check. An upgrade takes minutes, and nothing waits
#: for the format.
CHECK_EVERY_MS: Final = 10_000


class Formats:
    """See the module docstring. One per tenure."""

    def __init__(self, fence: Fence, now_ms: Callable[[], int]) -> None:
        self._fence = fence
        self._now_ms = now_ms
        self._check_at_ms = now_ms() + CHECK_EVERY_MS
        #: Processes below the cluster's format that have been logged.
        self._named: dict[str, None] = {}

    def is_due(self) -> bool:
        """Return True if it is time to check the registrations."""
        now_ms = self._now_ms()
        if now_ms < self._check_at_ms:
            return False
        self._check_at_ms = now_ms + CHECK_EVERY_MS
        return True

    async def look(self) -> None:
        """Raise the format if all processes support a higher one. Log the processes that do not support the current."""
        fence, layout = self._fence, self._fence.layout
        masters = await store.read_all(fence.client, await store.list_all(fence.client, [layout.masters]))
        servers = await store.read_all(fence.client, await store.list_all(fence.client, [layout.servers]))
        announced = [(f"master {one.host}:{one.port}", one.format) for one, _ in store.decoded(masters, decode_master)]
        announced += [(f"server {one.host}:{one.port}", one.format) for one, _ in store.decoded(servers, decode_server)]
        if len(announced) < len(masters) + len(servers):
            return  # a process with a damaged registration may be of any build
        data, stat = await fence.client.get(layout.cluster)
        try:
            record = decode_cluster(data, layout.cluster)
        except CorruptZnode as error:
            log.error("cannot raise the cluster's format, the cluster record is damaged: {error}", error=error)
            return
        for name, known in announced:
            if known_by(known) < record.format_version and name not in self._named:
                self._named[name] = None
                log.error(
                    "{name} supports formats up to {known}, the cluster has format {now}: start a newer build there",
                    name=name,
                    known=known_by(known),
                    now=record.format_version,
                )
        wanted = attainable(record.format_version, (known for _, known in announced))
        if wanted <= record.format_version:
            return
        raised = msgspec.structs.replace(record, format_version=wanted)
        try:
            await fence.write([SetData(layout.cluster, encode(raised), stat.version)])
        except MultiFailed as error:
            log.info("could not raise the cluster's format, trying again later: {error}", error=error)
            return
        log.info("raised the cluster's format to {now}: {what}", now=wanted, what=FORMATS[wanted])
