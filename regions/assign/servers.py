"""Registration, expiry, draining, fencing and flapping of servers.

**Fencing (X10).** A server that does not close a region in time is fenced: one fenced multi deletes its registration
and creates a record below `/fenced`. The server notices and stops serving. If it does not notice, it stops when its
lease ends. Until the lease has certainly ended, the server counts as alive, gets no orders, and keeps its regions. Then
it counts as dead. The record makes a new active master wait, too. A server that registers again under a new start code
has closed everything, so its former start counts as dead at once.

**Barred.** A server that an operator has fenced registers again within a second, and would get its regions back. So the
same multi creates a bar below `/barred`. A barred server gets no regions, even if they stay closed, until an operator
removes the bar or the bar expires. The bar names the uuid, so it survives restarts of the server.

**Flapping.** A server that keeps registering would get its regions back each time, only to lose them again. So after
`flaps_max` registrations within a minute the server gets no regions until it has stayed for a while, unless no other
server is eligible.
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
from regions.records.model import BarRecord, FenceRecord, Incarnation, ServerRecord

#: Servers kept in `departed`. Decisions about their regions follow at once, except for regions of a running plan.
DEPARTED_MAX: Final = 1_000

Decide = Callable[[Replica, int], None]
Closed = Callable[[Table], None]


class ServerTracker:
    """Maintains the servers of the cluster state.

    `decide` is called for every replica that a change may affect. `closed` is called for every table with replicas on a
    server that has died.
    """

    def __init__(
        self,
        world: ClusterState,
        causes: Causes,
        config: AssignerConfig,
        orders: OrderBook,
        selection: Selection,
        effects: Callable[[fx.Effect], None],
        decide: Decide,
        closed: Closed,
    ) -> None:
        self._world = world
        self._causes = causes
        self._config = config
        self._orders = orders
        self._selection = selection
        self._effects = effects
        self._decide = decide
        self._closed = closed
        self._draining: frozenset[str] = frozenset()
        #: Times of recent registrations, within the window, by uuid.
        self._arrivals: dict[str, deque[int]] = {}

    def load(
        self,
        servers: Iterable[ServerRecord],
        draining: Iterable[str],
        fences: Iterable[FenceRecord],
        now_ms: int,
        bars: Iterable[BarRecord],
    ) -> None:
        """Load the servers that the master has read from the store. Fenced servers count as alive for a while."""
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
        """Load the servers into a mirror's cluster state, which may have outdated servers."""
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
        lost = marks.keys() - self._world.servers.keys()
        assert not lost, f"fenced servers {lost} would count as dead before their leases end"
        self._world.set_bars(bars)

    # --- registration and expiry ------------------------------------------------------------------------------------

    def up(self, event: ev.ServerUp, now_ms: int) -> None:
        """Handle a server that has registered, or whose record has changed."""
        record = event.record
        known = self._world.servers.get(record.uuid)
        if known is not None and known.incarnation == record.incarnation:
            if record.leaving and not known.record.leaving:
                known.origin = self._causes.current()
            known.record = record
            known.weight = record.weight
            self._selection.begin_many()
            self._decide_open(known, now_ms)
            self._selection.placed()
            return
        if known is not None:
            self.down(record.uuid, now_ms)
        self._arrived(record.uuid, now_ms)
        server = self._world.servers[record.uuid] = Server(record, event.draining or record.uuid in self._draining)
        server.bar = self._world.bars.get(record.uuid)
        assert server.incarnation == record.incarnation, f"{server.incarnation} is not {record.incarnation}"
        self._release(now_ms)

    def ended(self, starts: Iterable[Incarnation]) -> None:
        """Mark servers whose end is known: until `down` is called, they get no regions and no orders."""
        for start in starts:
            server = self._world.alive(start)
            if server is not None:
                server.has_ended = True

    def down(self, uuid: str, now_ms: int) -> None:
        """Drop a dead server, and decide about every replica that was on the server or on its way there (RF-01,
        RF-02)."""
        server = self._world.servers.get(uuid)
        if server is None:
            return
        affected = self._world.drop_server(server)
        assert uuid not in self._world.servers, f"server {uuid} is dead, and would get regions"
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
                replica.origin = None  # the death of the server begins new work
            self._decide(replica, now_ms)
        for table in {replica.region.table.record.table_id: replica.region.table for replica in affected}.values():
            self._closed(table)

    def gone(self, uuid: str, now_ms: int) -> None:
        """Handle a deleted registration. A fenced server is not dead yet, because its lease has to end first (X10)."""
        server = self._world.servers.get(uuid)
        if server is not None and server.fenced_until_ms is None:
            self.down(uuid, now_ms)

    def drain(self, uuids: Iterable[str], now_ms: int) -> None:
        """Set the servers that operators drain (all of them)."""
        self._draining = frozenset(uuids)
        changed = [one for one in self._world.servers.values() if one.marked != (one.uuid in self._draining)]
        for server in changed:
            server.marked = server.uuid in self._draining
            server.origin = self._causes.current()
            assert server.draining or not server.marked, f"{server.incarnation} is drained, and would get regions"
        if changed:
            self._release(now_ms, changed)

    def bars_seen(self, bars: Iterable[BarRecord], now_ms: int) -> None:
        """Set the barred servers (all of them)."""
        changed = self._world.set_bars(bars)
        for server in changed:
            server.origin = server.origin or self._causes.current()
        if changed:
            self._release(now_ms, changed)

    def _decide_open(self, server: Server, now_ms: int) -> None:
        for replica in list(server.open.values()):
            self._decide(replica, now_ms)

    def _release(self, now_ms: int, changed: Iterable[Server] = ()) -> None:
        """Decide again about unplaceable replicas, and replicas on draining and `changed` servers, after a change."""
        self._selection.begin_many()
        for replica in self._selection.take_unplaceable():
            self._decide(replica, now_ms)
        for server in list(self._world.servers.values()):
            if server.draining and not server.is_ending:
                self._decide_open(server, now_ms)
        for server in changed:
            self._decide_open(server, now_ms)
        self._selection.placed()

    # --- fencing ----------------------------------------------------------------------------------------------------

    def fence(self, server: Server, reason: str, bar_ms: int = 0) -> None:
        """Fence the server, unless that is in progress. `bar_ms` is as in `fx.WriteFence`."""
        assert reason, f"a fence of {server.incarnation} without a reason would look like none"
        if server.is_ending:
            return
        server.fencing = reason
        server.origin = self._causes.current()
        lease_ms = server.record.session_ms or self._config.lease_unknown_ms
        self._effects(fx.Note(f"fencing server {server.incarnation}: {reason}"))
        self._effects(fx.WriteFence(server.record, reason, lease_ms, bar_ms))

    def fenced(self, fence: FenceRecord, now_ms: int) -> None:
        """Handle a fence that is in the store: the registration is gone, and the server's lease will end."""
        uuid = fence.server.uuid
        server = self._world.servers.get(uuid)
        if server is not None and server.incarnation != fence.server.incarnation:
            self._effects(fx.ForgetFence(uuid))  # the server has registered again, so its former start is closed
            return
        if server is None:
            server = self._world.servers[uuid] = Server(fence.server, uuid in self._draining)
        if server.fenced_until_ms is None:
            server.fencing = fence.reason or "by an earlier master"
            server.origin = fence.origin or server.origin
            server.fenced_until_ms = now_ms + fence.lease_ms
            for replica in list(self._world.active.values()):
                if replica.order is not None and replica.order.server is server:
                    self._orders.drop(replica)
        assert not server.busy, f"fenced server {server.incarnation} works on {len(server.busy)} orders"

    def fence_failed(self, uuid: str) -> None:
        """Handle a refused fence: the registration has changed or gone, as the next read of the servers will show."""
        server = self._world.servers.get(uuid)
        if server is not None and server.fenced_until_ms is None:
            server.fencing = ""

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Handle ended leases of fenced servers, expired bars, and flapping servers that have stayed long enough."""
        self._causes.act_for(None, "timer: deadlines and orders that are due")
        for server in list(self._world.servers.values()):
            if server.fenced_until_ms is not None and server.fenced_until_ms <= now_ms:
                self._causes.act_for(server.origin, f"timer: the lease of fenced server {server.incarnation} is over")
                self.down(server.uuid, now_ms)
        for bar in self._world.bars.values():
            if 0 < bar.until_ms <= now_ms:
                self._effects(fx.ForgetBar(bar))  # the server may get regions after the bar is deleted in the store
        self._causes.act_for(None, "timer: deadlines and orders that are due")
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
