"""A storm of operations on tables in a simulated cluster (TS-04): who asks, and the model that it is held against.

Each client asks one thing after the other, whichever master it finds, under one request id until there is a definite
result. When all is over and at rest, what the store holds, what the active master answers and what the servers have
must be what the acknowledged operations make.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from coord.rpc.server import RpcClient, RpcError
from regions import messages as ms
from regions.messages.heartbeat import OPEN
from regions.records.model import TableRecord, TableState
from regions.records.replica_key import replica_key
from simulation.checks.crowding import Crowding
from simulation.cluster.machines import RPC_PORT
from simulation.cluster.region_work import SIMULATED
from simulation.ddl_stress.catalog_snapshot import CatalogCheck, RestingCluster, judge
from simulation.ddl_stress.model import Ledger
from simulation.ddl_stress.operations import AGAIN, Operation, OperationOutcome, Storm
from simulation.engine.process import Process
from simulation.engine.timeline import SECOND

if TYPE_CHECKING:
    from simulation.cluster.world import SimulatedCluster

#: One attempt, and one operation with all its attempts, in seconds.
CALL_S: Final = 4.0
DEADLINE_S: Final = 60.0
AGAIN_S: Final = 0.1
#: How long after the faults the catalogue may still differ from the model: an ALTERING table, a tablet being deleted.
SETTLE_S: Final = 40


class DdlStorm:
    """The clients of one run. `clients`: how many; `pause_s`: between a result and the next question, on average;
    `regions_max`: of one table; `even`: no server is disturbed, so new regions must be spread evenly (DD-10)."""

    def __init__(
        self, world: SimulatedCluster, clients: int, pause_s: float, regions_max: int, *, even: bool = True
    ) -> None:
        self._world = world
        self._timeline = world.timeline
        self._pause_s = pause_s
        self._even = even
        self._process = Process(world.timeline, world.network, "ddl", 1, 1.0)
        self._chance = self._process.chance
        self._storm = Storm(self._chance, "storm", regions_max=regions_max, kind=SIMULATED)
        self._is_over = False
        self._answered: ms.Tables | None = None
        self.crowding = Crowding(world.observer.shadow, world.observer.violated, lambda: world.timeline.now)
        world.observer.changed = self._changed
        #: Tables that are ALTERING.
        self._altering: set[str] = set()
        #: Tables that were there before.
        self._before = set(world.observer.shadow.tables)
        self.ledger = Ledger()
        self._clients = [
            [RpcClient(self._process.reactor, one.host, RPC_PORT, replies=ms.MasterReply) for one in world.masters]
            for _ in range(clients)
        ]

    def start(self) -> None:
        """All clients begin."""
        for number in range(len(self._clients)):
            self._later(number)

    def stop(self) -> None:
        """No client begins anything new."""
        self._is_over = True

    def _later(self, client: int) -> None:
        span = self._chance.between(0, 2 * self._pause_s)
        self._timeline.later(span * SECOND, self._begin, client)

    def _begin(self, client: int) -> None:
        if self._is_over:
            return
        operation = self._storm.next(client)
        self._world.operator.do(f"storm: {operation.kind.value}", lambda: self._one(client, operation))

    async def _one(self, client: int, operation: Operation) -> None:
        """One operation to its end."""
        request = operation.request
        self._timeline.note(f"client {client} asks {operation.kind.value} {request}")
        self.ledger.asked(operation, self._timeline.now)
        outcome = await self._result(client, operation)
        self._timeline.note(f"client {client} is told of {request.request_id}: {outcome.word} {outcome.error}")
        self._world.observer.count(f"storm {operation.kind.value}: {outcome.word}")
        self.ledger.ended(operation, outcome, self._timeline.now)
        self._storm.told(operation, outcome)
        self._later(client)

    async def _result(self, client: int, operation: Operation) -> OperationOutcome:
        """Ask one master after the other until there is a definite result."""
        until = self._timeline.now + DEADLINE_S * SECOND
        clients = self._clients[client]
        at = self._chance.below(len(clients))
        while self._timeline.now < until:
            try:
                answer = await clients[at].call(operation.request, CALL_S)
            except RpcError as error:
                if error.code not in AGAIN:
                    return OperationOutcome(code=error.code, error=error.message)
                self._timeline.note(f"client {client} asks {operation.request.request_id} again: {error}")
            else:
                return OperationOutcome(answer.tables[0].table)
            at = (at + 1) % len(clients)
            await self._world.operator.pause(AGAIN_S)
        return OperationOutcome()

    # --- meanwhile ----------------------------------------------------------------------------------------------------

    def _changed(self, path: str) -> None:
        """The store has changed (`Observer.changed`)."""
        if self._even:
            self.crowding.changed(path)
        kind, _, table_id = path.partition("/")
        table = self._world.observer.shadow.tables.get(table_id) if kind == "tables" else None
        if table is None:
            return
        if table.state is TableState.ALTERING:
            self._altering.add(table_id)
        elif table_id in self._altering:
            self._altering.discard(table_id)
            if table.state is TableState.RUNNING:
                self._check_applied(table)

    def _check_applied(self, table: TableRecord) -> None:
        """DD-07: a table is RUNNING again when all its replicas that are open follow the latest schema."""
        shadow = self._world.observer.shadow
        for server in self._world.servers:
            if not server.is_up or not shadow.is_alive(server.incarnation):
                continue
            for one in server.service.dispatch(ms.ListOpen("", 0)).replicas:
                region = shadow.regions.get(one.region_id)
                is_home = region is not None and region.location(one.replica).incarnation == server.incarnation
                if one.table_id != table.table_id or not is_home or one.state != OPEN:
                    continue
                is_moving = replica_key(one.region_id, one.replica) in shadow.transitions
                if one.schema_version < table.schema_version and not is_moving:
                    self._world.observer.violated(
                        f"DD-07: table {table.name} is RUNNING with schema version {table.schema_version},"
                        f" {one.region_id}-{one.replica} on {server.host} follows {one.schema_version}"
                    )

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def longest_wait_s(self) -> float:
        """Of all operations that have a result."""
        return max((one.ended - one.asked for one in self.ledger.deeds if not one.is_unanswered), default=0) / SECOND

    def results(self) -> Counter[str]:
        """How often what came of it."""
        return Counter(one.outcome.word for one in self.ledger.deeds)

    def check(self) -> None:
        """After the faults, when everything is at rest; raises Violation for what does not become as it must be."""
        world = self._world
        until = self._timeline.now + SETTLE_S * SECOND
        while True:
            broken = [finding for finding in self._judge() if finding.breaches]
            if not broken:
                return
            if self._timeline.now > until:
                first = broken[0]
                world.observer.violated(f"TS-04: {first.what}: {first.breaches[0]}")
            world.run_for(1.0)

    def _judge(self) -> list[CatalogCheck]:
        self._answered = None
        self._world.operator.do("list tables", self._list)
        for _ in range(100):
            self._world.run_for(0.1)
            if self._answered is not None:
                break
        return judge(self.ledger, self._picture().without(self._before))

    async def _list(self) -> None:
        self._answered = await self._world.operator.ask(ms.ListTables())

    def _picture(self) -> RestingCluster:
        shadow = self._world.observer.shadow
        hosted: dict[str, list[ms.HostedReplica] | None] = {}
        for server in self._world.servers:
            found = server.service.dispatch(ms.ListOpen("", 0)) if server.is_up else None
            hosted[str(server.incarnation)] = None if found is None else found.replicas
        return RestingCluster(
            list(shadow.tables.values()),
            dict(shadow.names),
            list(shadow.regions.values()),
            list(shadow.transitions),
            [] if self._answered is None else [one.table for one in self._answered.tables],
            hosted,
        )
