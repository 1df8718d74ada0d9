"""Replicas whose owner is in doubt, and the comparison of a master's copy with the store."""

from __future__ import annotations

import pytest

from regions.cluster.state import ClusterState
from regions.diagnose.invariants import Rule
from regions.diagnose.live import cache_check
from regions.diagnose.live.cache_check import CONFIRM_MS, CacheCheck, CacheDifference
from regions.diagnose.live.doubts import (
    DOUBT_MAX_MS,
    HEARD_MS,
    LOOKS_MAX,
    PATIENCE_MS,
    OwnerDoubts,
    SettledList,
    doubtful,
)
from regions.messages.heartbeat import ReplicaReport, Report
from regions.records.model import Incarnation, RegionRecord, TableRecord
from regions.records.znodes import Layout

A, B = Incarnation("a", 1), Incarnation("b", 1)
LAYOUT = Layout("/rk")


def looks(
    settled: dict[Incarnation, list[str]], *, home: Incarnation | None = A, until_ms: int = PATIENCE_MS + 500
) -> list[tuple[str, Rule]]:
    """Return what is found about one doubtful replica, looking twice a second."""
    found = OwnerDoubts()
    found.put(["r-0"], 0)
    alarms = []
    for now_ms in range(0, until_ms + 1, 500):
        lists = {server: SettledList(keys, now_ms) for server, keys in settled.items()}
        alarms += [(key, rule) for key, (rule, _) in found.look(lambda _: home, lists, now_ms)]
    return alarms


def test_a_replica_that_nobody_serves_is_found_once_and_only_after_two_heartbeats() -> None:
    assert looks({A: []}, until_ms=PATIENCE_MS - 500) == []
    assert looks({A: []}, until_ms=PATIENCE_MS) == [("r-0", Rule.NO_OWNER)]
    assert looks({A: []}, until_ms=10 * PATIENCE_MS) == [("r-0", Rule.NO_OWNER)]


def test_other_owners_are_found_and_the_right_one_ends_the_doubt() -> None:
    assert looks({A: ["r-0"]}) == []
    assert looks({A: [], B: ["r-0"]}) == [("r-0", Rule.ELSEWHERE)]
    assert looks({A: ["r-0"], B: ["r-0"]}) == [("r-0", Rule.SEVERAL_OWNERS)]


def test_a_replica_in_transition_is_no_contradiction() -> None:
    assert looks({A: []}, home=None) == []


def test_a_server_without_settled_reports_is_waited_for_but_not_for_ever() -> None:
    waiting = OwnerDoubts()
    waiting.put(["r-0"], 0)
    assert waiting.look(lambda _: A, {B: SettledList([], 0)}, DOUBT_MAX_MS - 1) == []
    assert len(waiting) == 1
    assert waiting.look(lambda _: A, {B: SettledList([], 0)}, DOUBT_MAX_MS) == []
    assert len(waiting) == 0


def test_a_server_that_has_not_been_heard_since_the_event_is_waited_for() -> None:
    """It may be frozen: its last heartbeat is recent, and does not have the region that it opened then."""
    waiting = OwnerDoubts()
    waiting.put(["r-0"], 0)
    for now_ms in range(0, DOUBT_MAX_MS, 500):
        assert waiting.look(lambda _: A, {A: SettledList([], HEARD_MS - 1)}, now_ms) == []
    heard = {A: SettledList([], HEARD_MS)}
    assert waiting.look(lambda _: A, heard, DOUBT_MAX_MS) == []
    assert waiting.look(lambda _: A, heard, DOUBT_MAX_MS + 500) != []


def test_a_replica_that_has_moved_is_in_doubt_since_its_move() -> None:
    """The doubt about the former server says nothing about the new one, whose report may be on its way."""
    waiting = OwnerDoubts()
    waiting.put(["r-0"], 0)
    assert waiting.look(lambda _: A, {B: SettledList([], 0)}, 0) == []
    waiting.put(["r-0"], 5_000)
    for now_ms in (5_000, 5_500, 6_000, 6_499):
        assert waiting.look(lambda _: B, {B: SettledList([], now_ms)}, now_ms) == []
    assert waiting.look(lambda _: B, {B: SettledList([], 6_500)}, 6_500) != []


def test_a_look_is_bounded() -> None:
    waiting = OwnerDoubts()
    waiting.put([f"r{number}-0" for number in range(LOOKS_MAX + 1)], 0)
    waiting.look(lambda _: None, {A: SettledList([], 1)}, 1)
    assert len(waiting) == 1


def test_without_settled_reports_no_replica_is_looked_at_and_the_oldest_doubts_end() -> None:
    """Edits that make this fail: `look` goes on without settled reports, or `_give_up` drops all doubts."""
    waiting = OwnerDoubts()
    waiting.put(["old-0"], 0)
    waiting.put(["new-0"], 1)
    assert waiting.look(_not_asked, {}, DOUBT_MAX_MS) == []
    assert len(waiting) == 1


