"""Compares the numbers of regions in heartbeats with a standby's mirror, and reads the lists of servers below them.

The rule is `regions/diagnose/live/shortfall.py`. A region is named only if it is at rest on the server twice: in the
mirror before the request, and in the store after the reply. The mirror lags behind the store, because it reads a znode
after the event of its change. So a region that has just begun to move still looks at rest there.

The regions of a dead server are named if the store has no transition of any of them. They are not named during a
shutdown of the cluster, or while no live server could take them: then the masters wait, too, and `rk health` reports
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from coord.client.session import ZkClient
from coord.rpc.client import RpcClient
from master.catalog.store import decoded, read_all
from master.standby.watcher import StoreWatcher
from regions.assign.placement import choose
from regions.cluster.mirror import StandbyMirror
from regions.diagnose.invariants import Rule, contradictions
from regions.diagnose.live.shortfall import TAKEOVER_MS, Shortfalls, abandoned, missing
from regions.liveness.roster import Roster
from regions.messages import ListOpen, OpenList
from regions.records.model import Incarnation, ServerRecord
from regions.records.replica_key import parse_replica_key, replica_key
from regions.records.znodes import Layout, decode_cluster, decode_region

#: A server must send its list within this time.
TIMEOUT_S: Final = 2.0
#: Regions of a server whose transitions and records are looked for in the store.
LOOKED_MAX: Final = 100

#: Reads a server's list; the result is a Deferred of OpenList.
ListReader = Callable[[ServerRecord], Any]


class ShortfallCheck:
    """The check of one session of a master."""

    def __init__(
        self,
        client: ZkClient,
        layout: Layout,
        watcher: Callable[[], StoreWatcher | None],
        roster: Roster,
        read_list: ListReader,
        now_ms: Callable[[], int],
    ) -> None:
        self._client = client
        self._layout = layout
        self._watcher = watcher
        self._roster = roster
        self._read_list = read_list
        self._now_ms = now_ms
        self._shortfalls = Shortfalls()

    def due(self, epoch_changed_ms: int) -> list[Incarnation]:
        """Return the servers whose lists must be read now, and the dead servers whose regions no master moves."""
        mirror, now_ms = self._mirror(), self._now_ms()
        if mirror is None:
            return []
        world = mirror.world
        stored = {one.incarnation: len(one.open) for one in world.servers.values()}
        served = {
            one.incarnation: one.figures.shared
            for one in self._roster.members()
            if one.figures.shared >= 0 and self._roster.is_recent(one.incarnation, now_ms)
        }
        dead = {server: len(self._left_on(mirror, server)) for server in list(mirror.left_behind)}
        if now_ms - epoch_changed_ms < TAKEOVER_MS:
            dead = {}
        return self._shortfalls.look(stored, served, dead, now_ms)

    async def unserved(self, server: Incarnation) -> list[tuple[str, tuple[Rule, str]]]:
        """Read a server's list, and return the regions at rest that it lacks. Raise CoordError without a reply."""
        mirror = self._mirror()
        if mirror is not None and server in mirror.left_behind:
            return await self._abandoned(mirror, server)
        before = self._at_rest(server)
        found = None if mirror is None else mirror.world.alive(server)
        if found is None:
            return []
        reply: OpenList = await self._read_list(found.record)
        if reply.start_code != server.start_code:
            return []
        lacking = set(missing(before, reply.replicas)) & self._at_rest(server)
        stored = await self._stored_at_rest(server, sorted(lacking)[:LOOKED_MAX])
        return sorted(contradictions(dict.fromkeys(stored, server), {server: ()}))

    async def _stored_at_rest(self, server: Incarnation, keys: list[str]) -> list[str]:
        """Return the replicas that the store now places on a server, without a transition."""
        mirror, layout = self._mirror(), self._layout
        known = [] if mirror is None else [one for key in keys if (one := mirror.world.replicas.get(key))]
        if not known:
            return []
        await self._client.sync("/")
        transitions = [layout.transition(*parse_replica_key(one.key)) for one in known]
        moving = {path for path, _, _ in await read_all(self._client, transitions)}
        paths = {layout.region(record.table_id, record.region_id) for record in (one.region.record for one in known)}
        records = decoded(await read_all(self._client, sorted(paths)), decode_region)
        held = {
            replica_key(record.region_id, at.replica)
            for record, _ in records
            for at in record.replicas
            if at.incarnation == server
        }
        return [one.key for one, path in zip(known, transitions, strict=True) if one.key in held and path not in moving]

    async def _abandoned(self, mirror: StandbyMirror, server: Incarnation) -> list[tuple[str, tuple[Rule, str]]]:
        """Return the finding about the regions of a dead server, unless the store shows that they move or moved."""
        asked = self._left_on(mirror, server)[:LOOKED_MAX]
        data, _ = await self._client.get(self._layout.cluster)
        if decode_cluster(data, self._layout.cluster).clean_shutdown:
            return []
        if len(await self._stored_at_rest(server, asked)) < len(asked):
            return []
        keys = self._left_on(mirror, server)
        return [abandoned(keys, server)] if keys and mirror is self._mirror() else []

    @staticmethod
    def _left_on(mirror: StandbyMirror, server: Incarnation) -> list[str]:
        """Return the replicas that are still placed on a dead server, and that another server could open."""
        world = mirror.world
        known = [(key, world.replicas.get(key)) for key in mirror.left_behind.pop(server, ())]
        left = [(key, one) for key, one in known if one and one.home == server and one.transition is None]
        if left:
            mirror.left_behind[server] = [key for key, _ in left]
        if not any(one.open for one in world.servers.values()):
            return []  # no server has a region: the cluster starts, and its master waits for servers
        tables = {id(one.region.table): one.region.table.record for _, one in left}
        takers = {
            number: choose(
                world.servers.values(), group=table.group, kind=table.kind, exclude=world.bars, include_draining=True
            )
            for number, table in tables.items()
        }
        return [key for key, one in left if one.wants_open and takers[id(one.region.table)]]

    def _mirror(self) -> StandbyMirror | None:
        """Return the complete mirror of a standby."""
        watcher = self._watcher()
        mirror = None if watcher is None else watcher.mirror
        return mirror if mirror is not None and mirror.is_complete else None

    def _at_rest(self, server: Incarnation) -> set[str]:
        mirror = self._mirror()
        found = None if mirror is None else mirror.world.alive(server)
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
