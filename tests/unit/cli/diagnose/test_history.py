"""`rk history`: its lines, and the entries that it reads from segments and from znodes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from cli.common.names import Names
from cli.diagnose.history import HistoryView, lines, read_past
from regions.cluster.history import (
    BALANCED,
    DRAIN_BEGINS,
    EPOCH_BEGINS,
    SERVER_DOWN,
    SERVER_FENCED,
    SERVERS,
    STORE_OUTAGE,
    Segment,
    complete_history,
    concerns,
    pack,
)
from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.records.znodes import Layout, encode
from regions.transitions.entries import FORCED, REQUEST, HistoryEntry

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

    def get_stats(self, paths: dict[str, str]) -> dict[str, tuple[bytes, Any]]:
        found: dict[str, tuple[bytes, Any]] = {}
        for name in paths:
            data, version = (self.segments[name], 0) if name in self.segments else self.transitions[name]
            found[name] = data, SimpleNamespace(version=version, czxid=0x10, mzxid=0x20)
        return found

    def transitions_left(self) -> list[str]:
        self.asked.append("transitions")
        return sorted(self.transitions)


def past_of(cluster: Cluster) -> HistoryView:
    found: Any = cluster
    return read_past(found, Names([], None))


def test_the_error_of_a_step_names_servers() -> None:
    """A failed open names the server that had the region; an operator knows no uuids.

    Tried: with the recorded text as it is, the line has the uuid.
    """
    uuid = "2163caf8-5da8-4e19-a56e-bc95c759053e"
    names = Names([], None)
    names.remember(uuid, "10.0.0.2:21852")
    failed = HistoryEntry(1, KEY, "master", "OPENING", "OFFLINE", "open failed", detail=f"server {uuid} had it open")
    line = HistoryView([failed], names, []).step(failed, {"t1": "orders"})
    assert line.error == "server 10.0.0.2:21852 had it open"
    [text] = lines([line])
    assert uuid not in str(text)


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
    assert [one.zxid for one in past.entries] == [0x10, 0, 0x20], "a server's earlier step has no known zxid"
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


EVENTS = [
    HistoryEntry(NOW_MS, "", "master", "", "", EPOCH_BEGINS, "m1", 3, detail="10.0.0.1:4000"),
    HistoryEntry(NOW_MS, "", "master", "", "", SERVERS, "", 3, detail="s1=10.0.0.2:5000 s2=10.0.0.3:5000"),
    HistoryEntry(
        NOW_MS, "", "master", "", "", REQUEST, "s2", 3, detail="drain server s2", cause_id="e3-2",
        origin="request: DrainServer s2 from 10.0.0.9:41022", zxid=0x1F3,
    ),
    HistoryEntry(NOW_MS, "", "master", "", "", DRAIN_BEGINS, "s2", 3, cause_id="e3-2"),
    HistoryEntry(NOW_MS, KEY, "server", "", "CLOSING", "close order", "s2", 3, cause_id="e3-3"),
    HistoryEntry(NOW_MS, "", "master", "", "", SERVER_FENCED, "s1", 3, detail="10.0.0.2:5000 it hangs"),
    HistoryEntry(NOW_MS, "", "server", "", "", SERVER_DOWN, "s2", 3, detail="10.0.0.3:5000"),
    HistoryEntry(NOW_MS, "", "master", "", "", STORE_OUTAGE, "", 3, detail="3.0 s without a connection to the store"),
    HistoryEntry(NOW_MS, "", "master", "", "", BALANCED, "", 3, detail="8 replicas move", cause_id="e3-4"),
    HistoryEntry(NOW_MS, "", "master", "", "", REQUEST, "", 3, detail="disable table orders", subject="orders"),
    HistoryEntry(
        NOW_MS, "", "master", "", "", REQUEST, "", 3, detail="abort plan p1",
        origin="request: AbortPlan from user:admin at 10.0.0.9:41022",
    ),
]  # fmt: skip
TRANSCRIPT = """\
** 10.0.0.1:4000 becomes active, epoch 3
** 2 servers registered: 10.0.0.2:5000, 10.0.0.3:5000
** operator at 10.0.0.9:41022: drain server 10.0.0.3:5000  [e3-2]
** 10.0.0.3:5000 is to be emptied  [e3-2]
orders t1.0001  (none) -> CLOSING  by 10.0.0.3:5000  close order  [e3-3]
** 10.0.0.2:5000 is fenced: it hangs
** 10.0.0.3:5000 is gone
** store outage: 3.0 s without a connection to the store
** balancer round: 8 replicas move  [e3-4]
** operator: disable table orders
** user:admin at 10.0.0.9:41022: abort plan p1
"""


def test_requests_and_events_stand_between_the_steps() -> None:
    """N2, B9: the user who drained the server, the balancer's moves, times without the store; 80 columns and the time.

    Tried: without the look at ` at ` in `_text` the last line calls user:admin an operator; without `in_text` the third
    one names the server by its uuid.
    """
    view = HistoryView(EVENTS, Names([], None), [])
    said = [line.plain for line in lines(view.step(one, {"t1": "orders"}) for one in EVENTS)]
    assert "\n".join(line.partition("  ")[2] for line in said) + "\n" == TRANSCRIPT
    with_zxid = [line.plain for line in lines([view.step(EVENTS[2], {}), view.step(EVENTS[4], {})], zxids=True)]
    assert [line.rpartition("  ")[2] for line in with_zxid] == ["zxid 0x1f3", "zxid unknown"]


def test_requests_are_found_by_table_and_server() -> None:
    asked = [one for one in EVENTS if concerns(one, table_id="t1", table="orders")]
    assert [one.cause for one in asked] == ["close order", REQUEST]
    assert [one.cause for one in EVENTS if concerns(one, server="s1")] == [SERVER_FENCED]
