"""The catalogue after a storm, held against the model of what was acknowledged (TS-04): the same, to the last tablet.

A `RestingCluster` is taken when everything is at rest: what the store holds, what the active master answers, what
every server says that it has. Tables that were there before the storm are left out of it.
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
from simulation.ddl_stress.model import Ledger, Life, form_of, names_of

#: States in a server's own list: of a replica that it serves, and of one that it failed to open.
_OPEN = "OPEN"
_FAILED = "FAILED"
#: Regions that count no more: another has their range, or their table is deleted.
_ENDED = frozenset((TabletState.REPLACED, TabletState.DELETED))


class RestingCluster(msgspec.Struct):
    """A cluster at rest."""

    #: Values of /tables, /names and /regions.
    tables: list[TableRecord]
    names: dict[str, str]
    regions: list[RegionRecord]
    #: Keys of the replicas in transition.
    transitions: list[str]
    #: Tables as the active master lists them.
    answered: list[TableRecord]
    #: What each live server has, by incarnation; None for one that did not answer.
    hosted: dict[str, list[HostedReplica] | None]

    def without(self, table_ids: set[str]) -> RestingCluster:
        """Apart from some tables, which have nothing to do with the storm."""
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
    """One thing that must hold, what speaks against it, and what was looked at."""

    what: str
    breaches: list[str]
    detail: str


class _Model(NamedTuple):
    """What is known of the tables of a storm, by their ids."""

    #: Whatever was created.
    lives: Mapping[str, Life]
    #: Of those of which it is known what became, the ones that must be there, and the ones that were deleted.
    live: Mapping[str, Life]
    gone: Mapping[str, Life]
    #: Ids and names of which nobody knows.
    doubt: set[str]

    def is_strange(self, table_id: str, name: str) -> bool:
        """Whether nobody was told that this table was created, and it is in no doubt either."""
        return table_id not in self.lives and not {table_id, name} & self.doubt


def _model(ledger: Ledger) -> _Model:
    lives, doubt = ledger.lives(), ledger.in_doubt()
    certain = {
        table_id: life for table_id, life in lives.items() if table_id not in doubt and not doubt & names_of(life)
    }
    live = {table_id: life for table_id, life in certain.items() if life.deleted is None}
    gone = {table_id: life for table_id, life in certain.items() if life.deleted is not None}
    return _Model(lives, live, gone, doubt)


def judge(ledger: Ledger, picture: RestingCluster) -> list[CatalogCheck]:
    """Everything that must hold after a storm; tables of which nobody knows what became are left out."""
    model = _model(ledger)
    records = {one.table_id: one for one in picture.tables}
    answered = {one.table_id: one for one in picture.answered}
    return [
        CatalogCheck("every operation had a definite result", ledger.unanswered(), f"{len(ledger.deeds)} operations"),
        CatalogCheck(
            "no two results contradict each other", ledger.contradictions(), f"{len(model.lives)} tables in all"
        ),
        CatalogCheck("every refusal was right", ledger.wrong_refusals(), f"{_refusals(ledger)} refusals"),
        CatalogCheck(
            "the store's tables are those of the model",
            [*_tables(model, records), *_left_over(model, records), *_names(model, picture.names)],
            f"{len(model.live)} tables and {len(model.gone)} deleted ones",
        ),
        CatalogCheck("the master answers the same", list(_answers(model, answered)), f"{len(answered)} tables"),
        CatalogCheck(
            "no tablet left over, missing or in the wrong state",
            list(_regions(model, records, picture)),
            f"{len(picture.regions)} tablets",
        ),
        CatalogCheck(
            "each tablet open on one server, under its table's latest schema",
            list(_hosting(model, records, picture)),
            f"{sum(len(found or ()) for found in picture.hosted.values())} replicas on {len(picture.hosted)} servers",
        ),
    ]


def _refusals(ledger: Ledger) -> int:
    return sum(bool(deed.outcome.code) for deed in ledger.deeds)


def _tables(model: _Model, records: Mapping[str, TableRecord]) -> Iterator[str]:
    for table_id, life in model.live.items():
        record = records.get(table_id)
        form = life.forms()[-1] if life.created is not None else None
        if record is None:
            yield f"table {table_id} ({form}) is not in the store"
        elif form is not None:
            yield from _differences(life, record)
    for table_id in model.gone:
        record = records.get(table_id)
        if record is None:
            yield f"the record of deleted table {table_id} is not kept (MD-06)"
        elif record.state is not TableState.REMOVED:
            yield f"table {table_id} was deleted and is {record.state.value}"


def _differences(life: Life, record: TableRecord) -> Iterator[str]:
    form, version = life.forms()[-1], len(life.altered)
    if record.state is not TableState.RUNNING:
        yield f"table {record.table_id} ({record.name}) is {record.state.value}, not RUNNING"
    if form_of(record) != form:
        yield f"table {record.table_id} is {form_of(record)}, which must be {form}"
    if record.schema_version != version:
        yield f"table {record.table_id} has schema version {record.schema_version}, which must be {version}"
    schema: Schema | str = record.schema
    if isinstance(schema, Schema):
        ids = [one.id for one in schema.columns]
        if len(set(ids)) != len(ids) or max(ids) >= schema.next_column_id:
            yield f"table {record.table_id} has the column ids {ids} and {schema.next_column_id} as the next"


def _left_over(model: _Model, records: Mapping[str, TableRecord]) -> Iterator[str]:
    for table_id, record in records.items():
        if model.is_strange(table_id, record.name):
            yield f"table {table_id} ({record.name}, {record.state.value}): nobody was told that it was created"


def _names(model: _Model, names: Mapping[str, str]) -> Iterator[str]:
    wanted = {life.forms()[-1][0]: table_id for table_id, life in model.live.items() if life.created is not None}
    for name, table_id in wanted.items():
        if names.get(name) != table_id:
            yield f"the name {name} must mean table {table_id}, and means {names.get(name, 'nothing')}"
    for name, table_id in names.items():
        if name not in wanted and not model.doubt & {name, table_id}:
            yield f"the name {name} means table {table_id}, and must be free"


def _answers(model: _Model, answered: Mapping[str, TableRecord]) -> Iterator[str]:
    for table_id, life in model.live.items():
        record = answered.get(table_id)
        if record is None:
            yield f"the master does not know table {table_id}"
        elif life.created is not None:
            yield from (f"the master says: {one}" for one in _differences(life, record))
    for table_id, record in answered.items():
        is_over = table_id in model.gone or model.is_strange(table_id, record.name)
        if is_over and record.state is not TableState.REMOVED:
            yield f"the master lists table {table_id} ({record.name}, {record.state.value})"


def _regions(model: _Model, records: Mapping[str, TableRecord], picture: RestingCluster) -> Iterator[str]:
    by_table: dict[str, list[RegionRecord]] = {}
    for region in picture.regions:
        by_table.setdefault(region.table_id, []).append(region)
    for table_id, regions in by_table.items():
        name = records[table_id].name if table_id in records else ""
        if model.is_strange(table_id, name):
            yield f"{len(regions)} tablets of {table_id}, a table that nobody was told of"
    for table_id in model.live:
        yield from _coverage(table_id, records.get(table_id), by_table.get(table_id, []))
    for table_id in model.gone:
        for region in by_table.get(table_id, []):
            if region.state not in _ENDED:
                yield f"tablet {region.region_id} of deleted table {table_id} is {region.state.value}"
            # The place of a replica that was on a server that has died means nothing any more.
            if any(str(one.incarnation) in picture.hosted for one in region.replicas):
                yield f"tablet {region.region_id} of deleted table {table_id} is still open, as the store says"
    yield from (f"{key} is still in transition" for key in picture.transitions)


def _coverage(table_id: str, record: TableRecord | None, regions: list[RegionRecord]) -> Iterator[str]:
    """The table's tablets are RUNNING and cover the key space, each replica with its place."""
    counting = sorted((one for one in regions if one.state not in _ENDED), key=lambda one: one.start_key)
    for region in counting:
        never_wanted = record is not None and record.intent is TableIntent.DISABLED
        if region.state is not TabletState.RUNNING and not (never_wanted and region.state is TabletState.PREPARING):
            yield f"tablet {region.region_id} of table {table_id} is {region.state.value}, not RUNNING"
        if record is not None and record.intent is TableIntent.ENABLED:
            for number in range(record.replication):
                if region.location(number).incarnation is None:
                    yield f"{replica_key(region.region_id, number)} is not open, as the store says"
    try:
        check_ranges([RegionSpec(one.start_key, one.end_key) for one in counting])
    except ValueError as error:
        yield f"the tablets of table {table_id} do not cover the key space: {error}"
    if record is not None and record.regions != len(counting):
        yield f"table {table_id} has {len(counting)} tablets, which must be {record.regions}"


def _hosting(model: _Model, records: Mapping[str, TableRecord], picture: RestingCluster) -> Iterator[str]:
    places: dict[str, list[tuple[str, HostedReplica]]] = {}
    for server, found in picture.hosted.items():
        if found is None:
            yield f"{server} did not say what it has"
        for one in found or ():
            if one.state == _FAILED:
                continue  # only remembered, for masters that ask: nothing of it is there
            places.setdefault(replica_key(one.region_id, one.replica), []).append((server, one))
    for region in picture.regions:
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
        if table_id in model.live or table_id in model.gone or model.is_strange(table_id, name):
            where = ", ".join(f"{server} ({one.state})" for server, one in held)
            yield f"{key} is on {where}, and its table {table_id} has no such tablet any more"


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
        yield f"{key} is open on {server}, the store says {stored}"
    if replica.schema_version != record.schema_version:
        yield f"{key} follows schema version {replica.schema_version}, its table has {record.schema_version}"


__all__ = ["CatalogCheck", "RestingCluster", "judge"]
