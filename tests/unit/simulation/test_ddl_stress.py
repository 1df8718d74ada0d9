"""The model of a DDL stress run on tables (TS-04): correct results pass; each planted discrepancy is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from regions import messages as ms
from regions.messages import HostedReplica
from regions.messages.ddl import AlterTable, CreateTable, DeleteTable
from regions.records.model import RegionRecord, TableRecord, TableState, TabletState
from regions.records.schema import Schema
from simulation.ddl_stress.catalog_snapshot import RestingCluster, check_catalog
from simulation.ddl_stress.model import LoggedOperation, OperationLog
from simulation.ddl_stress.operations import Operation, OperationGenerator, OperationKind, OperationOutcome
from tests.unit.simulation.catalog_fixture import Catalog, Chance, run_operations


def breaches(operations: OperationLog, snapshot: RestingCluster) -> list[str]:
    """Return all breaches."""
    return [one for finding in check_catalog(operations, snapshot) for one in finding.breaches]


@pytest.mark.parametrize("seed", range(20))
def test_a_right_catalog_has_no_breaches(seed: int) -> None:
    """TS-04: with any overlap, the answers of a catalog that does everything at once are accepted."""
    operations, catalog = run_operations(seed, 300)
    assert breaches(operations, catalog.snapshot()) == []


def test_a_storm_does_everything_and_is_refused_at_times() -> None:
    """The clients do enough: each kind of operation is done often, and each rejection occurs."""
    operations, _ = run_operations(1, 1000)
    done = Counter((entry.operation.kind, entry.outcome.label) for entry in operations.entries)
    for kind in OperationKind:
        assert done[kind, "ok"] >= 20, kind
    refusals = {entry.outcome.code for entry in operations.entries if entry.outcome.code}
    assert refusals == {ms.ALREADY_EXISTS, ms.NOT_FOUND, ms.BAD_REQUEST}


def test_every_request_has_an_id_of_its_own_and_a_seed_is_a_run_operations() -> None:
    """The same seed sends the same requests; no id is used twice."""
    first, second = run_operations(7, 200)[0], run_operations(7, 200)[0]
    assert [one.operation for one in first.entries] == [one.operation for one in second.entries]
    ids = [one.request.request_id for one in first.entries]
    assert len(set(ids)) == len(ids) == 200


# --- planted: the catalog is not the model's ---


def _live(snapshot: RestingCluster) -> TableRecord:
    return next(one for one in snapshot.tables if one.state is TableState.RUNNING and isinstance(one.schema, Schema))


def _removed(snapshot: RestingCluster) -> TableRecord:
    return next(one for one in snapshot.tables if one.state is TableState.REMOVED)


def _put(snapshot: RestingCluster, record: TableRecord) -> None:
    for tables in (snapshot.tables, snapshot.answered):
        for at, one in enumerate(tables):
            if one.table_id == record.table_id:
                tables[at] = record


def _region_of(snapshot: RestingCluster, table: TableRecord) -> int:
    return next(at for at, one in enumerate(snapshot.regions) if one.table_id == table.table_id)


def _hosted(snapshot: RestingCluster, table: TableRecord) -> tuple[list[HostedReplica], int]:
    for held in snapshot.hosted.values():
        for at, one in enumerate(held or ()):
            if one.table_id == table.table_id:
                assert held is not None
                return held, at
    raise AssertionError(table)


def table_lost(snapshot: RestingCluster) -> None:
    snapshot.tables.remove(_live(snapshot))


def table_left_over(snapshot: RestingCluster) -> None:
    snapshot.tables.append(TableRecord("t999", "ghost"))


def table_not_deleted(snapshot: RestingCluster) -> None:
    _put(snapshot, msgspec.structs.replace(_removed(snapshot), state=TableState.RUNNING))


def table_record_gone(snapshot: RestingCluster) -> None:
    snapshot.tables.remove(_removed(snapshot))


def still_altering(snapshot: RestingCluster) -> None:
    _put(snapshot, msgspec.structs.replace(_live(snapshot), state=TableState.ALTERING))


def altered_twice(snapshot: RestingCluster) -> None:
    live = _live(snapshot)
    _put(snapshot, msgspec.structs.replace(live, schema_version=live.schema_version + 1))


def column_lost(snapshot: RestingCluster) -> None:
    live = next(
        one
        for one in snapshot.tables
        if one.state is TableState.RUNNING and isinstance(one.schema, Schema) and len(one.schema.columns) > 1
    )
    assert isinstance(live.schema, Schema)
    _put(snapshot, msgspec.structs.replace(live, schema=Schema(live.schema.columns[:-1], live.schema.next_column_id)))


def column_id_again(snapshot: RestingCluster) -> None:
    live = _live(snapshot)
    assert isinstance(live.schema, Schema)
    _put(snapshot, msgspec.structs.replace(live, schema=Schema(live.schema.columns, 0)))


def renamed(snapshot: RestingCluster) -> None:
    _put(snapshot, msgspec.structs.replace(_live(snapshot), name="another"))


def name_lost(snapshot: RestingCluster) -> None:
    del snapshot.names[_live(snapshot).name]


def name_left_over(snapshot: RestingCluster) -> None:
    snapshot.names["x-free"] = _removed(snapshot).table_id


def name_of_another(snapshot: RestingCluster) -> None:
    snapshot.names[_live(snapshot).name] = _removed(snapshot).table_id


def master_does_not_know(snapshot: RestingCluster) -> None:
    snapshot.answered.remove(_live(snapshot))


def master_lists_the_deleted(snapshot: RestingCluster) -> None:
    snapshot.answered.append(msgspec.structs.replace(_removed(snapshot), state=TableState.RUNNING))


def master_is_behind(snapshot: RestingCluster) -> None:
    live = _live(snapshot)
    snapshot.answered[snapshot.answered.index(live)] = msgspec.structs.replace(live, schema_version=999)


def tablet_lost(snapshot: RestingCluster) -> None:
    del snapshot.regions[_region_of(snapshot, _live(snapshot))]


def tablet_left_over(snapshot: RestingCluster) -> None:
    snapshot.regions.append(RegionRecord("t999", "t999.0"))


def tablet_doubled(snapshot: RestingCluster) -> None:
    region = snapshot.regions[_region_of(snapshot, _live(snapshot))]
    snapshot.regions.append(msgspec.structs.replace(region, region_id=f"{region.region_id}b"))


def tablet_preparing(snapshot: RestingCluster) -> None:
    at = _region_of(snapshot, _live(snapshot))
    snapshot.regions[at] = msgspec.structs.replace(snapshot.regions[at], state=TabletState.PREPARING)


def tablet_not_deleted(snapshot: RestingCluster) -> None:
    at = _region_of(snapshot, _removed(snapshot))
    snapshot.regions[at] = msgspec.structs.replace(snapshot.regions[at], state=TabletState.RUNNING)


def tablet_closed(snapshot: RestingCluster) -> None:
    at = _region_of(snapshot, _live(snapshot))
    snapshot.regions[at] = msgspec.structs.replace(snapshot.regions[at], replicas=())


def in_transition(snapshot: RestingCluster) -> None:
    snapshot.transitions.append(f"{snapshot.regions[0].region_id}-0")


def hosted_nowhere(snapshot: RestingCluster) -> None:
    held, at = _hosted(snapshot, _live(snapshot))
    del held[at]


def hosted_twice(snapshot: RestingCluster) -> None:
    held, at = _hosted(snapshot, _live(snapshot))
    other = next(found for found in snapshot.hosted.values() if found is not held)
    assert other is not None
    other.append(held[at])


def hosted_though_deleted(snapshot: RestingCluster) -> None:
    region = snapshot.regions[_region_of(snapshot, _removed(snapshot))]
    held = next(iter(snapshot.hosted.values()))
    assert held is not None
    held.append(HostedReplica(region.region_id, region.table_id, 0, "OPEN"))


def old_schema(snapshot: RestingCluster) -> None:
    altered = (one for one in snapshot.tables if one.state is TableState.RUNNING and one.schema_version > 0)
    held, at = _hosted(snapshot, next(altered))
    held[at] = msgspec.structs.replace(held[at], schema_version=0)


def server_silent(snapshot: RestingCluster) -> None:
    snapshot.hosted["s0@1"] = None


PLANTED: list[tuple[Callable[[RestingCluster], None], str]] = [
    (table_lost, "is not in the store"),
    (table_left_over, "no operation created it"),
    (table_not_deleted, "was deleted and is RUNNING"),
    (table_record_gone, "is missing (MD-06)"),
    (still_altering, "is ALTERING, not RUNNING"),
    (altered_twice, "has schema version"),
    (column_lost, "expected"),
    (column_id_again, "as the next"),
    (renamed, "expected"),
    (name_lost, "belongs to no table"),
    (name_left_over, "expected no table"),
    (name_of_another, "expected table"),
    (master_does_not_know, "the master does not list table"),
    (master_lists_the_deleted, "the master lists table"),
    (master_is_behind, "the master answers: table"),
    (tablet_lost, "do not cover the key space|a table needs at least one region"),
    (tablet_left_over, "no operation created the table"),
    (tablet_doubled, "expected"),
    (tablet_preparing, "is PREPARING, not RUNNING"),
    (tablet_not_deleted, "is RUNNING"),
    (tablet_closed, "is not open according to the store"),
    (in_transition, "is still in transition"),
    (hosted_nowhere, "is open on 0 servers"),
    (hosted_twice, "is open on 2 servers"),
    (hosted_though_deleted, "no longer has this tablet"),
    (old_schema, "follows schema version 0"),
    (server_silent, "did not list its replicas"),
]


@pytest.mark.parametrize(("plant", "words"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_discrepancy_is_reported(plant: Callable[[RestingCluster], None], words: str) -> None:
    """TS-04: a model that would not notice proves nothing."""
    operations, catalog = run_operations(3, 120)
    snapshot = catalog.snapshot()
    plant(snapshot)
    found = breaches(operations, snapshot)
    assert any(word in one for one in found for word in words.split("|")), found


def test_tables_from_before_are_left_out() -> None:
    """Tables from before the run are not checked."""
    operations, catalog = run_operations(5, 50)
    snapshot = catalog.snapshot()
    table_left_over(snapshot)
    tablet_left_over(snapshot)
    assert breaches(operations, snapshot) != []
    assert breaches(operations, snapshot.without({"t999"})) == []


# --- planted: answers that cannot be ---


def created(number: int, name: str, table_id: str, asked: float, ended: float) -> LoggedOperation:
    """Return a create that succeeded."""
    request = CreateTable(name, request_id=str(number))
    operation = Operation(number, 0, OperationKind.CREATE, request)
    return LoggedOperation(operation, asked, ended, OperationOutcome(TableRecord(table_id, name, regions=1)))


def altered(number: int, table: TableRecord, asked: float, ended: float) -> LoggedOperation:
    """Return an alteration that replaced a schema text."""
    request = AlterTable(table.name, schema=table.schema if isinstance(table.schema, str) else None)
    return LoggedOperation(Operation(number, 0, OperationKind.SET_TEXT, request), asked, ended, OperationOutcome(table))


def deleted(number: int, name: str, table_id: str, asked: float, ended: float) -> LoggedOperation:
    """Return a delete that succeeded."""
    operation = Operation(number, 0, OperationKind.DELETE, DeleteTable(name, request_id=str(number)))
    return LoggedOperation(
        operation, asked, ended, OperationOutcome(TableRecord(table_id, name, state=TableState.REMOVED))
    )


def rejected(request: CreateTable | AlterTable | DeleteTable, code: str, asked: float, ended: float) -> LoggedOperation:
    """Return a rejected operation."""
    return LoggedOperation(Operation(99, 0, OperationKind.CREATE, request), asked, ended, OperationOutcome(code=code))


A1 = TableRecord("a", "x", "text", 1, regions=1)
A2 = TableRecord("a", "x", "other", 2, regions=1)

IMPOSSIBLE: list[tuple[str, list[LoggedOperation], str]] = [
    ("two creates", [created(1, "x", "a", 0, 1), created(2, "x", "b", 2, 3)], "at once"),
    ("one id twice", [created(1, "x", "a", 0, 1), created(2, "y", "a", 2, 3)], "succeeded on table a"),
    ("deleted twice", [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 3), deleted(3, "x", "a", 2, 4)], "both"),
    ("unknown table", [deleted(1, "x", "a", 2, 3)], "no operation created the table"),
    ("lost alteration", [created(1, "x", "a", 0, 1), altered(2, A2, 2, 3)], "versions [2]; expected [1]"),
    (
        "one version twice",
        [created(1, "x", "a", 0, 1), altered(2, A1, 2, 3), altered(3, A1, 2, 3)],
        "versions [1, 1]; expected [1, 2]",
    ),
    (
        "altered after its end",
        [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 3), altered(3, A1, 4, 5)],
        "had been deleted before the request",
    ),
    ("no result", [LoggedOperation(Operation(1, 0, OperationKind.CREATE, CreateTable("x")), 0)], "no result"),
    ("name was free", [rejected(CreateTable("x"), ms.ALREADY_EXISTS, 2, 3)], "no table had this name"),
    (
        "rejected because of itself",
        [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 3), rejected(CreateTable("x"), ms.ALREADY_EXISTS, 4, 5)],
        "no table had this name",
    ),
    ("was there", [created(1, "x", "a", 0, 1), rejected(DeleteTable("x"), ms.NOT_FOUND, 2, 3)], "all the time"),
    ("was there by id", [created(1, "x", "a", 0, 1), rejected(DeleteTable("a"), ms.NOT_FOUND, 2, 3)], "all the time"),
    ("no reason", [rejected(CreateTable("x"), ms.BAD_REQUEST, 0, 1)], "no reason for the rejection"),
]


@pytest.mark.parametrize(("entries", "words"), [row[1:] for row in IMPOSSIBLE], ids=[row[0] for row in IMPOSSIBLE])
def test_impossible_results_are_reported(entries: list[LoggedOperation], words: str) -> None:
    """OC-08, MF-12: for any final catalog, the answers must be consistent."""
    operations = OperationLog()
    operations.entries += entries
    found = [*operations.unanswered(), *operations.contradictions(), *operations.wrong_rejections()]
    assert any(words in one for one in found), found


def test_a_refusal_that_overlaps_what_explains_it_is_right() -> None:
    """Asked before the delete was answered: the name may still have been taken."""
    operations = OperationLog()
    operations.entries += [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 6)]
    operations.entries += [
        rejected(CreateTable("x"), ms.ALREADY_EXISTS, 4, 5),
        rejected(DeleteTable("x"), ms.NOT_FOUND, 3, 5),
    ]
    assert operations.wrong_rejections() == []


def test_what_is_in_doubt_is_not_judged_twice() -> None:
    """A create without a result is a breach; whether its table exists is not another one."""
    catalog = Catalog()
    made = OperationGenerator(Chance(1), "x")
    operations = OperationLog()
    operation = next(one for one in iter(lambda: made.next(0), None) if one.kind is OperationKind.CREATE)
    operations.start(operation, 0.0)
    assert len(breaches(operations, catalog.snapshot())) == 1
    catalog.do(operation)
    assert len(breaches(operations, catalog.snapshot())) == 1
