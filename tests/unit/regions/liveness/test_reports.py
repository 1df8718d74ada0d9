"""Reports in heartbeats that are accepted, and decisions of the store about a suspect (HB-03, FN-02 to FN-04)."""

from __future__ import annotations

import pytest

from regions.cluster.state import ClusterState
from regions.liveness.reports import CHECKS_MAX, PATIENCE_MS, RECHECK_MS, SPARE_SIZES, Reports, Ruling, Suspect, ruling
from regions.liveness.roster import DROPPED_MS, KNOWN_BEATS, SILENT_MS, Roster
from regions.messages.heartbeat import CLOSING, OPEN, Heartbeat, Measure, ReplicaReport, Report, ServerFigures
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TabletState,
    TransitionRecord,
)

A, B = Incarnation("a", 1), Incarnation("b", 1)
HERE = RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "a", 1),))
THERE = RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "b", 1),))
FORMER = RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "a", 0),))


def transition(source: Incarnation | None, destination: Incarnation | None) -> TransitionRecord:
    return TransitionRecord("t.0", "t", 0, RegionState.OFFLINE, source=source, destination=destination)


@pytest.mark.parametrize(
    ("region", "found", "expected"),
    [
        (HERE, None, Ruling.OWNED),
        (THERE, None, Ruling.DISOWNED),
        (FORMER, None, Ruling.DISOWNED),
        (RegionRecord("t", "t.0"), None, Ruling.DISOWNED),
        (RegionRecord("t", "t.0", state=TabletState.REPLACED, replicas=HERE.replicas), None, Ruling.DISOWNED),
        (RegionRecord("t", "t.0", state=TabletState.DELETED, replicas=HERE.replicas), None, Ruling.DISOWNED),
        (None, None, Ruling.ORPHAN),
        (None, transition(None, B), Ruling.ORPHAN),
        (THERE, transition(A, B), Ruling.OWNED),
        (THERE, transition(None, A), Ruling.OWNED),
        (THERE, transition(None, B), Ruling.DISOWNED),
    ],
)
def test_the_stores_word(region: RegionRecord | None, found: TransitionRecord | None, expected: Ruling) -> None:
    """The cases of FN-03, and FN-04: a region that the store does not know is left alone."""
    assert ruling(Suspect(A, ReplicaReport("t.0", "t", 0, OPEN), "t.0-0", 0), region, found) is expected


def reports(record: RegionRecord = HERE) -> Reports:
    world = ClusterState()
    world.put_table(TableRecord("t", "orders"), 0)
    world.put_region(record, 0)
    return Reports(world)


def test_a_replica_is_changing_until_its_server_reports_that_it_is_open() -> None:
    """N5: for this start of the server alone."""
    seen = reports()
    for state in (OPEN, CLOSING, "OPENING", CLOSING, OPEN):
        seen.take(A, Report([ReplicaReport("t.0", "t", 0, state)], begins=True, ends=True), 0)
        assert seen.is_changing(A, "t.0-0") is (state != OPEN)
        assert seen.closing(A) == (["t.0-0"] if state == CLOSING else [])
    seen.take(A, Report([ReplicaReport("t.0", "t", 0, CLOSING)]), 0)
    assert not seen.is_changing(Incarnation("a", 0), "t.0-0")
    seen.take(A, Report([], ["t.0-0"]), 0)
    assert seen.closing(A) == []


def test_a_replica_at_home_is_never_a_suspect() -> None:
    """However often it is reported."""
    told = reports()
    for _ in range(3):
        told.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN)], begins=True, ends=True), 0)
    assert told.due(PATIENCE_MS * 10) == []


def test_a_suspect_is_looked_into_after_a_while_and_then_again() -> None:
    """A limited number at a time; and not before the cluster state had time to catch up."""
    told = reports()
    many = [ReplicaReport(f"u.{number}", "u", 0, OPEN) for number in range(CHECKS_MAX + 5)]
    told.take(A, Report(many, begins=True, ends=True), 1_000)
    assert told.due(1_000 + PATIENCE_MS - 1) == []
    assert len(told.due(1_000 + PATIENCE_MS)) == CHECKS_MAX
    assert len(told.due(1_000 + PATIENCE_MS)) == 5


def test_changes_of_what_is_not_known_are_not_taken_for_everything() -> None:
    """HB-04: without its first part a report says nothing about the other replicas; the reply asks for a full one."""
    told = reports()
    told.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN)]), 0)
    assert told.holding(A) is None
    assert told.wants_full(A)
    told.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN)], begins=True), 0)
    assert not told.wants_full(A)
    assert told.lists() == {}, "it has not ended"
    told.take(Incarnation("a", 2), Report(begins=True, ends=True), 0)
    assert told.wants_full(A)


