"""The auditor's rules (N5): each kind of violation is planted once, and legal behavior raises no alarm."""

from __future__ import annotations

from typing import Any

import pytest

from regions.diagnose import invariants as module
from regions.diagnose.invariants import Audit, Rule, contradictions
from regions.records.alarms import Alarm
from regions.records.model import Incarnation, RegionState, ServerRecord, TableIntent, TableRecord, TransitionRecord
from regions.transitions.observed import UNKNOWN, ObservedTransition, deleted
from regions.transitions.states import STEPS

A = Incarnation("a", 1)
B = Incarnation("b", 1)
NOW = 1_000_000
KEY = "t1.0001-0"


class Watched:
    """An audit of one table that is to be open and two live servers, with one replica's transition."""

    def __init__(self, **bounds: int) -> None:
        self.audit = Audit(**bounds)
        self.alarms: list[Alarm] = []
        self.zxid = 100
        self.czxid = 0
        self.version = -1
        self.now = NOW
        for uuid in ("a", "b"):
            self.audit.server(uuid, ServerRecord(uuid, uuid, 1, 1))
        self.table()
        self.alarms += self.audit.epoch(3, 1, NOW)
        self.now += module.TABLE_GRACE_MS

    def table(self, intent: TableIntent = TableIntent.ENABLED) -> None:
        self.audit.table("t1", TableRecord("t1", "orders", intent=intent), self.now)

    def write(self, state: str, steps: int = 1, **fields: Any) -> list[Alarm]:
        """Write the znode `steps` times, then let the audit read it."""
        self.zxid += steps
        if self.version < 0:
            self.czxid = self.zxid
        self.version += steps
        given: dict[str, Any] = {"destination": A, "source": B, "epoch": 3, "deadline_ms": 1, **fields}
        record = TransitionRecord("t1.0001", "t1", 0, RegionState(state), **given)
        return self._see(ObservedTransition(self.now, KEY, record, self.version, self.czxid, self.zxid))

    def delete(self, version: int | None = None) -> list[Alarm]:
        """Delete the znode at its last version as counted, or as given."""
        last = self.version if version is None else version
        self.version = -1
        return self._take(self.audit.ended(KEY, last, self.now))

    def _see(self, sight: ObservedTransition) -> list[Alarm]:
        return self._take(self.audit.see(sight))

    def _take(self, found: list[Alarm]) -> list[Alarm]:
        self.now += 10
        self.alarms += found
        return found


def rules(alarms: list[Alarm]) -> list[str]:
    return [one.rule for one in alarms]


def test_every_legal_way_of_a_region_is_silent() -> None:
    """N5: an open, a move, a failed and a late open, a parked region tried again."""
    watched = Watched()
    for state in ("OFFLINE", "OPENING", "OPENED"):
        watched.write(state, source=None)
    watched.delete()
    for state in ("CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENING", "OFFLINE", "OPENING", "OPENED"):
        watched.write(state)
    watched.delete()
    watched.write("OFFLINE", source=None)
    watched.write("OFFLINE", parked=True, destination=None, deadline_ms=0, source=None)
    watched.write("OFFLINE", destination=B, source=None)
    watched.write("OPENED", steps=2, destination=B, source=None)
    watched.delete()
    assert watched.alarms == []
    assert watched.audit.steps == 19


def test_steps_that_nobody_saw_must_have_had_a_legal_way() -> None:
    """RT-30: versions count every write."""
    watched = Watched()
    watched.delete(version=2)
    assert watched.alarms == []
    assert rules(watched.delete(version=0)) == [Rule.VANISHED]


