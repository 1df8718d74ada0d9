"""The model of a storm of operations on tables (TS-04): what is right passes, each planted discrepancy is named."""

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
from simulation.ddl_stress.catalog_snapshot import RestingCluster, judge
from simulation.ddl_stress.model import Deed, Ledger
from simulation.ddl_stress.operations import Operation, OperationKind, OperationOutcome, Storm
from tests.unit.simulation.catalog_fixture import Catalogue, Chance, storm


def breaches(ledger: Ledger, picture: RestingCluster) -> list[str]:
    """All of them."""
    return [one for finding in judge(ledger, picture) for one in finding.breaches]


@pytest.mark.parametrize("seed", range(20))
def test_a_right_catalogue_has_no_breaches(seed: int) -> None:
    """TS-04: whatever overlaps, what a catalogue says that does everything at once is never taken for wrong."""
    ledger, catalog = storm(seed, 300)
    assert breaches(ledger, catalog.picture()) == []


def test_a_storm_does_everything_and_is_refused_at_times() -> None:
    """The clients are no idle ones: each kind of operation is done often, and each refusal happens."""
    ledger, _ = storm(1, 1000)
    done = Counter((deed.operation.kind, deed.outcome.word) for deed in ledger.deeds)
    for kind in OperationKind:
        assert done[kind, "ok"] >= 20, kind
    refusals = {deed.outcome.code for deed in ledger.deeds if deed.outcome.code}
    assert refusals == {ms.ALREADY_EXISTS, ms.NOT_FOUND, ms.BAD_REQUEST}


def test_every_request_has_an_id_of_its_own_and_a_seed_is_a_storm() -> None:
    """The same seed asks the same; no id comes twice."""
    first, second = storm(7, 200)[0], storm(7, 200)[0]
    assert [one.operation for one in first.deeds] == [one.operation for one in second.deeds]
    ids = [one.request.request_id for one in first.deeds]
    assert len(set(ids)) == len(ids) == 200


# --- planted: the catalogue is not the model's ---


def _live(picture: RestingCluster) -> TableRecord:
    return next(one for one in picture.tables if one.state is TableState.RUNNING and isinstance(one.schema, Schema))


def _removed(picture: RestingCluster) -> TableRecord:
    return next(one for one in picture.tables if one.state is TableState.REMOVED)


def _put(picture: RestingCluster, record: TableRecord) -> None:
    for tables in (picture.tables, picture.answered):
        for at, one in enumerate(tables):
            if one.table_id == record.table_id:
                tables[at] = record


def _region_of(picture: RestingCluster, table: TableRecord) -> int:
    return next(at for at, one in enumerate(picture.regions) if one.table_id == table.table_id)


def _hosted(picture: RestingCluster, table: TableRecord) -> tuple[list[HostedReplica], int]:
    for held in picture.hosted.values():
        for at, one in enumerate(held or ()):
            if one.table_id == table.table_id:
                assert held is not None
                return held, at
    raise AssertionError(table)


def table_lost(picture: RestingCluster) -> None:
    picture.tables.remove(_live(picture))


def table_left_over(picture: RestingCluster) -> None:
    picture.tables.append(TableRecord("t999", "ghost"))


def table_not_deleted(picture: RestingCluster) -> None:
    _put(picture, msgspec.structs.replace(_removed(picture), state=TableState.RUNNING))


def table_record_gone(picture: RestingCluster) -> None:
    picture.tables.remove(_removed(picture))


def still_altering(picture: RestingCluster) -> None:
    _put(picture, msgspec.structs.replace(_live(picture), state=TableState.ALTERING))


def altered_twice(picture: RestingCluster) -> None:
    live = _live(picture)
    _put(picture, msgspec.structs.replace(live, schema_version=live.schema_version + 1))


def column_lost(picture: RestingCluster) -> None:
    live = next(
        one
        for one in picture.tables
        if one.state is TableState.RUNNING and isinstance(one.schema, Schema) and len(one.schema.columns) > 1
    )
    assert isinstance(live.schema, Schema)
    _put(picture, msgspec.structs.replace(live, schema=Schema(live.schema.columns[:-1], live.schema.next_column_id)))


def column_id_again(picture: RestingCluster) -> None:
    live = _live(picture)
    assert isinstance(live.schema, Schema)
    _put(picture, msgspec.structs.replace(live, schema=Schema(live.schema.columns, 0)))


def renamed(picture: RestingCluster) -> None:
    _put(picture, msgspec.structs.replace(_live(picture), name="another"))


def name_lost(picture: RestingCluster) -> None:
    del picture.names[_live(picture).name]


def name_left_over(picture: RestingCluster) -> None:
    picture.names["x-free"] = _removed(picture).table_id


def name_of_another(picture: RestingCluster) -> None:
    picture.names[_live(picture).name] = _removed(picture).table_id


def master_does_not_know(picture: RestingCluster) -> None:
    picture.answered.remove(_live(picture))