def test_reports_of_servers_that_nobody_knows_are_dropped() -> None:
    told = Reports(ClusterState())
    for server in (A, B):
        told.take(server, Report([ReplicaReport("x.0", "x", 0, OPEN)], begins=True, ends=True), 0)
    told.keep(lambda uuid: uuid == "a")
    assert list(told.lists()) == [A]
    assert [server for server, _ in told._suspects] == ["a"]


def beat(sequence: int, server: Incarnation = A, record: ServerRecord | None = None) -> Heartbeat:
    return Heartbeat("c", server, sequence, figures=ServerFigures(sequence), registration=record)


def test_the_roster_believes_the_latest_only() -> None:
    """A late heartbeat, a repeated one, one of an earlier start; a new start begins anew, with its registration."""
    roster = Roster()
    record = ServerRecord("a", "h", 1, 1)
    assert roster.accept(beat(5, record=record), 1_000) is not None
    assert roster.accept(beat(5), 2_000) is None
    assert roster.accept(beat(4), 2_000) is None
    assert roster.accept(beat(9, Incarnation("a", 0)), 2_000) is None
    member = roster.find("a")
    assert member is not None
    assert (member.figures.open, member.received_ms, member.record, roster.stale) == (5, 1_000, record, 3)
    again = roster.accept(beat(1, Incarnation("a", 2)), 3_000)
    assert again is not None
    assert again.record is None


def test_who_is_silent_and_who_is_forgotten() -> None:
    """HB-12: only servers that are registered, and not before a heartbeat can have arrived."""
    roster = Roster()
    for sequence in range(1, KNOWN_BEATS + 1):
        roster.accept(beat(sequence), 1_000)
    late = 1_000 + SILENT_MS + 1
    assert roster.is_recent(A, late - 1)
    assert not roster.is_recent(A, late)
    assert not roster.is_recent(Incarnation("a", 2), 1_000)
    assert roster.silent([(A, 0), (B, late - 5)], late) == [(A, SILENT_MS + 1)]
    roster.forget(1_000 + DROPPED_MS)
    assert len(roster) == 1
    roster.forget(1_001 + DROPPED_MS)
    assert len(roster) == 0


def test_a_size_outlives_the_server_that_has_measured_it() -> None:
    """The rows stay where they are: the next server, or a plan before it, finds the region as large as it was."""
    found = reports()
    found.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN, rows=7, size_bytes=4096)], begins=True, ends=True), 0)
    assert found.sizes == {"t.0-0": Measure(7, 4096)}
    found.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN)]), 0)
    found.take(A, Report(gone=["t.0-0"]), 0)
    found.forget("a")
    assert found.sizes == {"t.0-0": Measure(7, 4096)}
    found.take(B, Report([ReplicaReport("t.0", "t", 0, OPEN, rows=0, size_bytes=0)], begins=True, ends=True), 0)
    assert found.sizes == {"t.0-0": Measure(0, 0)}


def test_sizes_of_deleted_regions_are_dropped() -> None:
    """But not before there are many of them: the look costs as much as there are."""
    found = reports()
    many = [ReplicaReport(f"x.{number}", "x", 0, OPEN, rows=1, size_bytes=1) for number in range(SPARE_SIZES + 1)]
    found.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN, rows=7, size_bytes=4096), *many[1:]], begins=True), 0)
    assert len(found.sizes) == SPARE_SIZES + 1
    found.take(A, Report(many[:1]), 0)
    assert list(found.sizes) == ["t.0-0"]


def test_only_changes_of_what_is_served_unsettle_a_servers_reports() -> None:
    """N5: a load or a size is reported again and again, and says nothing about owners."""
    told = reports()
    told.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN)], begins=True, ends=True), 10)
    holding = told.holding(A)
    assert holding is not None
    told.take(A, Report([ReplicaReport("t.0", "t", 0, OPEN, load=5.0)]), 20)
    assert holding.reported_ms == 10
    told.take(A, Report([ReplicaReport("t.0", "t", 0, "CLOSING")]), 30)
    assert holding.reported_ms == 30
    told.take(A, Report([], ["t.0-0"]), 40)
    assert holding.reported_ms == 40


def test_a_look_costs_what_is_due_and_not_what_is_known() -> None:
    """In a bulk assignment all regions may be suspects for some seconds. Edit that fails: `due` walks all suspects."""
    told = reports()
    for at_ms in (0, 1_000):
        many = [ReplicaReport(f"u{at_ms}.{number}", "u", 0, OPEN) for number in range(100)]
        told.take(A, Report(many, begins=at_ms == 0, ends=True), at_ms)
    [*first] = told.due(PATIENCE_MS)
    assert {one.table_id for one in first} == {"u"}
    assert len(first) == 100
    assert sum(map(len, told._waiting.values())) == 200, (
        "the others were not touched, and the first have their next time"
    )
    assert {one.due_ms for one in told.due(1_000 + PATIENCE_MS)} == {1_000 + PATIENCE_MS + RECHECK_MS}