def test_an_event_before_the_first_look_begins_the_doubt_anew() -> None:
    """The replica may have moved, and its new server may report late.

    Edit that makes this fail: `put` ignores a replica that is in doubt.
    """
    waiting = OwnerDoubts()
    waiting.put(["r-0"], 0)
    assert waiting.look(_not_asked, {}, 1_000) == []
    waiting.put(["r-0"], 5_000)
    for now_ms in (5_000, 5_500, 6_000, 6_499):
        assert waiting.look(lambda _: B, {B: SettledList([], now_ms)}, now_ms) == []
    assert waiting.look(lambda _: B, {B: SettledList([], 6_500)}, 6_500) != []


def test_a_standby_has_no_doubts() -> None:
    """Edit that makes this fail: `look` treats None like no settled reports."""
    waiting = OwnerDoubts()
    waiting.put(["r-0"], 0)
    assert waiting.look(_not_asked, None, 0) == []
    assert len(waiting) == 0


def _not_asked(key: str) -> Incarnation | None:
    raise AssertionError(f"the home of {key} was asked for")


def test_what_a_report_puts_in_doubt() -> None:
    closing = ReplicaReport("t.2", "t", 0, "CLOSING")
    fine = ReplicaReport("t.3", "t", 0, "OPEN")
    changes = Report([closing, fine], ["t.1-0"])
    assert doubtful(changes, ["t.9-0"], []) == ["t.1-0", closing.key]
    assert doubtful(Report([fine], begins=True, ends=True), ["t.9-0", "t.3-0"], ["t.3-0"]) == ["t.9-0"]


# --- the copy -------------------------------------------------------------------------------------------------------


def world(count: int = 1) -> ClusterState:
    found = ClusterState()
    found.put_table(TableRecord("t", "t", ()), 0)
    for number in range(count):
        found.put_region(RegionRecord("t", f"t.{number}"), 4)
    return found


REGION = LAYOUT.region("t", "t.0")


def test_a_difference_counts_when_the_same_one_lasts() -> None:
    check, copy = CacheCheck(LAYOUT), world()
    assert check.see(copy, ["t.0"], {REGION: 4}, 0) == []
    assert check.see(copy, ["t.0"], {REGION: 5}, 0) == []
    assert check.see(copy, ["t.0"], {REGION: 5}, CONFIRM_MS - 1) == []
    assert check.see(copy, ["t.0"], {REGION: 5}, CONFIRM_MS) == [CacheDifference(REGION, 5, 4)]


def test_another_difference_or_none_begins_anew() -> None:
    for between in (6, 4):
        check, copy = CacheCheck(LAYOUT), world()
        for version, at_ms in ((5, 0), (between, 1), (5, CONFIRM_MS)):
            assert check.see(copy, ["t.0"], {REGION: version}, at_ms) == []


# Fails if `see` compares paths of `unread`, or remembers their differences.
def test_a_change_that_the_copy_has_not_read_yet_is_no_difference() -> None:
    """A mirror reads the transitions of a bulk assignment minutes after their events."""
    check, copy = CacheCheck(LAYOUT), world()
    assert check.see(copy, ["t.0"], {REGION: 5}, 0) == []
    assert check.see(copy, ["t.0"], {REGION: 5}, CONFIRM_MS, {REGION}) == []
    assert check.see(copy, ["t.0"], {REGION: 5}, CONFIRM_MS + 1) == [], "the time begins anew"
    assert check.see(copy, ["t.0"], {REGION: 5}, 2 * CONFIRM_MS + 1) == [CacheDifference(REGION, 5, 4)]


def test_missing_and_unexpected_znodes_are_differences() -> None:
    check, copy = CacheCheck(LAYOUT), world()
    transition = LAYOUT.transition("t.0", 0)
    for at_ms in (0, CONFIRM_MS):
        found = check.see(copy, ["t.0"], {transition: 2}, at_ms)
    assert found == [CacheDifference(REGION, -1, 4), CacheDifference(transition, 2, -1)]
    assert str(found[0]) == f"{REGION} has no znode in the store and version 4 in this master's copy"


def test_slices_cover_all_regions_and_repeat_the_suspects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_check, "SLICE", 2)
    check, copy = CacheCheck(LAYOUT), world(5)
    first = check.next_slice(copy)
    check.see(copy, first, {}, 0)
    second = check.next_slice(copy)
    assert set(first) <= set(second), "the suspects are read again"
    third = check.next_slice(copy)
    assert {*first, *second, *third} == set(copy.regions)
    assert len(check.paths(copy, ["t.0", "gone"])) == 2
