"""The catalog after a DDL stress run, compared with the model of the acknowledged operations (TS-04).

A `RestingCluster` is read when everything is at rest: the records in the store, the active master's answer, and the
servers' own lists. Tables that existed before the run are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from regions.messages import HostedReplica
from regions.records.model import RegionRecord, TableIntent, TableRecord, TableState, TabletState
from regions.records.partitioning import RegionSpec, check_ranges
from regions.records.replica_key import parse_replica_key, replica_key
from regions.records.schema import Schema
from simulation.ddl_stress.model import OperationLog, TableHistory, names_of, shape_of

#: State of a replica in its server's own list: the server serves the replica, or has failed to open it.
_OPEN = "OPEN"
_FAILED = "FAILED"
#: States of regions that no longer count: another region has their range, or their table is deleted.
_ENDED = frozenset((TabletState.REPLACED, TabletState.DELETED))


class RestingCluster(msgspec.Struct):
    """State of a cluster at rest."""

    #: Values of /tables, /names and /regions.
    tables: list[TableRecord]
    names: dict[str, str]
    regions: list[RegionRecord]
    #: Keys of the replicas in transition.
    transitions: list[str]
    #: Tables as the active master lists them.
    answered: list[TableRecord]
    #: Replicas of each live server, by incarnation; None for a server that did not answer.
    hosted: dict[str, list[HostedReplica] | None]

    def without(self, table_ids: set[str]) -> RestingCluster:
        """Return the state without the given tables, which do not belong to the run."""
        lists = {
            server: None if found is None else [one for one in found if one.table_id not in table_ids]
            for server, found in self.hosted.items()
        }
        gone = {region.region_id for region in self.regions if region.table_id in table_ids}
        return RestingCluster(
            [one for one in self.tables if one.table_id not in table_ids],
            {name: table_id for name, table_id in self.names.items() if table_id not in table_ids},
            [one for one in self.regions if one.table_id not in table_ids],
            [key for key in self.transitions if parse_replica_key(key)[0] not in gone],
            [one for one in self.answered if one.table_id not in table_ids],
            lists,
        )


class CatalogCheck(msgspec.Struct):
    """A condition that must hold, its violations, and a description of the check."""

    what: str
    breaches: list[str]
    detail: str


class _Model(NamedTuple):
    """Known facts about the tables of a run, by table id."""

    #: Tables that an operation has acknowledged.
    histories: Mapping[str, TableHistory]
    #: Tables whose outcome is known: tables that must exist, and tables that were deleted.
    live: Mapping[str, TableHistory]
    deleted: Mapping[str, TableHistory]
    #: Ids and names whose state is unknown.
    uncertain: set[str]

    def is_unexpected(self, table_id: str, name: str) -> bool:
        """Return True if no client was informed of the table's creation and no unanswered operation may have created
        it."""
        return table_id not in self.histories and not {table_id, name} & self.uncertain


def _model(operations: OperationLog) -> _Model:
    histories, uncertain = operations.histories(), operations.uncertain()
    certain = {
        table_id: history
        for table_id, history in histories.items()
        if table_id not in uncertain and not uncertain & names_of(history)
    }
    live = {table_id: history for table_id, history in certain.items() if history.deleted is None}
    deleted = {table_id: history for table_id, history in certain.items() if history.deleted is not None}
    return _Model(histories, live, deleted, uncertain)


def check_catalog(operations: OperationLog, snapshot: RestingCluster) -> list[CatalogCheck]:
    """Check everything that must hold after a run. Tables whose state is unknown are left out."""
    model = _model(operations)
    records = {one.table_id: one for one in snapshot.tables}
    answered = {one.table_id: one for one in snapshot.answered}
    return [
        CatalogCheck(
            "every operation had a definite result", operations.unanswered(), f"{len(operations.entries)} operations"
        ),
        CatalogCheck(
            "no two results contradict each other",
            operations.contradictions(),
            f"{len(model.histories)} tables in all",
        ),
        CatalogCheck(
            "every rejection was right", operations.wrong_rejections(), f"{_rejections(operations)} rejections"
        ),
        CatalogCheck(
            "the store's tables are those of the model",
            [*_tables(model, records), *_left_over(model, records), *_names(model, snapshot.names)],
            f"{len(model.live)} tables and {len(model.deleted)} deleted tables",
        ),
        CatalogCheck("the master answers the same", list(_answers(model, answered)), f"{len(answered)} tables"),
        CatalogCheck(
            "no tablet left over, missing or in the wrong state",
            list(_regions(model, records, snapshot)),
            f"{len(snapshot.regions)} tablets",
        ),
        CatalogCheck(
            "each tablet open on one server, under its table's latest schema",
            list(_hosting(model, records, snapshot)),
            f"{sum(len(found or ()) for found in snapshot.hosted.values())} replicas on {len(snapshot.hosted)} servers",
        ),
    ]


def _rejections(operations: OperationLog) -> int:
    return sum(bool(entry.outcome.code) for entry in operations.entries)


def _tables(model: _Model, records: Mapping[str, TableRecord]) -> Iterator[str]:
    for table_id, history in model.live.items():
        record = records.get(table_id)
        shape = history.shapes()[-1] if history.created is not None else None
        if record is None:
            yield f"table {table_id} ({shape}) is not in the store"
        elif shape is not None:
            yield from _differences(history, record)
    for table_id in model.deleted:
        record = records.get(table_id)
        if record is None:
            yield f"the record of deleted table {table_id} is missing (MD-06)"
        elif record.state is not TableState.REMOVED:
            yield f"table {table_id} was deleted and is {record.state.value}"


def _differences(history: TableHistory, record: TableRecord) -> Iterator[str]:
    shape, version = history.shapes()[-1], len(history.altered)
    if record.state is not TableState.RUNNING:
        yield f"table {record.table_id} ({record.name}) is {record.state.value}, not RUNNING"
    if shape_of(record) != shape:
        yield f"table {record.table_id} is {shape_of(record)}; expected {shape}"
    if record.schema_version != version:
        yield f"table {record.table_id} has schema version {record.schema_version}; expected {version}"
    schema: Schema | str = record.schema
    if isinstance(schema, Schema):
        ids = [one.id for one in schema.columns]
        if len(set(ids)) != len(ids) or max(ids) >= schema.next_column_id:
            yield f"table {record.table_id} has the column ids {ids} and {schema.next_column_id} as the next id"


def _left_over(model: _Model, records: Mapping[str, TableRecord]) -> Iterator[str]:
    for table_id, record in records.items():
        if model.is_unexpected(table_id, record.name):
            yield f"table {table_id} ({record.name}, {record.state.value}) exists, but no operation created it"


def _names(model: _Model, names: Mapping[str, str]) -> Iterator[str]:
    wanted = {
        history.shapes()[-1][0]: table_id for table_id, history in model.live.items() if history.created is not None
    }
    for name, table_id in wanted.items():
        if names.get(name) != table_id:
            yield f"the name {name} belongs to {names.get(name, 'no table')}; expected table {table_id}"
    for name, table_id in names.items():
        if name not in wanted and not model.uncertain & {name, table_id}:
            yield f"the name {name} belongs to table {table_id}; expected no table"


def _answers(model: _Model, answered: Mapping[str, TableRecord]) -> Iterator[str]:
    for table_id, history in model.live.items():
        record = answered.get(table_id)
        if record is None:
            yield f"the master does not list table {table_id}"
        elif history.created is not None:
            yield from (f"the master answers: {one}" for one in _differences(history, record))
    for table_id, record in answered.items():
        is_over = table_id in model.deleted or model.is_unexpected(table_id, record.name)
        if is_over and record.state is not TableState.REMOVED:
            yield f"the master lists table {table_id} ({record.name}, {record.state.value})"


def _regions(model: _Model, records: Mapping[str, TableRecord], snapshot: RestingCluster) -> Iterator[str]:
    by_table: dict[str, list[RegionRecord]] = {}
    for region in snapshot.regions:
        by_table.setdefault(region.table_id, []).append(region)
    for table_id, regions in by_table.items():
        name = records[table_id].name if table_id in records else ""
        if model.is_unexpected(table_id, name):
            yield f"{len(regions)} tablets of {table_id} exist, but no operation created the table"
    for table_id in model.live:
        yield from _coverage(table_id, records.get(table_id), by_table.get(table_id, []))
    for table_id in model.deleted:
        for region in by_table.get(table_id, []):
            if region.state not in _ENDED:
                yield f"tablet {region.region_id} of deleted table {table_id} is {region.state.value}"
                # A location on a server that has died is outdated and means nothing.
                if any(str(one.incarnation) in snapshot.hosted for one in region.replicas):
                    yield f"tablet {region.region_id} of deleted table {table_id} is still open according to the store"
            yield from (f"{key} is still in transition" for key in snapshot.transitions)


def _coverage(table_id: str, record: TableRecord | None, regions: list[RegionRecord]) -> Iterator[str]:
    """Check that the table's tablets are RUNNING, cover the key space, and have a location for each replica."""
    counting = sorted((one for one in regions if one.state not in _ENDED), key=lambda one: one.start_key)
    for region in counting:
        never_wanted = record is not None and record.intent is TableIntent.DISABLED
        if region.state is not TabletState.RUNNING and not (never_wanted and region.state is TabletState.PREPARING):
            yield f"tablet {region.region_id} of table {table_id} is {region.state.value}, not RUNNING"
        if record is not None and record.intent is TableIntent.ENABLED:
            for number in range(record.replication):
                if region.location(number).incarnation is None:
                    yield f"{replica_key(region.region_id, number)} is not open according to the store"
    try:
        check_ranges([RegionSpec(one.start_key, one.end_key) for one in counting])
    except ValueError as error:
        yield f"the tablets of table {table_id} do not cover the key space: {error}"
    if record is not None and record.regions != len(counting):
        yield f"table {table_id} has {len(counting)} tablets; expected {record.regions}"