@pytest.mark.parametrize("before", [None, *RegionState])
@pytest.mark.parametrize("after", list(RegionState))
def test_a_step_that_is_not_in_the_table_raises_an_alarm(before: RegionState | None, after: RegionState) -> None:
    """RT-21, RT-26: all thirty writes, each compared with the table."""
    legal = any(step.before == before and step.after == after for step in STEPS)
    audit = Audit()
    fields: dict[str, Any] = {"source": A, "destination": A, "deadline_ms": 1}
    if before is not None:
        audit.begin([ObservedTransition(NOW, KEY, TransitionRecord("t1.0001", "t1", 0, before, **fields), 4, 1, 1)])
    record = TransitionRecord("t1.0001", "t1", 0, after, **fields)
    alarms = audit.see(ObservedTransition(NOW, KEY, record, 0 if before is None else 5, 1, 2))
    assert rules(alarms) == ([] if legal else [Rule.ILLEGAL_STEP])


def test_an_alarm_carries_the_steps_that_led_to_it_and_is_raised_once() -> None:
    """N5: the alarm has the last steps; N10: one znode version gives one alarm."""
    watched = Watched()
    watched.write("OFFLINE", source=None, reason="assign")
    [alarm] = watched.write("CLOSING")
    assert [(one.before, one.after) for one in alarm.steps] == [("", "OFFLINE"), ("OFFLINE", "CLOSING")]
    assert alarm.steps[0].reason == "assign"
    assert alarm.key == KEY
    assert "OFFLINE -> CLOSING" in alarm.text
    other = Watched()
    other.write("OFFLINE", source=None)
    [same] = other.write("CLOSING")
    assert same.alarm_id == alarm.alarm_id, "two auditors raise the same alarm"


@pytest.mark.parametrize("before", ["", "CLOSING"])
def test_a_region_is_not_taken_from_a_server_that_lives(before: str) -> None:
    """X1: the source must be dead, or be another start of the same server."""
    for source, expected in ((B, [Rule.TAKEN_FROM_THE_LIVING]), (Incarnation("b", 0), []), (Incarnation("c", 1), [])):
        watched = Watched()
        if before:
            watched.write(before, source=source)
        assert rules(watched.write("OFFLINE", source=source)) == expected
    watched = Watched()
    watched.audit.server("b", None)
    assert watched.write("OFFLINE", source=B) == [], "what is not certain is no alarm"


def test_only_the_named_server_goes_on() -> None:
    """RT-28."""
    watched = Watched()
    watched.write("OFFLINE", source=None, destination=A)
    assert rules(watched.write("OPENING", destination=B)) == [Rule.WRONG_SERVER]


def test_a_transition_ends_closed_only_if_its_table_is_to_be_closed() -> None:
    """X3: CLOSED is deleted for a disabled table; soon after a change of the table there is no alarm."""
    watched = Watched()
    watched.write("CLOSING")
    watched.write("CLOSED")
    assert rules(watched.delete()) == [Rule.VANISHED]
    disabled = Watched()
    disabled.table(TableIntent.DISABLED)
    disabled.write("CLOSING")
    disabled.write("CLOSED")
    disabled.table()
    assert disabled.delete() == []


@pytest.mark.parametrize(
    ("state", "steps"), [("OFFLINE", 1), ("OPENING", 2), ("OPENED", 3), ("CLOSING", 1), ("CLOSED", 2)]
)
def test_what_ended_during_a_gap_may_have_ended_in_any_legal_way(state: str, steps: int) -> None:
    """Found by killing store nodes while regions moved: a move that completed while the auditor was disconnected looked
    like a deleted close."""
    watched = Watched()
    watched.write(state, steps, **({} if state.startswith("CLOS") else {"source": None}))
    watched.delete(version=UNKNOWN)
    assert watched.alarms == []
    assert watched.audit.in_transition == []


def test_a_cluster_startup_wipes_what_no_live_server_has() -> None:
    """RT-04: the named servers are dead by then."""
    watched = Watched()
    watched.write("OPENING", steps=2, source=None, destination=Incarnation("a", 0))
    assert watched.delete() == []


