"""Faults of Kudu's masters that our sources name, planted one by one. DDL stress must find each of them.

The script of a bug finds it among the first `seeds` seeds. Without the bug the same script finds no violation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from master.active import ActiveMaster
from master.catalog import tables
from master.heartbeats import HeartbeatReceiver
from regions import messages as ms
from regions.assign import transition_writes
from regions.assign.assigner import Assigner
from regions.assign.catalog.schema_rollout import AlterBook
from regions.assign.orders import CLOSE, OrderBook
from regions.assign.selection import Selection
from regions.records.model import Incarnation, TableIntent, TableState
from regionserver.server import Command, RegionServer
from simulation.cluster.cluster import SimulatedCluster
from simulation.cluster.region_work import SIMULATED
from simulation.ddl_clients import SimulatedDdlClients
from simulation.drills import come_up
from simulation.engine.timeline import SECOND
from simulation.run import Options
from tests.sim.cluster.planted import Bug
from tests.support.planted import Patch, instead


class DdlBug(Bug):
    """A bug that DDL stress with changes of masters reveals. There are no other faults than network delays."""

    seeds = 10
    elections: tuple[str, ...] = ("kill-active", "freeze-active", "vacate-active")
    pause_s = 0.8
    store_nodes = 1
    duration_s = 8.0
    #: Weight of the delays' tail: with long delays more requests overlap with elections.
    heavy = 0.1

    def options(self, seed: int) -> Options:
        """Return a cluster with standbys, and with enough servers for a table to crowd on."""
        return Options(
            seed, "ddl-storm", servers=4, masters=3, store_nodes=self.store_nodes, duration_s=self.duration_s
        )

    def script(self, cluster: SimulatedCluster) -> None:
        """Run four busy clients, with an election about every second."""
        cluster.setting.limits = msgspec.structs.replace(cluster.setting.limits, bulk_min=1_000)
        come_up(cluster)
        clients = SimulatedDdlClients(cluster, 4, 0.03, 12, even="freeze-server" not in self.elections)
        cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
        cluster.faults.choose(list(self.elections))
        cluster.faults.pause_s = self.pause_s
        cluster.network.heavy = self.heavy
        clients.start()
        cluster.faults.start()
        cluster.run_for(cluster.options.duration_s)
        clients.stop()
        cluster.at_rest.append(clients.check)


class ColdServerList(DdlBug):
    """KUDU-1358: a new leader places regions on servers that have sent it a heartbeat, and on no others."""

    def patches(self) -> list[Patch]:
        def answer(self: HeartbeatReceiver, beat: Any) -> Any:
            reply = real_answer(self, beat)
            active_master = self._master.active_master
            if active_master is not None and active_master.is_open:
                heard = active_master.assigner._selection.__dict__.setdefault("heard", set())
                if beat.server.uuid not in heard:
                    heard.add(beat.server.uuid)
                    active_master.assigner._servers._release(active_master._now_ms())
            return reply

        def choose(self: Selection, replica: Any, **more: Any) -> Incarnation | None:
            heard = self.__dict__.get("heard", set())
            everybody = self._world.servers
            self._world.servers = {uuid: one for uuid, one in everybody.items() if uuid in heard}
            try:
                return real_choose(self, replica, **more)
            finally:
                self._world.servers = everybody

        real_answer, real_choose = HeartbeatReceiver.answer, Selection.choose
        return [instead(HeartbeatReceiver, "answer", answer), instead(Selection, "choose", choose)]


class StaleReplicas(DdlBug):
    """KUDU-1353: a new leader has a stale list of replicas, so replicas opened before get no changes and stay open."""

    def patches(self) -> list[Patch]:
        def begin(self: Assigner, *arguments: Any, **more: Any) -> None:
            stale = set(self.world.replicas)
            self._orders.__dict__["stale"] = self._alters.__dict__["stale"] = stale
            real_begin(self, *arguments, **more)

        def put(self: OrderBook, replica: Any, kind: Any, *rest: Any) -> Any:
            is_removed = replica.region.table.record.state is TableState.REMOVED
            if kind == CLOSE and is_removed and replica.key in self.__dict__["stale"]:
                return None
            return real_put(self, replica, kind, *rest)

        def look_over(self: AlterBook, table: Any, to_send: dict[str, list[Any]]) -> None:
            real_look(self, table, to_send)
            stale = self.__dict__["stale"]
            for uuid, orders in list(to_send.items()):
                orders[:] = [one for one in orders if f"{one.region_id}-{one.replica}" not in stale]
                if not orders:
                    del to_send[uuid]

        real_begin, real_put, real_look = Assigner.begin, OrderBook.put, AlterBook._scan
        return [
            instead(Assigner, "begin", begin),
            instead(OrderBook, "put", put),
            instead(AlterBook, "_scan", look_over),
        ]


class LostWithTheLeader(DdlBug):
    """KUDU-1374: schema changes that a former leader had yet to send count as sent; reports of replicas change
    nothing."""

    #: Servers that are unreachable for a while, so that tables are ALTERING when the leader dies.
    elections = ("vacate-active", "freeze-server")
    duration_s = 15.0

    def patches(self) -> list[Patch]:
        def table_seen(self: AlterBook, table: Any, former_version: int) -> None:
            real(self, table, former_version)
            if former_version < 0:
                table.behind.clear()

        def reported(self: AlterBook, *_report: Any) -> None:
            pass

        real = AlterBook.table_seen
        return [instead(AlterBook, "table_seen", table_seen), instead(AlterBook, "reported", reported)]


class RefusedWriteAborts(DdlBug):
    """KUDU-495: a master ends its process when a write is rejected because another master leads."""

    def patches(self) -> list[Patch]:
        def end(self: ActiveMaster, reason: str) -> None:
            if not self.is_over and reason == "another master is active":
                self._reactor.stop()
            real(self, reason)

        real = ActiveMaster.end
        return [instead(ActiveMaster, "end", end)]


class RetryIsNew(DdlBug):
    """A retry is treated as a new request: the result of its first attempt, whose answer was lost, is ignored."""

    def patches(self) -> list[Patch]:
        def entry(*_: Any) -> list[Any]:
            return []

        async def find_request(*_: Any) -> None:
            return None

        return [instead(tables, "entry", entry), instead(tables, "find_request", find_request)]


class AssignsUnchecked(DdlBug):
    """A region is assigned without reading its table's record, which says REMOVED or DISABLED by then."""

    lately = 41
    seeds = 90

    def patches(self) -> list[Patch]:
        def offline(*arguments: Any, **more: Any) -> Any:
            effect = real(*arguments, **more)
            effect.table_check = None
            return effect

        real = transition_writes.offline
        return [instead(transition_writes, "offline", offline)]

    def script(self, cluster: SimulatedCluster) -> None:
        """Delete or disable tables while their regions are being assigned."""
        cluster.setting.limits = msgspec.structs.replace(cluster.setting.limits, bulk_min=1_000)
        come_up(cluster)
        chance, operator = cluster.timeline.chance, cluster.operator

        async def briefly(name: str) -> None:
            splits = [f"{number:02}" for number in range(1, 12)]
            answer = await operator.ask(ms.CreateTable(name, splits, kind=SIMULATED))
            table_id = answer.tables[0].table.table_id
            await operator.pause(chance.between(0.0, 0.05))
            if chance.happens(0.5):
                await operator.ask(ms.SetTableIntent(table_id, TableIntent.DISABLED))
                await operator.ask(ms.AlterTable(table_id, schema="x"))
            await operator.ask(ms.DeleteTable(table_id))

        for number in range(40):
            operator.do(f"table brief{number} for a moment", partial(briefly, f"brief{number}"))
            cluster.run_for(chance.between(0.0, 0.3))


class UncheckedAfterWaiting(DdlBug):
    """A server does not check an order again after the order has waited for the store to confirm the epoch."""

    seeds = 40
    elections = ("vacate-active", "freeze-server")
    duration_s = 15.0
    heavy = 0.3

    def patches(self) -> list[Patch]:
        def dispatch(self: RegionServer, request: Any) -> Any:
            if isinstance(request, Command) and request.epoch > self._epoch and not self._objection(request)[0]:
                return self._epochs.claim(request.epoch, lambda: unchecked(self, request))
            return self._obey(request)

        def unchecked(server: RegionServer, request: Any) -> Any:
            with instead(server, "_admit", lambda _command: None):
                return server._obey(request)

        return [instead(RegionServer, "_dispatch", dispatch)]


KUDU_BUGS: list[type[DdlBug]] = [ColdServerList, StaleReplicas, LostWithTheLeader, RefusedWriteAborts]
DDL_BUGS: list[type[DdlBug]] = [*KUDU_BUGS, RetryIsNew, AssignsUnchecked, UncheckedAfterWaiting]