def _hosting(model: _Model, records: Mapping[str, TableRecord], snapshot: RestingCluster) -> Iterator[str]:
    places: dict[str, list[tuple[str, HostedReplica]]] = {}
    for server, found in snapshot.hosted.items():
        if found is None:
            yield f"{server} did not list its replicas"
        for one in found or ():
            if one.state == _FAILED:
                continue  # the server only remembers the failure for the masters; nothing is open
            places.setdefault(replica_key(one.region_id, one.replica), []).append((server, one))
    for region in snapshot.regions:
        record = records.get(region.table_id)
        if region.table_id not in model.live or region.state in _ENDED or record is None:
            continue
        if record.intent is not TableIntent.ENABLED:
            continue
        for number in range(record.replication):
            key: str = replica_key(region.region_id, number)
            yield from _place(key, region, number, record, places.pop(key, []))
    for key, held in places.items():
        table_id = held[0][1].table_id
        name = records[table_id].name if table_id in records else ""
        if table_id in model.live or table_id in model.deleted or model.is_unexpected(table_id, name):
            where = ", ".join(f"{server} ({one.state})" for server, one in held)
            yield f"{key} is on {where}, but its table {table_id} no longer has this tablet"


def _place(
    key: str, region: RegionRecord, number: int, record: TableRecord, held: list[tuple[str, HostedReplica]]
) -> Iterator[str]:
    serving = [(server, one) for server, one in held if one.state == _OPEN]
    if len(serving) != 1:
        yield f"{key} is open on {len(serving)} servers {', '.join(server for server, _ in serving)}".rstrip()
        return
    server, replica = serving[0]
    stored = region.location(number).incarnation
    if str(stored) != server:
        yield f"{key} is open on {server}, but the store names {stored}"
    if replica.schema_version != record.schema_version:
        yield f"{key} follows schema version {replica.schema_version}; its table has {record.schema_version}"


__all__ = ["CatalogCheck", "RestingCluster", "check_catalog"]