@pytest.mark.parametrize(
    ("state", "fields", "rule"),
    [
        ("OFFLINE", {"deadline_ms": 0, "source": None}, Rule.NO_DEADLINE),
        ("CLOSING", {"deadline_ms": 0}, Rule.NO_DEADLINE),
        ("CLOSING", {"source": None}, Rule.NOBODY_RESPONSIBLE),
        ("CLOSING", {"epoch": 4}, Rule.UNKNOWN_EPOCH),
        ("OFFLINE", {"epoch": 2, "source": None}, Rule.STALE_EPOCH),
    ],
)
def test_a_record_that_lacks_what_it_must_have(state: str, fields: dict[str, Any], rule: Rule) -> None:
    """RT-11, FN-01."""
    watched = Watched()
    assert rules(watched.write(state, **fields)) == [rule]


def test_a_transition_may_show_an_epoch_of_which_there_is_only_word() -> None:
    """Found by DDL stress: a request from before the change of the epoch was answered before the epoch was read."""
    watched = Watched()
    watched.audit.epoch_changes()
    assert watched.write("CLOSING", epoch=4) == []
    watched.audit.epoch(4, 50, watched.now)
    assert watched.write("CLOSED", epoch=4) == []
    assert rules(watched.write("OFFLINE", epoch=5, source=None)) == [Rule.UNKNOWN_EPOCH]


def test_an_epoch_that_does_not_rise() -> None:
    """FN-01: `/epoch` was deleted, or set back."""
    watched = Watched()
    assert watched.audit.epoch(4, 50, NOW) == []
    assert watched.audit.epoch(4, 50, NOW) == []
    assert rules(watched.audit.epoch(0, 60, NOW)) == [Rule.EPOCH_FELL]


def test_a_transition_that_stands_still_is_an_alarm_at_the_bound_and_not_before() -> None:
    """RT-11: every assignment must end; parked regions may wait (X11)."""
    watched = Watched(still_ms=1_000)
    watched.write("CLOSING")
    seen = watched.now - 10
    assert watched.audit.tick(seen + 1_000) == []
    assert rules(watched.audit.tick(seen + 1_001)) == [Rule.STANDS_STILL]
    assert watched.audit.tick(seen + 2_000) == []
    parked = Watched(still_ms=1_000)
    parked.write("OFFLINE", source=None, parked=True, destination=None, deadline_ms=0)
    assert parked.audit.tick(parked.now + 5_000) == []


def test_a_transition_with_a_recent_step_hides_no_other_that_stands_still() -> None:
    """RT-11: the check ends at the first recent step, so `see` must put a transition behind those it has overtaken.

    Fails if `see` leaves it in its place. A step from before the clock was set back must not end the check: fails if
    `tick` takes a time in the future for a recent one.
    """
    watched = Watched(still_ms=1_000)
    watched.write("CLOSING")
    other = TransitionRecord("t1.0002", "t1", 0, RegionState.CLOSING, source=B, epoch=3, deadline_ms=1)
    watched.audit.see(ObservedTransition(watched.now, "t1.0002-0", other, 0, watched.zxid + 1, watched.zxid + 1))
    watched.now += 900
    watched.write("CLOSED")
    assert [one.key for one in watched.audit.tick(watched.now + 200)] == ["t1.0002-0"]
    set_back = Watched(still_ms=1_000)
    set_back.now += 50_000
    set_back.write("CLOSING")
    set_back.now -= 50_000
    set_back.audit.see(ObservedTransition(set_back.now, "t1.0002-0", other, 0, set_back.zxid + 1, set_back.zxid + 1))
    assert [one.key for one in set_back.audit.tick(set_back.now + 2_000)] == ["t1.0002-0"]