def master_lists_the_deleted(picture: RestingCluster) -> None:
    picture.answered.append(msgspec.structs.replace(_removed(picture), state=TableState.RUNNING))


def master_is_behind(picture: RestingCluster) -> None:
    live = _live(picture)
    picture.answered[picture.answered.index(live)] = msgspec.structs.replace(live, schema_version=999)


def tablet_lost(picture: RestingCluster) -> None:
    del picture.regions[_region_of(picture, _live(picture))]


def tablet_left_over(picture: RestingCluster) -> None:
    picture.regions.append(RegionRecord("t999", "t999.0"))


def tablet_doubled(picture: RestingCluster) -> None:
    region = picture.regions[_region_of(picture, _live(picture))]
    picture.regions.append(msgspec.structs.replace(region, region_id=f"{region.region_id}b"))


def tablet_preparing(picture: RestingCluster) -> None:
    at = _region_of(picture, _live(picture))
    picture.regions[at] = msgspec.structs.replace(picture.regions[at], state=TabletState.PREPARING)


def tablet_not_deleted(picture: RestingCluster) -> None:
    at = _region_of(picture, _removed(picture))
    picture.regions[at] = msgspec.structs.replace(picture.regions[at], state=TabletState.RUNNING)


def tablet_closed(picture: RestingCluster) -> None:
    at = _region_of(picture, _live(picture))
    picture.regions[at] = msgspec.structs.replace(picture.regions[at], replicas=())


def in_transition(picture: RestingCluster) -> None:
    picture.transitions.append(f"{picture.regions[0].region_id}-0")


def hosted_nowhere(picture: RestingCluster) -> None:
    held, at = _hosted(picture, _live(picture))
    del held[at]


def hosted_twice(picture: RestingCluster) -> None:
    held, at = _hosted(picture, _live(picture))
    other = next(found for found in picture.hosted.values() if found is not held)
    assert other is not None
    other.append(held[at])


def hosted_though_deleted(picture: RestingCluster) -> None:
    region = picture.regions[_region_of(picture, _removed(picture))]
    held = next(iter(picture.hosted.values()))
    assert held is not None
    held.append(HostedReplica(region.region_id, region.table_id, 0, "OPEN"))


def old_schema(picture: RestingCluster) -> None:
    altered = (one for one in picture.tables if one.state is TableState.RUNNING and one.schema_version > 0)
    held, at = _hosted(picture, next(altered))
    held[at] = msgspec.structs.replace(held[at], schema_version=0)


def server_silent(picture: RestingCluster) -> None:
    picture.hosted["s0@1"] = None


PLANTED: list[tuple[Callable[[RestingCluster], None], str]] = [
    (table_lost, "is not in the store"),
    (table_left_over, "nobody was told that it was created"),
    (table_not_deleted, "was deleted and is RUNNING"),
    (table_record_gone, "is not kept (MD-06)"),
    (still_altering, "is ALTERING, not RUNNING"),
    (altered_twice, "has schema version"),
    (column_lost, "which must be"),
    (column_id_again, "as the next"),
    (renamed, "which must be"),
    (name_lost, "means nothing"),
    (name_left_over, "must be free"),
    (name_of_another, "must mean table"),
    (master_does_not_know, "the master does not know table"),
    (master_lists_the_deleted, "the master lists table"),
    (master_is_behind, "the master says: table"),
    (tablet_lost, "do not cover the key space|a table needs at least one region"),
    (tablet_left_over, "a table that nobody was told of"),
    (tablet_doubled, "which must be"),
    (tablet_preparing, "is PREPARING, not RUNNING"),
    (tablet_not_deleted, "is RUNNING"),
    (tablet_closed, "is not open, as the store says"),
    (in_transition, "is still in transition"),
    (hosted_nowhere, "is open on 0 servers"),
    (hosted_twice, "is open on 2 servers"),
    (hosted_though_deleted, "has no such tablet any more"),
    (old_schema, "follows schema version 0"),
    (server_silent, "did not say what it has"),
]


