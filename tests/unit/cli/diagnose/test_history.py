"""`rk history`: its lines, and the entries that it reads from segments and from znodes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cli.common.names import Names
from cli.diagnose.history import HistoryView, lines, read_past
from regions.cluster.history import FORCED, HistoryEntry, Segment, complete_history, pack
from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.records.znodes import Layout, encode

LAYOUT = Layout("/rk")
KEY = "t1.0001-0"
#: 2026-11-23 20:05:43.028 UTC.
NOW_MS = 1_795_464_343_028


class Cluster:
    """The methods of a store that `read_past` uses; records the order of the calls."""

    layout = LAYOUT

    def __init__(self, segments: dict[str, bytes], transitions: dict[str, tuple[bytes, int]]) -> None:
        self.segments = segments
        self.transitions = transitions
        self.asked: list[str] = []

    def children(self, _path: str) -> list[str]:
        self.asked.append("segments")
        return sorted(self.segments)

    def get_many(self, paths: dict[str, str]) -> dict[str, bytes]:
        return {name: self.segments[name] for name in paths}

    def transitions_left(self) -> list[str]:
        self.asked.append("transitions")
        return sorted(self.transitions)

    def get_versions(self, paths: list[str]) -> list[tuple[str, bytes, int]]:
        return [(path, *self.transitions[path]) for path in paths]


def past_of(cluster: Cluster) -> HistoryView:
    found: Any = cluster
    return read_past(found, Names([], None))


def test_steps_that_no_master_has_written_down_are_read_from_their_znodes() -> None:
    """The znodes are read first: a step that is recorded in between is then found twice instead of not at all."""
    assigned = pack([HistoryEntry(1, KEY, "master", "", "OFFLINE", "assign", "s1", 3)])
    here = Incarnation("s1", 1)
    opened = TransitionRecord("t1.0001", "t1", 0, RegionState.OPENED, None, here, epoch=3, took=(5, 6))
    segments = {Segment(3, 0, 1, len(assigned)).name: assigned}
    cluster = Cluster(segments, {LAYOUT.transition("t1.0001", 0): (encode(opened), 2)})
    past = past_of(cluster)
    assert [(one.before, one.after, one.actor) for one in past.entries] == [
        ("", "OFFLINE", "master"),
        ("OFFLINE", "OPENING", "server"),
        ("OPENING", "OPENED", "server"),
    ]
    assert cluster.asked == ["transitions", "segments"]
    assert past.unreadable == []


def test_a_znode_that_makes_no_sense_is_told_and_hides_nothing() -> None:
    cluster = Cluster({}, {LAYOUT.transition("t1.0001", 0): (b"{", 0)})
    past = past_of(cluster)
    assert (past.entries, len(past.unreadable)) == ([], 1)


def test_a_gap_and_steps_without_a_time_are_said_in_words() -> None:
    """Nothing is guessed: the output shows where entries are missing."""
    entries = [
        HistoryEntry(1, KEY, "master", "", "OFFLINE", "assign", "s1", 3),
        HistoryEntry(9, KEY, "server", "OPENING", "OPENING", "progress", "s1", 3, missed=2),
    ]
    past = HistoryView(complete_history(entries, []), Names([], None), [])
    said = [line.plain for line in lines(past.step(one, {"t1": "orders"}) for one in past.entries)]
    assert "the steps between OFFLINE and OPENING were not recorded" in said[-2]
    assert "OPENING -> OPENING (and 2 steps before, of unknown time)" in said[-1]


def test_a_forced_configuration_is_a_line_of_its_tablet() -> None:
    detail = "members 2 stay, 1, 3 are given up"
    entry = HistoryEntry(5, "", "master", "", "", FORCED, "s2", 3, reason="t1.0001", detail=detail)
    data = pack([entry])
    past = past_of(Cluster({Segment(3, 0, 1, len(data)).name: data}, {}))
    [*_, text] = lines([past.step(one, {"t1": "orders"}) for one in past.entries])
    assert "orders t1.0001  forced configuration by an operator, carried out by s2: members 2 stay" in text.plain


def test_lines_have_date_and_zone_and_errors_end_with_the_step_that_cured_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: the history is read days later, and by people elsewhere."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    full = "disk is full"
    try:
        entries = [
            HistoryEntry(
                1_795_464_343_028, KEY, "master", "OPENING", "OFFLINE", "retry", "s1", 3, detail="disk is full"
            ),
            HistoryEntry(
                1_795_464_343_029, KEY, "server", "OPENING", "OPENED", "open done", "s1", 3, detail="disk is full"
            ),
        ]
        view = HistoryView(entries, Names([], None), [])
        failed, cured = (line.plain for line in lines(view.step(one, {"t1": "orders"}) for one in entries))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert failed.startswith("2026-11-23 21:05:43.028+0100  orders")
    assert full in failed
    assert full not in cured
