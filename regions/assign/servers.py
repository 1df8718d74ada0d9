"""The servers as the assigner sees them: arrivals, departures, draining, fencing, flapping.

**Fencing (X10).** A server that does not close a region in time is fenced: the master deletes its registration and
leaves a mark below `/fenced`, in one fenced multi. The server notices and stops serving; but its session lives on, so
nobody may believe it gone before its lease must have run out. Until then it counts as alive, gets no orders, and its
regions stay where they are; then it is dead like any other. The mark makes a master that takes over meanwhile wait as
well. A server that registers again under a new start code has closed everything: its former start is dead at once.

**Barred.** A server that an operator has fenced joins again within a second, and would get its regions back. So the
multi that fences it leaves a bar below `/barred` as well. A barred server gets nothing, not even what would be open
nowhere else, until an operator ends the bar or its time is over. The bar names the uuid, so it outlives restarts.

**Flapping.** A server that registers again and again would get its regions back each time, only to lose them again. So
after a few arrivals within a minute it gets none until it has stayed for a while, unless there is no other server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from regions.assign.orders import OrderBook
from regions.assign.selection import Selection
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.causes import Causes
from regions.cluster.entities import Replica, Server, Table
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.records.model import BarRecord, FenceRecord, ServerRecord

#: Servers remembered that ended in order: their regions are settled at once, all but what a plan is made for.
DEPARTED_MAX: Final = 1_000

Settle = Callable[[Replica, int], None]
Closed = Callable[[Table], None]


class ServerTracker:
    """Keeps `world.servers`; `settle` is called for every replica that a change may concern, `closed` for every table
    of which replicas were open on a server that is dead."""

    def __init__(
        self,
        world: ClusterState,
        causes: Causes,
        config: AssignerConfig,
        orders: OrderBook,
        selection: Selection,
        effects: Callable[[fx.Effect], None],
        settle: Settle,
        closed: Closed,
    ) -> None:
        self._world = world
        self._causes = causes
        self._config = config
        self._orders = orders
        self._selection = selection
        self._effects = effects
        self._settle = settle
        self._closed = closed
        self._draining: frozenset[str] = frozenset()
        #: Uuid -> when it registered, within the window.
        self._arrivals: dict[str, deque[int]] = {}

    def load(
        self,
        servers: Iterable[ServerRecord],
        draining: Iterable[str],
        fences: Iterable[FenceRecord],
        now_ms: int,
        bars: Iterable[BarRecord],
    ) -> None:
        """Take over the snapshot; fenced servers first, as they count as alive for a while."""
        self._draining = frozenset(draining)
        for server in servers:
            self._world.servers[server.uuid] = Server(server, server.uuid in self._draining)
        for fence in fences:
            self.fenced(fence, now_ms)
        self._world.set_bars(bars)

    def adopt(
        self,
        servers: Iterable[ServerRecord],
        draining: Iterable[str],
        fences: Iterable[FenceRecord],
        now_ms: int,
        bars: Iterable[BarRecord],
    ) -> None:
        """`load` into a cluster state that has servers already, perhaps not the latest ones."""
        self._draining = frozenset(draining)
        alive = {record.uuid: record for record in servers}
        marks = {fence.server.uuid: fence for fence in fences}
        for uuid, mark in marks.items():
            alive.setdefault(uuid, mark.server)
        self._world.set_servers(alive, self._draining)
        for server in self._world.servers.values():
            server.fencing = ""
        for mark in marks.values():
            self.fenced(mark, now_ms)
        self._world.set_bars(bars)

    # --- arrivals and departures ------------------------------------------------------------------------------------

    def up(self, event: ev.ServerUp, now_ms: int) -> None:
        """A server has registered, or its record has changed."""
        record = event.record
        known = self._world.servers.get(record.uuid)
        if known is not None and known.incarnation == record.incarnation:
            if record.leaving and not known.record.leaving:
                known.origin = self._causes.current()
            known.record = record
            known.weight = record.weight
            self._look_at(known, now_ms)
            return
        if known is not None:
            self.down(record.uuid, now_ms)
        self._arrived(record.uuid, now_ms)
        server = self._world.servers[record.uuid] = Server(record, event.draining or record.uuid in self._draining)
        server.bar = self._world.bars.get(record.uuid)
        self._release(now_ms)

    def down(self, uuid: str, now_ms: int) -> None:
        """RF-01, RF-02: everything that is on the dead server or on its way to it is settled again."""
        server = self._world.servers.get(uuid)
        if server is None:
            return
        affected = self._world.drop_server(server)
        if server.fenced_until_ms is not None:
            self._effects(fx.ForgetFence(uuid))
        if server.fenced_until_ms is not None or server.record.leaving:
            self._world.departed[server.incarnation] = None
            if len(self._world.departed) > DEPARTED_MAX:
                del self._world.departed[next(iter(self._world.departed))]
        for replica in affected:
            self._orders.drop(replica)
        for replica in affected:
            if replica.transition is None:
                replica.origin = None  # its server's death is what is dealt with from now on
            self._settle(replica, now_ms)
        for table in {replica.region.table.record.table_id: replica.region.table for replica in affected}.values():
            self._closed(table)

    def gone(self, uuid: str, now_ms: int) -> None:
        """The registration is gone. One that we deleted says nothing yet: the lease has to run out (X10)."""
        server = self._world.servers.get(uuid)
        if server is not None and server.fenced_until_ms is None:
            self.down(uuid, now_ms)

    def drain(self, uuids: Iterable[str], now_ms: int) -> None:
        """The servers that operators want empty, all of them."""
        self._draining = frozenset(uuids)
        changed = [one for one in self._world.servers.values() if one.marked != (one.uuid in self._draining)]
        for server in changed:
            server.marked = server.uuid in self._draining
            server.origin = self._causes.current()
        if changed:
            self._release(now_ms)
        for server in changed:
            self._look_at(server, now_ms)

    def bars_seen(self, bars: Iterable[BarRecord], now_ms: int) -> None:
        """The servers that operators have barred, all of them."""
        changed = self._world.set_bars(bars)
        for server in changed:
            server.origin = server.origin or self._causes.current()
        if changed:
            self._release(now_ms)
        for server in changed:
            self._look_at(server, now_ms)

    def _look_at(self, server: Server, now_ms: int) -> None:
        for replica in list(server.open.values()):
            self._settle(replica, now_ms)

    def _release(self, now_ms: int) -> None:
        """Servers have changed: those that wait for an eligible one look again, and those that could not leave."""
        for replica in self._selection.release_stranded():
            self._settle(replica, now_ms)
        for server in list(self._world.servers.values()):
            if server.draining and not server.fencing:
                self._look_at(server, now_ms)

    # --- fencing ----------------------------------------------------------------------------------------------------

    def fence(self, server: Server, reason: str, bar_ms: int = 0) -> None:
        """Have the server fenced, once; `bar_ms` as of fx.FenceServer."""
        if server.fencing:
            return
        server.fencing = reason
        server.origin = self._causes.current()
        lease_ms = server.record.session_ms or self._config.lease_unknown_ms
        self._effects(fx.Note(f"server {server.incarnation} is fenced: {reason}"))
        self._effects(fx.WriteFence(server.record, reason, lease_ms, bar_ms))

    def fenced(self, fence: FenceRecord, now_ms: int) -> None:
        """The mark is in the store and the registration is gone; from now on the lease runs out."""
        uuid = fence.server.uuid
        server = self._world.servers.get(uuid)
        if server is not None and server.incarnation != fence.server.incarnation:
            self._effects(fx.ForgetFence(uuid))  # it is back: its former start has closed everything
            return
        if server is None:
            server = self._world.servers[uuid] = Server(fence.server, uuid in self._draining)
        if server.fenced_until_ms is None:
            server.fencing = fence.reason or "by an earlier master"
            server.origin = fence.origin or server.origin
            server.fenced_until_ms = now_ms + fence.lease_ms
            for replica in list(self._world.replicas.values()):
                if replica.order is not None and replica.order.server is server:
                    self._orders.drop(replica)

    def fence_failed(self, uuid: str) -> None:
        """The multi was refused: the registration is not there any more, as the next look at the servers will show."""
        server = self._world.servers.get(uuid)
        if server is not None and server.fenced_until_ms is None:
            server.fencing = ""

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Leases of fenced servers that must have run out, and flapping servers that have stayed."""
        self._causes.act_for(None, "timer: deadlines and questions that are due")
        for server in list(self._world.servers.values()):
            if server.fenced_until_ms is not None and server.fenced_until_ms <= now_ms:
                self._causes.act_for(server.origin, f"timer: the lease of fenced server {server.incarnation} is over")
                self.down(server.uuid, now_ms)
        for bar in self._world.bars.values():
            if 0 < bar.until_ms <= now_ms:
                self._effects(fx.ForgetBar(bar))  # the server gets regions when the store has no bar any more
        self._causes.act_for(None, "timer: deadlines and questions that are due")
        rested = [uuid for uuid, until_ms in self._world.flapping.items() if until_ms <= now_ms]
        for uuid in rested:
            del self._world.flapping[uuid]
            self._arrivals.pop(uuid, None)
        if rested:
            self._release(now_ms)

    def _arrived(self, uuid: str, now_ms: int) -> None:
        times = self._arrivals.setdefault(uuid, deque())
        times.append(now_ms)
        while times[0] <= now_ms - self._config.flap_window_ms:
            times.popleft()
        if len(times) > self._config.flaps_max or uuid in self._world.flapping:
            self._world.flapping[uuid] = now_ms + self._config.flap_rest_ms
            while len(times) > self._config.flaps_max:
                times.popleft()
