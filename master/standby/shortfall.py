"""Compares the numbers of regions in heartbeats with a standby's mirror, and reads the lists of servers below them.

The rule is `regions/diagnose/live/shortfall.py`. A region is named only if it is at rest on the server in the mirror
before the question and after a `sync` that follows the reply: a mirror that is late raises no alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coord.client.session import ZkClient
from coord.rpc.client import RpcClient
from master.standby.watcher import StoreWatcher
from regions.cluster.state import ClusterState
from regions.diagnose.invariants import Rule, contradictions
from regions.diagnose.live.shortfall import Shortfalls, missing
from regions.liveness.roster import Roster
from regions.messages import ListOpen, OpenList
from regions.records.model import Incarnation, ServerRecord

#: A server must send its list within this time.
TIMEOUT_S: Final = 2.0

#: Reads a server's list; the result is a Deferred of OpenList.
ListReader = Callable[[ServerRecord], Any]


class ShortfallCheck:
    """The check of one session of a master."""

    def __init__(
        self,
        client: ZkClient,
        watcher: Callable[[], StoreWatcher | None],
        roster: Roster,
        read_list: ListReader,
        now_ms: Callable[[], int],
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._roster = roster
        self._read_list = read_list
        self._now_ms = now_ms
        self._shortfalls = Shortfalls()

    def due(self) -> list[Incarnation]:
        """Return the servers whose lists must be read now."""
        world, now_ms = self._world(), self._now_ms()
        if world is None:
            return []
        stored = {one.incarnation: len(one.open) for one in world.servers.values()}
        served = {
            one.incarnation: one.figures.shared
            for one in self._roster.members()
            if one.figures.shared >= 0 and self._roster.is_recent(one.incarnation, now_ms)
        }
        return self._shortfalls.look(stored, served, now_ms)

    async def unserved(self, server: Incarnation) -> list[tuple[str, tuple[Rule, str]]]:
        """Read a server's list, and return the regions at rest that it lacks. Raise CoordError without a reply."""
        before = self._at_rest(server)
        world = self._world()
        found = None if world is None else world.alive(server)
        if found is None:
            return []
        reply: OpenList = await self._read_list(found.record)
        if reply.start_code != server.start_code:
            return []
        await self._client.sync("/")
        lacking = set(missing(before, reply.replicas)) & self._at_rest(server)
        return sorted(contradictions(dict.fromkeys(lacking, server), {server: ()}))

    def _world(self) -> ClusterState | None:
        """Return the complete mirror of a standby."""
        watcher = self._watcher()
        mirror = None if watcher is None else watcher.mirror
        return mirror.world if mirror is not None and mirror.is_complete else None

    def _at_rest(self, server: Incarnation) -> set[str]:
        world = self._world()
        found = None if world is None else world.alive(server)
        return set() if found is None else {key for key, one in found.open.items() if one.transition is None}


def list_reader(reactor: Any) -> ListReader:
    """Return the reader that asks a server on a connection of its own."""

    def read(record: ServerRecord) -> Any:
        client = RpcClient(reactor, record.host, record.port, replies=OpenList)
        asked = client.call(ListOpen(record.uuid), TIMEOUT_S)

        def close(result: Any) -> Any:
            client.close()
            return result

        return asked.addBoth(close)

    return read
