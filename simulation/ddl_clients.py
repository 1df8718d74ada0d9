"""DDL clients of a simulated cluster (TS-04), and the comparison of the cluster with the model of their results.

Each client sends one operation after the other to any master, and retries it under one request id until there is a
definite result. When the run is over and at rest, the store, the active master's answers and the servers' replicas must
equal what the acknowledged operations make.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from coord.rpc.client import RpcClient
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.messages.heartbeat import OPEN
from regions.records.model import TableRecord, TableState
from regions.records.replica_key import replica_key
from simulation.checks.crowding import Crowding
from simulation.cluster.machines import RPC_PORT
from simulation.cluster.region_work import SIMULATED
from simulation.ddl_stress.catalog_snapshot import CatalogCheck, RestingCluster, check_catalog
from simulation.ddl_stress.model import OperationLog
from simulation.ddl_stress.operations import RETRIED_CODES, Operation, OperationGenerator, OperationOutcome
from simulation.engine.process import Process
from simulation.engine.timeline import SECOND

if TYPE_CHECKING:
    from simulation.cluster.cluster import SimulatedCluster

#: Time limits of one attempt and of one operation with all its attempts, in seconds.
CALL_S: Final = 4.0
DEADLINE_S: Final = 60.0
RETRY_PAUSE_S: Final = 0.1
#: Seconds after the faults during which the catalog may still differ from the model: tables being altered or deleted.
CATALOG_LIMIT_S: Final = 40


class SimulatedDdlClients:
    """The clients of one run.

    `clients` is their number, `pause_s` the average time between a result and the next request, `regions_max` the
    limit of a table's regions. With `even`, no server is disturbed, so new regions must be spread evenly (DD-10).
    """

    def __init__(
        self, cluster: SimulatedCluster, clients: int, pause_s: float, regions_max: int, *, even: bool = True
    ) -> None:
        self._cluster = cluster
        self._timeline = cluster.timeline
        self._pause_s = pause_s
        self._even = even
        self._process = Process(cluster.timeline, cluster.network, "ddl", 1, 1.0)
        self._chance = self._process.chance
        self._generator = OperationGenerator(self._chance, "storm", regions_max=regions_max, kind=SIMULATED)
        self._is_over = False
        self._answered: ms.Tables | None = None
        self.crowding = Crowding(cluster.observer.shadow, cluster.observer.violated, lambda: cluster.timeline.now)
        cluster.observer.changed = self._changed
        #: Tables that are ALTERING.
        self._altering: set[str] = set()
        #: Tables that existed before the run.
        self._before = set(cluster.observer.shadow.tables)
        self.operations = OperationLog()
        self._clients = [
            [RpcClient(self._process.reactor, one.host, RPC_PORT, replies=ms.MasterReply) for one in cluster.masters]
            for _ in range(clients)
        ]

    def start(self) -> None:
        """Schedule the first operation of every client."""
        for number in range(len(self._clients)):
            self._schedule(number)

    def stop(self) -> None:
        """Begin no more operations."""
        self._is_over = True

    def _schedule(self, client: int) -> None:
        span = self._chance.between(0, 2 * self._pause_s)
        self._timeline.later(span * SECOND, self._begin, client)

    def _begin(self, client: int) -> None:
        if self._is_over:
            return
        operation = self._generator.next(client)
        self._cluster.operator.do(f"ddl: {operation.kind.value}", lambda: self._run(client, operation))

    async def _run(self, client: int, operation: Operation) -> None:
        """Run one operation to its end."""
        request = operation.request
        self._timeline.note(f"client {client} requests {operation.kind.value} {request}")
        self.operations.start(operation, self._timeline.now)
        outcome = await self._result(client, operation)
        self._timeline.note(f"client {client} result of {request.request_id}: {outcome.label} {outcome.error}")
        self._cluster.observer.count(f"ddl {operation.kind.value}: {outcome.label}")
        self.operations.finish(operation, outcome, self._timeline.now)
        self._generator.finished(operation, outcome)
        self._schedule(client)

    async def _result(self, client: int, operation: Operation) -> OperationOutcome:
        """Send the operation to one master after the other until there is a definite result."""
        until = self._timeline.now + DEADLINE_S * SECOND
        clients = self._clients[client]
        at = self._chance.below(len(clients))
        while self._timeline.now < until:
            try:
                answer = await clients[at].call(operation.request, CALL_S)
            except RpcError as error:
                if error.code not in RETRIED_CODES:
                    return OperationOutcome(code=error.code, error=error.message)
                self._timeline.note(f"client {client} retries {operation.request.request_id}: {error}")
            else:
                return OperationOutcome(answer.tables[0].table)
            at = (at + 1) % len(clients)
            await self._cluster.operator.pause(RETRY_PAUSE_S)
        return OperationOutcome()

    # --- during the run -----------------------------------------------------------------------------------------------

    def _changed(self, path: str) -> None:
        """Check a change of the store (`Observer.changed`)."""
        if self._even:
            self.crowding.changed(path)
        kind, _, table_id = path.partition("/")
        table = self._cluster.observer.shadow.tables.get(table_id) if kind == "tables" else None
        if table is None:
            return
        if table.state is TableState.ALTERING:
            self._altering.add(table_id)
        elif table_id in self._altering:
            self._altering.discard(table_id)
            if table.state is TableState.RUNNING:
                self._check_applied(table)

    def _check_applied(self, table: TableRecord) -> None:
        """Check that a table is RUNNING only if all its open replicas follow its latest schema (DD-07)."""
        shadow = self._cluster.observer.shadow
        for server in self._cluster.servers:
            if not server.is_up or not shadow.is_alive(server.incarnation):
                continue
            for one in server.service.dispatch(ms.ListOpen("", 0)).replicas:
                region = shadow.regions.get(one.region_id)
                is_home = region is not None and region.location(one.replica).incarnation == server.incarnation
                if one.table_id != table.table_id or not is_home or one.state != OPEN:
                    continue
                is_moving = replica_key(one.region_id, one.replica) in shadow.transitions
                if one.schema_version < table.schema_version and not is_moving:
                    self._cluster.observer.violated(
                        f"DD-07: table {table.name} is RUNNING with schema version {table.schema_version}, but"
                        f" {one.region_id}-{one.replica} on {server.host} follows {one.schema_version}"
                    )

    # --- after the run ------------------------------------------------------------------------------------------------

    def results(self) -> Counter[str]:
        """Return how often each result occurred."""
        return Counter(one.outcome.label for one in self.operations.entries)

    def check(self) -> None:
        """Compare the cluster with the model until they agree. Raise Violation if they still differ after the limit."""
        cluster = self._cluster
        until = self._timeline.now + CATALOG_LIMIT_S * SECOND
        while True:
            broken = [finding for finding in self._findings() if finding.breaches]
            if not broken:
                return
            if self._timeline.now > until:
                first = broken[0]
                cluster.observer.violated(f"TS-04: {first.what}: {first.breaches[0]}")
            cluster.run_for(1.0)

    def _findings(self) -> list[CatalogCheck]:
        self._answered = None
        self._cluster.operator.do("list tables", self._list)
        for _ in range(100):
            self._cluster.run_for(0.1)
            if self._answered is not None:
                break
        return check_catalog(self.operations, self._snapshot().without(self._before))

    async def _list(self) -> None:
        self._answered = await self._cluster.operator.ask(ms.ListTables())

    def _snapshot(self) -> RestingCluster:
        shadow = self._cluster.observer.shadow
        hosted: dict[str, list[ms.HostedReplica] | None] = {}
        for server in self._cluster.servers:
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
