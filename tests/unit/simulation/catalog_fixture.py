"""A catalog that applies every operation at once, for the tests of the model."""

from __future__ import annotations

import random

import msgspec

from regions import messages as ms
from regions.messages import HostedReplica
from regions.messages.ddl import AlterTable, CreateTable, DeleteTable
from regions.records.model import Incarnation, RegionRecord, ReplicaLocation, TableRecord, TableState, TabletState
from regions.records.partitioning import split_ranges
from regions.records.schema import Schema, create, evolve
from simulation.ddl_stress.catalog_snapshot import RestingCluster
from simulation.ddl_stress.model import OperationLog
from simulation.ddl_stress.operations import Operation, OperationGenerator, OperationOutcome

SERVERS = [Incarnation(f"s{number}", 1) for number in range(3)]


class Chance:
    """`simulation.ddl_stress.operations.RandomSource` of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)


class Catalog:
    """Tables and their tablets."""

    def __init__(self) -> None:
        self.tables: dict[str, TableRecord] = {}
        self.names: dict[str, str] = {}
        self.regions: dict[str, list[RegionRecord]] = {}

    def do(self, operation: Operation) -> OperationOutcome:
        """Carry out one operation."""
        request = operation.request
        try:
            if isinstance(request, CreateTable):
                return OperationOutcome(self._create(request))
            table_id = request.table if request.table in self.tables else self.names.get(request.table, "")
            table = self.tables.get(table_id)
            if table is None or table.state is TableState.REMOVED:
                return OperationOutcome(code=ms.NOT_FOUND, error=request.table)
            if isinstance(request, DeleteTable):
                return OperationOutcome(self._delete(table))
            return OperationOutcome(self._alter(table, request))
        except FileExistsError:
            return OperationOutcome(code=ms.ALREADY_EXISTS)
        except ValueError as error:
            return OperationOutcome(code=ms.BAD_REQUEST, error=str(error))

    def _create(self, request: CreateTable) -> TableRecord:
        if request.name in self.names:
            raise FileExistsError
        table_id = f"t{len(self.tables)}"
        schema: Schema | str = create(request.columns) if request.columns else request.schema
        specs = split_ranges(request.splits)
        table = TableRecord(table_id, request.name, schema, regions=len(specs))
        self.tables[table_id] = table
        self.names[request.name] = table_id
        self.regions[table_id] = [
            RegionRecord(
                table_id,
                f"{table_id}.{number}",
                spec.start_key,
                spec.end_key,
                replicas=(ReplicaLocation(0, SERVERS[number % 3].uuid, 1),),
            )
            for number, spec in enumerate(specs)
        ]
        return table

    def _alter(self, table: TableRecord, request: AlterTable) -> TableRecord:
        schema: Schema | str = table.schema
        if request.name and request.name in self.names:
            raise FileExistsError
        if request.schema is not None:
            schema = request.schema
        if request.steps:
            if not isinstance(schema, Schema):
                raise ValueError("no columns")
            schema = evolve(schema, request.steps)
        changed = msgspec.structs.replace(
            table, name=request.name or table.name, schema=schema, schema_version=table.schema_version + 1
        )
        del self.names[table.name]
        self.names[changed.name] = table.table_id
        self.tables[table.table_id] = changed
        return changed

    def _delete(self, table: TableRecord) -> TableRecord:
        removed = msgspec.structs.replace(table, state=TableState.REMOVED)
        self.tables[table.table_id] = removed
        del self.names[table.name]
        self.regions[table.table_id] = [
            msgspec.structs.replace(one, state=TabletState.DELETED, replicas=()) for one in self.regions[table.table_id]
        ]
        return removed

    def snapshot(self) -> RestingCluster:
        """Return the catalog as a cluster at rest."""
        regions = [one for found in self.regions.values() for one in found]
        hosted: dict[str, list[HostedReplica] | None] = {str(server): [] for server in SERVERS}
        for region in regions:
            where = region.location(0).incarnation
            if where is not None:
                version = self.tables[region.table_id].schema_version
                held = hosted[str(where)]
                assert held is not None
                held.append(HostedReplica(region.region_id, region.table_id, 0, "OPEN", schema_version=version))
        tables = list(self.tables.values())
        answered = [one for one in tables if one.state is not TableState.REMOVED]
        return RestingCluster(tables, dict(self.names), regions, [], answered, hosted)


def run_operations(seed: int, count: int, clients: int = 3) -> tuple[OperationLog, Catalog]:
    """Run operations of several concurrent clients: asked, done and answered at different times."""
    chance = Chance(seed)
    operations, catalog, made = OperationLog(), Catalog(), OperationGenerator(chance, "x")
    now = 0.0
    under_way: dict[int, tuple[Operation, OperationOutcome | None]] = {}
    while len(operations.entries) < count or under_way:
        now += 1
        client = chance.below(clients)
        if client not in under_way:
            if len(operations.entries) < count:
                operation = made.next(client)
                operations.start(operation, now)
                under_way[client] = operation, None
            continue
        operation, outcome = under_way[client]
        if outcome is None:
            under_way[client] = operation, catalog.do(operation)
        else:
            operations.finish(operation, outcome, now)
            made.finished(operation, outcome)
            del under_way[client]
    return operations, catalog