@pytest.mark.parametrize(("plant", "words"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_discrepancy_is_named(plant: Callable[[RestingCluster], None], words: str) -> None:
    """TS-04: a model that would not notice proves nothing."""
    ledger, catalog = storm(3, 120)
    picture = catalog.picture()
    plant(picture)
    found = breaches(ledger, picture)
    assert any(word in one for one in found for word in words.split("|")), found


def test_tables_from_before_are_left_out() -> None:
    """Only what the storm has made is judged."""
    ledger, catalog = storm(5, 50)
    picture = catalog.picture()
    table_left_over(picture)
    tablet_left_over(picture)
    assert breaches(ledger, picture) != []
    assert breaches(ledger, picture.without({"t999"})) == []


# --- planted: answers that cannot be ---


def created(number: int, name: str, table_id: str, asked: float, ended: float) -> Deed:
    """A create that was told to have succeeded."""
    request = CreateTable(name, request_id=str(number))
    operation = Operation(number, 0, OperationKind.CREATE, request)
    return Deed(operation, asked, ended, OperationOutcome(TableRecord(table_id, name, regions=1)))


def altered(number: int, table: TableRecord, asked: float, ended: float) -> Deed:
    """A schema text that was replaced."""
    request = AlterTable(table.name, schema=table.schema if isinstance(table.schema, str) else None)
    return Deed(Operation(number, 0, OperationKind.SET_TEXT, request), asked, ended, OperationOutcome(table))


def deleted(number: int, name: str, table_id: str, asked: float, ended: float) -> Deed:
    """A delete that was told to have succeeded."""
    operation = Operation(number, 0, OperationKind.DELETE, DeleteTable(name, request_id=str(number)))
    return Deed(operation, asked, ended, OperationOutcome(TableRecord(table_id, name, state=TableState.REMOVED)))


def refused(request: CreateTable | AlterTable | DeleteTable, code: str, asked: float, ended: float) -> Deed:
    """An operation that was refused."""
    return Deed(Operation(99, 0, OperationKind.CREATE, request), asked, ended, OperationOutcome(code=code))


A1 = TableRecord("a", "x", "text", 1, regions=1)
A2 = TableRecord("a", "x", "other", 2, regions=1)

IMPOSSIBLE: list[tuple[str, list[Deed], str]] = [
    ("two creates", [created(1, "x", "a", 0, 1), created(2, "x", "b", 2, 3)], "at once"),
    ("one id twice", [created(1, "x", "a", 0, 1), created(2, "y", "a", 2, 3)], "were told that they did it"),
    ("deleted twice", [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 3), deleted(3, "x", "a", 2, 4)], "both"),
    ("nobody's table", [deleted(1, "x", "a", 2, 3)], "nobody was told that it was created"),
    ("lost alteration", [created(1, "x", "a", 0, 1), altered(2, A2, 2, 3)], "to the versions [2], not [1]"),
    (
        "one version twice",
        [created(1, "x", "a", 0, 1), altered(2, A1, 2, 3), altered(3, A1, 2, 3)],
        "to the versions [1, 1], not [1, 2]",
    ),
    (
        "altered after its end",
        [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 3), altered(3, A1, 4, 5)],
        "had been deleted before it was asked",
    ),
    ("no result", [Deed(Operation(1, 0, OperationKind.CREATE, CreateTable("x")), 0)], "no result"),
    ("name was free", [refused(CreateTable("x"), ms.ALREADY_EXISTS, 2, 3)], "nobody had that name"),
    (
        "refused because of itself",
        [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 3), refused(CreateTable("x"), ms.ALREADY_EXISTS, 4, 5)],
        "nobody had that name",
    ),
    ("was there", [created(1, "x", "a", 0, 1), refused(DeleteTable("x"), ms.NOT_FOUND, 2, 3)], "all the time"),
    ("was there by id", [created(1, "x", "a", 0, 1), refused(DeleteTable("a"), ms.NOT_FOUND, 2, 3)], "all the time"),
    ("no reason", [refused(CreateTable("x"), ms.BAD_REQUEST, 0, 1)], "nothing stood against it"),
]


@pytest.mark.parametrize(("deeds", "words"), [row[1:] for row in IMPOSSIBLE], ids=[row[0] for row in IMPOSSIBLE])
def test_answers_that_cannot_be_are_named(deeds: list[Deed], words: str) -> None:
    """OC-08, MF-12: whatever the catalogue says in the end, the answers must make sense."""
    ledger = Ledger()
    ledger.deeds += deeds
    found = [*ledger.unanswered(), *ledger.contradictions(), *ledger.wrong_refusals()]
    assert any(words in one for one in found), found


def test_a_refusal_that_overlaps_what_explains_it_is_right() -> None:
    """Asked before the delete was answered: the name may have been taken still."""
    ledger = Ledger()
    ledger.deeds += [created(1, "x", "a", 0, 1), deleted(2, "x", "a", 2, 6)]
    ledger.deeds += [refused(CreateTable("x"), ms.ALREADY_EXISTS, 4, 5), refused(DeleteTable("x"), ms.NOT_FOUND, 3, 5)]
    assert ledger.wrong_refusals() == []


def test_what_is_in_doubt_is_not_judged_twice() -> None:
    """A create without a result is a breach; that its table is there, or not there, is none besides."""
    catalog = Catalogue()
    made = Storm(Chance(1), "x")
    ledger = Ledger()
    operation = next(one for one in iter(lambda: made.next(0), None) if one.kind is OperationKind.CREATE)
    ledger.asked(operation, 0.0)
    assert len(breaches(ledger, catalog.picture())) == 1
    catalog.do(operation)
    assert len(breaches(ledger, catalog.picture())) == 1