@pytest.mark.parametrize(
    ("stored", "lists", "expected"),
    [
        ({"r-0": A}, {A: ["r-0"]}, {}),
        ({"r-0": A}, {A: [], B: []}, {"r-0": Rule.NO_OWNER}),
        ({"r-0": A}, {A: [], B: ["r-0"]}, {"r-0": Rule.ELSEWHERE}),
        ({"r-0": A}, {A: ["r-0"], B: ["r-0"]}, {"r-0": Rule.SEVERAL_OWNERS}),
        ({}, {A: ["r-0"], B: ["r-0"]}, {"r-0": Rule.SEVERAL_OWNERS}),
        ({"r-0": A}, {}, {}),
        ({"r-0": A}, {B: []}, {}),
        ({"r-0": A}, {B: ["r-0"]}, {}),
        ({"r-0": A, "r-1": B}, {A: ["r-0"], B: ["r-1"]}, {}),
    ],
)
def test_the_store_and_the_servers_must_agree(
    stored: dict[str, Incarnation], lists: dict[Incarnation, list[str]], expected: dict[str, Rule]
) -> None:
    """N5: at most one owner, and it is the one that the store names."""
    assert {key: rule for key, (rule, _) in contradictions(stored, lists)} == expected


def test_an_orphan_is_an_alarm_once() -> None:
    """FN-04: reported, not closed; another server with it gives another alarm."""
    audit = Audit()
    assert rules(audit.orphan("r-0", A, NOW)) == [Rule.ORPHAN]
    assert audit.orphan("r-0", A, NOW + 1) == []
    assert rules(audit.orphan("r-0", B, NOW)) == [Rule.ORPHAN]


def test_one_look_at_the_owners_is_not_enough_for_an_alarm() -> None:
    """A step between two reads looks like a contradiction; two checks with the same result do not."""
    audit = Audit()
    wrong: dict[Incarnation, list[str]] = {A: []}
    found = dict(contradictions({"r-0": A}, wrong))
    assert audit.compared(found, NOW) == []
    assert audit.compared({}, NOW) == []
    assert audit.compared(found, NOW) == []
    assert rules(audit.compared(found, NOW)) == [Rule.NO_OWNER]
    assert audit.compared(found, NOW) == []


@pytest.mark.parametrize("versions", [(2,), (3, 2), (2, 0), (1,), (0, 4)])
def test_a_transition_that_ended_unread_leaves_the_steps_of_one_that_is_checked_in_full(
    versions: tuple[int, ...],
) -> None:
    """Steps and slices are those of `see`. Versions 0 and 1 are not the usual end, and are not taken the short way.

    Edit that makes it fail: `slice_of` without `_flush_ending`.
    """
    short, full = Audit(), Audit()
    for version in versions:
        found = short.ended(KEY, version, NOW + version)
        assert found == full.see(deleted(KEY, version, NOW + version))
    assert (short.steps, short._history.steps_missed) == (full.steps, full._history.steps_missed)
    assert short.slice_of(KEY) == full.slice_of(KEY) != ()


def test_endings_that_were_not_read_are_bounded() -> None:
    """Each is kept until its replica is asked for, or SLICES_MAX others have ended."""
    audit = Audit(slices_max=2)
    for number in range(3):
        assert audit.ended(f"r{number}-0", 2, NOW) == []
    assert [len(audit.slice_of(f"r{number}-0")) for number in range(3)] == [0, 1, 1]


def test_memory_is_bounded() -> None:
    """SLICES_MAX replicas, SLICE_MAX steps each, RAISED_MAX alarms."""
    audit = Audit(slices_max=2)
    for number in range(3):
        record = TransitionRecord(f"r{number}", "t1", 0, RegionState.OFFLINE, deadline_ms=1)
        audit.see(ObservedTransition(NOW, f"r{number}-0", record, 0, number + 1, number + 1))
    assert [len(audit.slice_of(f"r{number}-0")) for number in range(3)] == [0, 1, 1]
    gap = ObservedTransition(NOW, "r2-0", TransitionRecord("r2", "t1", 0, RegionState.OPENED), UNKNOWN, exists=False)
    assert rules(audit.see(gap)) == []
